"""Worlds in which keyed rows wait for a broadcast stream, and bugs that only such worlds show."""

from __future__ import annotations

from typing import Any

import pytest
from planted_bugs import found, shows, worlds

from penstock.core.recovery.metadata import Claim
from penstock.core.task.waiting import InputWait, WaitFor
from penstock.runtime.task.operators.waiting import WaitingOperator
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import TICK_US, Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),
    SlotCrash(at_ms=700, slot=1, notice=Notice.TOLD),
)
WAITS = {"end": WaitFor(), "event time": WaitFor(watermark_us=20 * TICK_US), "time": WaitFor(time_ms=150)}


def waiting(make: Any, wait: WaitFor, count: int = 4, *, unaligned: bool = False, **changes: Any) -> list[Scenario]:
    """Jobs whose broadcast stream is as long as the other one."""
    made = worlds(make, count, make.steady, lambda s: make.shape(s, Shape.WAITS), **{"faults": CRASHES, **changes})
    made = [make.workload(s, wait=wait, other_rows=(s.workload.rows,)) for s in made]
    return [make.checkpoints(s, interval_ms=40, unaligned=unaligned) for s in made]


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_rows_wait_in_every_attempt_and_come_out_once(make: Any, wait: WaitFor, unaligned: bool):
    results = [run_scenario(world) for world in waiting(make, wait, unaligned=unaligned)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP])
def test_rows_that_wait_go_over_to_another_parallelism(make: Any, wish: Wish, unaligned: bool, parallelism: int):
    to = parallelism if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    given = waiting(make, WaitFor(), 8, unaligned=unaligned, requests=(request,), again=again, faults=())
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_many_worlds_wait_in_every_way():
    drawn = [scenario_of(seed).workload for seed in range(1, 400)]
    waits = [workload.wait for workload in drawn if workload.shape is Shape.WAITS]
    assert any(wait == WaitFor() for wait in waits)
    assert any(wait is not None and wait.watermark_us for wait in waits)
    assert any(wait is not None and wait.time_ms for wait in waits)


# --- planted bugs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_rows_that_do_not_wait_are_found(make: Any, monkeypatch: pytest.MonkeyPatch, wait: WaitFor):
    monkeypatch.setattr(InputWait, "is_over", lambda self, now: True)
    assert found(waiting(make, wait)) == [Rule.WAITS]


@pytest.mark.parametrize("wait", [WAITS["end"], WAITS["event time"]], ids=["end", "event time"])
def test_a_wait_for_one_channel_of_several_is_found(make: Any, monkeypatch: pytest.MonkeyPatch, wait: WaitFor):
    honest = InputWait.begin
    monkeypatch.setattr(InputWait, "begin", lambda self, channels, now: honest(self, channels[-1:], now))
    assert found(waiting(make, wait)) == [Rule.WAITS]


def test_an_attempt_that_does_not_wait_again_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = WaitingOperator.load

    def load(self: WaitingOperator, context: Any) -> None:
        honest(self, context)
        self.is_waiting = context.fresh

    monkeypatch.setattr(WaitingOperator, "load", load)
    assert shows(Rule.WAITS, waiting(make, WaitFor()))


def test_rows_that_waited_in_a_snapshot_and_are_lost_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.runtime.task.operators.waiting.own_rows", lambda *args: [])
    assert found(waiting(make, WaitFor())) == [Rule.EXACTLY_ONCE]

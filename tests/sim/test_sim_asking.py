"""Worlds with async calls, and bugs that only such worlds show."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from planted_bugs import found, shows, worlds

from penstock.core.recovery.metadata import Claim
from penstock.core.task.requests import Requests
from penstock.plan.graph import Partitioning
from penstock.runtime.task.operators import async_map
from penstock.runtime.task.operators.async_map import AsyncMapOperator
from penstock.sim.again import Again
from penstock.sim.asking import Asks
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),
    SlotCrash(at_ms=700, slot=1, notice=Notice.TOLD),
)
WAYS = (Partitioning.HASH, Partitioning.FORWARD, Partitioning.REBALANCE)
SHAPES = (Shape.ASKS, Shape.ASKS_WINDOW)


def asking(
    make: Any, shape: Shape, asks: Asks, count: int = 3, *, unaligned: bool = False, **changes: Any
) -> list[Scenario]:
    made = worlds(make, count, make.steady, lambda s: make.shape(s, shape), **{"faults": CRASHES, **changes})
    made = [make.workload(s, asks=asks) for s in made]
    return [make.checkpoints(s, interval_ms=40, unaligned=unaligned) for s in made]


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_result_comes_out_once_whatever_dies(
    make: Any, shape: Shape, way: Partitioning, ordered: bool, unaligned: bool
):
    asks = Asks(ordered=ordered, partitioning=way, concurrency=3, refuses=7, hangs=50)
    results = [run_scenario(world) for world in asking(make, shape, asks, unaligned=unaligned)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_requests_in_flight_go_over_to_another_parallelism(make: Any, shape: Shape, way: Partitioning, wish: Wish):
    to = 3 if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=3, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    asks = Asks(partitioning=way, concurrency=3)
    given = asking(make, shape, asks, 4, requests=(request,), again=again, faults=())
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_a_barrier_waits_when_too_much_is_kept_and_nothing_is_lost(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(async_map, "KEPT_BYTES", 1)
    results = [run_scenario(world) for world in asking(make, Shape.ASKS, Asks(concurrency=1))]
    assert [result.violations for result in results] == [()] * len(results)


def test_many_worlds_call_async_functions_in_every_way():
    drawn = [scenario_of(seed).workload for seed in range(1, 1_000)]
    asks = [workload.asks for workload in drawn if workload.shape in SHAPES]
    assert 20 <= len(asks) <= 100
    assert {each.ordered for each in asks} == {True, False}
    assert {each.partitioning for each in asks} == set(WAYS)
    assert {each.batch for each in asks} == {True, False}


# --- bugs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ordered", [False, True])
def test_requests_in_flight_that_are_not_in_the_snapshot_are_lost(
    make: Any, monkeypatch: pytest.MonkeyPatch, shape: Shape, ordered: bool
):
    monkeypatch.setattr(Requests, "unfinished", lambda self: [])
    assert found(asking(make, shape, Asks(ordered=ordered))) == [Rule.EXACTLY_ONCE]


def test_rows_that_wait_for_their_turn_and_are_not_in_the_snapshot_are_lost(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Requests, "unfinished", lambda self: [*self._inside])
    assert found(asking(make, Shape.ASKS, Asks(concurrency=1), 6)) == [Rule.EXACTLY_ONCE]


@pytest.mark.slow
def test_results_that_leave_and_stay_in_the_snapshot_come_out_twice(make: Any, monkeypatch: pytest.MonkeyPatch):
    """The rows of a request are let go of one request too late."""
    honest = Requests.unfinished
    monkeypatch.setattr(Requests, "unfinished", lambda self: [min([*honest(self), self._unasked]), *honest(self)])
    monkeypatch.setattr(async_map.AskedRows, "finished", lambda self, numbers: None)
    assert shows(Rule.EXACTLY_ONCE, asking(make, Shape.ASKS, Asks()))


def test_a_watermark_that_overtakes_requests_makes_their_results_late(make: Any, monkeypatch: pytest.MonkeyPatch):
    def watermark(operator: AsyncMapOperator, time_us: int, *, idle: bool = False) -> None:
        operator.output.watermark(time_us, idle=idle)

    slow = asking(make, Shape.ASKS_WINDOW, Asks(concurrency=50, longest_ms=55))
    slow = [make.workload(world, window_us=1_000, disorder_us=0) for world in slow]
    assert found(slow) == []
    monkeypatch.setattr(AsyncMapOperator, "watermark", watermark)
    assert found(slow) == [Rule.EXACTLY_ONCE]


def test_results_that_leave_as_they_come_are_out_of_order(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = Requests.__init__
    monkeypatch.setattr(Requests, "__init__", lambda self, policy: honest(self, structs.replace(policy, ordered=False)))
    assert found(asking(make, Shape.ASKS, Asks(ordered=True))) == [Rule.KEY_ORDER]


@pytest.mark.slow
def test_rows_that_go_to_any_subtask_after_a_rescale_are_out_of_order(make: Any, monkeypatch: pytest.MonkeyPatch):
    def anywhere(part: bytes, keys: object, context: Any, schema: Any) -> list[Any]:
        batches = async_map.rows_in(part, context.name, schema)
        return batches if context.task.subtask == context.parallelism - 1 else []

    request = UserRequest(at_ms=0, wish=Wish.RESCALE, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=3)
    given = asking(make, Shape.ASKS, Asks(concurrency=10), 8, requests=(request,), faults=())
    assert found(given) == []
    monkeypatch.setattr(async_map, "own_rows", anywhere)
    assert found(given) == [Rule.KEY_ORDER]

"""Aligned sources read evenly and come to their end, whatever dies; planted bugs are found."""

from __future__ import annotations

from typing import Any

import pytest
from planted_bugs import first_found, found, shows, worlds

from penstock.core.alignment import groups
from penstock.core.alignment.reader import ReaderAlignment
from penstock.core.alignment.times import Alignment
from penstock.core.messages import EventTimeReached
from penstock.runtime.master.alignment import GroupTimes
from penstock.sim.drift import DriftChecker
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash, TaskError
from penstock.sim.inputs import SimReader
from penstock.sim.jobs import TICK_US, Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
)
HOLDS_SPLITS = 1 << 9
"""The bit of a world's salt that says whether readers hold single splits."""


def aligned(make: Any, shape: Shape, count: int = 4, *, drift: int = 5, one_by_one: bool = True, **changes: Any) -> Any:
    """Jobs with several sources whose readers read one split after the other, and so far apart."""
    made = worlds(make, count, make.steady, lambda s: make.shape(s, shape), **changes)
    align = Alignment(group="all", drift_us=drift * TICK_US, interval_ms=50)
    salts = [4 * number | (number % 2) * HOLDS_SPLITS | (0 if one_by_one else 1) for number in range(count)]
    made = [make.workload(s, align=align, salt=salt, disorder_us=0) for s, salt in zip(made, salts, strict=True)]
    return [make.checkpoints(s, interval_ms=40) for s in made]


def furthest(monkeypatch: pytest.MonkeyPatch, scenarios: list[Scenario]) -> list[int]:
    """How far ahead a split was read in each of these worlds, in ticks, where nothing is violated."""
    checkers: list[DriftChecker] = []
    honest = DriftChecker.__init__

    def remember(self: DriftChecker, *args: Any, **known: Any) -> None:
        honest(self, *args, **known)
        checkers.append(self)

    monkeypatch.setattr(DriftChecker, "__init__", remember)
    assert found(scenarios) == []
    return [checker.furthest_us // TICK_US for checker in checkers]


def test_sources_are_held_in_these_worlds(make: Any, monkeypatch: pytest.MonkeyPatch):
    """With a drift that is never reached the same sources read much further apart."""
    near = furthest(monkeypatch, aligned(make, Shape.UNION_WINDOW))
    far = furthest(monkeypatch, aligned(make, Shape.UNION_WINDOW, drift=10_000))
    assert max(near) <= 5
    assert max(far) > 20


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("shape", [Shape.WINDOW, Shape.UNION_WINDOW, Shape.TIMERS, Shape.LATE, Shape.ASKS_WINDOW])
def test_an_aligned_job_comes_to_its_end_whatever_dies(make: Any, shape: Shape, unaligned: bool):
    given = [make.checkpoints(s, unaligned=unaligned) for s in aligned(make, shape, faults=CRASHES)]
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(result.restores for result in results)


@pytest.mark.parametrize("shape", [Shape.PIPELINES, Shape.SLICES, Shape.MIXED])
def test_regions_of_an_aligned_job_are_restarted_alone(make: Any, shape: Shape):
    errors = tuple(TaskError(at_ms=ms, slot=ms // 100 % 2, what="read") for ms in (200, 300, 400))
    results = [run_scenario(world) for world in aligned(make, shape, drift=0, faults=errors)]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(result.repairs for result in results)


@pytest.mark.parametrize("drift", [0, 5])
@pytest.mark.parametrize("targets", [(3,), (1, 4)])
def test_an_aligned_job_is_rescaled(make: Any, targets: tuple[int, ...], drift: int):
    requests = tuple(UserRequest(at_ms=150 + 150 * i, wish=Wish.RESCALE, parallelism=t) for i, t in enumerate(targets))
    given = aligned(make, Shape.UNION_WINDOW, drift=drift, requests=requests)
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(Wish.RESCALE in result.granted for result in results)


@pytest.mark.parametrize("wish", [Wish.STOP, Wish.DRAIN])
def test_an_aligned_job_is_stopped(make: Any, wish: Wish):
    given = aligned(make, Shape.UNION_WINDOW, requests=(UserRequest(at_ms=200, wish=wish),))
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_a_part_of_the_worlds_has_aligned_sources():
    drawn = [scenario_of(seed).workload for seed in range(1, 1_000)]
    share = sum(workload.align is not None for workload in drawn) / 1_000
    assert 0.02 < share < 0.2
    assert all(workload.shape.has_time and not workload.induces for workload in drawn if workload.align is not None)


# --- planted bugs ----------------------------------------------------------------------------------------------------


def test_a_source_that_is_never_held_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ReaderAlignment, "may_read", lambda self, time_us: True)
    assert found(aligned(make, Shape.UNION_WINDOW, 2)) == [Rule.DRIFT]


def test_a_group_as_far_as_its_furthest_reader_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(groups, "min", max, raising=False)
    assert shows(Rule.DRIFT, aligned(make, Shape.UNION_WINDOW))


def test_a_reader_that_does_not_hold_its_splits_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SimReader, "hold", lambda self, splits: None)
    assert found(aligned(make, Shape.UNION_WINDOW)) == [Rule.DRIFT]


def test_an_ended_source_that_holds_the_others_back_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = GroupTimes.heard

    def heard(self: GroupTimes, message: EventTimeReached) -> None:
        if message.time_us is not None:
            honest(self, message)

    monkeypatch.setattr(GroupTimes, "heard", heard)
    monkeypatch.setattr(GroupTimes, "data_ended", lambda self, task, epoch: None)
    assert Rule.LIVENESS in first_found(aligned(make, Shape.UNION_WINDOW))


def test_a_restarted_source_that_is_not_answered_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = GroupTimes.start

    def only_once(self: GroupTimes, plan: Any, epoch: Any, tasks: Any, *, ended: Any) -> None:
        if not self.__dict__.get("started"):
            honest(self, plan, epoch, tasks, ended=ended)
        self.started = True  # type: ignore[attr-defined]

    monkeypatch.setattr(GroupTimes, "start", only_once)
    assert Rule.LIVENESS in first_found(aligned(make, Shape.UNION_WINDOW, faults=CRASHES))

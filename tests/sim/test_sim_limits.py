"""A limit that is full ends the sources that feed nothing else, whatever dies; planted bugs are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from planted_bugs import first_found, found, shows, worlds

from penstock.core.full_steps import FullSteps
from penstock.runtime.full_steps import UnneededSources
from penstock.runtime.task.operators.limit import LimitOperator
from penstock.runtime.task.polling import SourcePolling
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash, TaskError
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
    TaskError(at_ms=550, slot=0, what="write"),
)


def limited(make: Any, shape: Shape = Shape.LIMIT, count: int = 4, **changes: Any) -> list[Scenario]:
    """Jobs that only the full limit can end; beside another branch the source has an end."""
    made = worlds(make, count, make.steady, lambda s: make.shape(s, shape), **changes)
    return [make.workload(s, endless=shape is Shape.LIMIT, rows=80) for s in made]


def violations(scenarios: list[Scenario]) -> list[object]:
    return [violation for world in scenarios for violation in run_scenario(world).violations]


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("shape", [Shape.LIMIT, Shape.LIMIT_BESIDE])
def test_a_full_limit_ends_the_job_whatever_dies(make: Any, shape: Shape, unaligned: bool):
    given = [make.checkpoints(s, unaligned=unaligned) for s in limited(make, shape, faults=CRASHES)]
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(result.restores for result in results)


def test_a_full_limit_ends_a_job_without_periodic_checkpoints(make: Any):
    assert violations([make.checkpoints(s, interval_ms=None) for s in limited(make, count=2)]) == []


@pytest.mark.parametrize("targets", [(3,), (1, 4)])
def test_a_full_limit_ends_a_job_that_was_rescaled(make: Any, targets: tuple[int, ...]):
    requests = tuple(UserRequest(at_ms=150 + 150 * i, wish=Wish.RESCALE, parallelism=t) for i, t in enumerate(targets))
    results = [run_scenario(world) for world in limited(make, requests=requests)]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(Wish.RESCALE in result.granted for result in results)


@pytest.mark.parametrize("wish", [Wish.STOP, Wish.DRAIN, Wish.SAVEPOINT])
@pytest.mark.parametrize("at_ms", [150, 300, 500])
def test_a_full_limit_and_a_request_of_the_user_come_together(make: Any, wish: Wish, at_ms: int):
    requests = (UserRequest(at_ms=at_ms, wish=wish),)
    assert violations(limited(make, requests=requests)) == []


def test_a_part_of_the_worlds_has_sources_without_an_end_and_a_part_has_other_branches():
    drawn = Counter(
        (workload.shape, workload.endless)
        for workload in (scenario_of(seed).workload for seed in range(3_000))
        if workload.shape in (Shape.LIMIT, Shape.LIMIT_BESIDE)
    )
    assert len(drawn) == 3
    assert min(drawn.values()) >= 5


# --- planted bugs ----------------------------------------------------------------------------------------------------


def test_a_full_limit_that_ends_no_source_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(UnneededSources, "heard", lambda self, message: None)
    assert Rule.LIVENESS in first_found(limited(make))


def test_a_source_that_is_ended_though_another_branch_reads_it_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FullSteps, "_is_needed", lambda self, step, known: False)
    assert shows(Rule.EXACTLY_ONCE, limited(make, Shape.LIMIT_BESIDE))


def test_a_limit_that_is_full_too_soon_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = LimitOperator.process

    def too_soon(self: Any, batch: Any) -> Any:
        work = honest(self, batch)
        self.context.is_full()
        return work

    monkeypatch.setattr(LimitOperator, "process", too_soon)
    assert Rule.EXACTLY_ONCE in found(limited(make))


def test_a_source_that_ends_only_when_it_has_something_to_give_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SourcePolling, "end", lambda self: None)
    assert Rule.LIVENESS in first_found(limited(make))

"""Joins without a limit of time, of counts that change, two in a row: what the changes come to is what a loop over all
pairs says, whatever dies, on both back ends, and planted bugs are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from planted_bugs import shows, worlds

from penstock.api.join_steps import JoinKind
from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators import regular_join
from penstock.runtime.task.operators.join_runs import JoinRuns, Run
from penstock.runtime.task.operators.regular_join import RegularJoinOperator
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import Shape
from penstock.sim.joining import Joining
from penstock.sim.kept_runs import KeptRuns
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    *(CrashAfterCheckpoint(at_ms=at_ms, slot=0, delay_ms=5, notice=Notice.TOLD) for at_ms in (0, 150)),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
)


def joins(
    make: Any, how: JoinKind, count: int = 2, *, unaligned: bool = False, shares_files: bool = False, **changes: Any
) -> list[Scenario]:
    """Jobs with two joins. They do their work in small slices."""
    shaped = worlds(
        make,
        count,
        make.steady,
        lambda s: make.shape(s, Shape.CHANGES),
        **{"faults": CRASHES, "slice_rows": 2, **changes},
    )
    made = [
        make.workload(
            s, joining=Joining(how=how), shares_keys=True, shares_files=shares_files, other_rows=(15,), rows=15, keys=5
        )
        for s in shaped
    ]
    return [make.checkpoints(s, interval_ms=40, unaligned=unaligned) for s in made]


@pytest.mark.parametrize("shares_files", [False, True], ids=["memory", "back end"])
@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("how", JoinKind)
def test_the_changes_come_to_the_join_whatever_dies(make: Any, how: JoinKind, unaligned: bool, shares_files: bool):
    results = [run_scenario(world) for world in joins(make, how, unaligned=unaligned, shares_files=shares_files)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP, Wish.DRAIN])
@pytest.mark.parametrize("how", [JoinKind.FULL, JoinKind.ANTI])
def test_joins_go_on_at_another_parallelism(make: Any, how: JoinKind, wish: Wish, parallelism: int):
    to = parallelism if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    given = joins(make, how, unaligned=True, requests=(request,), again=again, faults=())
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_a_few_of_all_worlds_have_joins_that_take_rows_back():
    drawn = [scenario_of(seed).workload for seed in range(1, 1_500)]
    kinds = Counter(workload.joining.how for workload in drawn if workload.shape is Shape.CHANGES)
    assert len(kinds) > 3


@pytest.mark.parametrize("runs", [KeptRuns.IN_MEMORY, KeptRuns.IN_FILES])
@pytest.mark.parametrize("how", [JoinKind.INNER, JoinKind.FULL, JoinKind.SEMI])
def test_the_changes_come_to_the_join_from_runs_whatever_dies(make: Any, how: JoinKind, runs: KeptRuns):
    given = [make.workload(world, runs=runs) for world in joins(make, how, unaligned=True)]
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def test_counts_that_are_not_saved_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = JoinRuns.append

    def append(runs: JoinRuns, rows: Any, times: Any, hashes: Any, marks: Any = None) -> None:
        honest(runs, rows, times, hashes, None if marks is None else marks * 0)

    monkeypatch.setattr(JoinRuns, "append", append)
    assert shows(Rule.EXACTLY_ONCE, joins(make, JoinKind.FULL))


def test_rows_that_are_taken_back_and_stay_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(regular_join, "_there", lambda run, of_part, of_run: (of_part, of_run))
    assert shows(Rule.EXACTLY_ONCE, joins(make, JoinKind.LEFT))


@pytest.mark.slow
def test_pending_changes_that_are_not_saved_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = RegularJoinOperator.snapshot

    def snapshot(operator: RegularJoinOperator, *given: Any) -> Any:
        pending, operator._pending = operator._pending, []
        try:
            return honest(operator, *given)
        finally:
            operator._pending = pending

    monkeypatch.setattr(RegularJoinOperator, "snapshot", snapshot)
    # A slow step behind the join: barriers come while results are handed on.
    crashes = tuple(CrashAfterCheckpoint(at_ms=ms, slot=1, delay_ms=5, notice=Notice.TOLD) for ms in (50, 150, 250))
    given = joins(make, JoinKind.FULL, 8, unaligned=True, faults=crashes, slice_rows=1)
    assert shows(Rule.EXACTLY_ONCE, [make.workload(world, slow_us=5_000) for world in given])


def test_marks_that_a_snapshot_sees_change_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    def mark(run: Run, rows: Any, marks: Any) -> None:
        assert run.marks is not None
        run.marks[rows] = marks

    monkeypatch.setattr(Run, "mark", mark)
    crashes = tuple(CrashAfterCheckpoint(at_ms=ms, slot=1, delay_ms=5, notice=Notice.TOLD) for ms in (50, 150, 250))
    assert shows(Rule.EXACTLY_ONCE, joins(make, JoinKind.LEFT, 12, faults=crashes, work_us=(500, 30_000)))


def test_rows_that_are_not_shown_again_when_their_last_match_has_gone_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    honest = RegularJoinOperator._is_shown
    monkeypatch.setattr(
        RegularJoinOperator,
        "_is_shown",
        lambda operator, counts, side: honest(operator, np.abs(counts), side) & (counts >= 0) & (counts != 1),
    )
    assert shows(Rule.EXACTLY_ONCE, joins(make, JoinKind.SEMI))

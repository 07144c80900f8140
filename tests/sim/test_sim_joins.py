"""Jobs that join two streams: every row is shown as a loop over all pairs says, whatever dies, and planted bugs are
found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planted_bugs import first_found, found, shows, worlds

from penstock.api.join_steps import Interval, JoinKind, Reach, SameWindow
from penstock.api.windows import TumblingWindow
from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators import join, version_runs
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.join import JoinOperator
from penstock.runtime.task.operators.join_runs import JoinRuns, Run
from penstock.runtime.task.operators.join_state import JoinState
from penstock.runtime.task.operators.table_join import TableJoinOperator
from penstock.runtime.task.operators.version_runs import VersionRuns
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import TICK_US, Shape
from penstock.sim.joining import Joining
from penstock.sim.kept_runs import KeptRuns
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish
from penstock.state.runs import RunFiles

CRASHES: tuple[Fault, ...] = (
    CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
)
NEAR = Interval(lower_us=-3 * TICK_US, upper_us=6 * TICK_US)
WINDOW = SameWindow(window=TumblingWindow(size_us=5 * TICK_US))


def joins(
    make: Any, how: JoinKind, count: int = 3, *, reach: Reach = NEAR, unaligned: bool = False, **changes: Any
) -> list[Scenario]:
    """Jobs with a join. Half of them do their work in small slices."""
    joining = Joining(how=how, reach=reach)
    made = worlds(
        make, count, make.steady, lambda s: make.shape(s, Shape.JOIN), **{"faults": CRASHES, "slice_rows": 2, **changes}
    )
    made = [make.workload(s, joining=joining, shares_keys=True, other_rows=(30,)) for s in made]
    return [make.checkpoints(s, interval_ms=40, unaligned=unaligned) for s in made]


@pytest.mark.parametrize("reach", [NEAR, WINDOW], ids=["interval", "window"])
@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("how", JoinKind)
def test_every_row_is_shown_once_whatever_dies(make: Any, how: JoinKind, unaligned: bool, reach: Reach):
    results = [run_scenario(world) for world in joins(make, how, reach=reach, unaligned=unaligned)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


def versions(make: Any, count: int = 3, **changes: Any) -> list[Scenario]:
    """Jobs that join a stream with versions."""
    joining = Joining(how=JoinKind.LEFT, has_versions=True)
    return [make.workload(world, joining=joining) for world in joins(make, JoinKind.LEFT, count, **changes)]


def tables(make: Any, how: JoinKind, count: int = 2, **changes: Any) -> list[Scenario]:
    """Jobs that join a stream with a table, which is kept by key in half of the jobs."""
    made = worlds(make, count, make.steady, lambda s: make.shape(s, Shape.TABLE), **{"faults": CRASHES, **changes})
    return [make.checkpoints(make.workload(s, joining=Joining(how=how)), interval_ms=40) for s in made]


@pytest.mark.parametrize("unaligned", [False, True])
def test_every_record_gets_the_version_that_held_whatever_dies(make: Any, unaligned: bool):
    results = [run_scenario(world) for world in versions(make, unaligned=unaligned)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("how", [JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI])
def test_every_record_meets_the_rows_of_a_table_whatever_dies(make: Any, how: JoinKind):
    results = [run_scenario(world) for world in tables(make, how)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP, Wish.DRAIN])
@pytest.mark.parametrize("how", [JoinKind.FULL, JoinKind.SEMI, JoinKind.ANTI, None])
def test_a_join_goes_on_at_another_parallelism(make: Any, how: JoinKind | None, wish: Wish, parallelism: int):
    to = parallelism if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    changes: dict[str, Any] = {"unaligned": True, "requests": (request,), "again": again, "faults": ()}
    given = versions(make, **changes) if how is None else joins(make, how, **changes)
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_a_few_of_all_worlds_have_joins_of_every_kind():
    drawn = [scenario_of(seed).workload for seed in range(1, 1_000)]
    kinds = Counter(workload.joining.how for workload in drawn if workload.shape is Shape.JOIN)
    assert all(kinds[how] for how in JoinKind)
    assert any(workload.joining.has_versions for workload in drawn if workload.shape is Shape.JOIN)
    assert any(workload.shape is Shape.TABLE for workload in drawn)
    assert 0.02 < kinds.total() / 1_000 < 0.1


# --- planted bugs of versions and tables ------------------------------------------------------------------------------


def test_records_that_do_not_wait_for_versions_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = JoinRuns.due
    monkeypatch.setattr(JoinRuns, "due", lambda runs, run, time_us: honest(runs, run, time_us + 20 * TICK_US))
    assert shows(Rule.EXACTLY_ONCE, versions(make))


def test_versions_that_are_forgotten_too_early_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(version_runs, "_LEAST_ROWS", 0)
    assert found(versions(make)) == []
    honest = VersionRuns.forget
    monkeypatch.setattr(VersionRuns, "forget", lambda runs, time_us: honest(runs, time_us + 20 * TICK_US))
    assert shows(Rule.EXACTLY_ONCE, versions(make, 6))


def test_rows_of_a_table_that_are_missing_in_a_subtask_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = TableJoinOperator._wanted

    def wanted(operator: TableJoinOperator, batch: Any, context: Any) -> Any:
        rows = honest(operator, batch, context)
        return rows.slice(5) if context.task.subtask else rows

    monkeypatch.setattr(TableJoinOperator, "_wanted", wanted)
    assert shows(Rule.EXACTLY_ONCE, tables(make, JoinKind.LEFT))


# --- runs that checkpoints share --------------------------------------------------------------------------------------

RUNS = (KeptRuns.IN_MEMORY, KeptRuns.IN_FILES)


def in_runs(make: Any, how: JoinKind, runs: KeptRuns, count: int = 3, **changes: Any) -> list[Scenario]:
    """Jobs with a join that keeps its records in short runs."""
    return [make.workload(world, runs=runs) for world in joins(make, how, count, **changes)]


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("how", JoinKind)
def test_every_row_is_shown_once_from_runs_whatever_dies(make: Any, how: JoinKind, runs: KeptRuns):
    given = in_runs(make, how, runs, unaligned=True)
    given += [make.workload(world, runs=runs) for world in versions(make, 1)]
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


def test_seeds_draw_joins_in_runs_in_memory_and_in_files():
    drawn = [scenario_of(seed).workload for seed in range(1, 1_000)]
    kinds = Counter(workload.runs for workload in drawn if workload.shape is Shape.JOIN)
    assert min(kinds[runs] for runs in KeptRuns) >= 2


def test_a_run_that_is_in_no_checkpoint_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = JoinState._freeze

    def freeze(state: JoinState, frozen: Any, run: Run, side: int, options: Any) -> None:
        if len(frozen.saved) != 1:
            honest(state, frozen, run, side, options)

    monkeypatch.setattr(JoinState, "_freeze", freeze)
    assert shows(Rule.EXACTLY_ONCE, in_runs(make, JoinKind.INNER, KeptRuns.IN_FILES, 6))


def test_runs_that_a_merge_drops_too_early_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = JoinRuns._replace

    def replace_runs(runs: JoinRuns, merge: Any, made: list[Run]) -> None:
        merge.dropped = None if merge.dropped is None else merge.dropped + 20 * TICK_US
        honest(runs, merge, [run for run in made if run.size > 1 or len(runs.runs) < 3])

    monkeypatch.setattr(JoinRuns, "_replace", replace_runs)
    assert shows(Rule.EXACTLY_ONCE, in_runs(make, JoinKind.INNER, KeptRuns.IN_MEMORY, 8))


def test_files_of_aborted_checkpoints_that_are_used_again_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    def aborted(files: RunFiles, checkpoint: Any) -> None:
        files.completed(checkpoint)

    monkeypatch.setattr(RunFiles, "aborted", aborted)
    given = in_runs(make, JoinKind.INNER, KeptRuns.IN_FILES, 8)
    given = [make.checkpoints(world, interval_ms=40, timeout_ms=100) for world in given]
    given = [replace(world, work_us=(500, 60_000)) for world in given]
    assert first_found(given)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def test_pending_records_that_are_not_saved_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = JoinOperator.snapshot

    def snapshot(operator: JoinOperator, *given: Any) -> Any:
        pending, operator._pending = operator._pending, []
        try:
            return honest(operator, *given)
        finally:
            operator._pending = pending

    monkeypatch.setattr(JoinOperator, "snapshot", snapshot)
    # A slow step behind the join: barriers come while results are handed on.
    wide = Interval(lower_us=-100 * TICK_US, upper_us=100 * TICK_US)
    crashes = tuple(CrashAfterCheckpoint(at_ms=ms, slot=1, delay_ms=5, notice=Notice.TOLD) for ms in (50, 150, 250))
    given = [
        make.workload(world, keys=1, slow_us=5_000)
        for world in joins(make, JoinKind.INNER, 8, reach=wide, unaligned=True, faults=crashes, slice_rows=1)
    ]
    assert shows(Rule.EXACTLY_ONCE, given)


def test_matches_that_are_not_saved_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = JoinRuns.append

    def append(runs: JoinRuns, rows: Any, times: Any, hashes: Any, marks: Any = None) -> None:
        honest(runs, rows, times, hashes, None if marks is None else marks * 0)

    monkeypatch.setattr(JoinRuns, "append", append)
    assert shows(Rule.EXACTLY_ONCE, joins(make, JoinKind.LEFT))


def test_records_that_are_dropped_too_early_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = JoinRuns.drop
    monkeypatch.setattr(JoinRuns, "drop", lambda runs, time_us: honest(runs, time_us + 20 * TICK_US))
    assert shows(Rule.EXACTLY_ONCE, joins(make, JoinKind.INNER))


def test_marks_that_a_snapshot_sees_change_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    def mark(run: Run, rows: Any, mark: int) -> None:
        assert run.marks is not None
        run.marks[rows] = mark

    monkeypatch.setattr(Run, "mark", mark)
    crashes = tuple(CrashAfterCheckpoint(at_ms=ms, slot=1, delay_ms=5, notice=Notice.TOLD) for ms in (50, 150, 250))
    given = joins(make, JoinKind.SEMI, 12, faults=crashes, work_us=(500, 30_000))
    assert shows(Rule.EXACTLY_ONCE, given)


def test_pairs_of_a_part_of_the_hits_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = join.spread
    monkeypatch.setattr(join, "spread", lambda begins, counts, most: honest(begins, np.minimum(counts, 1), most))
    assert found(joins(make, JoinKind.INNER, 1)) == [Rule.EXACTLY_ONCE]


def test_records_that_are_shown_without_a_match_too_early_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = JoinRuns.due
    monkeypatch.setattr(JoinRuns, "due", lambda runs, run, time_us: honest(runs, run, time_us + 20 * TICK_US))
    assert shows(Rule.EXACTLY_ONCE, joins(make, JoinKind.ANTI))


def test_records_that_are_late_for_no_reason_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = Fired.late

    def late(fired: Fired, times: Any, groups: Any) -> Any:
        return honest(fired, times - 3 * make.plain().workload.disorder_us, groups)

    monkeypatch.setattr(Fired, "late", late)
    assert shows(Rule.EXACTLY_ONCE, joins(make, JoinKind.FULL))

"""Windows of every kind, by key and over all records: simulated jobs show the results that follow from the input, and
bugs in the operators are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planted_bugs import found, worlds

from penstock.api.pane_windows import CumulativeWindow, SlidingWindow
from penstock.runtime.task import partitioning
from penstock.runtime.task.operators import pane_windows, sessions, table_state, windows
from penstock.runtime.task.operators.clock_windows import ClockWindowOperator
from penstock.runtime.task.operators.count_windows import CountWindowOperator
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.pane_windows import PaneWindowOperator
from penstock.runtime.task.operators.run_table import Frozen, RunTable
from penstock.runtime.task.operators.session_windows import SessionTable
from penstock.runtime.task.operators.window_table import WindowTable
from penstock.sim.faults import CrashAfterCheckpoint
from penstock.sim.jobs import Shape
from penstock.sim.kept_runs import KeptRuns
from penstock.sim.rules import Rule
from penstock.sim.run import scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.window_kinds import BY_CLOCK, TIMED, WindowKind, expected_windows

CRASHES = tuple(
    CrashAfterCheckpoint(at_ms=at_ms, slot=at_ms // 100 % 2, delay_ms=1, notice=Notice.TOLD)
    for at_ms in range(300, 2_500, 200)
)
SLIDING, CUMULATIVE, SESSION = WindowKind.SLIDING, WindowKind.CUMULATIVE, WindowKind.SESSION
COUNT, CLOCK = WindowKind.COUNT, WindowKind.CLOCK


def windowed(make: Any, kind: WindowKind, *, count: int = 3, keyed: bool = True, keys: int = 20) -> list[Scenario]:
    """Checkpoints one after another, some of them restored, and results handed on one at a time."""

    def changed(scenario: Scenario) -> Scenario:
        made = make.checkpoints(make.shape(scenario, Shape.WINDOW), interval_ms=10)
        job = {"windows": kind, "keyed": keyed, "keys": keys, "slow_us": 8_000}
        return replace(make.workload(made, window_us=30_000, disorder_us=25_000, **job), slice_rows=1)

    return worlds(make, count, make.steady, changed, faults=CRASHES)


@pytest.mark.parametrize(
    ("kind", "keyed"), [(kind, keyed) for kind in WindowKind for keyed in (True, False) if keyed or kind is not COUNT]
)
def test_without_a_bug_nothing_is_found(make: Any, kind: WindowKind, keyed: bool):
    assert found(windowed(make, kind, keyed=keyed)) == []


@pytest.mark.parametrize("kind", TIMED)
def test_records_within_the_lateness_count(make: Any, kind: WindowKind):
    assert found([late_by_all(make, scenario) for scenario in windowed(make, kind)]) == []


def late_by_all(make: Any, scenario: Scenario) -> Scenario:
    """The watermark waits for nothing, and the windows allow all the lateness."""
    return make.workload(scenario, lateness_us=scenario.workload.greatest_delay_us)


def test_seeds_draw_windows_with_and_without_lateness():
    drawn = [scenario_of(seed).workload for seed in range(1_000)]
    late = Counter(workload.shape for workload in drawn if workload.lateness_us)
    assert {Shape.WINDOW, Shape.UNION_WINDOW} <= set(late)
    assert sum(late.values()) > 20


def test_seeds_draw_every_kind_by_key_and_over_all_records():
    drawn = [scenario_of(seed).workload for seed in range(4_000)]
    shapes = (Shape.WINDOW, Shape.UNION_WINDOW)
    kinds = Counter((workload.windows, workload.keyed) for workload in drawn if workload.shape in shapes)
    assert len(kinds) == 2 * len(WindowKind) - 1
    assert min(kinds.values()) >= 2


# --- bugs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "of"), [(SLIDING, SlidingWindow), (CUMULATIVE, CumulativeWindow)])
def test_a_pane_that_is_dropped_with_the_first_of_its_windows_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind, of: type
):
    monkeypatch.setattr(of, "first_kept", lambda self, end_us: end_us)
    assert found(windowed(make, kind)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("kind", TIMED)
def test_windows_that_do_not_wait_for_the_allowed_lateness_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind
):
    for module in (windows, pane_windows):
        monkeypatch.setattr(module, "settled_us", lambda time_us, lateness_us: time_us)
    assert found([late_by_all(make, scenario) for scenario in windowed(make, kind)]) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("kind", [SLIDING, CUMULATIVE])
def test_windows_that_fire_again_after_a_restore_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind
):
    monkeypatch.setattr(Fired, "restore", lambda self, ranges, own: None)
    assert found(windowed(make, kind)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("kind", [SLIDING, CUMULATIVE])
def test_windows_that_were_being_handed_on_and_are_not_restored_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind
):
    def without(self: Any, rows: Any, header: Any) -> None:
        if header.leaving is not True:
            self._table.append(rows)

    monkeypatch.setattr(PaneWindowOperator, "_restore_rows", without)
    assert found(windowed(make, kind)) == [Rule.EXACTLY_ONCE]


def test_sessions_that_are_not_merged_with_the_sessions_of_another_run_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SessionTable, "_grouped", WindowTable._grouped)
    assert found(windowed(make, SESSION)) == [Rule.EXACTLY_ONCE]


def test_a_session_that_forgets_how_far_it_had_come_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "_reached", lambda codes, starts, ends: ends)
    assert found(windowed(make, SESSION, keys=2)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("kind", [*TIMED, WindowKind.GLOBAL])
def test_records_without_a_key_that_go_to_several_subtasks_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind
):
    honest = partitioning.key_groups

    def scattered(batch: Any, columns: Any, groups: int) -> Any:
        return honest(batch, columns, groups) if columns else np.arange(batch.num_rows, dtype=np.int32) * 61 % groups

    monkeypatch.setattr(partitioning, "key_groups", scattered)
    assert found(windowed(make, kind, keyed=False)) == [Rule.EXACTLY_ONCE]


# --- runs that checkpoints share -------------------------------------------------------------------------------------

RUNS = (KeptRuns.IN_MEMORY, KeptRuns.IN_FILES)


def sharing(make: Any, kind: WindowKind, runs: KeptRuns) -> list[Scenario]:
    """The same, with rows in many short runs, and short windows."""
    kept = {"runs": runs, "rows": 100, "window_us": 10_000}
    return [replace(world, workload=replace(world.workload, **kept)) for world in windowed(make, kind)]


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("kind", [*TIMED, *BY_CLOCK])
def test_without_a_bug_nothing_is_found_in_runs(make: Any, kind: WindowKind, runs: KeptRuns):
    assert found(sharing(make, kind, runs)) == []


def test_seeds_draw_runs_in_memory_and_in_files():
    drawn = [scenario_of(seed).workload for seed in range(1_000)]
    kinds = Counter(workload.runs for workload in drawn if workload.shape is Shape.WINDOW)
    assert min(kinds[runs] for runs in KeptRuns) >= 2


def test_rows_that_left_their_run_and_are_restored_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = RunTable.take_in
    monkeypatch.setattr(RunTable, "take_in", lambda self, blocks, buffer, first: honest(self, blocks, buffer, 0))
    assert found(sharing(make, WindowKind.TUMBLING, KeptRuns.IN_FILES)) == [Rule.EXACTLY_ONCE]


def test_rows_that_fire_while_their_run_is_merged_and_stay_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = RunTable._merged

    def merged(self: Any, merge: Any, run: Any) -> None:
        merge.dropped = None
        honest(self, merge, run)

    monkeypatch.setattr(RunTable, "_merged", merged)
    assert found(sharing(make, WindowKind.TUMBLING, KeptRuns.IN_FILES)) == [Rule.EXACTLY_ONCE]


def test_a_run_that_no_snapshot_has_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = Frozen.split

    def split(self: Any, files: Any, section_rows: int) -> Any:
        runs, rest = honest(self, files, section_rows)
        return runs[1:], rest

    monkeypatch.setattr(Frozen, "split", split)
    assert found(sharing(make, WindowKind.TUMBLING, KeptRuns.IN_FILES)) == [Rule.EXACTLY_ONCE]


# --- windows without event time ---------------------------------------------------------------------------------------


def test_positions_of_records_that_are_not_restored_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = table_state.decode

    def without(data: bytes, own: Any) -> Any:
        rows, header = honest(data, own)
        return rows.slice(0, 0), header

    monkeypatch.setattr(table_state, "decode", without)
    assert found(windowed(make, COUNT)) == [Rule.EXACTLY_ONCE]


def test_panes_of_a_number_of_records_that_are_dropped_too_early_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = CountWindowOperator._needed
    monkeypatch.setattr(CountWindowOperator, "_needed", lambda self, rows, after: honest(self, rows, after + 1))
    assert found(windowed(make, COUNT)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("kind", [CLOCK, WindowKind.CLOCK_SESSION])
def test_windows_of_the_clock_that_are_in_no_snapshot_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind
):
    monkeypatch.setattr(ClockWindowOperator, "_restore_rows", lambda self, rows, header: None)
    assert found(windowed(make, kind)) == [Rule.EXACTLY_ONCE]


def test_records_that_come_before_the_time_of_their_window_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """As if the clock were read before the exchange: the window may have fired when its records come."""
    honest = ClockWindowOperator._stamped
    monkeypatch.setattr(
        ClockWindowOperator, "_stamped", lambda self, batch, time_us: honest(self, batch, time_us - 100_000)
    )
    assert found(windowed(make, CLOCK)) == [Rule.EXACTLY_ONCE]


# --- what is expected ------------------------------------------------------------------------------------------------

RECORDS = [(1, 0, 5), (1, 3, 7), (1, 9, 1), (2, 4, 2)]
"""Of (key, time, value); a window lasts 9, and a third of it 3."""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (WindowKind.TUMBLING, {(1, 0, 9, 2, 7), (1, 9, 18, 1, 1), (2, 0, 9, 1, 2)}),
        (SLIDING, {(1, 0, 9, 2, 7), (1, -6, 3, 1, 5), (1, 6, 15, 1, 1), (2, 0, 9, 1, 2)}),
        (
            CUMULATIVE,
            {(1, 0, 3, 1, 5), (1, 0, 6, 2, 7), (1, 0, 9, 2, 7), (2, 0, 6, 1, 2), (2, 0, 9, 1, 2)}
            | {(1, 9, 12, 1, 1), (1, 9, 15, 1, 1), (1, 9, 18, 1, 1)},
        ),
        (SESSION, {(1, 0, 6, 2, 7), (1, 9, 12, 1, 1), (2, 4, 7, 1, 2)}),
        (WindowKind.GLOBAL, {(1, 3, 7), (2, 1, 2)}),
        (COUNT, {(1, 2, 7)}),
        (CLOCK, {(1, 0, 0, 3, 7), (2, 0, 0, 1, 2)}),
    ],
)
def test_the_expected_results_are_those_of_the_definition(kind: WindowKind, expected: set[tuple[int, ...]]):
    assert expected_windows(kind, 9, RECORDS, keyed=True) == Counter(expected)


def test_over_all_records_there_is_one_result_per_window():
    found_windows = expected_windows(WindowKind.TUMBLING, 9, RECORDS, keyed=False)
    assert found_windows == Counter([(0, 9, 3, 7), (9, 18, 1, 1)])

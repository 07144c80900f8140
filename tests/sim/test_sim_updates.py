"""Windows that show updates: whoever follows the changes of a simulated job has the results that follow from the input,
whatever dies, and bugs in the operators are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from planted_bugs import found, worlds

from penstock.api.steps import WINDOW_ROWS, Updates
from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators import table_state, updating_windows
from penstock.runtime.task.operators.applying import ApplyOperator
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.keyed_rows import Found, KeyedRows
from penstock.runtime.task.operators.keyed_runs import FrozenKeyed
from penstock.runtime.task.operators.late_windows import LateRecordsOperator
from penstock.runtime.task.operators.updating_panes import UpdatingPaneOperator
from penstock.runtime.task.operators.updating_windows import CHANGES, WAITING, UpdatingWindowOperator
from penstock.sim.again import Again
from penstock.sim.changes import table_of
from penstock.sim.external import Transaction
from penstock.sim.faults import CrashAfterCheckpoint
from penstock.sim.jobs import Shape
from penstock.sim.kept_runs import KeptRuns
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish
from penstock.sim.window_kinds import TIMED, WindowKind

CRASHES = tuple(
    CrashAfterCheckpoint(at_ms=at_ms, slot=at_ms // 100 % 2, delay_ms=1, notice=Notice.TOLD)
    for at_ms in range(300, 2_500, 200)
)
SHOWN = {
    "at the watermark": Updates(),
    "at every change": Updates(every_batch=True),
    "after 3 records": Updates(every_rows=3),
    "after 20 ms": Updates(every_ms=20),
}
LATE, ALL, THREE, CLOCK = SHOWN.values()
UPDATED = (*TIMED, WindowKind.GLOBAL)
"""The windows that can show updates."""


def updating(
    make: Any, kind: WindowKind, updates: Updates, *, count: int = 2, keyed: bool = True, **changes: Any
) -> list[Scenario]:
    """Checkpoints one after another, some of them restored, and changes handed on a few at a time. No record is late,
    because the windows allow all lateness."""

    def changed(scenario: Scenario) -> Scenario:
        made = make.checkpoints(make.shape(scenario, Shape.WINDOW), interval_ms=10)
        job = {"windows": kind, "keyed": keyed, "keys": 6, "slow_us": 4_000, "updates": updates}
        made = make.workload(made, window_us=30_000, disorder_us=25_000, **job)
        lateness_us = made.workload.greatest_delay_us if kind.is_timed else 0
        return replace(make.workload(made, lateness_us=lateness_us), slice_rows=2)

    return worlds(make, count, make.steady, changed, **{"faults": CRASHES, **changes})


@pytest.mark.parametrize("updates", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("kind", UPDATED)
def test_without_a_bug_nothing_is_found(make: Any, kind: WindowKind, updates: Updates):
    results = [run_scenario(world) for world in updating(make, kind, updates)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("updates", SHOWN.values(), ids=SHOWN)
def test_nor_over_all_records(make: Any, updates: Updates):
    assert found(updating(make, WindowKind.SLIDING, updates, keyed=False)) == []


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP, Wish.DRAIN])
@pytest.mark.parametrize("kind", [WindowKind.SLIDING, WindowKind.SESSION])
def test_updates_go_on_at_another_parallelism(make: Any, kind: WindowKind, wish: Wish, parallelism: int):
    to = parallelism if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    given = [
        world
        for updates in (LATE, CLOCK)
        for world in updating(make, kind, updates, requests=(request,), again=again, faults=())
    ]
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_seeds_draw_updates_of_every_kind():
    drawn = Counter(scenario_of(seed).workload.updates for seed in range(1_000))
    assert all(drawn[updates] for updates in SHOWN.values())


# --- planted bugs -----------------------------------------------------------------------------------------------------


def nothing(rows: KeyedRows, like: Any) -> Found:
    """As if the rows of a key were not found."""
    none = np.empty(0, np.int64)
    return Found(rows._schema.empty_table(), none, none)


@pytest.mark.parametrize("kind", TIMED)
def test_updates_of_results_that_are_taken_for_new_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind
):
    monkeypatch.setattr(KeyedRows, "find", nothing)
    monkeypatch.setattr(UpdatingPaneOperator, "_there", lambda self, *wanted: self._partials.empty_table())
    assert found(updating(make, kind, ALL)) == [Rule.EXACTLY_ONCE]


def in_runs(world: Scenario, kept: KeptRuns) -> Scenario:
    """The same world with rows in short runs, which checkpoints share."""
    return replace(world, workload=replace(world.workload, runs=kept))


@pytest.mark.parametrize("kept", [KeptRuns.IN_MEMORY, KeptRuns.IN_FILES])
@pytest.mark.parametrize("updates", [LATE, THREE])
@pytest.mark.parametrize("kind", [WindowKind.SLIDING, WindowKind.SESSION, WindowKind.GLOBAL])
def test_rows_in_runs_that_checkpoints_share_are_restored(
    make: Any, kind: WindowKind, updates: Updates, kept: KeptRuns
):
    assert found([in_runs(world, kept) for world in updating(make, kind, updates, count=1)]) == []


@pytest.mark.parametrize("kind", [WindowKind.SESSION, WindowKind.COUNT])
def test_marks_of_rows_that_are_not_saved_are_found(make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind):
    """As if the rows that a run has lost were still in its file."""
    updates = LATE if kind is WindowKind.SESSION else None
    given = [in_runs(world, KeptRuns.IN_FILES) for world in updating(make, kind, updates, count=4)]
    assert found(given) == []
    monkeypatch.setattr(FrozenKeyed, "gone", None)
    assert found(given) == [Rule.EXACTLY_ONCE]


def late(make: Any, kind: WindowKind, updates: Updates, *, count: int = 2) -> list[Scenario]:
    """Windows that show updates, and whose late records are read."""

    def changed(scenario: Scenario) -> Scenario:
        made = make.checkpoints(make.shape(scenario, Shape.LATE), interval_ms=10)
        made = make.workload(
            made, windows=kind, keys=6, slow_us=4_000, updates=updates, window_us=5_000, disorder_us=40_000
        )
        return make.workload(made, lateness_us=15_000)

    return worlds(make, count, make.steady, changed, faults=CRASHES)


@pytest.mark.parametrize("updates", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("kind", TIMED)
def test_every_record_is_late_or_in_a_result_that_was_not_taken_back(make: Any, kind: WindowKind, updates: Updates):
    assert found(late(make, kind, updates, count=1)) == []


@pytest.mark.parametrize("kind", TIMED)
def test_late_records_that_nobody_gets_are_found(make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind):
    monkeypatch.setattr(LateRecordsOperator, "_late_records", lambda self, batch: None)
    assert found(late(make, kind, ALL, count=4)) == [Rule.EXACTLY_ONCE]


def applied(make: Any, kind: WindowKind, *, count: int = 2) -> list[Scenario]:
    """Windows whose records a function gets."""

    def changed(scenario: Scenario) -> Scenario:
        made = make.checkpoints(make.shape(scenario, Shape.WINDOW), interval_ms=10)
        return make.workload(made, windows=kind, keyed=True, keys=6, slow_us=4_000, salt=1 << 12, shares_keys=False)

    return worlds(make, count, make.steady, changed, faults=CRASHES)


@pytest.mark.parametrize("kind", [WindowKind.TUMBLING, WindowKind.SESSION, WindowKind.COUNT])
def test_a_function_gets_all_records_of_a_window(make: Any, kind: WindowKind):
    given = applied(make, kind)
    assert all(world.workload.has_applied_windows for world in given)
    assert found(given) == []


@pytest.mark.parametrize("kind", [WindowKind.TUMBLING, WindowKind.SESSION, WindowKind.COUNT])
def test_records_that_a_function_does_not_get_are_found(make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind):
    honest = ApplyOperator._made

    def fewer(self: Any, batch: Any) -> Any:
        lists = batch.column(WINDOW_ROWS)
        shorter = pc.list_slice(lists, 0, 1, return_fixed_size_list=False)
        place = batch.schema.get_field_index(WINDOW_ROWS)
        return honest(self, batch.set_column(place, batch.schema.field(WINDOW_ROWS), shorter))

    monkeypatch.setattr(ApplyOperator, "_made", fewer)
    assert found(applied(make, kind)) == [Rule.EXACTLY_ONCE]


def test_seeds_draw_late_records_with_updates_and_functions_over_windows():
    drawn = [scenario_of(seed).workload for seed in range(1_000)]
    assert any(workload.shape is Shape.LATE and workload.updates is not None for workload in drawn)
    assert any(workload.shape is Shape.WINDOW and workload.has_applied_windows for workload in drawn)
    assert any(workload.windows is WindowKind.COUNT and workload.has_applied_windows for workload in drawn)


@pytest.mark.parametrize("kind", TIMED)
def test_windows_that_are_shown_again_after_a_restore_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind
):
    monkeypatch.setattr(Fired, "restore", lambda self, ranges, own: None)
    assert found(updating(make, kind, LATE)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize(("part", "updates"), [(CHANGES, LATE), (WAITING, CLOCK), (WAITING, THREE)])
def test_changes_and_waiting_rows_that_are_not_restored_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, part: str, updates: Updates
):
    honest = table_state.decode

    def without(data: bytes, own: Any) -> Any:
        rows, header = honest(data, own)
        return (rows.slice(0, 0) if header.part == part else rows), header

    monkeypatch.setattr(table_state, "decode", without)
    assert found(updating(make, WindowKind.TUMBLING, updates, count=4)) == [Rule.EXACTLY_ONCE]


def test_rows_that_are_forgotten_before_the_lateness_is_over_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(updating_windows, "settled_us", lambda time_us, lateness_us: time_us)
    assert found(updating(make, WindowKind.TUMBLING, LATE)) == [Rule.EXACTLY_ONCE]


def test_early_results_that_are_due_and_do_not_come_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(UpdatingWindowOperator, "fire", lambda self, now: None)
    assert found(updating(make, WindowKind.TUMBLING, CLOCK)) == [Rule.NO_LIVELOCK]


# --- the table --------------------------------------------------------------------------------------------------------


class Judge:
    """Keeps the violations."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def violate(self, rule: Rule, text: str) -> None:
        self.found.append(text)


@pytest.mark.parametrize(
    "changes",
    [
        [("insert", 1), ("insert", 2)],
        [("update_after", 1)],
        [("insert", 1), ("update_before", 1), ("insert", 2)],
        [("insert", 1), ("update_before", 2)],
        [("delete", 1)],
        [("insert", 1), ("delete", 2)],
    ],
)
def test_changes_that_do_not_fit_break_a_rule(monkeypatch: pytest.MonkeyPatch, changes: list[tuple[str, int]]):
    judge: Any = Judge()
    monkeypatch.setattr("penstock.sim.changes.rows_of", lambda batch: batch)
    batch: Any = [(7, n, n, kind) for kind, n in changes]
    transaction = Transaction(name="t", target="sink", subtask=0, epoch=1, checkpoint=1, batches=(batch,))
    table_of(judge, [transaction])
    assert len(judge.found) == 1

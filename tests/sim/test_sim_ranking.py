"""Deduplication and first records: simulated jobs choose every record once, on both back ends, and bugs are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from planted_bugs import first_found, worlds

from penstock.api.aggregate_kinds import top_rows
from penstock.api.aggregate_kinds.retracting import EntriesOfPartials
from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators import deduplicate, top
from penstock.runtime.task.operators.deduplicate import LastRecordOperator
from penstock.runtime.task.operators.passed_times import PassedTimes
from penstock.runtime.task.operators.running_store import BackendStore, MemoryStore
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import TICK_US, Choice, Shape
from penstock.sim.ranking import WITHIN_US, expected_choice
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    *(CrashAfterCheckpoint(at_ms=at_ms, slot=0, delay_ms=5, notice=Notice.TOLD) for at_ms in (0, 500, 800)),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
)
backends = pytest.mark.parametrize("shares_files", [False, True], ids=["memory", "back end"])


def choosing(make: Any, choice: Choice, count: int = 2, *, unaligned: bool = False, **changes: Any):
    how = {name: changes.pop(name) for name in ("shares_files", "rows") if name in changes}
    made = worlds(make, count, make.steady, lambda s: make.shape(s, Shape.CHOOSES), **{"faults": CRASHES, **changes})
    made = [make.workload(world, choice=choice, keys=5, **how) for world in made]
    return [make.checkpoints(world, interval_ms=40, unaligned=unaligned) for world in made]


@backends
@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("choice", Choice)
def test_every_record_is_chosen_once_whatever_dies(make: Any, choice: Choice, unaligned: bool, shares_files: bool):
    given = choosing(make, choice, unaligned=unaligned, shares_files=shares_files)
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize(("parallelism", "shares_files"), [(1, False), (3, True)])
@pytest.mark.parametrize("choice", Choice)
def test_what_was_chosen_goes_over_to_another_parallelism(
    make: Any, choice: Choice, parallelism: int, shares_files: bool
):
    request = UserRequest(at_ms=0, wish=Wish.RESCALE, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=parallelism)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    how: dict[str, Any] = {"requests": (request,), "again": again, "faults": ()}
    given = choosing(make, choice, unaligned=True, shares_files=shares_files, **how)
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(Wish.RESCALE in result.granted for result in results)


def test_seeds_draw_every_choice_on_both_back_ends():
    drawn = [scenario_of(seed).workload for seed in range(6_000)]
    kinds = Counter((workload.choice, workload.shares_files) for workload in drawn if workload.shape is Shape.CHOOSES)
    assert set(kinds) == {(choice, shares) for choice in Choice for shares in (True, False)}


def test_the_rows_that_are_expected_are_cut_by_time():
    times = (0, WITHIN_US - 1, 5, WITHIN_US, 3)
    records = [(0, seq, 100 * seq, ts) for seq, ts in enumerate(times)]
    assert expected_choice(Choice.FIRST, records) == Counter([records[0], records[3]])
    assert (
        len(expected_choice(Choice.LAST, records)) == (WITHIN_US - 1) // (8 * TICK_US) + WITHIN_US // (8 * TICK_US) + 2
    )
    assert len(expected_choice(Choice.TOP, records)) == 5 + 4
    assert len(expected_choice(Choice.TOP_OF_COUNTS, [*records, (3, 0, 0, 0), (6, 0, 0, 0)])) == 5 + 1


# --- bugs ------------------------------------------------------------------------------------------------------------


@backends
@pytest.mark.parametrize("choice", [Choice.FIRST, Choice.LAST])
def test_a_group_that_is_not_kept_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, choice: Choice, shares_files: bool
):
    for store in (MemoryStore, BackendStore):
        honest = store.write_some

        def lossy(self: Any, rows: Any, which: Any, written: Any, honest: Any = honest) -> None:
            kept = np.flatnonzero(which)[1:]
            fewer = np.zeros(len(which), np.bool_)
            fewer[kept] = True
            honest(self, rows.slice(1), fewer, written[1:])

        monkeypatch.setattr(store, "write_some", lossy)
    assert Rule.EXACTLY_ONCE in first_found(choosing(make, choice, shares_files=shares_files))


def test_groups_that_are_forgotten_too_early_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = PassedTimes.least
    monkeypatch.setattr(PassedTimes, "least", property(lambda self: honest.fget(self) + WITHIN_US))
    assert Rule.EXACTLY_ONCE in first_found(choosing(make, Choice.FIRST, 6, rows=60))


def test_a_group_that_begins_at_a_wrong_time_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deduplicate, "moved", lambda times, by_us: times + by_us - 4 * TICK_US)
    assert Rule.EXACTLY_ONCE in first_found(choosing(make, Choice.FIRST))


def test_a_last_record_that_is_not_taken_back_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deduplicate, "UPDATE_BEFORE", deduplicate.INSERT)
    assert Rule.EXACTLY_ONCE in first_found(choosing(make, Choice.LAST))


def test_a_last_record_that_is_not_kept_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = LastRecordOperator._changed

    def stale(self: Any, batch: Any, groups: Any) -> Any:
        self._last_rows = np.where(groups.is_new, self._last_rows, -1)
        return honest(self, batch, groups)

    monkeypatch.setattr(LastRecordOperator, "_changed", stale)
    assert Rule.EXACTLY_ONCE in first_found(choosing(make, Choice.LAST))


@backends
@pytest.mark.parametrize("choice", [Choice.TOP, Choice.TOP_OF_COUNTS])
def test_a_record_that_leaves_the_first_and_is_not_taken_back_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, choice: Choice, shares_files: bool
):
    monkeypatch.setattr(top, "DELETE", top.INSERT)
    assert Rule.EXACTLY_ONCE in first_found(choosing(make, choice, shares_files=shares_files))


def test_first_records_of_a_wrong_order_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(top_rows, "in_order", lambda records, numbers, order: np.arange(len(numbers)))
    assert Rule.EXACTLY_ONCE in first_found(choosing(make, Choice.TOP))


def test_a_row_that_stays_among_the_first_after_it_was_taken_back_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = EntriesOfPartials.__call__

    def first_half(self: Any, table: Any, groups: Any) -> Any:
        lists = honest(self, table, groups)
        older = table.column(self._column).combine_chunks().take(np.asarray(groups.order[groups.starts]))
        return older if len(lists) == len(older) and len(lists) % 2 else lists

    monkeypatch.setattr(EntriesOfPartials, "__call__", first_half)
    assert Rule.EXACTLY_ONCE in first_found(choosing(make, Choice.TOP_OF_COUNTS))

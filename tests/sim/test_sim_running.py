"""Running aggregates, two in a row: simulated jobs count every record once, on both back ends, and bugs are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from planted_bugs import first_found, found, worlds

from penstock.api.aggregate_kinds.retracting import EntriesOfPartials
from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators import row_segments, running, running_store, running_table
from penstock.runtime.task.operators.key_index import KeyIndex
from penstock.runtime.task.operators.running import RunningCombineOperator
from penstock.runtime.task.operators.running_table import RunningTable
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.running import expected_units
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    *(CrashAfterCheckpoint(at_ms=at_ms, slot=0, delay_ms=5, notice=Notice.TOLD) for at_ms in (0, 500, 800)),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
)
backends = pytest.mark.parametrize("shares_files", [False, True], ids=["memory", "back end"])


def aggregating(make: Any, count: int = 4, *, unaligned: bool = False, shares_files: bool = False, **changes: Any):
    made = worlds(make, count, make.steady, lambda s: make.shape(s, Shape.RUNNING), **{"faults": CRASHES, **changes})
    made = [make.workload(world, shares_files=shares_files, keys=7) for world in made]
    return [make.checkpoints(world, interval_ms=40, unaligned=unaligned) for world in made]


@backends
@pytest.mark.parametrize("unaligned", [False, True])
def test_every_record_is_counted_once_whatever_dies(make: Any, unaligned: bool, shares_files: bool):
    results = [run_scenario(world) for world in aggregating(make, unaligned=unaligned, shares_files=shares_files)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


def test_segments_of_few_rows_are_emptied_and_restored(make: Any, monkeypatch: pytest.MonkeyPatch):
    for module in (row_segments, running_table):
        monkeypatch.setattr(module, "SEGMENT_ROWS", 4)
    monkeypatch.setattr(row_segments, "_FIRST_ROWS", 2)
    monkeypatch.setattr(running_table, "_LEAST_ROWS", 4)
    monkeypatch.setattr(running_table, "_MOST_SMALL", 1)
    assert found(aggregating(make)) == []


@backends
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP])
def test_aggregates_go_over_to_another_parallelism(make: Any, wish: Wish, parallelism: int, shares_files: bool):
    to = parallelism if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    how: dict[str, Any] = {"requests": (request,), "again": again, "faults": ()}
    given: list[Scenario] = aggregating(make, unaligned=True, shares_files=shares_files, **how)
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_seeds_draw_running_aggregates_on_both_back_ends():
    drawn = [scenario_of(seed).workload for seed in range(3_000)]
    kinds = Counter(workload.shares_files for workload in drawn if workload.shape is Shape.RUNNING)
    assert min(kinds[True], kinds[False]) > 5


def test_the_units_that_are_expected_are_numbered_by_bucket():
    records = [(key, 0, 5, 0) for key in (0, 1, 1, 3, 6)]
    assert expected_units(records) == Counter({(b, n, 0, 0): 1 for b, n in ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2))})


# --- bugs ------------------------------------------------------------------------------------------------------------


@backends
def test_a_row_that_is_not_taken_back_is_found(make: Any, monkeypatch: pytest.MonkeyPatch, shares_files: bool):
    monkeypatch.setattr(running, "signs", lambda kinds: np.ones(len(kinds), np.int64))
    assert Rule.EXACTLY_ONCE in first_found(aggregating(make, shares_files=shares_files))


def test_values_that_are_not_taken_back_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = EntriesOfPartials.__call__

    def first_half(self: Any, table: pa.Table, groups: Any) -> Any:
        lists = honest(self, table, groups)
        older = table.column(self._column).combine_chunks().take(pa.array(groups.order[groups.starts]))
        return older if len(lists) == len(older) and len(lists) % 2 else lists

    monkeypatch.setattr(EntriesOfPartials, "__call__", first_half)
    assert Rule.EXACTLY_ONCE in first_found(aggregating(make))


def test_partials_that_are_not_handed_on_before_a_barrier_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = RunningCombineOperator.before_barrier

    def later(self: Any) -> None:
        if self._until is None or self.context.now() >= self._until:
            honest(self)

    monkeypatch.setattr(RunningCombineOperator, "before_barrier", later)
    assert Rule.EXACTLY_ONCE in first_found(aggregating(make))


def test_a_snapshot_that_leaves_out_the_newest_segment_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = RunningTable.freeze
    monkeypatch.setattr(RunningTable, "freeze", lambda self: honest(self)[:-1])
    assert Rule.EXACTLY_ONCE in first_found(aggregating(make))


def test_a_frozen_segment_that_is_changed_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RunningTable, "freeze", lambda self: tuple(s for s in self._segments.values() if s.live))
    assert Rule.EXACTLY_ONCE in first_found(aggregating(make, count=6))


def test_rows_that_are_restored_by_every_subtask_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running_store, "latest_rows", lambda rows, keys: rows.slice(0, rows.num_rows // 2))
    assert Rule.EXACTLY_ONCE in first_found(aggregating(make))


def test_an_index_that_takes_every_key_of_a_hash_for_the_same_key_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running_table, "key_hashes", lambda keys, *, bits: np.zeros(len(bits), np.uint64))
    assert Rule.EXACTLY_ONCE in first_found(aggregating(make))


def test_an_index_that_loses_a_key_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = KeyIndex.insert

    def lossy(self: Any, hashes: Any, places: Any) -> None:
        honest(self, hashes[1:], places[1:])

    monkeypatch.setattr(KeyIndex, "insert", lossy)
    assert Rule.EXACTLY_ONCE in first_found(aggregating(make))

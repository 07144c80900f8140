"""Jobs that sort records by event time: every record is shown once and in order, whatever dies, on both back ends; and
planted bugs are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from planted_bugs import found, worlds

from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.sort import SortOperator
from penstock.runtime.task.operators.sorted_rows import SortedRows
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import TICK_US, Shape
from penstock.sim.kept_runs import KeptRuns
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
)


def sorts(
    make: Any, count: int = 3, *, runs: KeptRuns = KeptRuns.IN_FILES, unaligned: bool = False, **changes: Any
) -> list[Scenario]:
    """Jobs with a sort, whose records are far out of order. They do their work in small slices."""
    given = {"faults": CRASHES, "slice_rows": 2, **changes}
    made = worlds(make, count, make.steady, lambda s: make.shape(s, Shape.SORTED), **given)
    made = [make.workload(s, keys=3, shares_keys=True, disorder_us=60 * TICK_US, runs=runs) for s in made]
    return [make.checkpoints(s, interval_ms=40, unaligned=unaligned) for s in made]


@pytest.mark.parametrize("runs", KeptRuns)
@pytest.mark.parametrize("unaligned", [False, True])
def test_every_record_is_shown_once_and_in_order_whatever_dies(make: Any, unaligned: bool, runs: KeptRuns):
    results = [run_scenario(world) for world in sorts(make, unaligned=unaligned, runs=runs)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP, Wish.DRAIN])
def test_a_sort_goes_on_at_another_parallelism(make: Any, wish: Wish, parallelism: int):
    to = parallelism if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    results = [
        run_scenario(world) for world in sorts(make, unaligned=True, requests=(request,), again=again, faults=())
    ]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_a_few_of_all_worlds_have_a_sort_on_both_back_ends():
    drawn = [scenario_of(seed).workload for seed in range(1, 1_500)]
    kinds = Counter(workload.runs for workload in drawn if workload.shape is Shape.SORTED)
    assert all(kinds[runs] for runs in KeptRuns)
    assert 0.003 < kinds.total() / 1_500 < 0.05


# --- planted bugs -----------------------------------------------------------------------------------------------------


def test_records_that_do_not_wait_for_the_watermark_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = SortedRows.take_due
    monkeypatch.setattr(SortedRows, "take_due", lambda rows, last_us: honest(rows, last_us + 20 * TICK_US))
    assert Rule.EXACTLY_ONCE in found(sorts(make, faults=()))


def test_records_that_are_not_sorted_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SortOperator, "_sorted", lambda _, rows: rows)
    assert Rule.EXACTLY_ONCE in found(sorts(make, faults=()))


def test_records_that_are_due_and_not_saved_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = SortOperator.snapshot

    def snapshot(operator: SortOperator, *given: Any) -> Any:
        leaving, operator._leaving = operator._leaving, None
        try:
            return honest(operator, *given)
        finally:
            operator._leaving = leaving

    monkeypatch.setattr(SortOperator, "snapshot", snapshot)
    # A slow step behind the sort: barriers come while records are handed on.
    crashes = tuple(CrashAfterCheckpoint(at_ms=ms, slot=1, delay_ms=5, notice=Notice.TOLD) for ms in (50, 150, 250))
    given = [
        make.workload(world, keys=1, slow_us=1_000, disorder_us=0)
        for world in sorts(make, 4, faults=crashes, slice_rows=1)
    ]
    assert Rule.EXACTLY_ONCE in found(given)


def test_rows_that_left_a_run_and_come_back_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = SortedRows.take_in
    monkeypatch.setattr(SortedRows, "take_in", lambda rows, blocks, buffer, _: honest(rows, blocks, buffer, 0))
    crashes = tuple(CrashAfterCheckpoint(at_ms=ms, slot=1, delay_ms=5, notice=Notice.TOLD) for ms in (50, 150, 250))
    given = [make.workload(world, disorder_us=0) for world in sorts(make, 4, faults=crashes)]
    assert Rule.EXACTLY_ONCE in found(given)


def test_records_that_are_late_for_no_reason_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = Fired.late
    monkeypatch.setattr(Fired, "late", lambda fired, times, groups: honest(fired, times - 200 * TICK_US, groups))
    assert Rule.EXACTLY_ONCE in found(sorts(make, faults=()))

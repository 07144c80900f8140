"""Slots that do little at a time: barriers come in the middle of timers, results of windows, and rows of one call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_bugs import found, shows, worlds

from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.chain import OperatorChain
from penstock.runtime.task.operators.keyed import KeyedOperator
from penstock.runtime.task.operators.windows import WindowOperator
from penstock.sim.faults import CrashAfterCheckpoint
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice

CRASHES = tuple(
    CrashAfterCheckpoint(at_ms=at_ms, slot=at_ms // 100 % 2, delay_ms=1, notice=Notice.TOLD)
    for at_ms in range(500, 3_500, 100)
)


def sliced(make: Any, shape: Shape, count: int = 4, *, rows: int = 1, unaligned: bool = False) -> list[Scenario]:
    """Checkpoints one after another, each of them restored, in slots that do so many things at a time."""

    def cut(scenario: Scenario) -> Scenario:
        made = make.checkpoints(make.shape(scenario, shape), interval_ms=10, unaligned=unaligned)
        return replace(make.workload(made, window_us=20_000, keys=60, slow_us=8_000), slice_rows=rows)

    return worlds(make, count, make.steady, cut, faults=CRASHES)


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("shape", [Shape.TIMERS, Shape.WINDOW, Shape.UNION_WINDOW])
def test_barriers_in_the_middle_of_what_a_slot_does_repeat_and_lose_nothing(
    make: Any, monkeypatch: pytest.MonkeyPatch, shape: Shape, unaligned: bool
):
    seen = []
    honest = OperatorChain.snapshot

    def noting(chain: OperatorChain, *args: Any) -> Any:
        seen.append(chain.is_busy)
        return honest(chain, *args)

    monkeypatch.setattr(OperatorChain, "snapshot", noting)
    assert found(sliced(make, shape, unaligned=unaligned)) == []
    assert True in seen, "no barrier came in the middle"


def test_a_snapshot_in_the_middle_of_what_a_call_makes_repeats_or_loses_rows(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    """Neither waited for, nor taken to the end of the chain before the barrier."""
    monkeypatch.setattr(OperatorChain, "may_snapshot", True)
    monkeypatch.setattr(OperatorChain, "before_barrier", lambda chain: None)
    assert shows(Rule.EXACTLY_ONCE, sliced(make, Shape.TIMERS, unaligned=True))


def test_windows_that_are_not_in_the_snapshot_until_their_results_are_out_are_lost(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    honest = WindowOperator.snapshot

    def forgetful(operator: WindowOperator, *args: Any) -> Any:
        leaving, operator._leaving = operator._leaving, None
        try:
            return honest(operator, *args)
        finally:
            operator._leaving = leaving

    monkeypatch.setattr(WindowOperator, "snapshot", forgetful)
    assert shows(Rule.EXACTLY_ONCE, sliced(make, Shape.WINDOW, 6))


def test_a_watermark_that_is_handed_on_before_its_timers_have_fired_lets_records_be_read_too_early(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    """At the end of the data, all that has not fired is lost."""
    honest = KeyedOperator.watermark

    def hasty(operator: KeyedOperator, time_us: int, *, idle: bool = False) -> Any:
        work = honest(operator, time_us, idle=idle)
        return None if time_us == MAX_WATERMARK else work

    monkeypatch.setattr(KeyedOperator, "watermark", hasty)
    assert shows(Rule.EXACTLY_ONCE, sliced(make, Shape.TIMERS))


def test_the_size_of_slices_is_drawn_and_changes_nothing_but_the_order(make: Any):
    (scenario,) = sliced(make, Shape.TIMERS, 1)
    results = [run_scenario(replace(scenario, slice_rows=rows)) for rows in (1, 7, 65_536)]
    assert [result.violations for result in results] == [(), (), ()]

"""Patterns: simulated jobs show every match once, on both back ends and whatever dies, and bugs are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from planted_bugs import first_found, worlds

from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators.pattern import PatternOperator
from penstock.runtime.task.operators.pattern_automaton import Automaton
from penstock.runtime.task.operators.pattern_matches import KeyMatches
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import TICK_US, Shape, Sought
from penstock.sim.matching import WITHIN_US, expected_matches
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    *(CrashAfterCheckpoint(at_ms=at_ms, slot=0, delay_ms=5, notice=Notice.TOLD) for at_ms in (0, 500, 800)),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
)
backends = pytest.mark.parametrize("shares_files", [False, True], ids=["memory", "back end"])


def matching(make: Any, sought: Sought, count: int = 2, *, unaligned: bool = False, **changes: Any):
    how = {name: changes.pop(name) for name in ("shares_files", "rows") if name in changes}
    made = worlds(make, count, make.steady, lambda s: make.shape(s, Shape.MATCHES), **{"faults": CRASHES, **changes})
    made = [make.workload(world, sought=sought, keys=2, **how) for world in made]
    return [make.checkpoints(world, interval_ms=40, unaligned=unaligned) for world in made]


@backends
@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("sought", Sought)
def test_every_match_is_shown_once_whatever_dies(make: Any, sought: Sought, unaligned: bool, shares_files: bool):
    given = matching(make, sought, unaligned=unaligned, shares_files=shares_files)
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize(("parallelism", "shares_files"), [(1, False), (3, True)])
@pytest.mark.parametrize("sought", Sought)
def test_partial_matches_go_over_to_another_parallelism(
    make: Any, sought: Sought, parallelism: int, shares_files: bool
):
    request = UserRequest(at_ms=0, wish=Wish.RESCALE, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=parallelism)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    how: dict[str, Any] = {"requests": (request,), "again": again, "faults": ()}
    given = matching(make, sought, unaligned=True, shares_files=shares_files, **how)
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(Wish.RESCALE in result.granted for result in results)


def test_seeds_draw_every_pattern_on_both_back_ends():
    drawn = [scenario_of(seed) for seed in range(3_000)]
    matches = [scenario for scenario in drawn if scenario.workload.shape is Shape.MATCHES]
    kinds = Counter((each.workload.sought, each.workload.shares_files) for each in matches)
    assert set(kinds) == {(sought, shares) for sought in Sought for shares in (True, False)}
    wishes = {request.wish for each in matches for request in (*each.requests, *(each.again or each).requests)}
    assert Wish.STOP in wishes
    assert Wish.DRAIN not in wishes


def test_the_matches_that_are_expected():
    values = [3, 4, 0, 2, 2, 7, 1, 5]
    records = [(0, seq, value, seq * TICK_US) for seq, value in enumerate(values)]
    last = [(row[1], row[3] // TICK_US) for row in expected_matches(Sought.RISE, records).elements()]
    assert sorted(last) == [(1, 1), (5, 5)]
    assert [row[1] for row in expected_matches(Sought.RUN, records).elements()] == [5]
    assert [row[1] for row in expected_matches(Sought.SILENCE, records).elements()] == []
    silent = [(0, 0, 3, 0), (0, 1, 1, WITHIN_US)]
    assert [row[1:2] + row[3:] for row in expected_matches(Sought.SILENCE, silent).elements()] == [(0, WITHIN_US)]
    assert [row[2] < 0 for row in expected_matches(Sought.RISE, [(0, 0, 3, 0)]).elements()] == [True]
    assert sum(expected_matches(Sought.SUMS, records).values()) >= 1


# --- bugs ------------------------------------------------------------------------------------------------------------


@backends
@pytest.mark.parametrize("sought", Sought)
def test_partial_matches_that_a_restore_forgets_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, sought: Sought, shares_files: bool
):
    honest = PatternOperator.load

    def forgetful(self: Any, context: Any) -> None:
        honest(self, context)
        if context.fresh:
            return
        table = self._backend.value_table("matches")
        get, kept = table.get, set[Any]()

        def first_time(group: Any = None) -> Any:
            found = get()
            number = id(found) if not isinstance(found, dict) else (found["next"], str(found["records"])[:80])
            if number in kept:
                return found
            kept.add(number)
            return found if not isinstance(found, dict) else {**found, "partials": [], "found": []}

        self._lost = first_time

    opened = PatternOperator.open

    def with_losses(self: Any, context: Any, output: Any) -> None:
        opened(self, context, output)
        if hasattr(self, "_lost"):
            self._matches = _Table(self._matches, self._lost)

    monkeypatch.setattr(PatternOperator, "load", forgetful)
    monkeypatch.setattr(PatternOperator, "open", with_losses)
    assert Rule.EXACTLY_ONCE in first_found(matching(make, sought, 4, shares_files=shares_files))


class _Table:
    """A table whose entries are read in another way."""

    def __init__(self, table: Any, get: Any) -> None:
        self.get, self.put, self.remove = get, table.put, table.remove


@backends
def test_a_record_that_waits_and_is_forgotten_is_found(make: Any, monkeypatch: pytest.MonkeyPatch, shares_files: bool):
    honest = PatternOperator._begun

    def forgetful(self: Any, due: Any) -> Any:
        runs = honest(self, due)
        for run in runs:
            run.moments = [(time, records[:-1] if time % 7 == 0 else records) for time, records in run.moments]
        return runs

    monkeypatch.setattr(PatternOperator, "_begun", forgetful)
    assert Rule.EXACTLY_ONCE in first_found(matching(make, Sought.RISE, shares_files=shares_files))


@pytest.mark.parametrize("sought", [Sought.RISE, Sought.SILENCE])
def test_timers_of_within_that_are_not_set_are_found(make: Any, monkeypatch: pytest.MonkeyPatch, sought: Sought):
    monkeypatch.setattr(KeyMatches, "_note_deadlines", lambda self, place, link: None)
    assert Rule.EXACTLY_ONCE in first_found(matching(make, sought))


def test_time_that_is_over_too_late_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = KeyMatches._run_out

    def late(self: Any, moment: int, time: int) -> None:
        honest(self, moment, time - TICK_US)

    monkeypatch.setattr(KeyMatches, "_run_out", late)
    assert Rule.EXACTLY_ONCE in first_found(matching(make, Sought.RISE))


def test_an_option_that_stays_open_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = Automaton.step

    def open_for_ever(self: Any, place: int, still_open: int, truths: int) -> Any:
        return still_open, honest(self, place, still_open, truths)[1]

    monkeypatch.setattr(Automaton, "step", open_for_ever)
    assert Rule.EXACTLY_ONCE in first_found(matching(make, Sought.RISE))


def test_matches_that_are_not_skipped_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(KeyMatches, "_is_skipped", lambda self, last, found: False)
    assert Rule.EXACTLY_ONCE in first_found(matching(make, Sought.SUMS))
    assert Rule.EXACTLY_ONCE in first_found(matching(make, Sought.RUN, 6))


def test_answers_that_reach_the_wrong_partial_match_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = PatternOperator._answers
    monkeypatch.setattr(PatternOperator, "_answers", lambda self, asked: [each[::-1] for each in honest(self, asked)])
    assert Rule.EXACTLY_ONCE in first_found(matching(make, Sought.RISE, 4))

"""Worlds in which a second job goes on from what the first one left, and bugs that only such worlds show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_bugs import found, shows

from penstock.core.coordinator.archive import Archive
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import Claim, DiscardRules
from penstock.runtime.master import starting
from penstock.runtime.task.inflight import ChannelReader
from penstock.runtime.task.operators.sink import SinkOperator
from penstock.runtime.task.operators.window_state import WindowState
from penstock.settings import Retention
from penstock.sim.again import Again
from penstock.sim.faults import (
    CrashAfterCheckpoint,
    CrashAtEnd,
    CrashInCall,
    DriverOversleeps,
    Fault,
    SlotCrash,
    StorageErrors,
)
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES = (CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),)


def going_on(make: Any, parallelism: int, *, end: Wish, shape: Shape = Shape.KEYED, **changes: Any) -> list[Scenario]:
    """Jobs on two slots that end in the middle of their data, and go on with another number of slots."""
    again = Again(parallelism=parallelism, safety_ms=1_000, **{"claim": Claim.NO_CLAIM, "moved": False, **changes})
    request = UserRequest(at_ms=0, wish=end, moment=Moment.RUN, delay_ms=250)
    made = [make.plain(number, again=again, requests=(request,)) for number in range(4)]
    made = [make.shape(make.steady(scenario), shape) for scenario in made]
    return [
        make.checkpoints(
            scenario, unaligned=end is Wish.CANCEL, retention=Retention.KEEP, inline_threshold_bytes=0, interval_ms=40
        )
        for scenario in made
    ]


@pytest.mark.parametrize("shape", [Shape.WINDOW, Shape.TWICE, Shape.HASH_BROADCAST, Shape.UNION])
@pytest.mark.parametrize("end", [Wish.STOP, Wish.DRAIN, Wish.CANCEL])
@pytest.mark.parametrize(("parallelism", "claim", "moved"), [(1, Claim.CLAIM, True), (3, Claim.NO_CLAIM, False)])
def test_two_jobs_one_after_the_other_show_what_one_would_have_shown(
    make: Any, shape: Shape, end: Wish, parallelism: int, claim: Claim, moved: bool
):
    for scenario in going_on(make, parallelism, end=end, shape=shape, claim=claim, moved=moved, faults=CRASHES):
        result = run_scenario(scenario)
        assert result.violations == ()
        assert result.jobs == 2


def test_many_worlds_go_on_in_every_way():
    drawn = [scenario_of(seed).again for seed in range(1, 100)]
    again = [each for each in drawn if each is not None]
    assert len(again) < len(drawn)
    assert {each.parallelism for each in again} == set(range(1, 7))
    assert {(each.claim, each.moved) for each in again} == {
        (claim, moved) for claim in (Claim.CLAIM, Claim.NO_CLAIM) for moved in (False, True)
    }


def test_a_driver_of_the_first_job_that_wakes_up_beside_the_second_does_no_harm(make: Any):
    """1. The first job is cancelled; its driver does not know whether the outcome is recorded, and falls asleep.
    2. Another finds the outcome and ends the job. 3. The second job starts. 4. The first driver wakes up and records
    the outcome once more."""
    doubt = StorageErrors(at_ms=270, for_ms=400, share=0.5, after=True)
    slept = DriverOversleeps(at_ms=420, for_ms=2_000, taken_over_ms=1_500)
    worlds = [replace(world, faults=(doubt, slept), lasting=True) for world in going_on(make, 2, end=Wish.CANCEL)]
    results = [run_scenario(world) for world in worlds]
    assert [(result.violations, result.jobs) for result in results] == [((), 2)] * len(worlds)


def test_results_that_only_the_restore_can_commit_are_missed(make: Any, monkeypatch: pytest.MonkeyPatch):
    """A checkpoint is durable, and the job is cancelled before its sink has heard of it."""
    monkeypatch.setattr(SinkOperator, "load", lambda self, context: None)
    worlds = [
        replace(world, requests=(UserRequest(at_ms=200, wish=Wish.CANCEL, moment=Moment.CHECKPOINT),))
        for world in going_on(make, 3, end=Wish.CANCEL)
    ]
    assert found(worlds) == [Rule.EXACTLY_ONCE]


def test_data_in_flight_that_is_not_dealt_out_is_missed(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ChannelReader, "read_dealt", lambda self, task, dealt: {})
    assert shows(Rule.EXACTLY_ONCE, going_on(make, 3, end=Wish.CANCEL))


def test_a_restore_that_forgets_which_windows_were_shown_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """Whatever was shown is state: without it the rows of windows that are open are gone, too."""
    monkeypatch.setattr(WindowState, "load", lambda state, take_rows: [])
    assert shows(Rule.EXACTLY_ONCE, going_on(make, 1, end=Wish.STOP, shape=Shape.WINDOW))


@pytest.mark.parametrize(
    ("said", "done", "rule"),
    [(Claim.CLAIM, Claim.NO_CLAIM, Rule.NO_ORPHANS), (Claim.NO_CLAIM, Claim.CLAIM, Rule.SAVEPOINTS)],
)
@pytest.mark.parametrize("end", [Wish.STOP, Wish.CANCEL])
def test_a_snapshot_that_is_kept_or_deleted_against_the_users_will_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, said: Claim, done: Claim, rule: Rule, end: Wish
):
    honest = starting.restored_from
    monkeypatch.setattr(
        starting, "restored_from", lambda metadata, **given: honest(metadata, **{**given, "claim": done})
    )
    assert found(going_on(make, 2, end=end, claim=said)) == [rule]


# --- what the second job owns, when its driver dies ------------------------------------------------------------------


def dying(make: Any, *, end: Wish) -> list[Scenario]:
    """Jobs that own what they start from, and whose driver dies about when that goes."""
    deaths: list[Fault] = [
        CrashInCall(at_ms=at_ms, slot=None, call=call, calls=calls, notice=Notice.TOLD)
        for call in ("delete", "delete-done", "write-done", "submit")
        for at_ms, calls in ((20, 1), (20, 3), (60, 1), (100, 2))
    ]
    at_end = [CrashAtEnd(at_ms=0, calls=calls) for calls in range(1, 16)]
    world = going_on(make, 2, end=end, claim=Claim.CLAIM)[0]
    # Where many are retained, and few taken, the snapshot is there to the end.
    last = make.checkpoints(world, interval_ms=None if end is Wish.STOP else 40, num_retained=50)
    return [
        replace(world, again=replace(world.again, faults=(death,)), lasting=True, loses_unsynced=number % 2 == 0)
        for world, chosen in ((world, deaths), (last, at_end))
        for number, death in enumerate(chosen)
    ]


@pytest.mark.parametrize("end", [Wish.STOP, Wish.CANCEL])
@pytest.mark.slow
def test_what_the_second_job_owns_is_gone_whenever_its_driver_dies(make: Any, end: Wish):
    assert found(dying(make, end=end)) == []


@pytest.mark.slow
def test_a_record_that_goes_before_its_files_do_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """The next driver does not know of them, and they do not lie in the folder that is cleaned in the end."""
    monkeypatch.setattr(Archive, "_lies_outside", staticmethod(lambda completed: False))
    assert found(dying(make, end=Wish.STOP)) == [Rule.NO_ORPHANS]


@pytest.mark.slow
def test_an_outcome_that_does_not_name_what_is_to_be_deleted_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Archive, "foreign_after", lambda archive, status: ())
    assert found(dying(make, end=Wish.STOP)) == [Rule.NO_ORPHANS]


# --- a second job that ends before its first checkpoint ---------------------------------------------------------------


def ending_early(make: Any, *, retention: Retention = Retention.DELETE, **again: Any) -> list[Scenario]:
    """Jobs that own what they start from, and end before they have taken a checkpoint."""
    made = going_on(make, 2, end=Wish.STOP, claim=Claim.CLAIM, **again)
    return [make.checkpoints(world, interval_ms=None, retention=retention) for world in made]


CANCELLED = {"requests": (UserRequest(at_ms=0, wish=Wish.CANCEL, moment=Moment.RUN, delay_ms=5),)}
FAILED = {"gives_up": True, "faults": (SlotCrash(at_ms=60, slot=0, notice=Notice.TOLD),)}


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(("again", "end"), [(CANCELLED, JobState.CANCELLED), (FAILED, JobState.FAILED)])
def test_a_claimed_snapshot_that_nothing_replaced_is_as_it_was(make: Any, again: Any, end: JobState, lasting: bool):
    worlds = [replace(world, lasting=lasting) for world in ending_early(make, **again)]
    results = [run_scenario(world) for world in worlds]
    assert [(result.violations, result.outcome, result.jobs) for result in results] == [((), end, 2)] * len(worlds)


@pytest.mark.parametrize("again", [CANCELLED, FAILED])
def test_a_claimed_snapshot_that_goes_before_anything_replaced_it_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, again: Any
):
    monkeypatch.setattr(Archive, "_has_own", True)
    monkeypatch.setattr(DiscardRules, "of_claimed", DiscardRules.of)
    assert found(ending_early(make, **again)) == [Rule.SAVEPOINTS]


def test_some_worlds_end_their_second_job_early():
    drawn = [scenario_of(seed).again for seed in range(1, 200)]
    assert any(each is not None and each.gives_up for each in drawn)
    assert any(each is not None and each.requests for each in drawn)

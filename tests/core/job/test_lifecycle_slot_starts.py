"""Slots that cannot be started again: how often they are asked for, until when, and when that is no use any more. And
slots that the cluster started again by itself, of which the host speaks as they were asked for."""

from __future__ import annotations

import pytest
from lifecycle_rig import cancelled, feed, kinds, ready, slot, tasks, tick, up

from penstock.core.errors import InvariantError
from penstock.core.ids import Epoch, SlotId
from penstock.core.job.events import (
    AttemptEnded,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEffect,
    JobEnded,
    JobEnding,
    JobStarted,
    JobState,
    RescaleConfirmed,
    RescaleRequested,
    RunTasks,
    SlotGone,
    StartSlot,
    StopSlot,
    TellCancel,
    TellLeave,
)
from penstock.core.job.lifecycle import LEAVE_TIMEOUT_MS, JobLifecycle
from penstock.settings import ExponentialDelay, FixedDelay, NoRestart, Restart, SlotSettings

A, B, C = slot(0), slot(1), slot(2)
A2, A3, B2 = slot(0, 2), slot(0, 3), slot(1, 2)
TASKS = tasks(2)
NO_PYTHON = "python: No such file or directory"
STOPPED = "the SparkSession was stopped"


def running(restart: Restart | None = None, *, spares: int = 0) -> JobLifecycle:
    settings = SlotSettings(
        start_timeout_ms=10_000,
        heartbeat_timeout_ms=1_000_000,
        cancel_timeout_ms=500,
        deploy_timeout_ms=800,
        spares=spares,
    )
    strategy = restart or FixedDelay(attempts=5, delay_ms=1_000)
    job = JobLifecycle(slots=2, tasks=TASKS, settings=settings, restart=strategy)
    feed(job, 0, JobStarted(), *up(A, B), *ready(1, A, B))
    assert job.state is JobState.RUNNING
    return job


def gone(name: SlotId, error: str | None = "killed") -> SlotGone:
    return SlotGone(slot=name, error=error)


def asked_for(effects: list[JobEffect]) -> list[SlotId]:
    return [effect.slot for effect in effects if isinstance(effect, StartSlot)]


def cause_of(effects: list[JobEffect]) -> FailureCause | None:
    (cause,) = [effect.cause for effect in effects if isinstance(effect, JobEnding)]
    return cause


def live_on_a_host_that_starts_nothing(job: JobLifecycle, until: int) -> tuple[list[int], list[JobEffect]]:
    """Lose the first slot at 10; every next one fails a millisecond after it was asked for. When each was asked for,
    and what was to be done at the end."""
    effects = feed(job, 10, gone(A), *cancelled(1, B))
    now, times = 10, [10]
    while not any(isinstance(effect, JobEnding) for effect in effects) and now < until:
        if wanted := asked_for(effects):
            now += 1
            effects = feed(job, now, gone(wanted[-1], NO_PYTHON))
        else:
            now = job.next_deadline() or until
            effects = tick(job, now)
        times += [now for _ in asked_for(effects)]
    return times, effects


# --- how often, and until when ----------------------------------------------------------------------------


def test_a_slot_that_was_up_is_replaced_at_once_and_one_that_did_not_start_after_the_pause():
    job = running()
    assert asked_for(feed(job, 10, gone(A))) == [A2]
    assert feed(job, 11, *cancelled(1, B), gone(A2, NO_PYTHON)) == []
    assert tick(job, 510) == []
    assert job.next_deadline() == 1_010
    assert tick(job, 1_010) == [StartSlot(slot=A3)]
    assert feed(job, 1_020, *up(A3)) == [DeployTasks(epoch=Epoch(2), slots=(A3, B))]


def test_slots_that_cannot_come_back_use_up_the_strategy_with_all_its_pauses():
    times, effects = live_on_a_host_that_starts_nothing(running(FixedDelay(attempts=3, delay_ms=2_000)), 60_000)
    assert times == [10, 2_010, 4_011, 6_012]
    why = "all 3 restarts of the fixed-delay strategy are used up"
    assert cause_of(effects) == FailureCause(text=f"slot 0 was lost: {NO_PYTHON}", why_final=why)


def test_a_job_that_is_restarted_for_ever_fails_when_a_slot_is_missing_for_too_long():
    times, effects = live_on_a_host_that_starts_nothing(running(ExponentialDelay()), 60_000)
    assert len(times) < 8
    text = f"only 1 of 2 slots came up in 10000 ms (missing: 0); slot 0 could not be started: {NO_PYTHON}"
    assert cause_of(effects) == FailureCause(text=text)


def test_without_a_word_from_the_host_there_may_be_no_room():
    job = running()
    feed(job, 10, gone(A), *cancelled(1, B))
    tick(job, 1_010)
    assert tick(job, 10_009) == []
    text = "only 1 of 2 slots came up in 10000 ms (missing: 0)"
    assert cause_of(tick(job, 10_010)) == FailureCause(text=text, lacks_room=True)


def test_one_pause_serves_all_that_fail_in_it_and_counts_once():
    job = running(FixedDelay(attempts=1, delay_ms=1_000))
    assert asked_for(feed(job, 10, gone(A), gone(B))) == [A2, B2]
    assert feed(job, 11, gone(A2, NO_PYTHON), gone(B2, NO_PYTHON)) == []
    assert tick(job, 1_010) == [StartSlot(slot=A3), StartSlot(slot=slot(1, 3))]


def test_each_has_its_own_time_since_it_was_lost():
    job = running()
    feed(job, 10, gone(A), *cancelled(1, B))
    tick(job, 1_010)
    feed(job, 9_000, gone(B))
    assert feed(job, 9_500, *up(A2)) == []
    assert tick(job, 10_010) == []
    assert job.next_deadline() == 19_000


def test_a_slot_that_came_up_in_between_has_all_the_time_again():
    job = running()
    feed(job, 10, gone(A), *cancelled(1, B), gone(A2, NO_PYTHON))
    tick(job, 1_010)
    # B is there, and has dropped its tasks; the next attempt is deployed, and lost with the slot.
    feed(job, 1_020, *up(A3), gone(A3), *cancelled(2, B))
    tick(job, 2_020)
    assert job.next_deadline() == 11_020


def test_a_slot_that_keeps_its_tasks_is_stopped_though_another_is_missing():
    job = running()
    feed(job, 10, gone(A))
    assert tick(job, 510) == [StopSlot(slot=B), StartSlot(slot=B2)]


def test_without_a_strategy_the_first_that_cannot_be_started_fails_a_job_that_was_taken_over():
    job = JobLifecycle(slots=1, tasks=TASKS[:1], settings=SlotSettings(), restart=NoRestart(), ran_before=True)
    feed(job, 0, JobStarted())
    told = FailureCause(text=f"slot 0 was lost: {NO_PYTHON}", why_final="no_restart() was given")
    assert cause_of(feed(job, 1, gone(A, NO_PYTHON))) == told


def test_a_spare_that_comes_up_in_the_pause_gets_the_place_and_nobody_else_is_asked_for():
    job = running(spares=1)
    feed(job, 10, gone(A), *cancelled(1, B), gone(A2, NO_PYTHON))
    assert feed(job, 20, *up(C)) == []
    assert tick(job, 1_010) == [DeployTasks(epoch=Epoch(2), slots=(C, B))]
    # The next spare is asked for when the job runs, with the number that is free.
    assert feed(job, 1_020, *ready(2, C, B)) == [
        RunTasks(epoch=Epoch(2), slots=(C, B)),
        StartSlot(slot=slot(0, 4)),
    ]


def test_a_slot_that_is_not_asked_for_yet_is_not_stopped_when_the_job_ends():
    job = running()
    feed(job, 10, gone(A), *cancelled(1, B), gone(A2, NO_PYTHON))
    assert feed(job, 20, CancelRequested()) == [
        JobEnding(outcome=JobState.CANCELLED, cause=None),
        TellLeave(slot=B),
    ]
    assert feed(job, 21, gone(B, None)) == [JobEnded(outcome=JobState.CANCELLED, cause=None)]


def test_validate_finds_a_slot_that_waits_for_nothing():
    job = running()
    feed(job, 10, gone(A), gone(A2, NO_PYTHON))
    job._pause.end()
    with pytest.raises(InvariantError, match="no pause is on"):
        job.validate()


# --- a host that is gone ----------------------------------------------------------------------------


def test_a_job_whose_host_is_gone_fails_at_once_with_that_as_the_cause():
    job = running(ExponentialDelay())
    cause = FailureCause(text=STOPPED)
    assert feed(job, 10, SlotGone(slot=A, error=STOPPED, host_gone=True)) == [
        AttemptEnded(epoch=Epoch(1), cause=cause, restart_in_ms=None),
        JobEnding(outcome=JobState.FAILED, cause=cause),
        TellLeave(slot=A),
        TellLeave(slot=B),
    ]
    other = SlotGone(slot=B, error=STOPPED, host_gone=True)
    assert feed(job, 11, other) == [JobEnded(outcome=JobState.FAILED, cause=cause)]
    assert feed(job, 12, other) == []


def test_news_of_a_slot_that_was_replaced_already_tell_of_the_host_as_well():
    job = running()
    feed(job, 10, gone(A, "the link to it broke"))
    effects = feed(job, 11, SlotGone(slot=A, error=None, host_gone=True))
    assert kinds(effects) == [JobEnding, StopSlot, TellLeave]
    assert cause_of(effects) == FailureCause(text="the host of the slots is gone")


# --- attempts of the cluster's own ----------------------------------------------------------------------------


def started_again() -> tuple[JobLifecycle, SlotId]:
    """A job whose first slot is the second try of the cluster's own, which the host calls by the name of the first."""
    job, again = running(), slot(0, 1, 1)
    feed(job, 10, *up(again), *cancelled(1, B))
    tick(job, 1_010)
    feed(job, 1_020, *ready(2, again, B))
    assert job.state is JobState.RUNNING
    return job, again


def test_the_end_of_a_slot_that_the_cluster_started_again_is_heard():
    job, _ = started_again()
    assert feed(job, 2_000, gone(A)) == [
        AttemptEnded(epoch=Epoch(2), cause=FailureCause(text="slot 0 was lost: killed"), restart_in_ms=1_000),
        TellCancel(slot=B, epoch=Epoch(2)),
        StartSlot(slot=A2),
    ]


def test_a_job_ends_as_soon_as_a_slot_that_the_cluster_started_again_has_left():
    job, again = started_again()
    assert TellLeave(slot=again) in feed(job, 2_000, CancelRequested())
    feed(job, 2_001, gone(B, None))
    assert feed(job, 2_002, gone(A, None)) == [JobEnded(outcome=JobState.CANCELLED, cause=None)]


def test_a_slot_that_the_cluster_started_again_and_that_is_not_needed_any_more_is_heard_to_leave():
    job, again = running(), slot(1, 1, 1)
    feed(job, 10, *up(again), *cancelled(1, A))
    tick(job, 1_010)
    feed(job, 1_020, *ready(2, A, again), RescaleRequested(slots=1, tasks=TASKS[:1]))
    assert TellLeave(slot=again) in feed(job, 1_030, RescaleConfirmed())
    feed(job, 1_040, gone(B, None), *cancelled(2, A), *ready(3, A))
    assert tick(job, 1_030 + LEAVE_TIMEOUT_MS) == []

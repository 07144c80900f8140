"""A slot whose loop does not turn is alive: it is told of, and given up only where the settings say so."""

from __future__ import annotations

import pytest
from lifecycle_rig import cancelled, feed, ready, slot, tasks, tick, up

from penstock.core.ids import Epoch
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    CancelRequested,
    FailureCause,
    JobStarted,
    JobState,
    ReportStuck,
    ReportTurning,
    SlotGone,
    SlotHeard,
    SlotMute,
    SlotStuck,
    SlotTurned,
    StartSlot,
    StopSlot,
    TellPeerAlive,
)
from penstock.core.job.lifecycle import JobLifecycle
from penstock.settings import FixedDelay, SlotSettings

A1, B1, A2 = slot(0), slot(1), slot(0, 2)
WHERE = "the code of step 'slow', subtask 0"


def running(stuck_timeout_ms: int | None = None) -> JobLifecycle:
    settings = SlotSettings(heartbeat_timeout_ms=10_000, cancel_timeout_ms=500, stuck_timeout_ms=stuck_timeout_ms)
    job = JobLifecycle(slots=2, tasks=tasks(2), settings=settings, restart=FixedDelay(attempts=9, delay_ms=100))
    feed(job, 0, JobStarted(), *up(A1, B1), *ready(1, A1, B1))
    return job


def stuck(for_ms: int, who=A1) -> SlotStuck:
    return SlotStuck(slot=who, stuck_ms=for_ms, where=WHERE)


def test_a_slot_that_says_it_is_stuck_is_heard_of_and_never_given_up_by_default():
    job = running()
    for seconds in range(1, 3_600):
        feed(job, 1_000 * seconds, stuck(1_000 * seconds), SlotHeard(slot=B1))
        assert tick(job, 1_000 * seconds) == []
    assert job.state is JobState.RUNNING


def mute(for_ms: int, where: str | None = WHERE) -> SlotMute:
    return SlotMute(slot=A1, stuck_ms=for_ms, where=where)


def test_a_mute_slot_is_heard_of_and_never_given_up_by_default():
    job = running()
    for seconds in range(1, 3_600):
        feed(job, 1_000 * seconds, mute(1_000 * seconds), SlotHeard(slot=B1))
        assert tick(job, 1_000 * seconds) == []
    assert job.state is JobState.RUNNING


def test_people_are_told_of_a_mute_slot_when_it_counts_as_stuck_and_the_other_slots_each_time():
    job = running()
    alive = TellPeerAlive(slot=B1, alive=A1)
    assert feed(job, 9_999, mute(9_999)) == [alive]
    assert feed(job, 10_000, mute(10_000, where=None)) == [alive]
    assert feed(job, 10_000, mute(10_000)) == [alive, ReportStuck(slot=A1)]
    assert feed(job, 15_000, mute(15_000)) == [alive]
    assert feed(job, 16_000, SlotTurned(slot=A1)) == [ReportTurning(slot=A1)]


def test_a_mute_slot_is_given_up_where_the_settings_say_so():
    job = running(stuck_timeout_ms=30_000)
    feed(job, 29_000, mute(29_000), SlotHeard(slot=B1))
    assert job.state is JobState.RUNNING
    effects = feed(job, 30_000, mute(30_000))
    [ended] = [effect for effect in effects if isinstance(effect, AttemptEnded)]
    assert ended.cause.text == f"slot 0 was lost: its loop did not turn for 30000 ms; the slot was in {WHERE}"
    assert effects[-1] == StartSlot(slot=A2)


def test_a_slot_that_is_not_up_is_not_told_that_a_mute_slot_lives():
    job = running()
    feed(job, 10, SlotGone(slot=B1, error="killed"))
    assert feed(job, 20, mute(20)) == []


def test_people_are_told_at_first_and_then_each_time_it_has_lasted_twice_as_long():
    job = running()
    told = [s for s in range(10, 200) if feed(job, 1_000 * s, stuck(1_000 * s)) == [ReportStuck(slot=A1)]]
    assert told == [10, 20, 40, 80, 160]


def test_people_are_told_once_that_it_goes_on_and_of_the_next_time_from_the_beginning():
    job = running()
    feed(job, 20_000, stuck(20_000))
    assert feed(job, 21_000, SlotTurned(slot=A1)) == [ReportTurning(slot=A1)]
    assert feed(job, 21_500, SlotTurned(slot=A1)) == []
    assert feed(job, 40_000, stuck(10_000)) == [ReportStuck(slot=A1)]


def test_it_is_given_up_where_the_settings_say_so_and_the_reason_names_where_it_is():
    job = running(stuck_timeout_ms=30_000)
    feed(job, 29_000, stuck(29_000), SlotHeard(slot=B1))
    assert job.state is JobState.RUNNING
    effects = feed(job, 30_000, stuck(30_000))
    [ended] = [effect for effect in effects if isinstance(effect, AttemptEnded)]
    assert ended.cause.text == f"slot 0 was lost: its loop did not turn for 30000 ms; the slot was in {WHERE}"
    assert effects[0] == StopSlot(slot=A1)
    assert effects[-1] == StartSlot(slot=A2)


def test_one_that_cannot_drop_its_tasks_is_replaced_and_the_reason_names_where_it_is():
    """Another task fails while it is stuck: the job goes on without it."""
    job = running()
    feed(job, 20_000, stuck(20_000), SlotHeard(slot=B1))
    feed(job, 20_100, AttemptFailed(epoch=Epoch(1), cause=FailureCause(text="boom")))
    feed(job, 20_200, *cancelled(1, B1))
    assert feed(job, 20_300, stuck(20_300)) == []
    assert tick(job, 20_600) == [StopSlot(slot=A1), StartSlot(slot=A2)]
    assert job.state is JobState.FAILING


@pytest.mark.parametrize("gone", [SlotGone(slot=A1, error="killed"), CancelRequested()])
def test_what_an_earlier_process_or_a_job_that_ends_says_of_its_loop_changes_nothing(gone):
    job = running(stuck_timeout_ms=1_000)
    feed(job, 10, gone)
    assert feed(job, 20, stuck(20_000), SlotTurned(slot=A1)) == []


def test_the_next_process_is_not_taken_for_stuck():
    job = running()
    feed(job, 20_000, stuck(20_000), SlotHeard(slot=B1), SlotGone(slot=A1, error="killed"), *up(A2))
    assert feed(job, 20_010, SlotTurned(slot=A2)) == []

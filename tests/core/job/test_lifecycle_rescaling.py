"""Another parallelism for a running job: slots first, then a checkpoint, then the change; or nothing at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lifecycle_rig import cancelled, feed, ready, slot, tasks, up

from penstock.core.effects import Ticked
from penstock.core.errors import InvariantError
from penstock.core.ids import Epoch
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    AttemptRescaled,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEffect,
    JobEnded,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    RescaleConfirmed,
    RescaleFailing,
    RescaleGivenUp,
    RescalePrepared,
    RescaleRequested,
    RunTasks,
    SlotCancelled,
    SlotGone,
    SlotHeard,
    SlotReady,
    SlotRegistered,
    StartSlot,
    StopSlot,
    TaskDone,
    TellCancel,
    TellLeave,
)
from penstock.core.job.lifecycle import LEAVE_TIMEOUT_MS, JobLifecycle
from penstock.settings import FixedDelay, NoRestart, Restart, SlotSettings

SLOTS = SlotSettings(start_timeout_ms=1_000, heartbeat_timeout_ms=10_000, cancel_timeout_ms=500, deploy_timeout_ms=800)


A, B, C, D = (slot(number) for number in range(4))


def running(count: int = 2, restart: Restart | None = None) -> JobLifecycle:
    job = JobLifecycle(
        slots=count, tasks=tasks(count), settings=SLOTS, restart=restart or FixedDelay(attempts=2, delay_ms=100)
    )
    slots = [slot(i) for i in range(count)]
    feed(job, 0, JobStarted(), *up(*slots), *ready(1, *slots))
    assert job.state is JobState.RUNNING
    return job


def rescale(count: int) -> RescaleRequested:
    return RescaleRequested(slots=count, tasks=tasks(count))


def state_of(job: JobLifecycle) -> JobState:
    return job.state


def given_up(effects: list[JobEffect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, RescaleGivenUp)]


# --- more slots ------------------------------------------------------------------------------------------------------


def test_to_more_slots_the_job_runs_on_until_all_are_there_and_a_checkpoint_is_taken():
    job = running()
    assert feed(job, 10, rescale(4)) == [StartSlot(slot=C), StartSlot(slot=D)]
    assert feed(job, 20, *up(C)) == []
    assert feed(job, 30, *up(D)) == [RescalePrepared()]
    assert state_of(job) is JobState.RUNNING
    assert len(job.slots) == 2
    assert feed(job, 40, RescaleConfirmed()) == [
        AttemptRescaled(epoch=Epoch(1), slots=4),
        TellCancel(slot=A, epoch=Epoch(1)),
        TellCancel(slot=B, epoch=Epoch(1)),
    ]
    assert state_of(job) is JobState.RESCALING
    assert feed(job, 50, *cancelled(1, A)) == []
    assert feed(job, 60, *cancelled(1, B)) == [DeployTasks(epoch=Epoch(2), slots=(A, B, C, D))]
    assert feed(job, 70, *ready(2, A, B, C, D)) == [RunTasks(epoch=Epoch(2), slots=(A, B, C, D))]


def test_the_job_is_finished_when_all_tasks_of_the_new_parallelism_are():
    job = running(1)
    feed(job, 10, rescale(2), *up(B), RescaleConfirmed(), *cancelled(1, A), *ready(2, A, B))
    first, second = tasks(2)
    assert feed(job, 20, TaskDone(epoch=Epoch(2), task=first)) == []
    assert job.finished_tasks == 1
    (ending, *_) = feed(job, 30, TaskDone(epoch=Epoch(2), task=second))
    assert ending == JobEnding(outcome=JobState.FINISHED, cause=None)


def test_a_spare_that_the_cluster_starts_again_counts_once():
    job = running(1)
    feed(job, 10, rescale(2))
    assert feed(job, 20, *up(B)) == [RescalePrepared()]
    again = slot(1, attempt=1)
    assert feed(job, 30, *up(again)) == []
    effects = feed(job, 40, RescaleConfirmed(), *cancelled(1, A))
    assert effects[-1] == DeployTasks(epoch=Epoch(2), slots=(A, again))


def test_a_spare_of_an_older_incarnation_is_sent_away():
    job = running(1)
    feed(job, 10, rescale(2))
    assert feed(job, 20, *up(slot(1, 0))) == [TellLeave(slot=slot(1, 0))]


# --- fewer slots -----------------------------------------------------------------------------------------------------


def test_to_fewer_slots_those_that_are_not_needed_leave_and_the_others_keep_their_processes():
    job = running(3)
    assert feed(job, 10, rescale(1)) == [RescalePrepared()]
    assert feed(job, 20, RescaleConfirmed()) == [
        AttemptRescaled(epoch=Epoch(1), slots=1),
        TellLeave(slot=B),
        TellLeave(slot=C),
        TellCancel(slot=A, epoch=Epoch(1)),
    ]
    assert feed(job, 30, *cancelled(1, A)) == [DeployTasks(epoch=Epoch(2), slots=(A,))]
    assert feed(job, 40, *ready(2, A)) == [RunTasks(epoch=Epoch(2), slots=(A,))]
    assert feed(job, 50, SlotGone(slot=B, error=None), SlotGone(slot=C, error="crashed on its way out")) == []


def test_one_that_does_not_leave_in_time_is_stopped():
    job = running(2)
    feed(job, 10, rescale(1), RescaleConfirmed(), *cancelled(1, A), *ready(2, A))
    assert job.next_deadline() == 10 + LEAVE_TIMEOUT_MS
    assert feed(job, 10 + LEAVE_TIMEOUT_MS, Ticked()) == [StopSlot(slot=B)]
    assert feed(job, 20 + LEAVE_TIMEOUT_MS, SlotGone(slot=B, error="stopped"), *up(B)) == [TellLeave(slot=B)]


def test_a_job_that_ends_waits_for_those_that_are_leaving():
    job = running(2)
    feed(job, 10, rescale(1), RescaleConfirmed(), *cancelled(1, A), *ready(2, A))
    feed(job, 20, CancelRequested())
    assert feed(job, 30, SlotGone(slot=A, error=None)) == []
    assert feed(job, 40, SlotGone(slot=B, error=None)) == [JobEnded(outcome=JobState.CANCELLED, cause=None)]


def test_a_job_that_ends_stops_those_that_do_not_leave():
    job = running(2)
    feed(job, 10, rescale(1), RescaleConfirmed(), *cancelled(1, A), *ready(2, A))
    feed(job, 20, CancelRequested(), SlotGone(slot=A, error=None))
    effects = feed(job, 20 + LEAVE_TIMEOUT_MS, Ticked())
    assert effects == [StopSlot(slot=B), JobEnded(outcome=JobState.CANCELLED, cause=None)]


def test_a_number_that_is_used_again_gets_the_next_incarnation():
    job = running(2)
    feed(job, 10, rescale(1), RescaleConfirmed(), *cancelled(1, A), *ready(2, A))
    again = slot(1, 2)
    assert feed(job, 20, rescale(2)) == [StartSlot(slot=again)]
    # News of the one that is leaving is not about the one that is coming.
    assert feed(job, 30, SlotGone(slot=B, error=None), *up(B)) == [TellLeave(slot=B)]
    assert feed(job, 40, *up(again)) == [RescalePrepared()]


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ([rescale(3)], "already being rescaled to 3 slots"),
        ([CancelRequested()], "the job is ending"),
        ([AttemptFailed(epoch=Epoch(1), cause=FailureCause(text="boom"))], "the job is failing"),
    ],
    ids=["twice", "ending", "failing"],
)
def test_only_a_running_job_that_is_not_being_rescaled_can_be(before, text):
    job = running()
    feed(job, 10, *before)
    (refusal,) = given_up(feed(job, 20, rescale(4)))
    assert text in refusal


def test_the_parallelism_that_it_has_is_refused():
    assert given_up(feed(running(), 10, rescale(2))) == ["the job has 2 slots already"]


# --- given up: the job goes on as it was -----------------------------------------------------------------------------


def test_slots_that_do_not_come_up_in_time_are_given_up_and_the_job_goes_on():
    job = running()
    feed(job, 10, rescale(4), *up(C))
    assert job.next_deadline() == 1_010
    assert feed(job, 1_010, Ticked()) == [
        RescaleGivenUp(text="only 1 of 2 additional slots came up in 1000 ms"),
        TellLeave(slot=C),
        StopSlot(slot=D),
    ]
    assert job.state is JobState.RUNNING
    assert job.slots == (A, B)
    assert feed(job, 1_020, RescaleConfirmed(), SlotGone(slot=C, error=None), *up(D)) == [TellLeave(slot=D)]


def test_a_spare_that_dies_ends_the_rescale_and_not_the_attempt():
    job = running()
    feed(job, 10, rescale(4), *up(C, D))
    assert feed(job, 20, SlotGone(slot=D, error="killed")) == [
        RescaleGivenUp(text="slot 3, which was started for the rescale, was lost: killed"),
        TellLeave(slot=C),
    ]
    assert job.state is JobState.RUNNING


def test_a_spare_that_leaves_by_itself_or_falls_silent_is_lost_too():
    job = running()
    feed(job, 10, rescale(3), *up(C))
    (text,) = given_up(feed(job, 20, SlotGone(slot=C, error=None)))
    assert "left without being told to" in text
    feed(job, 30, rescale(4))
    third, fourth = slot(2, 2), slot(3, 1)
    feed(job, 40, *up(third, fourth))
    feed(job, 5_000, SlotHeard(slot=A), SlotHeard(slot=B))
    effects = feed(job, 10_040, Ticked())
    assert effects[0] == StopSlot(slot=third)
    assert "not heard of for 10000 ms" in given_up(effects)[0]
    assert effects[-1] == TellLeave(slot=fourth)
    assert job.state is JobState.RUNNING


def test_a_checkpoint_that_fails_leaves_the_job_as_it_is():
    job = running()
    feed(job, 10, rescale(3), *up(C))
    assert feed(job, 20, RescaleFailing(text="no")) == [RescaleGivenUp(text="no"), TellLeave(slot=C)]
    assert feed(job, 30, RescaleFailing(text="again"), RescaleConfirmed()) == []


def test_it_cannot_be_confirmed_before_it_is_prepared():
    job = running()
    feed(job, 10, rescale(3))
    assert feed(job, 20, RescaleConfirmed()) == []
    assert job.state is JobState.RUNNING


def test_a_failure_meanwhile_ends_it():
    job = running()
    feed(job, 10, rescale(3), *up(C))
    effects = feed(job, 20, SlotGone(slot=B, error="killed"))
    assert [type(e) for e in effects] == [AttemptEnded, RescaleGivenUp, TellLeave, TellCancel, StartSlot]
    assert job.slots == (A, slot(1, 2))


def test_a_failure_for_good_and_a_cancel_end_it_too():
    job = running(restart=NoRestart())
    feed(job, 10, rescale(3), *up(C))
    failed = AttemptFailed(epoch=Epoch(1), cause=FailureCause(text="boom"))
    effects = feed(job, 20, failed)
    assert given_up(effects) == ["the attempt failed meanwhile: boom"]
    assert sum(isinstance(e, TellLeave) for e in effects) == 3
    other = running()
    feed(other, 10, rescale(3), *up(C))
    assert given_up(feed(other, 20, CancelRequested())) == ["the job ends"]


# --- after the change ------------------------------------------------------------------------------------------------


def test_a_survivor_that_dies_while_the_tasks_go_over_is_replaced():
    job = running()
    feed(job, 10, rescale(3), *up(C), RescaleConfirmed())
    again = slot(1, 2)
    assert feed(job, 20, SlotGone(slot=B, error="killed")) == [StartSlot(slot=again)]
    assert feed(job, 30, *cancelled(1, A), *up(again)) == [DeployTasks(epoch=Epoch(2), slots=(A, again, C))]


def test_a_survivor_that_does_not_drop_its_tasks_is_replaced():
    job = running()
    feed(job, 10, rescale(3), *up(C), RescaleConfirmed(), *cancelled(1, A))
    assert feed(job, 510, Ticked()) == [StopSlot(slot=B), StartSlot(slot=slot(1, 2))]


def test_a_failure_after_the_change_restarts_with_the_new_parallelism():
    job = running()
    feed(job, 10, rescale(1), RescaleConfirmed(), *cancelled(1, A))
    feed(job, 20, AttemptFailed(epoch=Epoch(2), cause=FailureCause(text="boom")), *cancelled(2, A))
    assert feed(job, 120, Ticked()) == [DeployTasks(epoch=Epoch(3), slots=(A,))]


def test_validation_finds_a_rescale_that_outlived_the_attempt():
    job = running()
    feed(job, 10, rescale(3))
    job._attempt.state = JobState.FAILING
    with pytest.raises(InvariantError, match="a rescale is still under way"):
        job.validate()


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(1, 3)), max_size=60))
def test_whatever_happens_the_machine_keeps_its_word(story: list[tuple[int, int, int]]):
    """At most one answer per request, no deadline in the past, and nobody is started twice under one id."""
    job = running(2)
    now, asked, answered, started = 0, 0, 0, {A, B}
    for what, number, count in story:
        now += 300
        members = [*job.slots, *started]
        chosen = members[number % len(members)]
        events: dict[int, JobEvent] = {
            0: rescale(count),
            1: RescaleConfirmed(),
            2: RescaleFailing(text="x"),
            3: SlotRegistered(slot=chosen),
            4: SlotGone(slot=chosen, error="x"),
            5: SlotCancelled(slot=chosen, epoch=job.epoch),
            6: SlotReady(slot=chosen, epoch=job.epoch),
            7: SlotHeard(slot=chosen),
            8: AttemptFailed(epoch=job.epoch, cause=FailureCause(text="x")),
            9: SlotRegistered(slot=chosen),
            10: SlotReady(slot=chosen, epoch=job.epoch),
            11: SlotCancelled(slot=chosen, epoch=job.epoch),
            12: Ticked(),
        }
        asked += what == 0
        effects = feed(job, now, events[what])
        deadline = job.next_deadline()
        if deadline is not None and deadline <= now:
            effects += feed(job, now, Ticked())
            deadline = job.next_deadline()
        assert deadline is None or deadline > now
        for effect in effects:
            answered += isinstance(effect, RescaleGivenUp | AttemptRescaled)
            if isinstance(effect, StartSlot):
                assert effect.slot not in started
                started.add(effect.slot)
            if isinstance(effect, DeployTasks):
                assert [s.number for s in effect.slots] == list(range(len(effect.slots)))
        assert answered <= asked

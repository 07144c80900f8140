"""How a job ends when its slots do not all do as they are told."""

from __future__ import annotations

from lifecycle_rig import feed, ready, slot, tasks, up

from penstock.core.effects import Ticked
from penstock.core.ids import Epoch, SlotId, SlotIndex, TaskId, VertexId
from penstock.core.job.events import (
    AttemptFailed,
    CancelRequested,
    FailureCause,
    JobEnded,
    JobEnding,
    JobStarted,
    JobState,
    LeadershipLost,
    SlotGone,
    StartSlot,
    StopSlot,
    TaskDone,
    TellLeave,
)
from penstock.core.job.lifecycle import LEAVE_TIMEOUT_MS, JobLifecycle
from penstock.settings import NoRestart, SlotSettings

A, B = slot(0), slot(1)
SILENT_MS = 10_000


def running_once() -> JobLifecycle:
    """A job on two slots that is not restarted."""
    settings = SlotSettings(heartbeat_timeout_ms=SILENT_MS)
    job = JobLifecycle(slots=2, tasks=tasks(2), settings=settings, restart=NoRestart())
    feed(job, 0, JobStarted(), *up(A, B), *ready(1, A, B))
    assert job.state is JobState.RUNNING
    return job


def test_only_slots_that_have_not_left_in_time_are_stopped():
    job = running_once()
    feed(job, 1, CancelRequested())
    assert feed(job, 2, SlotGone(slot=A, error=None)) == []
    effects = feed(job, 1 + LEAVE_TIMEOUT_MS, Ticked())
    assert effects == [StopSlot(slot=B), JobEnded(outcome=JobState.CANCELLED, cause=None)]


def test_when_one_silent_slot_ends_the_job_the_other_is_not_replaced():
    """1. Both slots fall silent. 2. Giving up the first one ends the job, for nothing restarts it. 3. The second one is
    only told to leave, as everybody is, and stopped when it does not."""
    job = running_once()
    effects = feed(job, SILENT_MS, Ticked())
    assert [e for e in effects if isinstance(e, StartSlot)] == []
    assert [e.outcome for e in effects if isinstance(e, JobEnding)] == [JobState.FAILED]
    assert [e.slot for e in effects if isinstance(e, StopSlot) and e.slot == B] == []
    assert [e.slot for e in effects if isinstance(e, TellLeave)] == [B]
    effects = feed(job, SILENT_MS + LEAVE_TIMEOUT_MS, Ticked())
    assert [type(e) for e in effects] == [StopSlot, JobEnded]
    assert job.state is JobState.FAILED


def test_slots_that_are_gone_after_the_end_change_nothing():
    """1. The job is cancelled before any slot has come up: the slots are stopped, and the job has ended. 2. The host
    reports one after the other as gone. That is no failure to start, however many there are."""
    slots = [SlotId(SlotIndex(i), 1) for i in range(4)]
    job = JobLifecycle(slots=4, tasks=(), settings=SlotSettings(), restart=NoRestart())
    feed(job, 0, JobStarted())
    effects = feed(job, 1, CancelRequested())
    assert effects[-1] == JobEnded(outcome=JobState.CANCELLED, cause=None)
    assert feed(job, 2, *(SlotGone(slot=s, error="killed") for s in slots)) == []
    assert job.state is JobState.CANCELLED


def test_finished_tasks_are_counted_while_the_attempt_runs():
    job = running_once()
    assert job.finished_tasks == 0
    feed(job, 1, TaskDone(epoch=Epoch(1), task=TaskId(VertexId("v"), 0)))
    assert job.finished_tasks == 1
    feed(job, 2, AttemptFailed(epoch=Epoch(1), cause=FailureCause(text="boom")))
    assert job.finished_tasks == 0


def test_a_driver_that_lost_the_job_lets_its_slots_go_whatever_they_do():
    job = running_once()
    effects = feed(job, 1, LeadershipLost())
    assert effects == [JobEnding(outcome=JobState.SUSPENDED, cause=None), TellLeave(slot=A), TellLeave(slot=B)]
    effects = feed(job, 2, SlotGone(slot=A, error=None), SlotGone(slot=B, error=None))
    assert effects == [JobEnded(outcome=JobState.SUSPENDED, cause=None)]
    assert job.state.is_terminal


def test_a_job_that_was_about_to_end_does_not_end_with_a_driver_that_lost_it():
    job = running_once()
    feed(job, 1, CancelRequested())
    assert feed(job, 2, LeadershipLost()) == [JobEnding(outcome=JobState.SUSPENDED, cause=None)]
    effects = feed(job, 3, SlotGone(slot=A, error=None), SlotGone(slot=B, error=None))
    assert effects == [JobEnded(outcome=JobState.SUSPENDED, cause=None)]


def test_a_job_all_of_whose_slots_had_left_does_not_end_with_a_driver_that_lost_it():
    job = running_once()
    feed(job, 1, CancelRequested(), SlotGone(slot=A, error=None), SlotGone(slot=B, error=None))
    effects = feed(job, 2, LeadershipLost())
    assert [type(effect) for effect in effects] == [JobEnding, JobEnded]
    assert job.state is JobState.SUSPENDED

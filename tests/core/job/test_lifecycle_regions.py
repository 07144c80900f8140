"""A task fails whose region is not the whole job: only that region restarts, unless anything else is the matter.

Two slots, each with a slice of its own: `v[0]` and `w[0]` in the first, `v[1]` and `w[1]` in the second.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lifecycle_rig import feed, kinds, tick

from penstock.core.effects import Ticked
from penstock.core.errors import InvariantError
from penstock.core.ids import Epoch, SlotId, SlotIndex, TaskId, VertexId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    AttemptRescaled,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    RegionEnded,
    RescaleConfirmed,
    RescaleGivenUp,
    RescalePrepared,
    RescaleRequested,
    RunTasks,
    SlotCancelled,
    SlotGone,
    SlotReady,
    SlotRegistered,
    StartSlot,
    StopChanged,
    StopSlot,
    TaskDone,
    TellCancel,
    TellLeave,
)
from penstock.core.job.lifecycle import JobLifecycle
from penstock.core.job.regions import Region
from penstock.settings import FixedDelay, NoRestart, Restart, SlotSettings

A, B, C = (SlotId(SlotIndex(number), 1) for number in range(3))
V0, V1, W0, W1 = (TaskId(VertexId(name), subtask) for name in "vw" for subtask in range(2))
LEFT: Region = (V0, W0)
RIGHT: Region = (V1, W1)
REGIONS = {V0: LEFT, V1: RIGHT, W0: LEFT, W1: RIGHT}
BAD = FailureCause(text="boom")
SLOTS = SlotSettings(
    start_timeout_ms=1_000, heartbeat_timeout_ms=100_000, cancel_timeout_ms=500, deploy_timeout_ms=800, spares=1
)


def running(restart: Restart | None = None) -> JobLifecycle:
    job = JobLifecycle(slots=2, tasks=REGIONS, settings=SLOTS, restart=restart or FixedDelay(attempts=9, delay_ms=100))
    feed(job, 0, JobStarted(), SlotRegistered(slot=A), SlotRegistered(slot=B), ready(A, 1), ready(B, 1))
    assert job.state is JobState.RUNNING
    return job


def failed(task: TaskId | None, epoch: int = 1, *, whole: bool = False) -> AttemptFailed:
    return AttemptFailed(epoch=Epoch(epoch), cause=BAD, task=task, whole=whole)


def dropped(slot: SlotId, region: Region, epoch: int = 1) -> SlotCancelled:
    return SlotCancelled(slot=slot, epoch=Epoch(epoch), tasks=region)


def ready(slot: SlotId, epoch: int) -> SlotReady:
    return SlotReady(slot=slot, epoch=Epoch(epoch))


def repairing() -> JobLifecycle:
    job = running()
    feed(job, 10, failed(V0))
    assert job.state is JobState.REPAIRING
    return job


def redeployed() -> JobLifecycle:
    job = repairing()
    feed(job, 11, dropped(A, LEFT))
    assert tick(job, 110) == [DeployTasks(epoch=Epoch(2), slots=(A, B), tasks=LEFT)]
    return job


# --- one region -------------------------------------------------------------------------------


def test_only_the_slots_with_tasks_of_the_region_are_told_and_only_these_tasks_come_back():
    job = running()
    assert feed(job, 10, failed(W0)) == [
        RegionEnded(epoch=Epoch(1), tasks=LEFT, cause=BAD, restart_in_ms=100),
        TellCancel(slot=A, epoch=Epoch(1), tasks=LEFT),
    ]
    assert feed(job, 11, dropped(A, LEFT)) == []
    assert tick(job, 109) == []
    assert tick(job, 110) == [DeployTasks(epoch=Epoch(2), slots=(A, B), tasks=LEFT)]
    assert feed(job, 120, ready(A, 2)) == [RunTasks(epoch=Epoch(2), slots=(A,), tasks=LEFT)]
    assert job.state is JobState.RUNNING


def test_a_slow_slot_is_waited_for_when_the_pause_is_over():
    job = repairing()
    assert tick(job, 200) == []
    assert feed(job, 210, dropped(A, LEFT)) == [DeployTasks(epoch=Epoch(2), slots=(A, B), tasks=LEFT)]


def test_afterwards_every_task_fails_and_ends_in_its_own_epoch():
    job = redeployed()
    feed(job, 120, ready(A, 2))
    assert [job.epoch_of(task) for task in (V0, V1, W0, W1)] == [2, 1, 2, 1]
    assert feed(job, 130, failed(V1, epoch=2), failed(V0, epoch=1)) == []
    assert kinds(feed(job, 140, failed(V1, epoch=1))) == [RegionEnded, TellCancel]
    feed(job, 150, dropped(B, RIGHT, epoch=2))
    assert tick(job, 240) == [DeployTasks(epoch=Epoch(3), slots=(A, B), tasks=RIGHT)]
    feed(job, 250, ready(B, 3))
    ends = [TaskDone(epoch=Epoch(epoch), task=task) for task, epoch in ((V0, 2), (W0, 2), (V1, 3), (V1, 1), (W1, 1))]
    assert feed(job, 260, *ends) == []
    assert kinds(feed(job, 270, TaskDone(epoch=Epoch(3), task=W1)))[1:] == [JobEnding, TellLeave, TellLeave]


def test_a_task_of_another_region_may_end_meanwhile():
    job = repairing()
    feed(job, 11, TaskDone(epoch=Epoch(1), task=V1), TaskDone(epoch=Epoch(1), task=W1), dropped(A, LEFT))
    tick(job, 110)
    feed(job, 120, ready(A, 2))
    assert job.finished_tasks == 2


def test_what_else_fails_in_the_region_before_it_is_dropped_is_no_second_failure():
    job = repairing()
    assert feed(job, 11, failed(W0), failed(V0)) == []
    assert job.state is JobState.REPAIRING


def test_a_standby_is_asked_for_when_the_region_runs_again():
    job = running()
    feed(job, 5, SlotGone(slot=C, error="killed"))
    feed(job, 10, failed(V0), dropped(A, LEFT))
    assert tick(job, 3_000) == [DeployTasks(epoch=Epoch(2), slots=(A, B), tasks=LEFT)]
    assert kinds(feed(job, 3_010, ready(A, 2))) == [RunTasks, StartSlot]


def test_a_slot_that_only_stands_by_changes_nothing():
    job = repairing()
    assert feed(job, 11, SlotRegistered(slot=C), ready(C, 1), dropped(C, LEFT)) == []
    assert job.spares == (C,)
    redone = redeployed()
    assert feed(redone, 111, SlotRegistered(slot=C), dropped(A, LEFT), ready(A, 1)) == []


# --- all of it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [failed(V1), failed(None), failed(V0, whole=True), SlotGone(slot=B, error="killed")],
    ids=["another region", "no task", "more than the task", "a slot"],
)
def test_a_second_failure_meanwhile_restarts_everything(event: JobEvent):
    job = repairing()
    effects = feed(job, 20, event)
    assert kinds(effects)[0] is AttemptEnded
    assert TellCancel(slot=A, epoch=Epoch(1)) in effects
    assert job.state is JobState.FAILING
    # The answer to the first order does not say that all tasks are gone.
    assert feed(job, 21, dropped(A, LEFT), SlotCancelled(slot=B, epoch=Epoch(1))) == []
    if not isinstance(event, SlotGone):
        assert tick(job, 130) == []
        assert feed(job, 131, SlotCancelled(slot=A, epoch=Epoch(1))) == [DeployTasks(epoch=Epoch(2), slots=(A, B))]


def test_a_region_that_fails_while_it_is_deployed_restarts_everything():
    job = redeployed()
    assert feed(job, 111, failed(V0, epoch=2)) == [
        AttemptEnded(epoch=Epoch(2), cause=BAD, restart_in_ms=100),
        TellCancel(slot=A, epoch=Epoch(2)),
        TellCancel(slot=B, epoch=Epoch(2)),
    ]


@pytest.mark.parametrize(
    ("job", "late", "text"),
    [
        (repairing, 510, "the slot did not drop its tasks in time"),
        (redeployed, 910, "the slot did not restore its tasks in time"),
    ],
)
def test_a_slot_that_does_not_do_it_in_time_is_given_up_and_everything_restarts(
    job: Callable[[], JobLifecycle], late: int, text: str
):
    made = job()
    effects = tick(made, late)
    assert kinds(effects)[:2] == [StopSlot, AttemptEnded]
    assert effects[0] == StopSlot(slot=A)
    assert isinstance(effects[1], AttemptEnded)
    assert text in effects[1].cause.text
    assert StartSlot(slot=SlotId(A.number, 2)) in effects


def test_a_failure_that_concerns_more_than_the_task_restarts_everything():
    job = running()
    assert kinds(feed(job, 10, failed(V0, whole=True))) == [AttemptEnded, TellCancel, TellCancel]


def test_a_job_that_is_being_stopped_restarts_as_a_whole():
    job = running()
    feed(job, 5, StopChanged(is_under_way=True))
    assert kinds(feed(job, 10, failed(V0))) == [AttemptEnded, TellCancel, TellCancel]
    # If nothing came of the stop, regions are again what restarts.
    again = running()
    feed(again, 5, StopChanged(is_under_way=True), StopChanged(is_under_way=False))
    assert kinds(feed(again, 10, failed(V0))) == [RegionEnded, TellCancel]


def test_a_task_that_ends_while_it_is_about_to_be_dropped_ends_once_more():
    """1. V0 fails. 2. W0 ends before it hears of that. 3. All others end. 4. The region runs again: W0 is not done."""
    job = repairing()
    feed(job, 11, *(TaskDone(epoch=Epoch(1), task=task) for task in (W0, V1, W1)), dropped(A, LEFT))
    tick(job, 110)
    assert kinds(feed(job, 120, ready(A, 2), TaskDone(epoch=Epoch(2), task=V0)))[0] is RunTasks
    assert job.finished_tasks == 3
    assert JobEnding in kinds(feed(job, 130, TaskDone(epoch=Epoch(2), task=W0)))


def test_once_a_task_has_ended_everything_restarts():
    job = running()
    feed(job, 5, TaskDone(epoch=Epoch(1), task=V1))
    assert kinds(feed(job, 10, failed(V0))) == [AttemptEnded, TellCancel, TellCancel]


def test_a_job_that_is_one_region_restarts_as_a_whole():
    job = running()
    job._tasks.become(REGIONS, dict.fromkeys(REGIONS, tuple(REGIONS)))
    assert kinds(feed(job, 10, failed(V0))) == [AttemptEnded, TellCancel, TellCancel]


def test_the_strategy_may_give_up():
    job = running(NoRestart())
    effects = feed(job, 10, failed(V0))
    told = FailureCause(text="boom", why_final="no_restart() was given")
    assert effects[0] == AttemptEnded(epoch=Epoch(1), cause=told, restart_in_ms=None)
    assert job.state is JobState.ENDING


def test_the_job_can_be_cancelled_meanwhile():
    job = repairing()
    feed(job, 11, CancelRequested())
    assert job.state is JobState.ENDING
    assert feed(job, 12, dropped(A, LEFT)) == []


# --- rescaling -------------------------------------------------------------------------------


def test_while_a_region_restarts_the_job_cannot_be_rescaled_and_a_rescale_under_way_restarts_everything():
    job = repairing()
    (refusal,) = feed(job, 11, RescaleRequested(slots=1, tasks=LEFT))
    assert isinstance(refusal, RescaleGivenUp)
    assert "repairing" in refusal.text
    other = running()
    assert feed(other, 5, RescaleRequested(slots=1, tasks=LEFT)) == [RescalePrepared()]
    assert kinds(feed(other, 10, failed(V0))) == [AttemptEnded, RescaleGivenUp, TellCancel, TellCancel]


def test_after_a_rescale_the_regions_are_those_of_the_new_tasks():
    job = running()
    regions = {V0: (V0,), W0: (W0,)}
    feed(job, 5, RescaleRequested(slots=1, tasks=LEFT, regions=regions))
    assert kinds(feed(job, 6, RescaleConfirmed())) == [AttemptRescaled, TellLeave, TellCancel]
    feed(job, 7, SlotCancelled(slot=A, epoch=Epoch(1)), ready(A, 2))
    assert feed(job, 10, failed(W0, epoch=2))[1:] == [TellCancel(slot=A, epoch=Epoch(2), tasks=(W0,))]


# --- whatever happens -------------------------------------------------------------------------------


def test_a_state_that_contradicts_itself_is_found():
    job = running()
    job._attempt.state = JobState.REPAIRING
    with pytest.raises(InvariantError, match="repair"):
        job.validate()


EVENTS = st.sampled_from(
    [
        failed(V0),
        failed(V1),
        failed(W0, epoch=2),
        failed(W1, epoch=3),
        dropped(A, LEFT),
        dropped(B, RIGHT),
        dropped(A, LEFT, epoch=2),
        dropped(B, RIGHT, epoch=2),
        SlotCancelled(slot=A, epoch=Epoch(1)),
        SlotCancelled(slot=B, epoch=Epoch(2)),
        *(ready(slot, epoch) for slot in (A, B) for epoch in (2, 3)),
        TaskDone(epoch=Epoch(1), task=V1),
        SlotGone(slot=B, error="killed"),
        SlotGone(slot=C, error="killed"),
        *(SlotRegistered(slot=slot) for slot in (C, SlotId(B.number, 2), SlotId(A.number, 1, 1))),
        *(ready(slot, epoch) for slot in (C, SlotId(B.number, 2)) for epoch in (2, 3)),
        StopChanged(is_under_way=True),
        CancelRequested(),
        Ticked(),
    ]
)


@given(st.lists(st.tuples(EVENTS, st.integers(0, 200)), max_size=30))
def test_no_order_of_events_breaks_the_machine_or_leaves_a_stale_deadline(steps: list[tuple[JobEvent, int]]):
    job, now = running(), 10
    for event, pause in steps:
        now += pause
        feed(job, now, event)
        tick(job, now)

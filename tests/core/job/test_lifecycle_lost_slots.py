"""A slot is lost whose tasks are not joined to all others: only their regions restart, in the slot that gets its place
and in those that have some of their tasks.

Three slots. The tasks of `v` are joined to nothing; those of `w`, of which the third slot has none, to each other:
`v[0] w[0] | v[1] w[1] | v[2]`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lifecycle_rig import cancelled, feed, kinds, ready, slot, tasks, tick, up

from penstock.core.ids import Epoch, SlotId, TaskId, VertexId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    RegionEnded,
    RescaleGivenUp,
    RescaleRequested,
    RunTasks,
    SlotCancelled,
    SlotGone,
    SlotHeard,
    SlotRegistered,
    StartSlot,
    StopChanged,
    StopSlot,
    TaskDone,
    TellCancel,
    TellLeave,
    TellPeerGone,
)
from penstock.core.job.lifecycle import JobLifecycle
from penstock.core.job.regions import Region
from penstock.settings import FixedDelay, NoRestart, Restart, SlotSettings

A, B, C = (slot(number) for number in range(3))
V0, V1, V2 = tasks(3)
W0, W1 = (TaskId(VertexId("w"), subtask) for subtask in range(2))
PAIR: Region = (W0, W1)
REGIONS: dict[TaskId, Region] = {V0: (V0,), V1: (V1,), V2: (V2,), W0: PAIR, W1: PAIR}
LOST_B: Region = (V1, W0, W1)
"""What restarts with the second slot."""
NEXT_B, NEXT_C = slot(1, 2), slot(2, 2)
DELAY_MS = 100


def running(restart: Restart | None = None, *, spares: int = 0) -> JobLifecycle:
    settings = SlotSettings(
        start_timeout_ms=1_000, heartbeat_timeout_ms=5_000, cancel_timeout_ms=500, deploy_timeout_ms=800, spares=spares
    )
    strategy = restart or FixedDelay(attempts=9, delay_ms=DELAY_MS)
    job = JobLifecycle(slots=3, tasks=REGIONS, settings=settings, restart=strategy)
    feed(job, 0, JobStarted(), *up(A, B, C), *ready(1, A, B, C))
    assert job.state is JobState.RUNNING
    return job


def gone(name: SlotId) -> SlotGone:
    return SlotGone(slot=name, error="killed")


def dropped(name: SlotId, *region: TaskId) -> SlotCancelled:
    return SlotCancelled(slot=name, epoch=Epoch(1), tasks=region)


def lost() -> JobLifecycle:
    job = running()
    feed(job, 10, gone(B))
    assert job.state is JobState.REPAIRING
    return job


def redeployed() -> JobLifecycle:
    job = lost()
    feed(job, 11, dropped(A, W0), *up(NEXT_B))
    assert tick(job, 110) == [
        DeployTasks(epoch=Epoch(2), slots=(A, NEXT_B, C), tasks=LOST_B, joining=(NEXT_B,)),
    ]
    return job


# --- who restarts -------------------------------------------------------------------------------


def test_its_tasks_and_those_that_are_joined_to_them_restart_and_no_others():
    job = running()
    assert feed(job, 10, gone(B)) == [
        RegionEnded(
            epoch=Epoch(1),
            tasks=LOST_B,
            cause=FailureCause(text="slot 1 was lost: killed"),
            restart_in_ms=DELAY_MS,
        ),
        TellCancel(slot=A, epoch=Epoch(1), tasks=(W0,)),
        TellPeerGone(slot=A, gone=B),
        StartSlot(slot=NEXT_B),
    ]
    assert feed(job, 11, dropped(A, W0)) == []
    assert tick(job, 200) == []
    assert feed(job, 300, *up(NEXT_B)) == [
        DeployTasks(epoch=Epoch(2), slots=(A, NEXT_B, C), tasks=LOST_B, joining=(NEXT_B,))
    ]
    assert feed(job, 310, *ready(2, NEXT_B)) == []
    assert feed(job, 320, *ready(2, A)) == [RunTasks(epoch=Epoch(2), slots=(A, NEXT_B), tasks=LOST_B)]
    assert job.state is JobState.RUNNING


def test_a_slot_whose_tasks_are_joined_to_nobody_elses_disturbs_no_other():
    job = running()
    assert kinds(feed(job, 10, gone(C))) == [RegionEnded, StartSlot]
    feed(job, 11, *up(NEXT_C))
    assert tick(job, 110) == [DeployTasks(epoch=Epoch(2), slots=(A, B, NEXT_C), tasks=(V2,), joining=(NEXT_C,))]
    assert feed(job, 120, *ready(2, NEXT_C)) == [RunTasks(epoch=Epoch(2), slots=(NEXT_C,), tasks=(V2,))]


def test_a_slot_that_is_slow_to_drop_its_tasks_is_waited_for_as_well():
    job = lost()
    assert feed(job, 50, *up(NEXT_B)) == []
    assert tick(job, 200) == []
    assert kinds(feed(job, 210, dropped(A, W0))) == [DeployTasks]


def test_afterwards_every_task_is_in_its_own_epoch():
    job = redeployed()
    feed(job, 120, *ready(2, A, NEXT_B))
    late = [TaskDone(epoch=Epoch(1), task=V1), TaskDone(epoch=Epoch(2), task=V0)]
    assert feed(job, 130, *late) == []
    assert job.finished_tasks == 0
    # The next one to die is replaced in the same way, beside tasks of two epochs.
    assert kinds(feed(job, 140, gone(C))) == [RegionEnded, StartSlot]
    feed(job, 150, *up(NEXT_C))
    assert tick(job, 240) == [DeployTasks(epoch=Epoch(3), slots=(A, NEXT_B, NEXT_C), tasks=(V2,), joining=(NEXT_C,))]


def test_a_slot_that_is_not_heard_of_is_stopped_and_its_regions_restart():
    job = running()
    feed(job, 3_000, SlotHeard(slot=A), SlotHeard(slot=C))
    assert kinds(tick(job, 5_000)) == [StopSlot, RegionEnded, TellCancel, TellPeerGone, StartSlot]
    assert job.state is JobState.REPAIRING


def test_a_slot_that_the_cluster_started_again_joins_at_once():
    again = slot(1, 1, 1)
    job = running()
    effects = feed(job, 10, SlotRegistered(slot=again))
    assert kinds(effects) == [RegionEnded, TellCancel, TellPeerGone]
    assert effects[-1] == TellPeerGone(slot=A, gone=B)
    assert feed(job, 11, dropped(A, W0)) == []
    assert tick(job, 110) == [DeployTasks(epoch=Epoch(2), slots=(A, again, C), tasks=LOST_B, joining=(again,))]


def test_a_spare_slot_gets_the_place_at_once():
    spare = slot(3)
    job = running(spares=1)
    feed(job, 5, *up(spare))
    assert kinds(feed(job, 10, gone(B))) == [RegionEnded, TellCancel, TellPeerGone]
    assert feed(job, 11, dropped(A, W0)) == []
    assert tick(job, 110) == [DeployTasks(epoch=Epoch(2), slots=(A, spare, C), tasks=LOST_B, joining=(spare,))]
    # The next one is asked for when all runs again.
    assert kinds(feed(job, 120, *ready(2, A, spare))) == [RunTasks, StartSlot]


def test_a_spare_slot_that_comes_up_first_gets_the_place_of_the_one_that_is_awaited():
    spare = slot(3)
    job = running(spares=1)
    feed(job, 10, gone(B), dropped(A, W0))
    assert feed(job, 20, *up(spare)) == []
    assert tick(job, 110) == [DeployTasks(epoch=Epoch(2), slots=(A, spare, C), tasks=LOST_B, joining=(spare,))]
    assert feed(job, 120, *up(NEXT_B), *ready(2, A, spare)) == [
        RunTasks(epoch=Epoch(2), slots=(A, spare), tasks=LOST_B)
    ]
    assert job.spares == (NEXT_B,)


def test_news_of_the_lost_slot_changes_nothing():
    job = lost()
    late: list[JobEvent] = [gone(B), SlotHeard(slot=B), *ready(1, B), dropped(B, V1, W1)]
    assert feed(job, 12, *late) == []
    assert feed(job, 13, SlotRegistered(slot=B)) == [TellLeave(slot=B)]
    assert feed(job, 14, TaskDone(epoch=Epoch(1), task=V1)) == []
    failure = AttemptFailed(epoch=Epoch(1), cause=FailureCause(text="boom"), task=W1)
    assert feed(job, 15, failure) == []
    assert job.state is JobState.REPAIRING


# --- when all of it restarts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        gone(A),
        gone(C),
        gone(NEXT_B),
        SlotRegistered(slot=slot(2, 1, 1)),
        AttemptFailed(epoch=Epoch(1), cause=FailureCause(text="boom"), task=V2),
    ],
    ids=["one with tasks of the region", "another", "the next of it", "one that was started again", "a task"],
)
def test_what_else_goes_wrong_meanwhile_restarts_everything(event: JobEvent):
    job = lost()
    effects = feed(job, 20, event)
    assert kinds(effects)[0] is AttemptEnded
    assert job.state is JobState.FAILING
    assert [type(effect) for effect in effects if isinstance(effect, TellPeerGone | DeployTasks)] == []
    # What was said of the region alone does not count.
    assert feed(job, 21, dropped(A, W0)) == []


def test_a_slot_that_dies_while_the_region_is_deployed_restarts_everything():
    job = redeployed()
    assert kinds(feed(job, 120, gone(NEXT_B))) == [AttemptEnded, TellCancel, TellCancel, StartSlot]


def test_a_replacement_that_dies_before_it_calls_in_restarts_everything_and_counts_once():
    job = running(FixedDelay(attempts=2, delay_ms=DELAY_MS))
    feed(job, 10, gone(B))
    assert kinds(feed(job, 20, gone(NEXT_B))) == [AttemptEnded, TellCancel, TellCancel]
    feed(job, 30, *cancelled(1, A, C))
    assert tick(job, 120) == [StartSlot(slot=slot(1, 3))]
    assert feed(job, 130, *up(slot(1, 3))) == [DeployTasks(epoch=Epoch(2), slots=(A, slot(1, 3), C))]


def test_a_replacement_that_does_not_come_up_in_time_is_given_up_and_everything_restarts():
    job = lost()
    feed(job, 11, dropped(A, W0))
    assert tick(job, 1_009) == []
    effects = tick(job, 1_010)
    assert kinds(effects) == [StopSlot, AttemptEnded, TellCancel, TellCancel]
    assert effects[0] == StopSlot(slot=NEXT_B)
    assert isinstance(effects[1], AttemptEnded)
    assert "did not come up in time" in effects[1].cause.text
    feed(job, 1_020, *cancelled(1, A, C))
    assert tick(job, 1_110) == [StartSlot(slot=slot(1, 3))]
    assert feed(job, 1_120, *up(slot(1, 3))) == [DeployTasks(epoch=Epoch(2), slots=(A, slot(1, 3), C))]


def test_a_replacement_that_does_not_come_up_in_time_again_fails_the_job_for_lack_of_room():
    job = lost()
    feed(job, 11, dropped(A, W0))
    tick(job, 1_010)
    feed(job, 1_020, *cancelled(1, A, C))
    tick(job, 1_110)
    assert tick(job, 2_009) == []
    (ending, *_) = tick(job, 2_010)
    cause = FailureCause(text="only 2 of 3 slots came up in 1000 ms (missing: 1)", lacks_room=True)
    assert ending == JobEnding(outcome=JobState.FAILED, cause=cause)


def test_a_slot_that_does_not_drop_its_tasks_in_time_is_given_up_and_everything_restarts():
    job = lost()
    assert tick(job, 509) == []
    effects = tick(job, 510)
    assert kinds(effects) == [StopSlot, AttemptEnded, TellCancel, StartSlot]
    assert (effects[0], effects[-1]) == (StopSlot(slot=A), StartSlot(slot=slot(0, 2)))


def a_rescale(job: JobLifecycle) -> None:
    feed(job, 5, RescaleRequested(slots=4, tasks=tuple(REGIONS)))


def a_task_has_ended(job: JobLifecycle) -> None:
    feed(job, 5, TaskDone(epoch=Epoch(1), task=V0))


def a_stop(job: JobLifecycle) -> None:
    feed(job, 5, StopChanged(is_under_way=True))


def a_single_region(job: JobLifecycle) -> None:
    job._tasks.become(REGIONS, dict.fromkeys(REGIONS, tuple(REGIONS)))


def no_tasks_there(job: JobLifecycle) -> None:
    job._tasks.become(REGIONS, {task: region for task, region in REGIONS.items() if task.subtask != 1})


@pytest.mark.parametrize("prepare", [a_rescale, a_task_has_ended, a_stop, a_single_region, no_tasks_there])
def test_everything_restarts_if_anything_else_is_the_matter(prepare: Callable[[JobLifecycle], None]):
    job = running()
    prepare(job)
    effects = feed(job, 10, gone(B))
    assert kinds(effects)[0] is AttemptEnded
    assert [e.tasks for e in effects if isinstance(e, TellCancel)] == [(), ()]
    assert job.state is JobState.FAILING


def test_meanwhile_the_job_cannot_be_rescaled_and_can_be_cancelled():
    job = lost()
    assert kinds(feed(job, 11, RescaleRequested(slots=4, tasks=tuple(REGIONS)))) == [RescaleGivenUp]
    assert feed(job, 12, CancelRequested()) == [
        JobEnding(outcome=JobState.CANCELLED, cause=None),
        TellLeave(slot=A),
        StopSlot(slot=NEXT_B),
        TellLeave(slot=C),
    ]


def test_the_strategy_may_give_up():
    job = running(NoRestart())
    assert kinds(feed(job, 10, gone(B))) == [AttemptEnded, JobEnding, TellLeave, StopSlot, TellLeave]
    assert job.state is JobState.ENDING

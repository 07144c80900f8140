"""A slot that takes long to restore its tasks and says what it is doing is told of and waited for."""

from __future__ import annotations

import pytest
from lifecycle_rig import cancelled, feed, kinds, ready, slot, tasks, tick, up

from penstock.core.ids import Epoch, TaskId, VertexId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    DeployTasks,
    FailureCause,
    JobStarted,
    JobState,
    RegionEnded,
    ReportLoading,
    RunTasks,
    SlotCancelled,
    SlotGone,
    SlotHeard,
    SlotLoading,
    SlotStuck,
    StopSlot,
)
from penstock.core.job.lifecycle import JobLifecycle
from penstock.settings import FixedDelay, SlotSettings

A1, B1, A2 = slot(0), slot(1), slot(0, 2)
WHERE = "the start of step 'counts', subtask 0: loading its state for 9.0 s"
BAD = FailureCause(text="boom")


def deploying(stuck_timeout_ms: int | None = None, job_tasks=None) -> JobLifecycle:
    settings = SlotSettings(
        heartbeat_timeout_ms=100_000, cancel_timeout_ms=500, deploy_timeout_ms=800, stuck_timeout_ms=stuck_timeout_ms
    )
    restart = FixedDelay(attempts=9, delay_ms=100)
    job = JobLifecycle(slots=2, tasks=job_tasks or tasks(2), settings=settings, restart=restart)
    feed(job, 0, JobStarted(), *up(A1, B1))
    assert job.state is JobState.DEPLOYING
    return job


def loading(for_ms: int, *, epoch: int = 1, who=A1) -> SlotLoading:
    return SlotLoading(slot=who, epoch=Epoch(epoch), loading_ms=for_ms, where=WHERE)


def why(effects) -> str:
    [text] = [effect.cause.text for effect in effects if isinstance(effect, AttemptEnded)]
    return text


def test_a_slot_that_says_it_is_loading_is_waited_for_until_it_is_ready():
    job = deploying()
    feed(job, 100, *ready(1, B1))
    for time in range(400, 3_600_000, 400):
        feed(job, time, loading(time), SlotHeard(slot=B1))
        assert tick(job, time) == []
    assert feed(job, 3_600_000, *ready(1, A1)) == [RunTasks(epoch=Epoch(1), slots=(A1, B1))]


def test_a_slot_that_says_nothing_is_given_up_while_another_slot_loads():
    job = deploying()
    feed(job, 400, loading(400))
    effects = tick(job, 800)
    assert StopSlot(slot=B1) in effects
    assert StopSlot(slot=A1) not in effects
    assert why(effects) == "slot 1 was lost: the slot did not restore its tasks in time"


def test_a_slot_whose_loop_is_in_open_is_waited_for():
    job = deploying()
    feed(job, 100, *ready(1, B1))
    feed(job, 700, SlotStuck(slot=A1, stuck_ms=700, where="the code of step 'rows', subtask 0"))
    assert tick(job, 800) == []
    assert job.state is JobState.DEPLOYING


def test_people_are_told_at_once_and_each_time_that_twice_the_time_has_passed():
    job = deploying()
    told = [s for s in range(10, 200) if feed(job, 1_000 * s, loading(1_000 * s)) == [ReportLoading(slot=A1)]]
    assert told == [10, 20, 40, 80, 160]


def test_where_the_settings_say_so_a_slot_that_loads_is_given_up_with_what_it_did():
    job = deploying(stuck_timeout_ms=60_000)
    assert feed(job, 59_000, loading(59_000)) == [ReportLoading(slot=A1)]
    effects = feed(job, 60_000, loading(60_000))
    assert StopSlot(slot=A1) in effects
    assert why(effects) == (f"slot 0 was lost: the slot did not restore its tasks in 60000 ms; the slot was in {WHERE}")


@pytest.mark.parametrize("event", [loading(900, epoch=2), loading(900, who=slot(0, 7)), loading(900, who=slot(5))])
def test_what_is_said_of_other_attempts_and_slots_changes_nothing(event):
    job = deploying()
    assert feed(job, 700, event) == []
    assert StopSlot(slot=A1) in tick(job, 800)


def test_a_slot_that_is_ready_is_not_loading_any_more():
    """1. A loads. 2. A is ready, then B. 3. Much later, A falls silent: nothing is said of a start of a step."""
    job = deploying()
    assert feed(job, 600, loading(600)) == [ReportLoading(slot=A1)]
    feed(job, 700, *ready(1, A1))
    assert feed(job, 701, loading(701)) == []
    assert kinds(feed(job, 702, *ready(1, B1))) == [RunTasks]
    assert feed(job, 703, loading(703)) == []
    feed(job, 100_000, SlotHeard(slot=B1))
    text = why(tick(job, 150_000))
    assert text.startswith("slot 0 was lost: ")
    assert WHERE not in text


def test_a_slot_that_is_ready_with_a_region_alone_is_not_loading_any_more():
    left, right = (TaskId(VertexId("v"), subtask) for subtask in range(2))
    job = deploying(job_tasks={left: (left,), right: (right,)})
    feed(job, 1, *ready(1, A1, B1))
    feed(job, 10, AttemptFailed(epoch=Epoch(1), cause=BAD, task=left))
    feed(job, 11, SlotCancelled(slot=A1, epoch=Epoch(1), tasks=(left,)))
    assert kinds(tick(job, 110)) == [DeployTasks]
    assert feed(job, 500, loading(390, epoch=2)) == [ReportLoading(slot=A1)]
    assert kinds(feed(job, 600, *ready(2, A1))) == [RunTasks]
    feed(job, 100_000, SlotHeard(slot=B1))
    [ended] = [effect for effect in tick(job, 150_000) if isinstance(effect, RegionEnded)]
    assert ended.cause.text.startswith("slot 0 was lost: ")
    assert WHERE not in ended.cause.text


def test_what_a_slot_said_counts_for_one_deployment_only():
    """1. A loads for long. 2. The attempt fails, and is deployed again. 3. A says nothing in the next attempt."""
    job = deploying()
    feed(job, 700, loading(700))
    feed(job, 710, AttemptFailed(epoch=Epoch(1), cause=BAD))
    assert feed(job, 711, loading(711)) == []
    assert kinds(feed(job, 900, *cancelled(1, A1, B1))) == [DeployTasks]
    assert {StopSlot(slot=A1), StopSlot(slot=B1)} <= set(tick(job, 1_700))


def test_a_slot_that_was_lost_while_it_loaded_leaves_nothing_to_the_slot_in_its_place():
    job = deploying()
    feed(job, 400, loading(400))
    assert why(feed(job, 500, SlotGone(slot=A1, error="killed"))) == "slot 0 was lost: killed"
    feed(job, 600, *cancelled(1, B1), *up(A2))
    assert job.state is JobState.DEPLOYING
    assert StopSlot(slot=A2) in tick(job, 1_400)


def test_a_region_that_restarts_alone_is_waited_for_likewise():
    left, right = (TaskId(VertexId("v"), subtask) for subtask in range(2))
    job = deploying(job_tasks={left: (left,), right: (right,)})
    feed(job, 1, *ready(1, A1, B1))
    feed(job, 10, AttemptFailed(epoch=Epoch(1), cause=BAD, task=left))
    feed(job, 11, SlotCancelled(slot=A1, epoch=Epoch(1), tasks=(left,)))
    assert kinds(tick(job, 110)) == [DeployTasks]
    assert feed(job, 500, loading(390, epoch=2, who=B1)) == []
    assert feed(job, 500, loading(390, epoch=2)) == [ReportLoading(slot=A1)]
    assert tick(job, 910) == []
    assert job.state is JobState.REPAIRING
    assert kinds(feed(job, 5_000, *ready(2, A1))) == [RunTasks]

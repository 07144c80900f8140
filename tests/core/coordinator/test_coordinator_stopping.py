"""Requests of users: what is refused, and stop with savepoint."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.effects import (
    CreateLocation,
    DeleteFiles,
    FailJob,
    SendToTask,
    StorePointer,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    AttemptStarted,
    CheckpointForm,
    FailedOver,
    FilesDeleted,
    JobEnd,
    LocationFailed,
    PointerStored,
    RequestKind,
    ScheduleAllowed,
    ShutDown,
    TaskAsksToEnd,
    TaskDataEnded,
    TaskEnded,
    TaskFailing,
    TaskRunning,
)
from penstock.core.ids import CheckpointId, Epoch
from penstock.core.messages import LetEnd
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind
from penstock.settings import Retention

ONE = CheckpointId(1)
PATH = "savepoints/chk-1/_metadata"


def end(r, make, *names):
    return r.feed(*(TaskEnded(task=make.task(n), epoch=Epoch(r.epoch)) for n in names))


def fail(r, make, name):
    return r.feed(TaskFailing(task=make.task(name), epoch=Epoch(r.epoch), error="boom"))


def stopped(rig, **more):
    """A job whose savepoint is there; its tasks have been told and have yet to end."""
    r = rig(**more).start()
    r.request(RequestKind.STOP)
    r.ack_all(1)
    return r


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"kind": RequestKind.CHECKPOINT, "drain": True}, "only a stop can drain: a checkpoint"),
        ({"kind": RequestKind.SAVEPOINT, "drain": True}, "only a stop can drain: a savepoint"),
        ({"kind": RequestKind.CHECKPOINT, "target": "x"}, "only a savepoint has a target"),
        ({"kind": RequestKind.CHECKPOINT, "canonical": True}, "only a savepoint has a target and a format"),
        ({"kind": RequestKind.SAVEPOINT, "form": CheckpointForm.FULL}, "only a checkpoint can be full"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_and_takes_no_id(rig, pick, asked, text):
    r = rig().start()
    answer = pick.answers(r.request(**asked))[1]
    assert answer.reason is None
    assert text in answer.text
    assert r.coordinator.next_id == 1


@pytest.mark.parametrize("kind", [RequestKind.SAVEPOINT, RequestKind.STOP])
def test_a_savepoint_needs_a_target(rig, pick, kind):
    r = rig().start()
    assert "needs a target" in pick.answers(r.request(kind, target=None))[1].text
    begun = r.request(kind, target="here")
    assert pick.begun(begun) == [1]
    assert [e.options.target for e in pick.of(begun, CreateLocation)] == ["here"]


def test_a_second_stop_is_refused_while_one_is_under_way(rig, pick):
    r = rig().start()
    r.request(RequestKind.STOP)
    assert "already being stopped" in pick.answers(r.request(RequestKind.STOP))[2].text


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (CheckpointForm.CONFIGURED, SnapshotKind.CHECKPOINT),
        (CheckpointForm.FULL, SnapshotKind.FULL_CHECKPOINT),
    ],
)
def test_a_user_may_ask_for_a_full_checkpoint(rig, pick, form, kind):
    r = rig().start()
    assert [e.kind for e in pick.of(r.request(form=form), CreateLocation)] == [kind]


# --- S38: stop with savepoint ----------------------------------------------------------------------------------------


def test_a_stop_is_fulfilled_when_the_savepoint_is_there_and_all_tasks_have_ended(rig, make, pick):
    r = rig().start()
    r.request(RequestKind.STOP)
    effects = r.ack_all(1)
    assert pick.told_complete(effects) == [(make.task("t1"), 1), (make.task("t2"), 1)]
    assert pick.answers(effects) == {}
    assert pick.answers(end(r, make, "t1")) == {}
    answer = pick.answers(end(r, make, "t2"))[1]
    assert (answer.path, answer.kind) == (PATH, SnapshotKind.SUSPEND)
    assert pick.answers(r.feed(ShutDown(status=JobEnd.FINISHED))) == {}
    assert pick.of(r.log, FailJob) == []


def test_a_task_that_fails_after_the_savepoint_fails_the_job_once_and_the_savepoint_is_kept(rig, make, pick):
    r = stopped(rig)
    end(r, make, "t1")
    effects = fail(r, make, "t2")
    answer = pick.answers(effects)[1]
    assert (answer.savepoint, answer.reason) == (PATH, CheckpointFailure.TASK_FAILED)
    assert "the job did not stop: task t2[0]: boom" in answer.text
    assert len(pick.of(effects, FailJob)) == 1
    r.feed(FailedOver())
    assert len(pick.of(r.log, FailJob)) == 1
    assert r.deleted == []
    assert r.retained == [1]


def test_a_failed_savepoint_switches_the_schedule_on_again_and_fails_nothing(rig, make, pick):
    r = rig(interval_ms=100).start(draw=0.999)
    r.hold = {CreateLocation}
    r.request(RequestKind.STOP)
    assert r.coordinator.view().next_trigger is None
    effects = r.feed(LocationFailed(checkpoint=ONE))
    assert pick.answers(effects)[1].reason is CheckpointFailure.IO
    assert r.coordinator.view().next_trigger == r.now
    assert pick.of(effects + fail(r, make, "t1"), FailJob) == []


def test_a_stop_that_cannot_be_planned_is_answered_and_leaves_the_job_as_it_is(rig, make, pick):
    r = rig(interval_ms=100)
    r.epoch = 1
    r.feed(AttemptStarted(epoch=Epoch(1)), ScheduleAllowed(draw=0.5))
    answer = pick.answers(r.request(RequestKind.STOP))[1]
    assert answer.reason is CheckpointFailure.NOT_ALL_REQUIRED_TASKS_RUNNING
    r.feed(*(TaskRunning(task=t, epoch=Epoch(1)) for t in r.graph.tasks))
    assert r.coordinator.view().next_trigger == 1_050


def test_a_stop_aborts_running_and_waiting_checkpoints(rig, pick):
    r = rig().start()
    r.request()
    r.request()
    effects = r.request(RequestKind.STOP)
    suspended = CheckpointFailure.COORDINATOR_SUSPENDED
    assert [a.reason for a in pick.answers(effects).values()] == [suspended, suspended]
    assert r.in_progress == [2]


def test_other_requests_wait_until_the_stop_is_decided(rig, pick):
    r = rig(max_concurrent=9, tolerable_failures=None).start()
    r.request(RequestKind.STOP)
    r.request(RequestKind.SAVEPOINT)
    r.request()
    assert (r.in_progress, r.waiting) == ([1], 2)
    assert pick.begun(r.decline("t1", 1, CheckpointFailure.DECLINED)) == [2, 3]


def test_requests_that_wait_for_a_stop_are_answered_when_its_savepoint_is_complete(rig, make, pick):
    """1. The user stops the job. 2. Two requests wait. 3. The savepoint is complete, and a slot has died that nobody
    misses yet. 4. The tasks of that slot do not end: no checkpoint can begin, however long that takes."""
    r = rig(max_concurrent=9).start()
    r.request(RequestKind.STOP)
    r.request(RequestKind.SAVEPOINT)
    r.request()
    answers = pick.answers(r.ack_all(1))
    assert [(request, a.reason) for request, a in answers.items()] == [
        (2, CheckpointFailure.COORDINATOR_SUSPENDED),
        (3, CheckpointFailure.COORDINATOR_SUSPENDED),
    ]
    assert all("the savepoint that stops the job is complete" in a.text for a in answers.values())
    assert r.waiting == 0
    assert pick.answers(end(r, make, "t1", "t2"))[1].path == PATH


@pytest.mark.parametrize("kind", [RequestKind.SAVEPOINT, RequestKind.CHECKPOINT])
def test_a_request_is_refused_when_the_savepoint_that_stops_the_job_is_complete(rig, make, pick, kind):
    r = stopped(rig)
    answer = pick.answers(r.request(kind))[2]
    assert answer.reason is CheckpointFailure.COORDINATOR_SUSPENDED
    assert (r.in_progress, r.waiting, r.coordinator.next_id) == ([], 0, 2)
    fail(r, make, "t1")
    r.feed(FailedOver())
    r.start()
    assert pick.begun(r.request(kind)) == [2]


@pytest.mark.parametrize(("drain", "kind"), [(False, SnapshotKind.SUSPEND), (True, SnapshotKind.TERMINATE)])
def test_the_barrier_says_whether_to_drain(rig, pick, drain, kind):
    r = rig().start()
    effects = r.request(RequestKind.STOP, drain=drain)
    options = pick.of(effects, SendToTask)[0].message.options
    assert (options.synchronous, options.savepoint, options.drain) == (True, True, drain)
    assert not options.unaligned
    assert pick.of(effects, CreateLocation)[0].kind is kind


def drained_by(effects, pick):
    return [e.metadata.is_drained for e in pick.of(effects, WriteMetadata)]


@pytest.mark.parametrize("drain", [False, True])
def test_the_savepoint_says_whether_the_job_was_drained(rig, pick, drain):
    r = rig().start()
    r.request(RequestKind.STOP, drain=drain)
    assert drained_by(r.ack_all(1), pick) == [drain]


def test_what_is_saved_after_a_drained_stop_that_failed_says_so_and_overtakes_nothing(rig, pick):
    """The sources have more to read: none may be gone for good while others are not."""
    r = rig(unaligned=True).start(drained=True)
    assert not pick.of(r.request(), CreateLocation)[0].options.unaligned
    assert drained_by(r.ack_all(1), pick) == [True]
    r.request(RequestKind.STOP)
    assert drained_by(r.ack_all(2), pick) == [True]
    r.start()
    assert pick.of(r.request(), CreateLocation)[0].options.unaligned
    assert drained_by(r.ack_all(3), pick) == [False]


def drained_and_restarted(rig, make, **more):
    """A job that failed after the savepoint that drained it, and is about to restart from there."""
    r = rig(**more).start()
    r.request(RequestKind.STOP, drain=True)
    r.ack_all(1)
    fail(r, make, "t1")
    r.feed(FailedOver())
    return r


def test_a_job_that_restarts_from_the_savepoint_that_drained_it_ends_with_that_savepoint(rig, make, pick):
    """A checkpoint would save nothing new. It would take the place of the savepoint, and go with the job: when the
    program is run again, nothing would say that the sources have more data."""
    r = drained_and_restarted(rig, make, interval_ms=100, retention=Retention.DELETE).start(drained=True, is_last=True)
    r.feed(*(TaskDataEnded(task=t, epoch=Epoch(r.epoch)) for t in r.graph.tasks))
    assert r.coordinator.next_deadline() is None
    sent = r.feed(*(TaskAsksToEnd(task=t, epoch=Epoch(r.epoch)) for t in r.graph.tasks))
    let_go = [e.task for e in pick.of(sent, SendToTask) if isinstance(e.message, LetEnd)]
    assert let_go == [make.task("t1"), make.task("t2")]
    end(r, make, "t1", "t2")
    assert r.coordinator.next_id == 2
    assert [c.checkpoint for c in r.coordinator.records_after(JobEnd.FINISHED)] == [1]
    r.feed(ShutDown(status=JobEnd.FINISHED))
    assert r.deleted == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (RequestKind.CHECKPOINT, "the savepoint that stops the job is complete"),
        (RequestKind.SAVEPOINT, "the savepoint that stops the job is complete"),
        (RequestKind.STOP, "the job is already being stopped"),
    ],
)
def test_no_request_becomes_a_checkpoint_in_a_job_that_ends_with_the_savepoint_that_drained_it(
    rig, make, pick, kind, text
):
    r = drained_and_restarted(rig, make).start(drained=True, is_last=True)
    assert text in pick.answers(r.request(kind))[2].text
    assert r.coordinator.is_stopping
    r.feed(FailedOver())
    r.start()
    assert not r.coordinator.is_stopping
    assert pick.begun(r.request(kind)) == [2]


def test_requests_that_wait_for_a_restart_are_answered_when_the_job_ends_with_the_savepoint_that_drained_it(
    rig, make, pick
):
    """1. Files of failed checkpoints take long to delete. 2. A stop with drain is saved, and the job fails. 3. The user
    stops the job again, which has to wait. 4. The job restarts from the savepoint."""
    r = rig(tolerable_failures=None).start()
    r.hold = {DeleteFiles}
    for checkpoint in (1, 2):
        r.request()
        r.ack("t1", checkpoint)
        r.decline("t2", checkpoint)
    r.feed(FailedOver())
    assert pick.answers(r.request(RequestKind.STOP)) == {}
    before = len(r.log)
    r.start(drained=True, is_last=True)
    answers = pick.answers(r.log[before:])
    assert [a.reason for a in answers.values()] == [CheckpointFailure.COORDINATOR_SUSPENDED]
    assert r.waiting == 0


def test_a_task_that_gives_up_the_savepoint_fails_the_job_at_once(rig, pick):
    r = rig(tolerable_failures=None).start()
    r.request(RequestKind.STOP)
    effects = r.decline("t1", 1)
    assert pick.answers(effects)[1].reason is CheckpointFailure.DECLINED_TASK_NOT_READY
    assert len(pick.of(effects, FailJob)) == 1


def test_a_savepoint_that_stops_the_job_is_recorded_before_tasks_end(rig, pick):
    """Tasks commit as of it: whoever restores must restore it, and not the checkpoint before."""
    r = rig().start()
    r.hold = {StorePointer}
    r.request(RequestKind.STOP)
    effects = r.ack_all(1)
    assert [e.completed.checkpoint for e in pick.of(effects, StorePointer)] == [1]
    assert pick.told_complete(effects) == []
    r.feed(PointerStored(checkpoint=ONE))
    assert r.coordinator.latest.kind is SnapshotKind.SUSPEND


def test_after_a_stop_that_failed_late_the_next_checkpoint_does_not_build_on_the_savepoint(rig, make, pick):
    r = stopped(rig)
    fail(r, make, "t1")
    r.feed(FailedOver())
    r.start()
    assert [e.kind for e in pick.of(r.request(), CreateLocation)] == [SnapshotKind.FULL_CHECKPOINT]
    r.ack_all(2)
    assert (r.retained, r.deleted) == ([2], [])


def test_a_restart_after_the_savepoint_ends_the_stop(rig, make, pick):
    r = stopped(rig)
    effects = r.feed(FailedOver())
    assert pick.answers(effects)[1].savepoint == PATH
    assert pick.of(effects, FailJob) == []


def test_a_restart_of_some_tasks_after_the_savepoint_has_to_become_one_of_all(rig, make, pick):
    r = stopped(rig)
    effects = r.feed(FailedOver(tasks=(make.task("t1"),)))
    assert pick.answers(effects)[1].savepoint == PATH
    assert len(pick.of(effects, FailJob)) == 1


def test_trouble_while_the_savepoint_is_being_stored_counts_if_it_is_stored(rig, make, pick):
    """1. The savepoint is being stored. 2. A task fails. 3. The savepoint turns out to be stored."""
    r = rig().start()
    r.hold = {StorePointer}
    r.request(RequestKind.STOP)
    r.ack_all(1)
    effects = fail(r, make, "t1")
    assert pick.answers(effects) == {}
    assert pick.of(effects, FailJob) == []
    effects = r.feed(PointerStored(checkpoint=ONE))
    assert pick.answers(effects)[1].savepoint == PATH
    assert len(pick.of(effects, FailJob)) == 1


def test_a_restart_while_the_savepoint_is_being_stored_fails_the_job_no_second_time(rig, make, pick):
    r = rig().start()
    r.hold = {StorePointer}
    r.request(RequestKind.STOP)
    r.ack_all(1)
    fail(r, make, "t1")
    r.feed(FailedOver())
    effects = r.feed(PointerStored(checkpoint=ONE))
    assert pick.answers(effects)[1].savepoint == PATH
    assert pick.of(r.log, FailJob) == []


def test_trouble_before_a_stop_is_nothing_to_it(rig, make, pick):
    r = rig().start()
    fail(r, make, "t1")
    r.feed(FailedOver())
    r.start()
    r.request(RequestKind.STOP)
    r.ack_all(1)
    assert pick.answers(end(r, make, "t1", "t2"))[1].path == PATH


def test_a_restart_while_the_stop_waits_in_line_is_nothing_to_it(rig, make, pick):
    """1. Files of failed checkpoints take long to delete. 2. The job fails. 3. The user stops it, which has to wait.
    4. The job restarts. 5. The files are gone; the savepoint is taken, and all tasks end."""
    r = rig(tolerable_failures=None).start()
    r.hold = {DeleteFiles}
    for checkpoint in (1, 2):
        r.request()
        r.ack("t1", checkpoint)
        r.decline("t2", checkpoint)
    r.feed(FailedOver())
    assert pick.begun(r.request(RequestKind.STOP)) == []
    assert pick.begun(r.start().log) == [1, 2]
    r.feed(*(FilesDeleted(cleaning=e.cleaning) for e in pick.of(r.log, DeleteFiles)))
    assert pick.begun(r.log) == [1, 2, 3]
    r.ack_all(3)
    answers = pick.answers(end(r, make, "t1", "t2"))
    assert [a.path for a in answers.values()] == ["savepoints/chk-3/_metadata"]
    assert pick.of(r.log, FailJob) == []


@pytest.mark.parametrize("status", [JobEnd.FAILED, JobEnd.CANCELLED, JobEnd.SUSPENDED])
def test_a_job_that_ends_otherwise_after_the_savepoint_did_not_stop(rig, pick, status):
    r = stopped(rig)
    answer = pick.answers(r.feed(ShutDown(status=status)))[1]
    assert answer.savepoint == PATH
    assert f"the job is {status.value}" in answer.text
    assert r.deleted == []


def test_a_finished_job_has_stopped(rig, pick):
    r = stopped(rig)
    assert pick.answers(r.feed(ShutDown(status=JobEnd.FINISHED)))[1].path == PATH
    assert r.deleted == []


def test_a_job_that_finishes_while_the_savepoint_is_being_stored_has_stopped(rig, pick):
    r = rig().start()
    r.hold = {StorePointer}
    r.request(RequestKind.STOP)
    r.ack_all(1)
    assert pick.answers(r.feed(ShutDown(status=JobEnd.FINISHED))) == {}
    assert pick.answers(r.feed(PointerStored(checkpoint=ONE)))[1].path == PATH


def test_tasks_that_end_while_the_savepoint_is_being_stored_count(rig, make, pick):
    r = rig().start()
    r.hold = {StorePointer}
    r.request(RequestKind.STOP)
    r.ack_all(1)
    end(r, make, "t1", "t2")
    assert pick.answers(r.feed(PointerStored(checkpoint=ONE)))[1].path == PATH


def test_the_last_checkpoint_before_the_stop_goes_for_the_savepoint(rig):
    r = rig().start()
    r.request()
    r.ack_all(1)
    r.request(RequestKind.STOP)
    r.ack_all(2)
    assert r.retained == [2]
    assert r.deleted == ["ckpt/chk-1"]

"""How many checkpoints may fail in a row before something has to give."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.effects import AnswerRequest, CreateLocation, FailJob, FailTask, WriteMetadata
from penstock.core.coordinator.events import FailedOver, LocationFailed, MetadataFailed, RequestKind
from penstock.core.coordinator.tolerance import FailureTolerance
from penstock.core.ids import CheckpointId, TaskId, VertexId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind

TASK = TaskId(VertexId("v"), 0)
CHECKPOINT, SAVEPOINT, STOP = SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT, SnapshotKind.SUSPEND
DECLINED, EXPIRED, IO = CheckpointFailure.DECLINED, CheckpointFailure.EXPIRED, CheckpointFailure.IO
COUNTED = {
    CheckpointFailure.IO,
    CheckpointFailure.ASYNC_PART_FAILED,
    CheckpointFailure.DECLINED,
    CheckpointFailure.EXPIRED,
    CheckpointFailure.FINALIZE_FAILED,
}


def fail(tolerance, checkpoint, reason=EXPIRED, *, kind=CHECKPOINT, task=None):
    return tolerance.failed(kind, reason, "text", checkpoint=CheckpointId(checkpoint), task=task)


@pytest.mark.parametrize("reason", list(CheckpointFailure))
def test_only_these_reasons_count(reason):
    assert (fail(FailureTolerance(0), 1, reason) is not None) is (reason in COUNTED)


def test_more_than_the_tolerated_number_fails_and_the_count_starts_again():
    tolerance = FailureTolerance(2)
    results = [fail(tolerance, i) for i in range(1, 7)]
    assert [r is not None for r in results] == [False, False, True, False, False, True]
    assert results[2] == FailJob(
        reason=EXPIRED,
        text="more than 2 checkpoints failed in a row, the last because not all tasks acknowledged in time: text",
    )


def test_a_checkpoint_counts_once():
    tolerance = FailureTolerance(1)
    assert [fail(tolerance, 1), fail(tolerance, 1), fail(tolerance, 1)] == [None, None, None]
    assert fail(tolerance, 2) is not None


def test_a_success_sets_the_count_to_zero():
    tolerance = FailureTolerance(1)
    fail(tolerance, 1)
    tolerance.succeeded(CheckpointId(2))
    assert fail(tolerance, 3) is None
    assert fail(tolerance, 4) is not None


def test_every_newer_success_does():
    tolerance = FailureTolerance(1)
    for checkpoint in (2, 4):
        fail(tolerance, checkpoint - 1)
        tolerance.succeeded(CheckpointId(checkpoint))
    assert fail(tolerance, 5) is None


def test_after_the_count_started_again_nothing_is_remembered_of_what_was_counted():
    tolerance = FailureTolerance(0)
    assert fail(tolerance, 1) is not None
    assert fail(tolerance, 1) is not None


def test_an_older_success_after_a_newer_one_changes_nothing():
    tolerance = FailureTolerance(1)
    tolerance.succeeded(CheckpointId(5))
    fail(tolerance, 6)
    tolerance.succeeded(CheckpointId(4))
    assert fail(tolerance, 7) is not None


def test_a_failure_of_a_checkpoint_up_to_the_last_success_does_not_count():
    tolerance = FailureTolerance(0)
    tolerance.succeeded(CheckpointId(5))
    assert fail(tolerance, 5) is None
    assert fail(tolerance, 6) is not None


def test_a_task_that_declines_too_often_fails():
    result = fail(FailureTolerance(0), 1, DECLINED, task=TASK)
    assert isinstance(result, FailTask)
    assert result.task == TASK


def test_what_can_fail_before_any_task_was_asked_fails_the_job_whoever_said_it():
    assert isinstance(fail(FailureTolerance(0), 1, IO, task=TASK), FailJob)


def test_any_number_can_be_tolerated():
    tolerance = FailureTolerance(None)
    assert [fail(tolerance, i) for i in range(1, 50)] == [None] * 49


@pytest.mark.parametrize("kind", [SAVEPOINT, STOP])
@pytest.mark.parametrize("task", [None, TASK])
@pytest.mark.parametrize("reason", [DECLINED, EXPIRED, IO, CheckpointFailure.ASYNC_PART_FAILED])
def test_a_savepoint_never_counts_whoever_made_it_fail(kind, task, reason):
    tolerance = FailureTolerance(0)
    assert [fail(tolerance, number, reason, kind=kind, task=task) for number in range(1, 5)] == [None] * 4


def test_a_savepoint_that_fails_does_not_bring_the_job_nearer_to_its_limit():
    tolerance = FailureTolerance(1)
    fail(tolerance, 1)
    fail(tolerance, 2, DECLINED, kind=SAVEPOINT, task=TASK)
    assert fail(tolerance, 2) is not None


# --- in the coordinator ----------------------------------------------------------------------------------------------


def test_a_declined_checkpoint_fails_the_task_that_declined(rig, make, pick):
    r = rig(tolerable_failures=0).start()
    r.request()
    effects = r.decline("t2", 1, DECLINED)
    assert [e.task for e in pick.of(effects, FailTask)] == [make.task("t2")]


def test_an_expired_checkpoint_fails_the_job(rig, pick):
    r = rig(tolerable_failures=0, timeout_ms=100).start()
    r.request()
    assert [e.reason for e in pick.of(r.tick(100), FailJob)] == [EXPIRED]


def test_a_savepoint_that_succeeds_counts_as_a_success(rig, pick):
    r = rig(tolerable_failures=1).start()
    r.request()
    r.decline("t1", 1, DECLINED)
    r.request(RequestKind.SAVEPOINT)
    r.ack_all(2)
    r.request()
    assert pick.of(r.decline("t1", 3, DECLINED), FailTask) == []


def test_a_savepoint_that_a_task_declines_fails_nothing_but_itself(rig, pick):
    r = rig(tolerable_failures=0).start()
    r.request(RequestKind.SAVEPOINT)
    effects = r.decline("t2", 1, DECLINED)
    assert pick.of(effects, FailTask | FailJob) == []
    assert [e.result.reason for e in pick.of(effects, AnswerRequest)] == [DECLINED]


def test_a_stop_whose_folder_cannot_be_made_leaves_all_tasks_alone(rig, pick):
    r = rig(tolerable_failures=0).start()
    r.hold.add(CreateLocation)
    r.request(RequestKind.STOP)
    effects = r.feed(LocationFailed(checkpoint=CheckpointId(1), error="no room"))
    assert pick.of(effects, FailTask | FailJob) == []
    assert [e.result.reason for e in pick.of(effects, AnswerRequest)] == [IO]


@pytest.mark.parametrize("how", ["declined", "expired", "not recorded"])
def test_a_stop_that_fails_after_tasks_were_asked_restarts_them_and_counts_nothing(rig, pick, how):
    """Sources may have ended for it."""
    r = rig(tolerable_failures=None, timeout_ms=100).start()
    r.request(RequestKind.STOP)
    if how == "declined":
        effects = r.decline("t2", 1, CheckpointFailure.DECLINED_TASK_NOT_READY)
    elif how == "expired":
        effects = r.tick(100)
    else:
        r.hold.add(WriteMetadata)
        r.ack_all(1)
        effects = r.feed(MetadataFailed(checkpoint=CheckpointId(1), error="no room"))
    (failed,) = pick.of(effects, FailJob)
    assert failed.free


def test_a_stop_that_fails_with_its_attempt_restarts_nothing_more(rig, pick):
    r = rig(tolerable_failures=0).start()
    r.request(RequestKind.STOP)
    assert pick.of(r.feed(FailedOver()), FailTask | FailJob) == []

"""How many checkpoints may fail in a row before something has to give."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.effects import FailJob, FailTask
from penstock.core.coordinator.events import RequestKind
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


def test_what_the_master_does_wrong_with_a_savepoint_never_fails_the_job():
    tolerance = FailureTolerance(0)
    assert fail(tolerance, 1, EXPIRED, kind=SAVEPOINT) is None
    assert fail(tolerance, 2, EXPIRED, kind=STOP) is None
    assert fail(tolerance, 3, IO, kind=SAVEPOINT, task=TASK) is None


def test_what_a_task_does_wrong_with_a_savepoint_counts():
    assert isinstance(fail(FailureTolerance(0), 1, DECLINED, kind=SAVEPOINT, task=TASK), FailTask)


def test_what_a_task_does_wrong_with_a_stop_fails_the_job_whatever_is_tolerated():
    reason = CheckpointFailure.DECLINED_TASK_NOT_READY
    assert isinstance(fail(FailureTolerance(None), 1, reason, kind=STOP, task=TASK), FailJob)


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

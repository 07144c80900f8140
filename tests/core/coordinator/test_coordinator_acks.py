"""From the trigger to the end of a checkpoint: acknowledgements, declines, time-outs, subsumption, notifications."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.coordinator.effects import (
    AcknowledgeIgnored,
    AckVerdict,
    CheckpointCompleted,
    CheckpointStarted,
    CreateLocation,
    DeleteFiles,
    SendToTask,
    StorePointer,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    AttemptStarted,
    FailedOver,
    JobEnd,
    LocationCreated,
    MetadataWritten,
    PointerStored,
    RequestKind,
    ShutDown,
    TaskEnded,
    TaskFailing,
    TaskRunning,
)
from penstock.core.coordinator.options import CoordinatorOptions
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Epoch, Instant
from penstock.core.messages import NotifyAborted, NotifyComplete, TriggerCheckpoint
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CheckpointMetadata, SnapshotKind

ONE = CheckpointId(1)


def verdicts(pick, effects):
    return [e.verdict for e in pick.of(effects, AcknowledgeIgnored)]


# --- the way through -------------------------------------------------------------------------------------------------


def test_nobody_is_told_before_the_record_is_durable(rig, make, pick):
    r = rig().start()
    r.hold = {CreateLocation, WriteMetadata, StorePointer}
    effects = r.request()
    assert [type(e) for e in effects] == [CheckpointStarted, CreateLocation]
    assert effects[1] == CreateLocation(checkpoint=ONE, kind=SnapshotKind.CHECKPOINT, options=CheckpointOptions())
    effects = r.feed(*r.answers_to(effects[1]))
    assert pick.triggered(effects) == [make.task("t1"), make.task("t2")]
    assert r.ack("t1", 1) == []
    (write,) = r.ack("t2", 1)
    assert isinstance(write, WriteMetadata)
    (store,) = r.feed(*r.answers_to(write))
    assert isinstance(store, StorePointer)
    assert not r.coordinator.is_settled
    effects = r.feed(*r.answers_to(store))
    assert pick.told_complete(effects) == [(make.task("t1"), 1), (make.task("t2"), 1)]
    assert r.coordinator.is_settled
    assert r.coordinator.latest == store.completed


def test_the_trigger_carries_attempt_id_time_and_options(rig, make, pick):
    r = rig().start()
    r.now = 1_234
    sent = pick.of(r.request(), SendToTask)[0]
    assert sent.message == TriggerCheckpoint(
        epoch=Epoch(1), task=make.task("t1"), checkpoint=ONE, timestamp=Instant(1_234), options=CheckpointOptions()
    )


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, CheckpointOptions()),
        ({"unaligned": True}, CheckpointOptions(unaligned=True)),
        ({"unaligned": True, "aligned_timeout_ms": 0}, CheckpointOptions(unaligned=True)),
        ({"unaligned": True, "aligned_timeout_ms": 30}, CheckpointOptions(aligned_timeout_ms=30)),
    ],
)
def test_how_a_checkpoint_is_aligned_comes_from_the_settings(rig, pick, settings, options):
    r = rig(**settings).start()
    assert pick.of(r.request(), SendToTask)[0].message.options == options


def test_a_savepoint_is_aligned_self_contained_and_goes_where_its_folder_was_made(rig, pick):
    r = rig(unaligned=True).start()
    effects = r.request(RequestKind.SAVEPOINT, target="mine", canonical=True)
    wanted = CheckpointOptions(savepoint=True, full=True, canonical=True, target="mine")
    assert pick.of(effects, CreateLocation)[0].options == wanted
    sent = pick.of(effects, SendToTask)[0].message.options
    assert sent == msgspec.structs.replace(wanted, target="mine/chk-1")


def test_ids_grow_by_one_and_begin_behind_everything_known(rig, pick):
    r = rig(next_id=41, max_concurrent=9).start()
    assert pick.begun(r.request() + r.request()) == [41, 42]
    assert r.coordinator.next_id == 43


def test_the_answer_is_the_completed_checkpoint(rig, make, pick):
    r = rig().start()
    r.request()
    r.now += 25
    r.ack("t1", 1, make.state("t1", make.file("ckpt/chk-1/x")))
    effects = r.ack("t2", 1)
    answer = pick.answers(effects)[1]
    assert answer == pick.of(effects, CheckpointCompleted)[0].completed == r.coordinator.latest
    assert (answer.job, answer.checkpoint, answer.timestamp, answer.completed) == ("job", 1, 1_000, 1_025)
    assert (answer.location, answer.path) == ("ckpt/chk-1", "ckpt/chk-1/_metadata")
    assert (answer.size, answer.metadata_size, answer.private_files) == (10, 100, ("ckpt/chk-1/x",))
    assert pick.of(effects, CheckpointCompleted)[0].took_ms == 25


def test_metadata_survives_being_written_and_read(rig, make, pick):
    r = rig(options=CoordinatorOptions(job_settings={"parallelism": 2})).start()
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("x"), union=True))
    (write,) = pick.of(r.ack("t2", 1), WriteMetadata)
    packed = msgspec.msgpack.encode(write.metadata)
    assert msgspec.msgpack.decode(packed, type=CheckpointMetadata) == write.metadata
    assert write.metadata.settings == {"parallelism": 2}


# --- S24: a newer one overtakes --------------------------------------------------------------------------------------


def test_a_newer_checkpoint_that_completes_first_subsumes_the_older(rig, make, pick):
    r = rig(make.sources(3), max_concurrent=1_000).start()

    def ack(name, checkpoint):
        return r.ack(name, checkpoint, make.state(name, make.file(f"{checkpoint}/{name}")))

    r.request()
    ack("t2", 1)
    r.request()
    ack("t3", 2)
    ack("t1", 2)
    ack("t1", 1)
    effects = ack("t2", 2)
    assert (r.in_progress, r.retained) == ([], [2])
    assert pick.aborted(effects) == [(1, CheckpointFailure.SUBSUMED)]
    assert pick.answers(effects)[1].reason is CheckpointFailure.SUBSUMED
    assert sorted(r.deleted) == ["1/t1", "1/t2", "ckpt/chk-1"]
    assert pick.told_complete(r.log) == [(make.task(f"t{i}"), 2) for i in (1, 2, 3)]
    assert verdicts(pick, ack("t3", 1)) == [AckVerdict.LATE]
    assert r.deleted[-1] == "1/t3"
    r.deleted.clear()
    r.feed(ShutDown(status=JobEnd.FINISHED))
    assert sorted(r.deleted) == ["2/t1", "2/t2", "2/t3", "ckpt/chk-2"]


def test_a_pending_savepoint_is_never_subsumed(rig, pick):
    r = rig(max_concurrent=9).start()
    r.request(RequestKind.SAVEPOINT)
    r.request()
    r.ack_all(2)
    assert (r.in_progress, r.retained) == ([1], [2])
    assert pick.completed(r.ack_all(1)) == [1]


def test_a_savepoint_subsumes_nothing_tells_nobody_and_is_not_recorded(rig, pick):
    r = rig(max_concurrent=9).start()
    r.request()
    r.request(RequestKind.SAVEPOINT)
    effects = r.ack_all(2)
    assert pick.completed(effects) == [2]
    assert pick.of(effects, SendToTask) == pick.of(effects, StorePointer) == []
    assert (r.in_progress, r.retained) == ([1], [])


def test_records_are_stored_one_at_a_time_and_one_that_is_overtaken_meanwhile_is_subsumed(rig, pick):
    """1. Checkpoint 2 is acknowledged and being stored. 2. Checkpoint 1 is acknowledged, its metadata written.
    3. It waits for the store. 4. The record of 2 is stored: 1 is subsumed."""
    r = rig(max_concurrent=9).start()
    r.hold = {StorePointer}
    r.request()
    r.request()
    r.ack_all(2)
    effects = r.ack_all(1)
    assert pick.of(effects, StorePointer) == []
    effects = r.feed(PointerStored(checkpoint=CheckpointId(2)))
    assert pick.completed(effects) == [2]
    assert pick.aborted(effects) == [(1, CheckpointFailure.SUBSUMED)]
    assert r.retained == [2]


def test_the_oldest_that_is_ready_is_stored_next(rig, pick):
    r = rig(max_concurrent=9, num_retained=9).start()
    r.hold = {StorePointer}
    for _ in range(3):
        r.request()
    effects = r.ack_all(1) + r.ack_all(3) + r.ack_all(2)
    assert [e.completed.checkpoint for e in pick.of(effects, StorePointer)] == [1]
    effects = r.feed(PointerStored(checkpoint=ONE))
    assert [e.completed.checkpoint for e in pick.of(effects, StorePointer)] == [2]


def test_a_checkpoint_that_is_being_stored_cannot_be_aborted_by_a_failover(rig, pick):
    """1. Checkpoint 1 is being stored. 2. The job fails over; the driver has to wait. 3. The record is stored. 4. The
    new attempt restores 1; nobody was told, for nobody runs."""
    r = rig().start()
    r.hold = {StorePointer}
    r.request()
    r.ack_all(1)
    assert pick.aborted(r.feed(FailedOver())) == []
    with pytest.raises(InvariantError, match="outcome of the latest checkpoint is not known"):
        r.coordinator.handle(AttemptStarted(epoch=Epoch(2)), r.now)
    effects = r.feed(PointerStored(checkpoint=ONE))
    assert pick.told_complete(effects) == []
    assert pick.answers(effects)[1].checkpoint == 1
    assert r.retained == [1]


def test_a_survivor_of_a_partial_failover_is_told_and_a_restarted_task_is_not(rig, make, pick):
    r = rig().start()
    r.hold = {StorePointer}
    r.request()
    r.ack_all(1)
    r.feed(FailedOver(tasks=(make.task("t2"),)))
    assert pick.told_complete(r.feed(PointerStored(checkpoint=ONE))) == [(make.task("t1"), 1)]


def test_a_notification_goes_to_the_attempt_that_took_part(rig, make, pick):
    """t2 restarts alone, in epoch 2, before the abort of the checkpoint it never heard of."""
    r = rig().start()
    r.feed(AttemptStarted(epoch=Epoch(2), tasks=(make.task("t2"),)))
    r.feed(TaskRunning(task=make.task("t2"), epoch=Epoch(2)))
    r.request()
    r.ack("t1", 1, epoch=1)
    effects = r.ack("t2", 1, epoch=2)
    sent = [e.message for e in pick.of(effects, SendToTask)]
    assert sent == [
        NotifyComplete(epoch=Epoch(1), task=make.task("t1"), checkpoint=ONE),
        NotifyComplete(epoch=Epoch(2), task=make.task("t2"), checkpoint=ONE),
    ]


# --- S26: acknowledgements -------------------------------------------------------------------------------------------


def test_an_acknowledgement_of_an_unknown_attempt_is_discarded(rig, make, pick):
    r = rig().start()
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("kept")))
    effects = r.ack("t2", 1, make.state("t2", make.file("stray")), epoch=0)
    assert verdicts(pick, effects) == [AckVerdict.UNKNOWN]
    assert r.deleted == ["stray"]
    assert r.in_progress == [1]


def test_an_acknowledgement_of_a_task_outside_the_plan_is_discarded(rig, make, pick):
    r = rig().start()
    r.request()
    effects = r.ack("nobody", 1, make.state("t1", make.file("stray")))
    assert verdicts(pick, effects) == [AckVerdict.UNKNOWN]
    assert r.deleted == ["stray"]


def test_the_state_of_another_job_is_not_touched(rig, make, pick):
    r = rig().start()
    r.request()
    effects = r.ack("t1", 1, make.state("t1", make.file("theirs", "key")), job="other")
    assert effects == [AcknowledgeIgnored(checkpoint=ONE, task=make.task("t1"), verdict=AckVerdict.FOREIGN)]
    assert r.deleted == []


def test_a_repeated_acknowledgement_changes_nothing(rig, make, pick):
    r = rig().start()
    r.request()
    state = make.state("t1", make.file("kept"))
    r.ack("t1", 1, state)
    assert verdicts(pick, r.ack("t1", 1, state)) == [AckVerdict.DUPLICATE]
    assert r.deleted == []
    assert pick.completed(r.ack("t2", 1)) == [1]


def test_an_acknowledgement_repeated_after_completion_does_not_delete_what_it_completed(rig, make, pick):
    r = rig().start()
    r.request()
    state = make.state("t1", make.file("kept"))
    r.ack("t1", 1, state)
    r.ack("t2", 1)
    assert verdicts(pick, r.ack("t1", 1, state)) == [AckVerdict.LATE]
    assert r.deleted == []


def test_an_acknowledgement_repeated_after_a_savepoint_completed_does_not_delete_it(rig, make):
    r = rig().start()
    r.request(RequestKind.SAVEPOINT)
    state = make.state("t1", make.file("kept"), make.file("also", "key"))
    r.ack("t1", 1, state)
    r.ack("t2", 1)
    r.ack("t1", 1, state)
    assert r.deleted == []
    r.ack("nobody", 1, make.state("t1", make.file("stray")))
    assert r.deleted == ["stray"]


def test_files_that_an_accepted_task_shares_with_a_stray_one_stay(rig, make):
    """Two subtasks of a slot may write their in-flight data into one file."""
    r = rig().start()
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("common")))
    r.ack("t2", 1, make.state("t2", make.file("common"), make.file("stray")), epoch=0)
    assert r.deleted == ["stray"]


def test_a_decline_disposes_of_the_checkpoint_and_of_what_it_had(rig, make, pick):
    r = rig(tolerable_failures=None).start()
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("first")))
    effects = r.decline("t1", 1)
    assert pick.aborted(effects) == [(1, CheckpointFailure.DECLINED_TASK_NOT_READY)]
    assert r.deleted == ["first", "ckpt/chk-1"]
    assert pick.answers(effects)[1].text == "a task was not ready for a checkpoint: task t1[0]: because"
    assert verdicts(pick, r.ack("t2", 1, make.state("t2", make.file("second")))) == [AckVerdict.LATE]
    assert r.deleted[-1] == "second"


def test_a_late_acknowledgement_of_an_expired_checkpoint_says_so(rig, make, pick):
    r = rig(tolerable_failures=None, timeout_ms=100).start()
    r.request()
    assert pick.aborted(r.until(1_100)) == [(1, CheckpointFailure.EXPIRED)]
    assert verdicts(pick, r.ack("t2", 1, make.state("t2", make.file("late")))) == [AckVerdict.EXPIRED]
    assert "late" in r.deleted


def test_only_the_last_sixteen_expired_checkpoints_are_remembered(rig, pick):
    r = rig(tolerable_failures=None, timeout_ms=100).start()
    for _ in range(17):
        r.request()
        r.tick(100)
    assert verdicts(pick, r.ack("t1", 1)) == [AckVerdict.LATE]
    assert verdicts(pick, r.ack("t1", 2)) == [AckVerdict.EXPIRED]


def test_an_acknowledgement_from_before_this_driver_is_not_judged(rig, make, pick):
    r = rig(next_id=9).start()
    assert verdicts(pick, r.ack("t1", 8, make.state("t1", make.file("whose")))) == [AckVerdict.LATE]
    assert r.deleted == []


def test_a_decline_that_does_not_count_is_ignored(rig, pick):
    r = rig().start()
    r.request()
    assert r.decline("t1", 2) == []
    assert r.decline("t1", 1, epoch=0) == []
    assert r.decline("t1", 1, job="other") == []
    assert r.in_progress == [1]


def test_a_decline_after_all_have_acknowledged_is_too_late(rig, pick):
    r = rig().start()
    r.hold = {WriteMetadata}
    r.request()
    r.ack_all(1)
    assert r.decline("t1", 1) == []
    assert pick.completed(r.feed(MetadataWritten(checkpoint=ONE, path="p", size=1))) == [1]


# --- time-outs and failing tasks -------------------------------------------------------------------------------------


def test_a_checkpoint_expires_when_its_time_is_over(rig, pick):
    r = rig(tolerable_failures=None, timeout_ms=100).start()
    r.request()
    assert r.coordinator.next_deadline() == 1_100
    assert r.tick(99) == []
    effects = r.tick(1)
    assert pick.aborted(effects) == [(1, CheckpointFailure.EXPIRED)]
    assert "2 of 2 tasks missing" in pick.answers(effects)[1].text


def test_the_time_counts_from_before_the_folder_is_made(rig, pick):
    r = rig(tolerable_failures=None, timeout_ms=100).start()
    r.hold = {CreateLocation}
    r.request()
    assert pick.aborted(r.tick(100)) == [(1, CheckpointFailure.EXPIRED)]


def test_a_checkpoint_that_is_being_stored_does_not_expire(rig, pick):
    r = rig(timeout_ms=100).start()
    r.hold = {StorePointer}
    r.request()
    r.ack_all(1)
    assert r.coordinator.next_deadline() is None
    assert r.tick(500) == []


def test_a_failing_task_aborts_what_it_has_not_acknowledged(rig, make, pick):
    r = rig(make.sources(2), max_concurrent=2).start()
    r.request()
    r.request()
    r.ack("t1", 1)
    effects = r.feed(TaskFailing(task=make.task("t1"), epoch=Epoch(1), error="boom"))
    assert pick.aborted(effects) == [
        (2, CheckpointFailure.TASK_FAILED),
        (1, CheckpointFailure.COORDINATOR_SUSPENDED),
    ]
    assert pick.told_aborted(effects) == [(make.task("t2"), 2), (make.task("t2"), 1)]
    assert pick.answers(effects)[2].text == "a task failed: task t1[0]: boom"


def test_a_task_that_has_finished_cannot_fail(rig, make, pick):
    r = rig().start()
    r.feed(TaskEnded(task=make.task("t1"), epoch=Epoch(1)))
    r.request()
    r.feed(TaskFailing(task=make.task("t1"), epoch=Epoch(1)))
    assert pick.completed(r.ack("t2", 1)) == [1]


def test_a_failover_aborts_everything_that_is_pending(rig, pick):
    r = rig(max_concurrent=9).start()
    r.request()
    r.request(RequestKind.SAVEPOINT)
    effects = r.feed(FailedOver())
    failover = CheckpointFailure.FAILOVER
    assert pick.aborted(effects) == [(1, failover), (2, failover)]
    assert pick.told_aborted(effects) == []


def test_after_a_failover_the_old_attempt_cannot_get_in(rig, make, pick):
    r = rig().start()
    r.feed(FailedOver())
    r.start()
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("old")), epoch=1)
    r.decline("t1", 1, epoch=1)
    assert r.deleted == ["old"]
    assert pick.completed(r.ack_all(1)) == [1]


# --- notifications ---------------------------------------------------------------------------------------------------


def test_completion_names_the_checkpoint_that_was_thrown_away_for_it(rig, make, pick):
    r = rig().start()
    r.request()
    first = r.ack_all(1)
    assert {e.message.subsumed for e in pick.of(first, SendToTask)} == {None}
    r.request()
    second = r.ack_all(2)
    assert {e.message.subsumed for e in pick.of(second, SendToTask)} == {1}
    assert "ckpt/chk-1" in r.deleted


def test_an_abort_names_the_latest_completed_checkpoint(rig, make, pick):
    r = rig(tolerable_failures=None).start()
    r.request()
    first = [e.message for e in pick.of(r.decline("t1", 1), SendToTask)]
    assert first[0] == NotifyAborted(epoch=Epoch(1), task=make.task("t1"), checkpoint=ONE, latest_completed=None)
    r.request()
    r.ack_all(2)
    r.request()
    third = [e.message for e in pick.of(r.decline("t1", 3), SendToTask)]
    assert {m.latest_completed for m in third} == {2}


def test_a_queued_request_goes_next_after_an_abort(rig, pick):
    r = rig(tolerable_failures=None).start()
    r.request()
    r.request()
    effects = r.decline("t1", 1)
    assert pick.begun(effects) == [2]
    order = [type(e) for e in effects]
    assert order.index(CheckpointStarted) > max(i for i, e in enumerate(effects) if e in pick.of(effects, DeleteFiles))


def test_completions_are_told_before_the_next_checkpoint_is_triggered(rig, pick):
    r = rig().start()
    r.request()
    r.request()
    effects = r.ack_all(1)
    kinds = [type(e.message) for e in pick.of(effects, SendToTask)]
    assert kinds == [NotifyComplete, NotifyComplete, TriggerCheckpoint, TriggerCheckpoint]


# --- whatever comes twice or too late --------------------------------------------------------------------------------


def test_answers_that_belong_to_another_step_change_nothing(rig):
    r = rig().start()
    stray = (
        LocationCreated(checkpoint=ONE, location="elsewhere"),
        MetadataWritten(checkpoint=ONE, path="elsewhere", size=1),
        PointerStored(checkpoint=ONE),
    )
    r.hold = {CreateLocation, WriteMetadata, StorePointer}
    r.request()
    assert r.feed(*stray[1:]) == []
    r.feed(LocationCreated(checkpoint=ONE, location="ckpt/chk-1"))
    assert r.feed(*stray) == []
    r.ack_all(1)
    assert r.feed(stray[0], stray[2]) == []
    r.feed(MetadataWritten(checkpoint=ONE, path="ckpt/chk-1/_metadata", size=1))
    assert r.feed(*stray[:2]) == []
    r.feed(PointerStored(checkpoint=ONE))
    assert (r.coordinator.latest.location, r.coordinator.latest.path) == ("ckpt/chk-1", "ckpt/chk-1/_metadata")


def test_answers_for_checkpoints_that_are_further_or_gone_change_nothing(rig, pick):
    r = rig().start()
    r.request()
    r.ack_all(1)
    before = r.coordinator.view()
    for answer in r.answers_to(pick.of(r.log, CreateLocation)[0]):
        assert r.feed(answer) == []
    assert r.feed(MetadataWritten(checkpoint=ONE, path="p", size=1)) == []
    assert r.feed(PointerStored(checkpoint=ONE)) == []
    assert r.coordinator.view() == before

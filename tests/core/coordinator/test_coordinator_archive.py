"""Which files belong to whom: retention, subsumption, storage that fails, the end of the job."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.archive import Archive
from penstock.core.coordinator.cleaner import Cleaner
from penstock.core.coordinator.effects import (
    AcknowledgeIgnored,
    AckVerdict,
    DeleteFiles,
    FailJob,
    ForgetPointers,
    StorePointer,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    FailedOver,
    FilesDeleted,
    JobEnd,
    MetadataFailed,
    MetadataWritten,
    PointerFailed,
    PointerStored,
    RequestKind,
    ShutDown,
)
from penstock.core.coordinator.retention import RetainedCheckpoints
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import Claim, DiscardRules, SnapshotKind
from penstock.settings import Retention

ONE, TWO = CheckpointId(1), CheckpointId(2)
CLEANER = Cleaner(tries=1, retry_ms=1_000)


# --- retention -------------------------------------------------------------------------------------------------------


def test_the_oldest_go_when_more_are_there_than_wanted(store, make):
    r = store(num_retained=2)
    for checkpoint in (1, 2, 3):
        r.take(checkpoint, make.file(f"{checkpoint}/x"))
    assert r.retained == [2, 3]
    assert r.deleted == ["1/x", "ckpt/chk-1"]


def test_the_record_of_the_new_one_is_stored_before_those_of_the_old_ones_go(store, pick):
    r = store()
    r.take(1)
    r.hold = {StorePointer}
    effects = r.take(2)
    (pointer,) = pick.of(effects, StorePointer)
    assert (pointer.completed.checkpoint, pointer.forget) == (2, (1,))
    assert (r.retained, r.deleted) == ([1], [])


def subsumed(make, num_retained, *kinds):
    kept = RetainedCheckpoints(num_retained, tuple(make.record(i, kind) for i, kind in enumerate(kinds[:-1], start=1)))
    return [c.checkpoint for c in kept.add(make.record(len(kinds), kinds[-1]))]


CHECKPOINT, SAVEPOINT, SUSPEND = SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT, SnapshotKind.SUSPEND


@pytest.mark.parametrize(
    ("num_retained", "kinds", "gone"),
    [
        (1, (CHECKPOINT,), []),
        (1, (CHECKPOINT, CHECKPOINT), [1]),
        (2, (CHECKPOINT, CHECKPOINT, CHECKPOINT, CHECKPOINT), [1, 2]),
        (1, (SAVEPOINT, CHECKPOINT), [1]),
        # The newest checkpoint stays behind a savepoint that does not stop the job, a savepoint goes for it.
        (1, (CHECKPOINT, SAVEPOINT), []),
        (1, (CHECKPOINT, SAVEPOINT, SAVEPOINT), [2]),
        (1, (SAVEPOINT, SAVEPOINT), [1]),
        # Behind one that stops the job nothing has to stay.
        (1, (CHECKPOINT, SUSPEND), [1]),
        (1, (CHECKPOINT, CHECKPOINT, SUSPEND), [1, 2]),
    ],
)
def test_what_a_new_one_subsumes(make, num_retained, kinds, gone):
    assert subsumed(make, num_retained, *kinds) == gone


@pytest.mark.parametrize("late", [4, 5])
def test_checkpoints_complete_in_order(make, late):
    kept = RetainedCheckpoints(3, (make.record(5),))
    with pytest.raises(InvariantError, match=f"checkpoint {late} completed after checkpoint 5"):
        kept.add(make.record(late))


def test_retained_checkpoints_are_found_in_order_whatever_the_store_gave(make):
    assert [c.checkpoint for c in RetainedCheckpoints(3, (make.record(5), make.record(2))).all] == [2, 5]


def test_two_records_of_one_id_are_noticed(make):
    with pytest.raises(InvariantError, match="not in order"):
        Archive(3, (make.record(5), make.record(5)), CLEANER).validate()


# --- storage that fails ----------------------------------------------------------------------------------------------


def test_metadata_that_cannot_be_written_fails_and_cleans_up(store, make, pick):
    r = store(tolerable_failures=0)
    r.hold = {WriteMetadata}
    r.take(1, make.file("x"))
    effects = r.feed(MetadataFailed(checkpoint=ONE, error="disk full"))
    assert pick.aborted(effects) == [(1, CheckpointFailure.FINALIZE_FAILED)]
    assert len(pick.of(effects, FailJob)) == 1
    assert r.deleted == ["x", "ckpt/chk-1"]
    assert (r.in_progress, r.retained) == ([], [])


@pytest.mark.parametrize(
    "answer",
    [MetadataWritten(checkpoint=ONE, path="p", size=1), MetadataFailed(checkpoint=ONE)],
)
def test_the_folder_goes_only_when_nothing_writes_into_it_any_more(store, make, pick, answer):
    """1. The metadata is being written. 2. The job fails over, the checkpoint is aborted. 3. The write ends."""
    r = store()
    r.hold = {WriteMetadata}
    r.take(1, make.file("x"))
    assert pick.aborted(r.feed(FailedOver())) == [(1, CheckpointFailure.FAILOVER)]
    assert r.deleted == []
    r.feed(answer)
    assert r.deleted == ["x", "ckpt/chk-1"]


def test_a_record_that_was_not_stored_keeps_the_old_one_and_deletes_the_new(store, make, pick):
    r = store()
    r.take(1, make.file("1/x"))
    r.hold = {StorePointer}
    r.take(2, make.file("2/x"))
    effects = r.feed(PointerFailed(checkpoint=TWO, error="no"))
    assert pick.aborted(effects) == [(2, CheckpointFailure.FINALIZE_FAILED)]
    assert pick.told_complete(effects) == []
    assert r.retained == [1]
    assert r.deleted == ["2/x", "ckpt/chk-2"]
    assert r.coordinator.is_settled


def test_a_record_that_may_have_been_stored_keeps_its_files_until_a_newer_one_is_stored(store, make, pick):
    r = store()
    r.hold = {StorePointer}
    r.take(1, make.file("1/x"))
    effects = r.feed(PointerFailed(checkpoint=ONE, inconsistent=True))
    assert pick.aborted(effects) == [(1, CheckpointFailure.FINALIZE_FAILED)]
    assert pick.answers(effects)[1].savepoint is None
    assert r.deleted == []
    r.ack("t1", 1, make.state("t1", make.file("1/x")))
    assert r.deleted == []
    r.hold = set()
    effects = r.take(2)
    assert pick.of(effects, StorePointer)[0].forget == (1,)
    assert r.deleted == ["1/x", "ckpt/chk-1"]
    assert pick.of(r.take(3), StorePointer)[0].forget == (2,)
    assert r.deleted == ["1/x", "ckpt/chk-1", "ckpt/chk-2"]


def test_a_doubtful_record_outlives_an_older_one_that_is_stored_after_it(store, pick):
    r = store(max_concurrent=9)
    r.hold = {StorePointer}
    r.request()
    r.request()
    r.ack_all(2)
    r.ack_all(1)
    effects = r.feed(PointerFailed(checkpoint=TWO, inconsistent=True))
    (pointer,) = pick.of(effects, StorePointer)
    assert (pointer.completed.checkpoint, pointer.forget) == (1, ())
    r.feed(PointerStored(checkpoint=ONE))
    assert r.deleted == []
    r.hold = set()
    r.request()
    effects = r.ack_all(3)
    assert pick.of(effects, StorePointer)[0].forget == (1, 2)
    assert sorted(r.deleted) == ["ckpt/chk-1", "ckpt/chk-2"]


def test_a_failover_is_told_which_records_to_withdraw_before_it_restores_an_older_one(store):
    r = store()
    r.take(1)
    r.hold = {StorePointer}
    r.take(2)
    r.feed(PointerFailed(checkpoint=TWO, inconsistent=True))
    assert (r.coordinator.doubtful, r.coordinator.latest.checkpoint) == ((2,), 1)
    r.hold = set()
    r.take(3)
    assert (r.coordinator.doubtful, r.coordinator.latest.checkpoint) == ((), 3)


def test_it_is_known_beforehand_what_will_outlive_the_job(store):
    r = store(retention=Retention.KEEP_ON_FAILURE, num_retained=2)
    r.take(1)
    r.hold = {StorePointer}
    r.take(2)
    r.feed(PointerFailed(checkpoint=TWO, inconsistent=True))
    assert r.coordinator.kept_after(JobEnd.FAILED) == (1, 2)
    assert r.coordinator.kept_after(JobEnd.CANCELLED) == ()
    r.feed(ShutDown(status=JobEnd.FAILED))
    assert r.deleted == []


def test_a_stop_whose_record_is_in_doubt_names_the_savepoint_and_never_deletes_it(store, make, pick):
    r = store()
    r.hold = {StorePointer}
    r.take(1, make.file("s/x"), kind=RequestKind.STOP)
    answer = pick.answers(r.feed(PointerFailed(checkpoint=ONE, inconsistent=True)))[1]
    assert answer.reason is CheckpointFailure.FINALIZE_FAILED
    assert answer.savepoint == "savepoints/chk-1/_metadata"
    r.hold = set()
    r.take(2)
    r.ack("t1", 1, make.state("t1", make.file("s/x")))
    assert r.deleted == []


def test_a_stop_whose_record_was_not_stored_leaves_no_savepoint(store, make, pick):
    r = store()
    r.hold = {StorePointer}
    r.take(1, make.file("s/x"), kind=RequestKind.STOP)
    answer = pick.answers(r.feed(PointerFailed(checkpoint=ONE)))[1]
    assert answer.savepoint is None
    assert r.deleted == ["s/x", "savepoints/chk-1"]


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retention", "deleting"),
    [
        (Retention.DELETE, {JobEnd.FINISHED, JobEnd.CANCELLED, JobEnd.FAILED}),
        (Retention.KEEP_ON_FAILURE, {JobEnd.FINISHED, JobEnd.CANCELLED}),
        (Retention.KEEP, {JobEnd.FINISHED}),
    ],
)
@pytest.mark.parametrize("status", list(JobEnd))
def test_retention_says_what_is_left_when_the_job_ends(store, make, pick, retention, deleting, status):
    r = store(retention=retention)
    r.take(1, make.file("1/x"), make.file("shared/S", "S"))
    effects = r.feed(ShutDown(status=status))
    if status in deleting:
        assert sorted(r.deleted) == ["1/x", "ckpt/chk-1", "shared/S"]
        assert r.retained == []
    else:
        assert (r.deleted, r.retained) == ([], [1])
    forgotten = [ForgetPointers(checkpoints=(ONE,))] if status is not JobEnd.SUSPENDED else []
    assert pick.of(effects, ForgetPointers) == forgotten
    assert r.coordinator.is_settled


def test_records_go_before_the_files_they_name(store, pick):
    r = store()
    r.take(1)
    effects = r.feed(ShutDown(status=JobEnd.FINISHED))
    assert [type(e) for e in effects] == [ForgetPointers, DeleteFiles]


def test_shared_files_of_aborted_checkpoints_go_at_the_end(store, make):
    r = store(retention=Retention.KEEP)
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("shared/S", "S")))
    r.decline("t1", 1)
    r.take(2, make.file("shared/T", "T"))
    r.feed(ShutDown(status=JobEnd.CANCELLED))
    assert "shared/S" in r.deleted
    assert "shared/T" not in r.deleted


def test_a_shut_down_aborts_and_answers_everything(store, pick):
    r = store()
    r.request()
    r.request()
    effects = r.feed(ShutDown(status=JobEnd.CANCELLED))
    shut = CheckpointFailure.COORDINATOR_SHUTDOWN
    assert [a.reason for a in pick.answers(effects).values()] == [shut, shut]
    assert pick.told_aborted(effects) == []
    assert pick.answers(r.request())[3].reason is shut
    assert r.feed(ShutDown(status=JobEnd.FINISHED)) == []
    assert r.feed(FailedOver()) == []


def test_a_shut_down_waits_for_the_record_that_is_being_stored(store, make, pick):
    r = store()
    r.take(1, make.file("1/x"))
    r.hold = {StorePointer}
    r.take(2, make.file("2/x"))
    effects = r.feed(ShutDown(status=JobEnd.FINISHED))
    assert pick.of(effects, ForgetPointers) == []
    assert not r.coordinator.is_settled
    effects = r.feed(PointerStored(checkpoint=TWO))
    assert pick.answers(effects)[2].checkpoint == 2
    assert pick.of(effects, ForgetPointers) == [ForgetPointers(checkpoints=(TWO,))]
    assert sorted(r.deleted) == ["1/x", "2/x", "ckpt/chk-1", "ckpt/chk-2"]
    assert pick.told_complete(effects) == []
    assert r.coordinator.is_settled


def test_a_record_that_fails_or_stays_in_doubt_at_the_end_is_swept_too(store, make, pick):
    for inconsistent in (False, True):
        r = store()
        r.hold = {StorePointer}
        r.take(1, make.file("1/x"))
        r.feed(ShutDown(status=JobEnd.FINISHED))
        effects = r.feed(PointerFailed(checkpoint=ONE, inconsistent=inconsistent))
        assert sorted(r.deleted) == ["1/x", "ckpt/chk-1"]
        assert bool(pick.of(effects, ForgetPointers)) is inconsistent


def test_after_the_end_storage_is_settled_only_when_all_work_has_answered(store, make):
    r = store()
    r.hold = {WriteMetadata, DeleteFiles}
    r.take(1, make.file("1/x"))
    r.feed(ShutDown(status=JobEnd.FAILED))
    assert not r.coordinator.is_settled
    (deletion,) = r.feed(MetadataWritten(checkpoint=ONE, path="p", size=1))
    assert not r.coordinator.is_settled
    r.feed(FilesDeleted(cleaning=deletion.cleaning))
    assert r.coordinator.is_settled


def test_after_the_end_single_files_are_waited_for_too(store, make):
    r = store()
    r.request()
    r.feed(ShutDown(status=JobEnd.SUSPENDED))
    r.hold = {DeleteFiles}
    r.ack("t1", 1, make.state("t1", make.file("late")))
    assert not r.coordinator.is_settled


def test_an_acknowledgement_after_the_end_leaves_no_file(store, make, pick):
    r = store()
    r.take(1, make.file("shared/S", "S"))
    r.request()
    r.feed(ShutDown(status=JobEnd.FINISHED))
    r.deleted.clear()
    effects = r.ack("t1", 2, make.state("t1", make.file("2/x"), make.file("shared/U", "U")))
    assert pick.of(effects, AcknowledgeIgnored)[0].verdict is AckVerdict.LATE
    assert sorted(r.deleted) == ["2/x", "shared/U"]


def test_an_acknowledgement_after_the_end_does_not_harm_what_is_kept(store, make):
    r = store(retention=Retention.KEEP)
    files = (make.file("1/x"), make.file("shared/S", "S"))
    r.take(1, *files)
    r.feed(ShutDown(status=JobEnd.FAILED))
    r.ack("t1", 1, make.state("t1", *files))
    assert r.deleted == []


def test_storing_two_records_at_once_is_a_bug(make):
    archive = Archive(1, (), CLEANER)
    archive.store(make.record(1))
    with pytest.raises(InvariantError, match="1 and 2 stored at once"):
        archive.store(make.record(2))


def test_an_answer_of_the_store_that_nobody_waits_for_is_a_bug():
    with pytest.raises(InvariantError, match="without being asked"):
        Archive(1, (), CLEANER).stored()


# --- what a job can go on from that is run again ----------------------------------------------------------------------


def kept(r, status):
    return [c.checkpoint for c in r.coordinator.records_after(status)]


def test_a_cancelled_job_goes_on_from_what_its_rules_keep(rig):
    for retention, cancelled, failed in ((Retention.KEEP, [1], [1]), (Retention.KEEP_ON_FAILURE, [], [1])):
        r = rig(retention=retention).start()
        r.take(1)
        assert (kept(r, JobEnd.CANCELLED), kept(r, JobEnd.FAILED)) == (cancelled, failed)


def test_a_job_that_has_finished_goes_on_only_if_it_may_find_more_data(rig):
    for may_find_more in (False, True):
        r = rig(retention=Retention.KEEP, goes_on_when_finished=may_find_more).start()
        r.take(1)
        assert kept(r, JobEnd.FINISHED) == ([1] if may_find_more else [])


def test_no_job_goes_on_from_anything_older_than_what_it_has_committed(rig, make):
    """The snapshot that it was started from is the user's and stays; its own checkpoint, which is newer, goes."""
    began = make.record(5, discard=DiscardRules(), claim=Claim.NO_CLAIM)
    r = rig(completed=(began,), next_id=6, retention=Retention.DELETE, num_retained=2).start()
    assert kept(r, JobEnd.CANCELLED) == [5]
    r.take(6)
    assert r.retained == [5, 6]
    assert kept(r, JobEnd.CANCELLED) == kept(r, JobEnd.FINISHED) == []

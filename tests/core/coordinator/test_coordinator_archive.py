"""Which files belong to whom: retention, subsumption, shared files, storage that fails, the end of the job."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.archive import Archive
from penstock.core.coordinator.effects import (
    AcknowledgeIgnored,
    AckVerdict,
    CreateLocation,
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
from penstock.core.coordinator.registry import SharedStateRegistry
from penstock.core.coordinator.retention import RetainedCheckpoints
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant, JobId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import (
    CheckpointMetadata,
    Claim,
    CompletedCheckpoint,
    DiscardRules,
    OperatorSnapshot,
    SharedFile,
    SnapshotKind,
    restored_from,
)
from penstock.settings import Retention

ONE, TWO = CheckpointId(1), CheckpointId(2)


def record(checkpoint, kind=SnapshotKind.CHECKPOINT, **more):
    return CompletedCheckpoint(
        job=JobId("job"),
        checkpoint=CheckpointId(checkpoint),
        timestamp=Instant(0),
        completed=Instant(1),
        kind=kind,
        location=f"old/chk-{checkpoint}",
        path=f"old/chk-{checkpoint}/_metadata",
        size=1,
        **{"discard": DiscardRules.of(Retention.DELETE)} | more,
    )


def take(r, checkpoint, *files, **more):
    """Have a checkpoint completed whose first task wrote these files."""
    r.request(**more)
    first, *others = r.graph.tasks
    state = r.make.state(first.vertex, *files)
    effects = r.ack(first.vertex, checkpoint, state)
    for task in others:
        effects += r.ack(task.vertex, checkpoint)
    return effects


@pytest.fixture
def store(rig, make):
    def build(**more):
        more.setdefault("tolerable_failures", None)
        r = rig(make.sources(2), **more)
        r.make = make
        return r.start()

    return build


# --- retention -------------------------------------------------------------------------------------------------------


def test_the_oldest_go_when_more_are_there_than_wanted(store, make):
    r = store(num_retained=2)
    for checkpoint in (1, 2, 3):
        take(r, checkpoint, make.file(f"{checkpoint}/x"))
    assert r.retained == [2, 3]
    assert r.deleted == ["1/x", "ckpt/chk-1"]


def test_the_record_of_the_new_one_is_stored_before_those_of_the_old_ones_go(store, pick):
    r = store()
    take(r, 1)
    r.hold = {StorePointer}
    effects = take(r, 2)
    (pointer,) = pick.of(effects, StorePointer)
    assert (pointer.completed.checkpoint, pointer.forget) == (2, (1,))
    assert (r.retained, r.deleted) == ([1], [])


def subsumed(num_retained, *kinds):
    kept = RetainedCheckpoints(num_retained, tuple(record(i, kind) for i, kind in enumerate(kinds[:-1], start=1)))
    return [c.checkpoint for c in kept.add(record(len(kinds), kinds[-1]))]


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
def test_what_a_new_one_subsumes(num_retained, kinds, gone):
    assert subsumed(num_retained, *kinds) == gone


def test_checkpoints_complete_in_order():
    kept = RetainedCheckpoints(3, (record(5),))
    with pytest.raises(InvariantError, match="checkpoint 4 completed after checkpoint 5"):
        kept.add(record(4))


def test_retained_checkpoints_are_found_in_order_whatever_the_store_gave():
    assert [c.checkpoint for c in RetainedCheckpoints(3, (record(5), record(2))).all] == [2, 5]


def test_two_records_of_one_id_are_noticed():
    with pytest.raises(InvariantError, match="not in order"):
        Archive(3, (record(5), record(5))).validate()


# --- S28: shared files -----------------------------------------------------------------------------------------------


def test_an_aborted_checkpoint_keeps_its_shared_files_until_one_completes_without_them(store, make):
    r = store()
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("chk-1/private"), make.file("shared/S", "S")))
    r.decline("t2", 1)
    assert r.deleted == ["chk-1/private", "ckpt/chk-1"]
    take(r, 2)
    assert r.deleted == ["chk-1/private", "ckpt/chk-1", "shared/S"]


def test_a_shared_file_lives_as_long_as_a_retained_checkpoint_uses_it(store, make):
    r = store()
    take(r, 1, make.file("shared/S", "S"))
    take(r, 2, make.file("", "S", placeholder=True))
    assert "shared/S" not in r.deleted
    take(r, 3)
    assert "shared/S" in r.deleted


def test_the_metadata_names_the_real_file_instead_of_a_placeholder(store, make, pick):
    r = store()
    take(r, 1, make.file("shared/S", "S"), make.file("chk-1/private"))
    effects = take(r, 2, make.file("", "S", placeholder=True), make.file("chk-2/private"))
    metadata = pick.of(effects, WriteMetadata)[0].metadata
    assert [f.path for f in metadata.operators["op-t1"].subtasks[0].keyed] == ["shared/S", "chk-2/private"]
    completed = r.coordinator.latest
    assert completed.private_files == ("chk-2/private",)
    assert completed.shared_files == (SharedFile(file=make.file("shared/S", "S"), created_by=1),)


def test_the_same_content_uploaded_twice_is_kept_once(store, make, pick):
    r = store()
    take(r, 1, make.file("shared/S-1", "S"))
    effects = take(r, 2, make.file("shared/S-2", "S"))
    metadata = pick.of(effects, WriteMetadata)[0].metadata
    assert metadata.operators["op-t1"].subtasks[0].keyed[0].path == "shared/S-1"
    assert r.deleted == ["shared/S-2", "ckpt/chk-1"]


def test_shared_files_of_an_acknowledgement_that_does_not_count_are_known_all_the_same(store, make):
    r = store(timeout_ms=100)
    r.request()
    r.tick(100)
    r.ack("t1", 1, make.state("t1", make.file("shared/late", "L"), make.file("private")))
    assert "private" in r.deleted
    assert "shared/late" not in r.deleted
    take(r, 2)
    assert "shared/late" in r.deleted


def test_a_file_that_was_let_go_is_not_known_again_because_a_message_is_repeated(store, make, pick):
    """1. Checkpoint 1 writes S and is aborted. 2. Checkpoint 2 completes without it: S is deleted. 3. The first message
    comes again. 4. Checkpoint 3 writes the same content: its own file must be the one that counts."""
    r = store()
    r.request()
    first = make.state("t1", make.file("shared/S-1", "S"))
    r.ack("t1", 1, first)
    r.decline("t2", 1)
    take(r, 2)
    r.ack("t1", 1, first)
    effects = take(r, 3, make.file("shared/S-3", "S"))
    metadata = pick.of(effects, WriteMetadata)[0].metadata
    assert metadata.operators["op-t1"].subtasks[0].keyed[0].path == "shared/S-3"
    assert "shared/S-3" not in r.deleted


def test_a_repeated_message_of_a_subsumed_checkpoint_does_not_harm_files_that_are_still_used(store, make):
    r = store()
    first = (make.file("shared/S", "S"), make.file("1/x"), make.file("", "S", placeholder=True))
    take(r, 1, *first)
    take(r, 2, make.file("", "S", placeholder=True))
    r.deleted.clear()
    r.ack("t1", 1, make.state("t1", *first))
    assert r.deleted == ["1/x"]


def test_a_reference_to_a_file_that_nobody_wrote_counts_as_a_decline(store, make, pick):
    r = store()
    r.request()
    effects = r.ack("t1", 1, make.state("t1", make.file("", "gone", placeholder=True)))
    assert pick.aborted(effects) == [(1, CheckpointFailure.DECLINED)]
    assert "refers to the shared file 'gone', which no checkpoint has written" in pick.answers(effects)[1].text


def test_other_content_under_a_known_name_counts_as_a_decline(store, make, pick):
    r = store()
    take(r, 1, make.file("shared/S", "S"))
    r.request()
    effects = r.ack("t1", 2, make.state("t1", make.file("shared/T", "S", checksum=8)))
    assert pick.aborted(effects) == [(2, CheckpointFailure.DECLINED)]
    assert "with other content" in pick.answers(effects)[2].text


def test_a_shared_file_that_is_inline_is_never_deleted(store, make):
    r = store()
    inline = make.file("x", "S")
    inline = type(inline)(path=None, size=1, checksum=1, inline=b"x", shared_key="S")
    take(r, 1, inline)
    take(r, 2, inline)
    take(r, 3)
    assert r.deleted == ["ckpt/chk-1", "ckpt/chk-2"]


def test_a_savepoint_registers_nothing_and_must_not_refer_to_others(store, make, pick):
    r = store()
    take(r, 1, make.file("shared/S", "S"))
    take(r, 2, make.file("save/T", "T"), kind=RequestKind.SAVEPOINT)
    r.request(RequestKind.SAVEPOINT)
    effects = r.ack("t1", 3, make.state("t1", make.file("", "S", placeholder=True)))
    assert pick.aborted(effects) == [(3, CheckpointFailure.DECLINED)]
    r.request()
    effects = r.ack("t1", 4, make.state("t1", make.file("", "T", placeholder=True)))
    assert pick.aborted(effects) == [(4, CheckpointFailure.DECLINED)]


def test_an_aborted_savepoint_leaves_no_file_not_even_late_ones(store, make):
    r = store()
    r.request(RequestKind.SAVEPOINT)
    r.ack("t1", 1, make.state("t1", make.file("save/S", "S")))
    r.decline("t2", 1)
    assert r.deleted == ["save/S", "savepoints/chk-1"]
    r.ack("t2", 1, make.state("t2", make.file("save/late", "L")))
    assert r.deleted[-1] == "save/late"


# --- storage that fails ----------------------------------------------------------------------------------------------


def test_metadata_that_cannot_be_written_fails_and_cleans_up(store, make, pick):
    r = store(tolerable_failures=0)
    r.hold = {WriteMetadata}
    take(r, 1, make.file("x"))
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
    take(r, 1, make.file("x"))
    assert pick.aborted(r.feed(FailedOver())) == [(1, CheckpointFailure.FAILOVER)]
    assert r.deleted == []
    r.feed(answer)
    assert r.deleted == ["x", "ckpt/chk-1"]


def test_a_record_that_was_not_stored_keeps_the_old_one_and_deletes_the_new(store, make, pick):
    r = store()
    take(r, 1, make.file("1/x"))
    r.hold = {StorePointer}
    take(r, 2, make.file("2/x"))
    effects = r.feed(PointerFailed(checkpoint=TWO, error="no"))
    assert pick.aborted(effects) == [(2, CheckpointFailure.FINALIZE_FAILED)]
    assert pick.told_complete(effects) == []
    assert r.retained == [1]
    assert r.deleted == ["2/x", "ckpt/chk-2"]
    assert r.coordinator.is_settled


def test_a_record_that_may_have_been_stored_keeps_its_files_until_a_newer_one_is_stored(store, make, pick):
    r = store()
    r.hold = {StorePointer}
    take(r, 1, make.file("1/x"))
    effects = r.feed(PointerFailed(checkpoint=ONE, inconsistent=True))
    assert pick.aborted(effects) == [(1, CheckpointFailure.FINALIZE_FAILED)]
    assert r.deleted == []
    r.ack("t1", 1, make.state("t1", make.file("1/x")))
    assert r.deleted == []
    r.hold = set()
    effects = take(r, 2)
    assert pick.of(effects, StorePointer)[0].forget == (1,)
    assert r.deleted == ["1/x", "ckpt/chk-1"]


def test_a_doubtful_record_outlives_an_older_one_that_is_stored_after_it(store, make, pick):
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


def test_a_stop_whose_record_is_in_doubt_names_the_savepoint_and_never_deletes_it(store, make, pick):
    r = store()
    r.hold = {StorePointer}
    take(r, 1, make.file("s/x"), kind=RequestKind.STOP)
    answer = pick.answers(r.feed(PointerFailed(checkpoint=ONE, inconsistent=True)))[1]
    assert answer.reason is CheckpointFailure.FINALIZE_FAILED
    assert answer.savepoint == "savepoints/chk-1/_metadata"
    r.hold = set()
    r.ack("t1", 1, make.state("t1", make.file("s/x")))
    take(r, 2)
    assert r.deleted == []


# --- snapshots from before -------------------------------------------------------------------------------------------


def snapshot(make, checkpoint, claim, kind=SnapshotKind.SAVEPOINT):
    """A snapshot of another job, with a shared and a private file, as the job starts from it."""
    state = make.state("t1", make.file("save/S", "S"), make.file("save/private")).operators[0]
    metadata = CheckpointMetadata(
        job=JobId("former"),
        checkpoint=CheckpointId(checkpoint),
        timestamp=Instant(5),
        kind=kind,
        operators={
            state.operator: OperatorSnapshot(
                operator=state.operator, vertex="t1", parallelism=1, max_parallelism=128, subtasks={0: state}
            )
        },
    )
    return restored_from(
        metadata, location="save", path="save/_metadata", metadata_size=3, claim=claim, retention=Retention.DELETE
    )


def kinds(pick, effects):
    return [e.kind for e in pick.of(effects, CreateLocation)]


def test_after_a_start_without_claim_the_first_checkpoint_is_full(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.NO_CLAIM),)).start()
    effects = r.request()
    assert kinds(pick, effects) == [SnapshotKind.FULL_CHECKPOINT]
    assert pick.of(effects, CreateLocation)[0].options.full
    r.ack_all(10)
    assert kinds(pick, r.request()) == [SnapshotKind.CHECKPOINT]


def test_it_is_full_also_if_another_driver_took_over_before(rig, make, pick):
    unclaimed = snapshot(make, 9, Claim.NO_CLAIM)
    rig(completed=(unclaimed,)).start()
    second = rig(completed=(unclaimed,), next_id=10).start()
    assert kinds(pick, second.request()) == [SnapshotKind.FULL_CHECKPOINT]


def test_a_savepoint_in_between_does_not_change_that(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.NO_CLAIM),)).start()
    r.request(RequestKind.SAVEPOINT)
    r.ack_all(10)
    assert kinds(pick, r.request()) == [SnapshotKind.FULL_CHECKPOINT]


def test_an_unclaimed_snapshot_is_forgotten_but_never_deleted(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.NO_CLAIM),)).start()
    r.request()
    effects = r.ack_all(10)
    assert pick.of(effects, StorePointer)[0].forget == (9,)
    assert {e.message.subsumed for e in effects if hasattr(e, "message")} == {None}
    r.feed(ShutDown(status=JobEnd.FINISHED))
    assert r.deleted == ["ckpt/chk-10"]


def test_no_checkpoint_may_refer_to_files_of_an_unclaimed_snapshot(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.NO_CLAIM),), tolerable_failures=None).start()
    r.request()
    effects = r.ack("t1", 10, make.state("t1", make.file("", "S", placeholder=True)))
    assert pick.aborted(effects) == [(10, CheckpointFailure.DECLINED)]


def test_a_claimed_savepoint_stays_while_its_files_are_used_and_goes_then(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.CLAIM),)).start()
    r.make = make
    effects = take(r, 10, make.file("", "S", placeholder=True))
    assert kinds(pick, effects[:0] + r.log) == [SnapshotKind.CHECKPOINT]
    assert pick.of(effects, StorePointer)[0].forget == ()
    assert (r.retained, r.deleted) == ([10], [])
    effects = take(r, 11)
    assert pick.of(effects, StorePointer)[0].forget == (9, 10)
    assert sorted(r.deleted) == ["ckpt/chk-10", "save", "save/S", "save/private"]


def test_a_legacy_snapshot_may_be_used_but_is_never_deleted(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.LEGACY),)).start()
    r.make = make
    take(r, 10, make.file("", "S", placeholder=True))
    assert not r.coordinator.latest.shared_files[0].owned
    take(r, 11)
    r.feed(ShutDown(status=JobEnd.FINISHED))
    assert r.deleted == ["ckpt/chk-10", "ckpt/chk-11"]


def test_what_is_not_owned_stays_so_for_the_next_driver(rig, make):
    r = rig(completed=(snapshot(make, 9, Claim.LEGACY),)).start()
    r.make = make
    take(r, 10, make.file("", "S", placeholder=True))
    second = rig(completed=r.coordinator.retained, next_id=11).start()
    second.make = make
    take(second, 11)
    assert second.deleted == ["ckpt/chk-10"]


def test_the_next_driver_deletes_shared_files_that_the_job_owns(rig, make, store):
    r = store()
    take(r, 1, make.file("shared/S", "S"))
    take(r, 2, make.file("", "S", placeholder=True))
    second = rig(completed=r.coordinator.retained, next_id=3).start()
    second.make = make
    take(second, 3)
    assert second.deleted == ["shared/S", "ckpt/chk-2"]


def test_two_recovered_checkpoints_may_use_the_same_file(make):
    registry = SharedStateRegistry()
    shared = SharedFile(file=make.file("S", "S"), created_by=ONE)
    registry.register_restored(record(1, shared_files=(shared,)))
    registry.register_restored(record(2, shared_files=(shared,)))
    assert registry.drop_unused(TWO) == []
    assert registry.drop_unused(CheckpointId(3)) == ["S"]
    assert len(registry) == 0


@pytest.mark.parametrize("wrong", [{"key": None}, {"key": "S", "placeholder": True}])
def test_a_record_whose_shared_files_cannot_be_is_refused(make, wrong):
    shared = SharedFile(file=make.file("S", **wrong), created_by=ONE)
    with pytest.raises(InvariantError, match="lists"):
        SharedStateRegistry().register_restored(record(1, shared_files=(shared,)))


def test_ids_begin_behind_the_newest_completed_checkpoint(rig):
    assert rig(completed=(record(41),)).coordinator.next_id == 42


def test_a_record_in_the_store_can_be_built_on_only_if_its_files_stay_ours():
    assert record(1).can_be_built_on
    assert not record(1, SnapshotKind.SUSPEND).can_be_built_on
    assert record(1, SnapshotKind.SAVEPOINT, claim=Claim.CLAIM).can_be_built_on
    assert record(1, claim=Claim.LEGACY).can_be_built_on
    assert not record(1, claim=Claim.NO_CLAIM).can_be_built_on


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
    take(r, 1, make.file("1/x"), make.file("shared/S", "S"))
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
    take(r, 1)
    effects = r.feed(ShutDown(status=JobEnd.FINISHED))
    assert [type(e) for e in effects] == [ForgetPointers, DeleteFiles]


def test_shared_files_of_aborted_checkpoints_go_at_the_end(store, make):
    r = store(retention=Retention.KEEP)
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("shared/S", "S")))
    r.decline("t1", 1)
    take(r, 2, make.file("shared/T", "T"))
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
    take(r, 1, make.file("1/x"))
    r.hold = {StorePointer}
    take(r, 2, make.file("2/x"))
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
        take(r, 1, make.file("1/x"))
        r.feed(ShutDown(status=JobEnd.FINISHED))
        effects = r.feed(PointerFailed(checkpoint=ONE, inconsistent=inconsistent))
        assert sorted(r.deleted) == ["1/x", "ckpt/chk-1"]
        assert bool(pick.of(effects, ForgetPointers)) is inconsistent


def test_after_the_end_storage_is_settled_only_when_all_work_has_answered(store, make):
    r = store()
    r.hold = {WriteMetadata, DeleteFiles}
    take(r, 1, make.file("1/x"))
    r.feed(ShutDown(status=JobEnd.FAILED))
    assert not r.coordinator.is_settled
    (deletion,) = r.feed(MetadataWritten(checkpoint=ONE, path="p", size=1))
    assert not r.coordinator.is_settled
    r.feed(FilesDeleted(cleaning=deletion.cleaning))
    assert r.coordinator.is_settled


def test_an_acknowledgement_after_the_end_leaves_no_file(store, make, pick):
    r = store()
    take(r, 1, make.file("shared/S", "S"))
    r.request()
    r.feed(ShutDown(status=JobEnd.FINISHED))
    r.deleted.clear()
    effects = r.ack("t1", 2, make.state("t1", make.file("2/x"), make.file("shared/U", "U")))
    assert pick.of(effects, AcknowledgeIgnored)[0].verdict is AckVerdict.LATE
    assert sorted(r.deleted) == ["2/x", "shared/U"]


def test_an_acknowledgement_after_the_end_does_not_harm_what_is_kept(store, make):
    r = store(retention=Retention.KEEP)
    files = (make.file("1/x"), make.file("shared/S", "S"))
    take(r, 1, *files)
    r.feed(ShutDown(status=JobEnd.FAILED))
    r.ack("t1", 1, make.state("t1", *files))
    assert r.deleted == []


def test_a_claimed_savepoint_that_a_kept_checkpoint_uses_is_kept_with_it(rig, make):
    r = rig(completed=(snapshot(make, 9, Claim.CLAIM),), retention=Retention.KEEP).start()
    r.make = make
    take(r, 10, make.file("", "S", placeholder=True))
    r.feed(ShutDown(status=JobEnd.CANCELLED))
    assert r.deleted == []


def test_storing_two_records_at_once_is_a_bug():
    archive = Archive(1, ())
    archive.store(record(1))
    with pytest.raises(InvariantError, match="1 and 2 stored at once"):
        archive.store(record(2))


def test_an_answer_of_the_store_that_nobody_waits_for_is_a_bug():
    with pytest.raises(InvariantError, match="without being asked"):
        Archive(1, ()).stored()

"""Files that several checkpoints use, and snapshots that were there before the job."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.effects import (
    CreateLocation,
    DeleteFiles,
    ForgetPointers,
    SendToTask,
    StorePointer,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    JobEnd,
    RequestKind,
    ShutDown,
)
from penstock.core.coordinator.registry import SharedStateRegistry
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant, JobId, VertexId
from penstock.core.messages import StateFile
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import (
    CheckpointMetadata,
    Claim,
    OperatorSnapshot,
    SharedFile,
    SnapshotKind,
    restored_from,
)
from penstock.settings import Retention

ONE, TWO = CheckpointId(1), CheckpointId(2)


# --- S28: shared files -----------------------------------------------------------------------------------------------


def test_an_aborted_checkpoint_keeps_its_shared_files_until_one_completes_without_them(store, make):
    r = store()
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("chk-1/private"), make.file("shared/S", "S")))
    r.decline("t2", 1)
    assert r.deleted == ["chk-1/private", "ckpt/chk-1"]
    r.take(2)
    assert r.deleted == ["chk-1/private", "ckpt/chk-1", "shared/S"]


def test_a_shared_file_lives_as_long_as_a_retained_checkpoint_uses_it(store, make):
    r = store()
    r.take(1, make.file("shared/S", "S"))
    r.take(2, make.file("", "S", placeholder=True))
    assert "shared/S" not in r.deleted
    r.take(3)
    assert "shared/S" in r.deleted


def test_the_metadata_names_the_real_file_instead_of_a_placeholder(store, make, pick):
    r = store()
    r.take(1, make.file("shared/S", "S"), make.file("chk-1/private"))
    effects = r.take(2, make.file("", "S", placeholder=True), make.file("chk-2/private"))
    metadata = pick.of(effects, WriteMetadata)[0].metadata
    assert [f.path for f in metadata.operators["op-t1"].subtasks[0].keyed] == ["shared/S", "chk-2/private"]
    completed = r.coordinator.latest
    assert completed.private_files == ("chk-2/private",)
    assert completed.shared_files == (SharedFile(file=make.file("shared/S", "S"), created_by=ONE),)


def test_the_same_content_uploaded_twice_is_kept_once(store, make, pick):
    r = store()
    r.take(1, make.file("shared/S-1", "S"))
    effects = r.take(2, make.file("shared/S-2", "S"))
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
    r.take(2)
    assert "shared/late" in r.deleted


def test_a_file_that_was_let_go_is_not_known_again_because_a_message_is_repeated(store, make, pick):
    """1. Checkpoint 1 writes S and is aborted. 2. Checkpoint 2 completes without it: S is deleted. 3. The first message
    comes again. 4. Checkpoint 3 writes the same content: its own file must be the one that counts."""
    r = store()
    r.request()
    first = make.state("t1", make.file("shared/S-1", "S"))
    r.ack("t1", 1, first)
    r.decline("t2", 1)
    r.take(2)
    r.ack("t1", 1, first)
    effects = r.take(3, make.file("shared/S-3", "S"))
    metadata = pick.of(effects, WriteMetadata)[0].metadata
    assert metadata.operators["op-t1"].subtasks[0].keyed[0].path == "shared/S-3"
    assert "shared/S-3" not in r.deleted


def test_a_repeated_message_of_a_subsumed_checkpoint_does_not_harm_files_that_are_still_used(store, make):
    r = store()
    first = (make.file("shared/S", "S"), make.file("1/x"), make.file("", "S", placeholder=True))
    r.take(1, *first)
    r.take(2, make.file("", "S", placeholder=True))
    r.deleted.clear()
    r.ack("t1", 1, make.state("t1", *first))
    assert r.deleted == ["1/x"]


def test_shared_files_that_come_when_newer_checkpoints_have_done_without_them_are_deleted(store, make):
    r = store()
    r.request()
    r.decline("t2", 1)
    r.take(2)
    r.deleted.clear()
    r.ack("t1", 1, make.state("t1", make.file("shared/S", "S"), make.file("", "P", placeholder=True)))
    assert r.deleted == ["shared/S"]


def test_a_superfluous_copy_of_a_checkpoint_long_gone_is_deleted_and_the_one_in_use_is_not(store, make):
    r = store()
    r.request()
    r.decline("t2", 1)
    r.take(2, make.file("shared/S-2", "S"))
    r.deleted.clear()
    r.ack("t1", 1, make.state("t1", make.file("shared/S-1", "S")))
    assert r.deleted == ["shared/S-1"]


def test_a_placeholder_never_deletes_the_file_it_names(store, make):
    r = store()
    r.take(1, make.file("shared/S", "S"))
    r.take(2, make.file("shared/elsewhere", "S", placeholder=True))
    assert r.deleted == ["ckpt/chk-1"]


def test_content_that_comes_inline_the_second_time_leaves_nothing_to_delete(store, make, pick):
    r = store()
    r.take(1, make.file("shared/S", "S"))
    inline = StateFile(path=None, size=10, checksum=7, inline=b"x" * 10, shared_key="S")
    effects = r.take(2, inline)
    assert pick.completed(effects) == [2]
    assert r.deleted == ["ckpt/chk-1"]


def test_a_reference_to_a_file_that_nobody_wrote_counts_as_a_decline(store, make, pick):
    r = store()
    r.request()
    effects = r.ack("t1", 1, make.state("t1", make.file("", "gone", placeholder=True)))
    assert pick.aborted(effects) == [(1, CheckpointFailure.DECLINED)]
    assert "refers to the shared file 'gone', which no checkpoint has written" in pick.answers(effects)[1].text


def test_other_content_under_a_known_name_counts_as_a_decline(store, make, pick):
    r = store()
    r.take(1, make.file("shared/S", "S"))
    r.request()
    effects = r.ack("t1", 2, make.state("t1", make.file("shared/T", "S", checksum=8)))
    assert pick.aborted(effects) == [(2, CheckpointFailure.DECLINED)]
    assert "with content that differs" in pick.answers(effects)[2].text


def test_a_shared_file_that_is_inline_is_never_deleted(store):
    r = store()
    inline = StateFile(path=None, size=1, checksum=1, inline=b"x", shared_key="S")
    r.take(1, inline)
    r.take(2, inline)
    r.take(3)
    assert r.deleted == ["ckpt/chk-1", "ckpt/chk-2"]


def test_a_savepoint_registers_nothing_and_must_not_refer_to_others(store, make, pick):
    r = store()
    r.take(1, make.file("shared/S", "S"))
    r.take(2, make.file("save/T", "T"), kind=RequestKind.SAVEPOINT)
    r.request(RequestKind.SAVEPOINT)
    effects = r.ack("t1", 3, make.state("t1", make.file("", "S", placeholder=True)))
    assert pick.aborted(effects) == [(3, CheckpointFailure.DECLINED)]
    r.request()
    effects = r.ack("t1", 4, make.state("t1", make.file("", "T", placeholder=True)))
    assert pick.aborted(effects) == [(4, CheckpointFailure.DECLINED)]


def test_an_aborted_savepoint_leaves_no_file_not_even_late_ones(store, make, pick):
    """The paths of its files begin in its folder. What is written there later is for whoever ends the job to delete."""
    r = store()
    r.request(RequestKind.SAVEPOINT)
    r.ack("t1", 1, make.state("t1", make.file("S", "S")))
    folder = "savepoints/chk-1"
    (aborted,) = pick.of(r.decline("t2", 1), DeleteFiles)
    assert (aborted.paths, aborted.root, aborted.folder) == (("S",), folder, folder)
    (late,) = pick.of(r.ack("t2", 1, make.state("t2", make.file("late", "L"))), DeleteFiles)
    assert (late.paths, late.root, late.folder) == (("late",), folder, None)
    assert r.coordinator.failed_savepoints == (folder,)


def test_a_savepoint_that_completed_is_none_that_failed(store, make):
    r = store()
    r.take(1, make.file("T"), kind=RequestKind.SAVEPOINT)
    r.request(RequestKind.SAVEPOINT)
    assert r.coordinator.failed_savepoints == ("savepoints/chk-2",)
    r.ack_all(2)
    assert r.coordinator.failed_savepoints == ()


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
                operator=state.operator, vertex=VertexId("t1"), parallelism=1, max_parallelism=128, subtasks={0: state}
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
    assert {e.message.subsumed for e in pick.of(effects, SendToTask)} == {None}
    r.feed(ShutDown(status=JobEnd.FINISHED))
    assert r.deleted == ["ckpt/chk-10"]


def test_no_checkpoint_may_refer_to_files_of_an_unclaimed_snapshot(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.NO_CLAIM),), tolerable_failures=None).start()
    r.request()
    effects = r.ack("t1", 10, make.state("t1", make.file("", "S", placeholder=True)))
    assert pick.aborted(effects) == [(10, CheckpointFailure.DECLINED)]


def test_a_claimed_savepoint_stays_while_its_files_are_used_and_goes_then(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.CLAIM),)).start()
    effects = r.take(10, make.file("", "S", placeholder=True))
    assert kinds(pick, effects) == [SnapshotKind.CHECKPOINT]
    assert pick.of(effects, StorePointer)[0].forget == ()
    assert (r.retained, r.deleted) == ([10], [])
    effects = r.take(11)
    assert pick.of(effects, StorePointer)[0].forget == (10,)
    assert pick.of(effects, ForgetPointers) == [ForgetPointers(checkpoints=(CheckpointId(9),))]
    assert sorted(r.deleted) == ["ckpt/chk-10", "save", "save/S", "save/private"]


def test_a_claimed_savepoint_goes_at_once_if_only_other_files_are_used(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.CLAIM),)).start()
    effects = r.take(10, make.file("shared/T", "T"))
    assert pick.of(effects, StorePointer)[0].forget == ()
    assert pick.of(effects, ForgetPointers) == [ForgetPointers(checkpoints=(CheckpointId(9),))]
    assert sorted(r.deleted) == ["save", "save/S", "save/private"]


def test_a_claimed_checkpoint_goes_with_its_folder_though_its_shared_files_are_used(rig, make, pick):
    """They do not lie in its folder."""
    claimed = snapshot(make, 9, Claim.CLAIM, SnapshotKind.CHECKPOINT)
    r = rig(completed=(claimed,)).start()
    r.take(10, make.file("", "S", placeholder=True))
    assert r.deleted == ["save/private", "save"]


def test_a_legacy_snapshot_may_be_used_but_is_never_deleted(rig, make, pick):
    r = rig(completed=(snapshot(make, 9, Claim.LEGACY),)).start()
    effects = r.take(10, make.file("", "S", placeholder=True))
    assert pick.of(effects, StorePointer)[0].forget == (9,)
    assert not r.coordinator.latest.shared_files[0].owned
    r.take(11)
    r.feed(ShutDown(status=JobEnd.FINISHED))
    assert r.deleted == ["ckpt/chk-10", "ckpt/chk-11"]


def test_what_is_not_owned_stays_so_for_the_next_driver(rig, make):
    r = rig(completed=(snapshot(make, 9, Claim.LEGACY),)).start()
    r.take(10, make.file("", "S", placeholder=True))
    second = rig(completed=r.coordinator.retained, next_id=11).start()
    second.take(11)
    assert second.deleted == ["ckpt/chk-10"]


def test_the_next_driver_deletes_shared_files_that_the_job_owns(rig, make, store):
    r = store()
    r.take(1, make.file("shared/S", "S"))
    r.take(2, make.file("", "S", placeholder=True))
    second = rig(completed=r.coordinator.retained, next_id=3).start()
    second.take(3)
    assert second.deleted == ["shared/S", "ckpt/chk-2"]


def test_two_recovered_checkpoints_may_use_the_same_file(make):
    registry = SharedStateRegistry()
    shared = SharedFile(file=make.file("S", "S"), created_by=ONE)
    registry.register_restored(make.record(1, shared_files=(shared,)))
    registry.register_restored(make.record(2, shared_files=(shared,)))
    assert registry.drop_unused(TWO) == []
    assert registry.drop_unused(CheckpointId(3)) == ["S"]
    assert len(registry) == 0


@pytest.mark.parametrize("wrong", [{"key": None}, {"key": "S", "placeholder": True}])
def test_a_record_whose_shared_files_cannot_be_is_refused(make, wrong):
    shared = SharedFile(file=make.file("S", **wrong), created_by=ONE)
    with pytest.raises(InvariantError, match="lists"):
        SharedStateRegistry().register_restored(make.record(1, shared_files=(shared,)))


def test_ids_begin_behind_the_newest_completed_checkpoint(rig, make):
    assert rig(completed=(make.record(41),)).coordinator.next_id == 42


def test_a_record_in_the_store_can_be_built_on_only_if_its_files_stay_ours(make):
    assert make.record(1).can_be_built_on
    assert not make.record(1, SnapshotKind.SUSPEND).can_be_built_on
    assert make.record(1, SnapshotKind.SAVEPOINT, claim=Claim.CLAIM).can_be_built_on
    assert make.record(1, claim=Claim.LEGACY).can_be_built_on
    assert not make.record(1, claim=Claim.NO_CLAIM).can_be_built_on


def test_a_claimed_savepoint_that_a_kept_checkpoint_uses_is_kept_with_it(rig, make):
    r = rig(completed=(snapshot(make, 9, Claim.CLAIM),), retention=Retention.KEEP).start()
    r.take(10, make.file("", "S", placeholder=True))
    r.feed(ShutDown(status=JobEnd.CANCELLED))
    assert r.deleted == []

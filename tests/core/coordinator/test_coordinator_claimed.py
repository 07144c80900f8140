"""Snapshots that a job owns and that do not lie in its folder: whoever takes the job over can still delete them."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.effects import DeleteFiles, ForgetPointers, StorePointer
from penstock.core.coordinator.events import FilesDeleted, JobEnd, PointerFailed, RequestKind, ShutDown
from penstock.core.coordinator.retention import RetainedCheckpoints
from penstock.core.ids import CheckpointId, Instant, JobId, VertexId
from penstock.core.recovery.metadata import CheckpointMetadata, Claim, OperatorSnapshot, SnapshotKind, restored_from
from penstock.core.recovery.tenure import Foreign
from penstock.settings import Retention

SAVED = "/old/save"
SHARED = "/old/shared/S"


def claimed(make, *, kind=SnapshotKind.SAVEPOINT, claim=Claim.CLAIM, shared=True, retention=Retention.DELETE, more=()):
    """A snapshot with a private file and perhaps shared ones, by their full paths, as the job starts from it."""
    folder = SAVED if kind.is_savepoint else "/old/shared"
    names = (*(("S",) if shared else ()), *more)
    files = (make.file(f"{SAVED}/private"), *(make.file(f"{folder}/{name}", name) for name in names))
    state = make.state("t1", *files).operators[0]
    found = OperatorSnapshot(
        operator=state.operator, vertex=VertexId("t1"), parallelism=1, max_parallelism=128, subtasks={0: state}
    )
    metadata = CheckpointMetadata(
        job=JobId("former"),
        checkpoint=CheckpointId(9),
        timestamp=Instant(5),
        kind=kind,
        operators={state.operator: found},
    )
    return restored_from(
        metadata, location=SAVED, path=f"{SAVED}/_metadata", metadata_size=3, claim=claim, retention=retention
    )


def forgotten(pick, effects):
    stored = [old for e in pick.of(effects, StorePointer) for old in e.forget]
    return stored + [old for e in pick.of(effects, ForgetPointers) for old in e.checkpoints]


def test_the_record_goes_when_the_files_are_deleted_and_not_before(rig, make, pick):
    """1. A checkpoint completes, for which the claimed snapshot goes. 2. The driver dies before its files are deleted.
    3. Another one finds the record, and deletes them."""
    r = rig(completed=(claimed(make, shared=False),)).start()
    r.hold = {DeleteFiles}
    effects = r.take(10)
    (deletion,) = pick.of(effects, DeleteFiles)
    assert (deletion.folder, forgotten(pick, effects)) == (SAVED, [])
    second = rig(completed=(claimed(make, shared=False), *r.coordinator.retained), next_id=11).start()
    assert [c.checkpoint for c in second.coordinator.retained] == [10]
    effects = second.take(11)
    assert sorted(second.deleted) == [SAVED, f"{SAVED}/private", "ckpt/chk-10"]
    assert sorted(forgotten(pick, effects)) == [9, 10]
    assert forgotten(pick, r.feed(FilesDeleted(cleaning=deletion.cleaning))) == [9]


def test_it_stays_while_the_deletion_fails(rig, make, pick):
    r = rig(completed=(claimed(make, shared=False),)).start()
    r.hold = {DeleteFiles}
    (deletion,) = pick.of(r.take(10), DeleteFiles)
    assert forgotten(pick, r.feed(FilesDeleted(cleaning=deletion.cleaning, error="no"))) == []
    again = r.until(r.coordinator.next_deadline())
    assert pick.of(again, DeleteFiles) == [deletion]
    assert forgotten(pick, r.feed(FilesDeleted(cleaning=deletion.cleaning))) == [9]


def test_a_checkpoint_that_uses_shared_files_elsewhere_stays_on_record_until_they_are_deleted(rig, make, pick):
    r = rig(completed=(claimed(make, kind=SnapshotKind.CHECKPOINT),)).start()
    assert sorted(forgotten(pick, r.take(10, make.file("", "S", placeholder=True)))) == [9]
    assert r.deleted == [f"{SAVED}/private", SAVED]
    r.hold = {DeleteFiles}
    used = r.coordinator.retained
    effects = r.take(11)
    assert SHARED in r.deleted
    assert forgotten(pick, effects) == []
    assert sorted(forgotten(pick, r.feed(*answers(pick, effects)))) == [10]
    second = rig(completed=(*used, *r.coordinator.retained), next_id=12).start()
    second.take(12)
    assert sorted(second.deleted) == [SHARED, "ckpt/chk-10", "ckpt/chk-11"]


def answers(pick, effects):
    return [FilesDeleted(cleaning=d.cleaning) for d in pick.of(effects, DeleteFiles)]


def test_one_that_still_uses_them_lets_the_older_one_go(rig, make, pick):
    r = rig(completed=(claimed(make, kind=SnapshotKind.CHECKPOINT),)).start()
    r.take(10, make.file("", "S", placeholder=True))
    effects = r.take(11, make.file("", "S", placeholder=True))
    assert forgotten(pick, effects) == [10]
    assert SHARED not in r.deleted


def test_a_file_that_may_be_deleted_already_is_not_used_again(rig, make, pick):
    """The driver before may have deleted it: a task that writes the same content again does not do so in vain."""
    r = rig(completed=(claimed(make, kind=SnapshotKind.CHECKPOINT),)).start()
    r.take(10)
    second = rig(completed=(claimed(make, kind=SnapshotKind.CHECKPOINT), *r.coordinator.retained), next_id=11).start()
    second.take(11, make.file("shared/again", "S"))
    assert "shared/again" not in second.deleted
    assert SHARED in second.deleted
    assert [shared.file.path for shared in second.coordinator.latest.shared_files] == ["shared/again"]


def test_an_unclaimed_snapshot_that_is_still_on_record_is_left_alone(rig, make, pick):
    for end in (None, JobEnd.FINISHED):
        r = rig(completed=(claimed(make, claim=Claim.NO_CLAIM), make.record(10)), next_id=11).start()
        effects = r.take(11) if end is None else r.feed(ShutDown(status=end))
        assert sorted(forgotten(pick, effects)) == [9, 10]
        assert not [path for path in r.deleted if path.startswith("/old")]


@pytest.mark.parametrize("then", ["still retained", "under way", "waiting"])
def test_the_outcome_names_what_is_to_be_deleted_elsewhere(rig, make, pick, then):
    r = rig(completed=(claimed(make, shared=False),), num_retained=3 if then == "still retained" else 1).start()
    r.hold = {DeleteFiles}
    deletions = pick.of(r.take(10), DeleteFiles)
    if then == "waiting":
        r.feed(FilesDeleted(cleaning=deletions[0].cleaning, error="no"))
    assert r.coordinator.foreign_after(JobEnd.FINISHED) == (Foreign(folder=SAVED, paths=(f"{SAVED}/private",)),)
    effects = r.feed(ShutDown(status=JobEnd.FINISHED))
    assert 9 in forgotten(pick, effects)
    assert SAVED in r.deleted


def test_nothing_is_named_when_all_of_it_is_deleted_or_was_never_the_jobs(rig, make):
    r = rig(completed=(claimed(make, shared=False),)).start()
    r.take(10)
    assert r.coordinator.foreign_after(JobEnd.FINISHED) == ()
    unclaimed = rig(completed=(claimed(make, claim=Claim.NO_CLAIM),)).start()
    assert unclaimed.coordinator.foreign_after(JobEnd.FINISHED) == ()
    unclaimed.hold = {DeleteFiles}
    unclaimed.take(10)
    unclaimed.take(11)
    assert unclaimed.coordinator.foreign_after(JobEnd.FINISHED) == ()


def test_shared_files_elsewhere_are_named_when_no_kept_checkpoint_uses_them(rig, make):
    r = rig(completed=(claimed(make, kind=SnapshotKind.CHECKPOINT),), retention=Retention.KEEP).start()
    r.take(10, make.file("", "S", placeholder=True))
    assert r.coordinator.foreign_after(JobEnd.FINISHED) == (Foreign(folder=None, paths=(SHARED,)),)
    assert r.coordinator.foreign_after(JobEnd.CANCELLED) == ()


def test_a_claimed_savepoint_that_a_kept_checkpoint_uses_is_not_named(rig, make):
    r = rig(completed=(claimed(make, retention=Retention.KEEP),), retention=Retention.KEEP).start()
    r.take(10, make.file("", "S", placeholder=True))
    assert r.coordinator.foreign_after(JobEnd.CANCELLED) == ()
    assert [place.folder for place in r.coordinator.foreign_after(JobEnd.FINISHED)] == [SAVED]


def test_failed_savepoints_are_no_business_of_the_outcome(rig, make):
    r = rig().start()
    r.hold = {DeleteFiles}
    r.request(RequestKind.SAVEPOINT, target="/user/save")
    r.decline("t1", 1)
    assert r.coordinator.foreign_after(JobEnd.FINISHED) == ()


def test_what_the_rule_lets_go_is_let_go_when_a_driver_begins(make):
    kept = RetainedCheckpoints(2, tuple(make.record(n) for n in (3, 4, 5)))
    assert [c.checkpoint for c in kept.drop_surplus()] == [3]
    assert [c.checkpoint for c in kept.all] == [4, 5]
    assert RetainedCheckpoints(2, ()).drop_surplus() == []


# --- until a checkpoint of the job has replaced it -------------------------------------------------------------------

KINDS = [SnapshotKind.SAVEPOINT, SnapshotKind.CHECKPOINT]
ENDS = [JobEnd.FAILED, JobEnd.CANCELLED, JobEnd.FINISHED]
SPARED = {SnapshotKind.SAVEPOINT: (SAVED, f"{SAVED}/S"), SnapshotKind.CHECKPOINT: (SAVED, SHARED)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("before", ["nothing", "an aborted checkpoint", "a doubtful checkpoint", "a savepoint"])
def test_a_job_without_a_checkpoint_of_its_own_leaves_the_claimed_snapshot_as_it_was(
    rig, make, pick, kind, end, before
):
    r = rig(completed=(claimed(make, kind=kind),), tolerable_failures=None).start()
    used = make.file("", "S", placeholder=True)
    if before == "an aborted checkpoint":
        r.request()
        r.ack("t1", 10, make.state("t1", used))
        r.decline("t2", 10)
    elif before == "a doubtful checkpoint":
        r.hold = {StorePointer}
        r.take(10, used)
        r.feed(PointerFailed(checkpoint=CheckpointId(10), inconsistent=True, error="who knows"))
    elif before == "a savepoint":
        r.take(10, make.file("T"), kind=RequestKind.SAVEPOINT)
    assert r.coordinator.foreign_after(end) == ()
    assert r.coordinator.spared_after(end) == SPARED[kind]
    effects = r.feed(ShutDown(status=end))
    assert 9 in forgotten(pick, effects)
    assert not [path for path in r.deleted if path.startswith("/old")]


@pytest.mark.parametrize("kind", KINDS)
def test_so_does_the_driver_that_takes_such_a_job_over(rig, make, pick, kind):
    rig(completed=(claimed(make, kind=kind),)).start()
    second = rig(completed=(claimed(make, kind=kind),), next_id=75).start()
    assert second.coordinator.spared_after(JobEnd.FAILED) == SPARED[kind]
    second.feed(ShutDown(status=JobEnd.FAILED))
    assert second.deleted == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_job_never_deletes_a_claimed_snapshot_that_is_still_retained(rig, make, kind):
    r = rig(completed=(claimed(make, kind=kind),), num_retained=3).start()
    r.take(10, make.file("", "S", placeholder=True), make.file("shared/T", "T"))
    assert r.coordinator.foreign_after(JobEnd.FAILED) == ()
    assert r.coordinator.spared_after(JobEnd.FAILED) == SPARED[kind]
    r.feed(ShutDown(status=JobEnd.FAILED))
    assert sorted(r.deleted) == ["ckpt/chk-10", "shared/T"]


def test_nor_a_claimed_savepoint_whose_files_are_used_by_what_replaced_it(rig, make, pick):
    """Of two shared files one is used: until the savepoint goes as a whole nothing of it goes."""
    record = claimed(make, more=("U",))
    for end, gone in ((JobEnd.FAILED, []), (JobEnd.CANCELLED, [SAVED, f"{SAVED}/S", f"{SAVED}/U", f"{SAVED}/private"])):
        r = rig(completed=(record,)).start()
        r.take(10, make.file("", "S", placeholder=True))
        assert r.deleted == []
        assert r.coordinator.spared_after(end) == ((SAVED, f"{SAVED}/S", f"{SAVED}/U") if not gone else ())
        assert [place.folder for place in r.coordinator.foreign_after(end)] == ([SAVED] if gone else [])
        effects = r.feed(ShutDown(status=end))
        assert sorted(forgotten(pick, effects)) == [9, 10]
        assert sorted(path for path in r.deleted if path.startswith("/old")) == gone


def test_what_a_claimed_checkpoint_shared_goes_with_the_last_checkpoint_that_used_it(rig, make):
    """The first checkpoint of the job uses one of two shared files: the other one goes then, and nothing before."""
    record = claimed(make, kind=SnapshotKind.CHECKPOINT, more=("U",))
    r = rig(completed=(record,)).start()
    r.request()
    r.ack("t1", 10, make.state("t1", make.file("", "S", placeholder=True)))
    assert r.deleted == []
    r.ack_all(10)
    assert sorted(r.deleted) == [SAVED, f"{SAVED}/private", "/old/shared/U"]
    r.feed(ShutDown(status=JobEnd.FAILED))
    assert SHARED in r.deleted


@pytest.mark.parametrize("claim", [Claim.NO_CLAIM, Claim.LEGACY])
def test_what_the_user_owns_is_spared_even_when_nothing_names_it_any_more(rig, make, claim):
    r = rig(completed=(claimed(make, claim=claim),)).start()
    r.take(10)
    for end in ENDS:
        assert r.coordinator.spared_after(end) == (SAVED, f"{SAVED}/S")

"""Records of a job that somebody wrote who can write to the checkpoint directory, in order to have a driver read or
delete files elsewhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from completed_records import completed

from penstock.api.restoring import restore
from penstock.core.errors import CorruptFile, StorageError
from penstock.core.ids import CheckpointId, JobId
from penstock.core.job.events import JobState
from penstock.core.messages import StateFile
from penstock.core.recovery import layout
from penstock.core.recovery.believing import Grounds, believed
from penstock.core.recovery.metadata import Claim, DiscardRules, SharedFile, SnapshotKind
from penstock.core.recovery.tenure import Foreign, JobOutcome
from penstock.runtime.master.starting import found_by
from penstock.storage.files import FileStore
from penstock.storage.places import delete_file, delete_folder, delete_foreign, delete_snapshot, read_file
from penstock.storage.records import FileRecords
from penstock.storage.tenure import take_over
from penstock.storage.verification import verify_job

JOB = JobId("job")
FOLDER = layout.job_folder(JOB)
GOES = DiscardRules(subsumed=True, finished=True, cancelled=True, failed=True)


class Attack:
    """A checkpoint directory that others can write, and files beside it that they cannot."""

    def __init__(self, folder: Path) -> None:
        self.private = folder / "private"
        self.victim = self.private / "victim"
        self.private.mkdir()
        self.victim.write_bytes(b"mine")
        (self.private / "_metadata").write_bytes(b"mine, too")
        self.store = FileStore(folder / "checkpoints")

    def record(self, *records, outcome=None):
        """What the next driver finds of the job."""
        written = FileRecords(self.store, FOLDER, term=take_over(self.store, FOLDER).term)
        for record in records:
            written.record(record.checkpoint, msgspec.msgpack.encode(record))
        if outcome is not None:
            written.record_outcome(outcome)
        return take_over(self.store, FOLDER)

    def found(self, *records, given=None, sealed=False, outcome=None):
        return found_by(self.record(*records, outcome=outcome), self.store, JOB, given, sealed=sealed)

    def delete(self, found) -> None:
        """What a driver deletes when a checkpoint of its own has replaced what it found, and when the job ends."""
        for record in found.completed:
            if record.discard.subsumed:
                delete_snapshot(self.store, record.location, record.private_files)
            for shared in record.shared_files:
                if shared.owned and shared.file.path is not None:
                    delete_file(self.store, shared.file.path)
        if found.outcome is not None and found.outcome.foreign is not msgspec.UNSET:
            delete_foreign(self.store, found.outcome.foreign)

    def check_untouched(self) -> None:
        assert self.victim.read_bytes() == b"mine"
        assert sorted(path.name for path in self.private.iterdir()) == ["_metadata", "victim"]


@pytest.fixture
def attack(tmp_path) -> Attack:
    return Attack(tmp_path)


def snapshot(folder, *names, number=4, **changes):
    """The record of a snapshot that the job was started from, and owns."""
    files = tuple(f"{folder}/{name}" for name in names)
    known = {"location": str(folder), "path": f"{folder}/_metadata", "claim": Claim.CLAIM, "discard": GOES}
    return completed(number, **{**known, "private_files": files, "kind": SnapshotKind.SAVEPOINT, **changes})


def shared_file(path, *, owned=True):
    file = StateFile(path=str(path), size=4, checksum=1, shared_key="key")
    return SharedFile(file=file, created_by=CheckpointId(4), owned=owned)


# --- what is deleted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SnapshotKind.SAVEPOINT, SnapshotKind.CHECKPOINT])
def test_a_snapshot_elsewhere_that_a_record_claims_is_not_deleted(attack, kind, caplog):
    found = attack.found(snapshot(attack.private, "victim", kind=kind, shared_files=(shared_file(attack.victim),)))
    assert found.completed[0].claim is Claim.LEGACY
    assert f"in {attack.private} stays where it is" in caplog.text
    attack.delete(found)
    attack.check_untouched()


def test_files_elsewhere_that_an_outcome_has_deleted_stay(attack):
    for place in (
        Foreign(folder=None, paths=(str(attack.victim),)),
        Foreign(folder=str(attack.private), paths=(str(attack.victim),)),
        Foreign(folder=None, paths=(f"{attack.store.root}/../private/victim",)),
        Foreign(folder=str(attack.store.root / "x"), paths=(f"{attack.store.root}/x/../../private/victim",)),
    ):
        attack.delete(attack.found(outcome=JobOutcome(state=JobState.FAILED, foreign=(place,))))
        attack.check_untouched()


@pytest.mark.parametrize(
    "crafted",
    [
        lambda a: snapshot(f"{a.store.root}/../private", "victim"),
        lambda a: snapshot(f"{a.store.root}/x\0y"),
        lambda a: completed(4, private_files=(str(a.victim),)),
        lambda a: completed(4, shared_files=(shared_file(f"file://{a.victim}"),)),
    ],
)
def test_a_record_that_names_what_can_be_none_of_the_jobs_is_refused(attack, crafted):
    found = attack.record(crafted(attack))
    with pytest.raises(CorruptFile, match="does not lie where such a snapshot can have files"):
        found_by(found, attack.store, JOB, None, sealed=False)
    kept = JobOutcome(state=JobState.CANCELLED, kept=found.completed)
    ended = msgspec.structs.replace(found, completed=(), outcome=kept)
    with pytest.raises(CorruptFile, match="does not lie where such a snapshot can have files"):
        believed(ended, Grounds(job=FOLDER, directory=("/x",)))
    attack.check_untouched()


def test_what_others_shared_elsewhere_is_read_and_not_deleted(attack):
    elsewhere = attack.private.parent / "other" / "shared" / "S"
    found = attack.found(completed(4, shared_files=(shared_file(elsewhere),)))
    assert [shared.owned for shared in found.completed[0].shared_files] == [False]


# --- what is the job's -----------------------------------------------------------------------------------------------


def test_records_of_the_job_itself_are_believed(attack):
    root = attack.store.root
    records = (
        completed(4, private_files=("job/chk-4/a-0-0",), shared_files=(shared_file("job/shared/S"),), discard=GOES),
        snapshot(root / "old" / "chk-3", "a", number=5, shared_files=(shared_file(root / "old" / "shared" / "S"),)),
        snapshot(root / "saved", "a", number=6),
        completed(7, kind=SnapshotKind.SUSPEND, location="/far/savepoint-job-7", path="/far/savepoint-job-7/_metadata"),
    )
    records = (*records[:3], msgspec.structs.replace(records[3], private_files=("a-0-0",)))
    outcome = JobOutcome(state=JobState.FAILED, foreign=(Foreign(folder=f"{root}/saved", paths=(f"{root}/saved/a",)),))
    found = attack.found(*records, outcome=outcome)
    assert found.completed == records
    assert found.outcome == outcome


@pytest.mark.parametrize("way", ["folder", "metadata", "link", "job"])
def test_what_the_user_names_is_the_jobs(attack, way):
    place = attack.private.parent / "far" / "chk-4"
    place.mkdir(parents=True)
    (attack.private.parent / "latest").symlink_to(place)
    given = {
        "folder": place,
        "metadata": place / "_metadata",
        "link": attack.private.parent / "latest",
        "job": place.parent,
    }[way]
    record = snapshot(
        place,
        "a",
        kind=SnapshotKind.CHECKPOINT,
        shared_files=(shared_file(place.parent / "shared" / "S"),),
    )
    assert attack.found(record, given=restore(given)).completed == (record,)
    assert attack.found(record, given=restore(attack.store.root)).completed[0].claim is Claim.LEGACY


def test_what_a_sealed_record_says_is_believed_wherever_it_lies(attack):
    record = snapshot("/far/saved", "a", shared_files=(shared_file("/far/saved/S"),))
    assert attack.found(record, sealed=True).completed == (record,)
    with pytest.raises(CorruptFile, match="does not lie where"):
        attack.found(snapshot("/far/saved", "../victim", number=5), sealed=True)


# --- looking at it ---------------------------------------------------------------------------------------------------


def test_verify_looks_at_nothing_elsewhere_and_says_so(attack):
    """What it says is the same whether a file is there or not."""
    texts = []
    for _ in range(2):
        record = completed(4, shared_files=(shared_file(attack.victim),))
        FileRecords(attack.store, FOLDER, term=None).record(CheckpointId(4), msgspec.msgpack.encode(record))
        texts.append(verify_job(attack.store, FOLDER).all_problems)
        attack.victim.unlink(missing_ok=True)
    assert texts[0] == texts[1]
    assert f"names {str(attack.victim)!r}, which does not lie where" in texts[0][0]


def test_verify_does_not_list_the_folder_that_a_pointer_says_is_a_savepoint(attack, monkeypatch):
    listed = []
    place = str(attack.private)
    record = completed(4, kind=SnapshotKind.SUSPEND, location=place, path=f"{place}/_metadata")
    FileRecords(attack.store, FOLDER, term=None).record(CheckpointId(4), msgspec.msgpack.encode(record))
    real = FileStore.list_files
    monkeypatch.setattr(FileStore, "list_files", lambda self, prefix: listed.append(self.root) or real(self, prefix))
    report = verify_job(attack.store, FOLDER)
    assert set(listed) == {attack.store.root}
    assert f"{place}/_metadata is cut" in report.all_problems[0]


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["itself", "by a link"])
def test_no_link_in_the_directory_is_followed_by_a_full_path(attack, root):
    """What a record names in the directory is the job's by its names. One of them is a link."""
    directory = attack.store.root
    directory.mkdir()
    (directory / "link").symlink_to(attack.private.parent)
    if root == "by a link":
        (attack.private.parent / "named").symlink_to(directory)
        attack.store = FileStore(attack.private.parent / "named")
    place = f"{directory}/link/private"
    for use in (
        lambda: delete_snapshot(attack.store, place, [f"{place}/victim"]),
        lambda: delete_file(attack.store, f"{place}/victim"),
        lambda: delete_folder(attack.store, place),
        lambda: read_file(attack.store, f"{place}/victim"),
    ):
        with pytest.raises(StorageError, match="symbolic link"):
            use()
    attack.check_untouched()

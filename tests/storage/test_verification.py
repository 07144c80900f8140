"""What a look at a checkpoint directory finds: snapshots, what is wrong with them, and what nobody refers to."""

from __future__ import annotations

import msgspec
import pytest
import xxhash

from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import (
    CheckpointMetadata,
    Claim,
    CompletedCheckpoint,
    OperatorSnapshot,
    SnapshotKind,
    TaskChannels,
    restored_from,
)
from penstock.settings import Retention
from penstock.sim.disk import Disk
from penstock.sim.world import Actor, World
from penstock.storage.completed import FileCompletedStore, checkpoint_ids
from penstock.storage.files import FileStore
from penstock.storage.metadata import encode_metadata
from penstock.storage.restoring import find_snapshot
from penstock.storage.verification import (
    LeftoverKind,
    Report,
    Standing,
    verify_checkpoint,
    verify_directory,
    verify_job,
    verify_savepoint,
)

JOB = JobId("job")
FOLDER = layout.job_folder(JOB)


def piece(path: str | None, data: bytes, **more) -> StateFile:
    inline = {"inline": data} if path is None else {}
    return StateFile(path=path, size=len(data), checksum=xxhash.xxh3_64_intdigest(data), **inline, **more)


def metadata(checkpoint: int, *files: StateFile, kind: SnapshotKind = SnapshotKind.CHECKPOINT, **more):
    state = OperatorState(operator=OperatorId("sum"), keyed=files, key_groups=(0, 127))
    snapshot = OperatorSnapshot(
        operator=OperatorId("sum"), vertex=VertexId("sum"), parallelism=2, max_parallelism=128, subtasks={0: state}
    )
    return CheckpointMetadata(
        **{
            "job": JOB,
            "checkpoint": CheckpointId(checkpoint),
            "timestamp": Instant(1_700_000_000_000),
            "kind": kind,
            "operators": {OperatorId("sum"): snapshot},
        }
        | more
    )


class Directory:
    """A checkpoint directory as a job leaves it."""

    def __init__(self, store) -> None:
        self.store = store

    def checkpoint(self, number: int, *, pointer: bool = True, shared: tuple[str, ...] = (), **more) -> None:
        """A completed checkpoint with one file of its own, and these shared ones."""
        own = piece(f"job/chk-{number}/sum-0-0", b"state %d" % number)
        self.store.write(own.path, b"state %d" % number)
        borrowed = [piece(f"job/shared/{name}", name.encode(), shared_key=name) for name in shared]
        for name in shared:
            self.store.write(f"job/shared/{name}", name.encode())
        self.record(metadata(number, own, *borrowed, piece(None, b"inline"), **more), pointer=pointer)

    def record(self, found: CheckpointMetadata, *, pointer: bool = True) -> None:
        number = found.checkpoint
        self.store.write(f"job/chk-{number}/_metadata", encode_metadata(found))
        checkpoint_ids(self.store, FOLDER).advance(CheckpointId(number + 1))
        if pointer:
            self.point(number)

    def point(self, number: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT, location: str | None = None) -> None:
        record = CompletedCheckpoint(
            job=JOB,
            checkpoint=CheckpointId(number),
            timestamp=Instant(1),
            completed=Instant(2),
            kind=kind,
            location=location or f"job/chk-{number}",
            path=f"{location or f'job/chk-{number}'}/_metadata",
            size=7,
        )
        FileCompletedStore(self.store, FOLDER).record(CheckpointId(number), msgspec.msgpack.encode(record))

    def savepoint(self, start: str, **more) -> None:
        self.store.write(f"{start}/sum-0-0", b"saved")
        saved = metadata(9, piece("sum-0-0", b"saved"), kind=SnapshotKind.SAVEPOINT, **more)
        self.store.write(f"{start}/_metadata", encode_metadata(saved))

    def look(self, **more) -> Report:
        temporary = self.store.list_temporary("") if isinstance(self.store, FileStore) else ()
        return verify_directory(self.store, temporary=temporary, **more)


@pytest.fixture(params=["files", "simulated"])
def directory(request, tmp_path) -> Directory:
    if request.param == "files":
        return Directory(FileStore(tmp_path))
    world = World(1)
    return Directory(Disk(world).store(Actor(world, "a")))


def leftovers(report: Report) -> dict[str, str]:
    return {left.path: left.kind.value for left in report.leftovers}


# --- what is well ----------------------------------------------------------------------------------------------------


def test_an_empty_directory_has_nothing(directory):
    assert directory.look() == Report()


def test_a_snapshot_is_described(directory):
    directory.checkpoint(7, shared=("a", "b"))
    (found,) = directory.look().snapshots
    assert (found.location, found.standing, found.job) == ("job/chk-7", Standing.RETAINED, "job")
    assert (found.checkpoint, found.kind, found.triggered) == (7, SnapshotKind.CHECKPOINT, 1_700_000_000_000)
    assert (found.files, found.operators, found.parallelism, found.problems) == (3, 1, 2, ())
    assert found.size_bytes == len(b"state 7") + len(b"ab") + len(b"inline")


def test_a_running_job_with_whole_checkpoints_is_fine_and_leaves_nothing_over(directory):
    for number in (3, 5):
        directory.checkpoint(number, shared=("a",))
    directory.store.write("job/inputs/source/part-0.parquet", b"")
    directory.store.write("job/taskowned/x", b"")
    report = directory.look()
    assert report.is_fine
    assert [s.checkpoint for s in report.snapshots] == [3, 5]
    assert report.leftovers == ()


def test_the_checkpoints_of_a_job_that_is_over_have_no_pointers(directory):
    directory.checkpoint(4, pointer=False)
    directory.checkpoint(5, pointer=False)
    report = directory.look()
    assert [(s.checkpoint, s.standing) for s in report.snapshots] == [(4, Standing.KEPT), (5, Standing.KEPT)]
    assert report.is_fine
    assert report.leftovers == ()


def test_jobs_and_savepoints_of_one_directory_are_told_apart(directory):
    directory.checkpoint(1)
    directory.savepoint("savepoints/savepoint-job-9")
    directory.savepoint("savepoint-job-10")
    directory.store.write("readme.txt", b"not ours")
    report = directory.look()
    assert [(s.location, s.standing) for s in report.snapshots] == [
        ("job/chk-1", Standing.RETAINED),
        ("savepoint-job-10", Standing.SAVEPOINT),
        ("savepoints/savepoint-job-9", Standing.SAVEPOINT),
    ]
    assert report.is_fine
    assert report.leftovers == ()


def test_a_job_whose_name_looks_like_that_of_a_savepoint_is_a_job(directory):
    job = JobId("savepoint-mine-123")
    found = metadata(1, job=job, operators={})
    directory.store.write(f"{job}/chk-1/_metadata", encode_metadata(found))
    checkpoint_ids(directory.store, layout.job_folder(job)).advance(CheckpointId(2))
    report = directory.look()
    assert [(s.location, s.standing) for s in report.snapshots] == [(f"{job}/chk-1", Standing.KEPT)]
    assert report.is_fine


def test_one_checkpoint_can_be_looked_at_alone(directory):
    directory.checkpoint(1)
    directory.checkpoint(2)
    directory.store.delete("job/chk-1/sum-0-0")
    assert verify_checkpoint(directory.store, FOLDER, CheckpointId(2)).is_fine
    assert not verify_checkpoint(directory.store, FOLDER, CheckpointId(1)).is_fine


# --- what is wrong ---------------------------------------------------------------------------------------------------


def broken(directory: Directory, said: str) -> None:
    report = directory.look()
    assert not report.is_fine
    assert any(said in problem for problem in report.all_problems), report.all_problems


def test_a_file_that_is_gone_is_named(directory):
    directory.checkpoint(1)
    directory.store.delete("job/chk-1/sum-0-0")
    broken(directory, "job/chk-1/sum-0-0")


@pytest.mark.parametrize(
    ("content", "said"), [(b"stat", "4 bytes instead of 7"), (b"STATE 1", "checksum does not fit")]
)
def test_a_file_that_is_cut_or_changed_is_named(directory, content, said):
    directory.checkpoint(1)
    directory.store.write("job/chk-1/sum-0-0", content)
    broken(directory, "state file job/chk-1/sum-0-0")
    broken(directory, said)


def test_a_shared_file_that_is_gone_is_a_problem_of_every_checkpoint_that_refers_to_it(directory):
    directory.checkpoint(1, shared=("a",))
    directory.checkpoint(2, shared=("a",))
    directory.checkpoint(3)
    directory.store.delete("job/shared/a")
    assert [bool(s.problems) for s in directory.look().snapshots] == [True, True, False]


def test_inline_state_that_does_not_fit_its_checksum_is_a_problem(directory):
    directory.record(metadata(1, msgspec.structs.replace(piece(None, b"inline"), checksum=1)))
    broken(directory, "state inside the metadata was changed")


def test_in_flight_data_beyond_the_end_of_its_file_is_a_problem(directory):
    file = piece("job/chk-1/channels-0", b"12345678")
    directory.store.write("job/chk-1/channels-0", b"12345678")
    channel = ChannelState(edge=0, upstream=0, downstream=1, file=file, ranges=((0, 4), (4, 5)))
    task = TaskId(VertexId("sum"), 1)
    directory.record(metadata(1, channels=(TaskChannels(task=task, inputs=(channel,)),)))
    broken(directory, "lies beyond the end of job/chk-1/channels-0")


def test_metadata_that_is_gone_or_cannot_be_read_is_a_problem_and_its_files_are_nobodys_orphans(directory):
    directory.checkpoint(1, shared=("a",))
    directory.checkpoint(2)
    directory.store.write("job/chk-1/_metadata", b"PMET nonsense")
    broken(directory, "job/chk-1")
    assert directory.look().leftovers == ()
    directory.store.delete("job/chk-1/_metadata")
    broken(directory, "job/chk-1")
    assert directory.look().leftovers == ()


def test_metadata_in_the_wrong_place_is_a_problem(directory):
    directory.checkpoint(1)
    content = directory.store.read("job/chk-1/_metadata")
    directory.store.write("job/chk-2/_metadata", content)
    directory.point(2)
    broken(directory, "its metadata belongs to checkpoint 1")
    other = metadata(2, job=JobId("other"), operators={})
    directory.store.write("job/chk-2/_metadata", encode_metadata(other))
    broken(directory, "its metadata belongs to job other")
    saved = metadata(2, kind=SnapshotKind.SAVEPOINT)
    directory.store.write("job/chk-2/_metadata", encode_metadata(saved))
    broken(directory, "its metadata belongs to a savepoint")


def test_a_pointer_that_cannot_be_read_is_a_problem_and_what_it_led_to_is_left_alone(directory):
    directory.checkpoint(1)
    directory.checkpoint(2)
    directory.store.write(layout.completed_file(FOLDER, CheckpointId(1)), b"PCKP nonsense")
    broken(directory, "completed/0000000000000000001")
    assert directory.look().leftovers == ()
    directory.store.write("job/completed/what", b"")
    broken(directory, "job/completed/what does not belong in folder job/completed")


def test_a_pointer_with_the_record_of_another_is_a_problem(directory):
    directory.checkpoint(1)
    directory.checkpoint(2)
    pointers = FileCompletedStore(directory.store, FOLDER)
    (data,) = (entry.data for entry in pointers.load() if entry.checkpoint == 1)
    pointers.record(CheckpointId(2), data)
    broken(directory, "is the pointer to checkpoint 1")
    pointers.record(CheckpointId(2), b"\xc1")
    broken(directory, "completed/0000000000000000002 cannot be read")


@pytest.mark.parametrize("counter", [None, "0000000000000000003"])
def test_a_counter_that_would_give_an_id_away_again_is_a_problem(directory, counter):
    directory.checkpoint(3)
    directory.store.delete_tree("job/counter")
    if counter:
        directory.store.write(f"job/counter/{counter}", b"")
    broken(directory, "does not say that checkpoint id 3 is used")


def test_a_foreign_file_among_the_counters_is_a_problem(directory):
    directory.checkpoint(3)
    directory.store.write("job/counter/x", b"")
    broken(directory, "job/counter/x does not belong in job/counter")


# --- savepoints ------------------------------------------------------------------------------------------------------


def test_a_savepoint_is_whole_wherever_it_lies(tmp_path):
    Directory(FileStore(tmp_path)).savepoint("here")
    report = verify_savepoint(FileStore(tmp_path / "here"), "here")
    assert report.is_fine
    assert report.snapshots[0].files == 1
    (tmp_path / "here").rename(tmp_path / "there")
    assert verify_savepoint(FileStore(tmp_path / "there"), "there").is_fine
    (tmp_path / "there" / "sum-0-0").write_bytes(b"SAVED")
    assert not verify_savepoint(FileStore(tmp_path / "there"), "there").is_fine


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "/etc/hostname"])
def test_a_savepoint_that_leads_out_of_its_folder_is_refused(directory, path):
    directory.store.write("outside", b"x")
    saved = metadata(9, piece(path, b"x"), kind=SnapshotKind.SAVEPOINT)
    directory.store.write("savepoint-job-9/_metadata", encode_metadata(saved))
    broken(directory, "which does not lie in a folder of this snapshot")


def test_a_checkpoint_that_was_copied_out_is_no_savepoint(directory):
    directory.store.write("savepoint-job-9/_metadata", encode_metadata(metadata(9, operators={})))
    broken(directory, "cannot be moved out of its checkpoint directory")


def test_a_savepoint_whose_metadata_cannot_be_read_is_a_problem(directory):
    directory.savepoint("savepoint-job-9")
    directory.store.write("savepoint-job-9/_metadata", b"PMET")
    broken(directory, "savepoint-job-9/_metadata is cut")


def test_a_savepoint_is_unfinished_without_metadata_and_has_orphans_of_its_own(directory):
    directory.store.write("savepoints/savepoint-job-8/sum-0-0", b"")
    directory.savepoint("savepoints/savepoint-job-9")
    directory.store.write("savepoints/savepoint-job-9/late", b"")
    assert leftovers(directory.look()) == {
        "savepoints/savepoint-job-8/sum-0-0": "unfinished",
        "savepoints/savepoint-job-9/late": "orphan",
    }
    assert directory.look(job_ended=True).of(LeftoverKind.UNFINISHED) == ()


def test_a_job_that_is_stopped_with_a_savepoint_points_out_of_the_directory(tmp_path):
    directory = Directory(FileStore(tmp_path / "checkpoints"))
    Directory(FileStore(tmp_path)).savepoint("save/savepoint-job-9")
    checkpoint_ids(directory.store, FOLDER).advance(CheckpointId(10))
    directory.point(9, SnapshotKind.SUSPEND, str(tmp_path / "save" / "savepoint-job-9"))
    (found,) = directory.look().snapshots
    assert (found.standing, found.checkpoint, found.problems) == (Standing.SAVEPOINT, 9, ())
    (tmp_path / "save" / "savepoint-job-9" / "_metadata").unlink()
    broken(directory, "savepoint-job-9/_metadata failed: No such file")


# --- what is left over -----------------------------------------------------------------------------------------------


def test_files_of_older_checkpoints_are_orphans_and_those_of_newer_ones_may_be_under_way(directory):
    directory.checkpoint(5)
    for path in ("job/chk-3/x", "job/chk-5/late", "job/chk-6/x", "job/shared/new"):
        directory.store.write(path, b"")
    directory.checkpoint(4, pointer=False)
    report = directory.look()
    assert report.is_fine
    assert leftovers(report) == {
        "job/chk-3/x": "orphan",
        "job/chk-4/_metadata": "orphan",
        "job/chk-4/sum-0-0": "orphan",
        "job/chk-5/late": "orphan",
        "job/chk-6/x": "unfinished",
        "job/shared/new": "unfinished",
    }
    assert {left.path: left.folder for left in report.leftovers} == {
        "job/chk-3/x": "job/chk-3",
        "job/chk-4/_metadata": "job/chk-4",
        "job/chk-4/sum-0-0": "job/chk-4",
        "job/chk-5/late": None,
        "job/chk-6/x": "job/chk-6",
        "job/shared/new": None,
    }
    assert set(leftovers(directory.look(job_ended=True)).values()) == {"orphan"}


def test_a_job_that_has_completed_nothing_is_unfinished(directory):
    directory.store.write("job/chk-1/x", b"")
    directory.store.write("job/shared/x", b"")
    checkpoint_ids(directory.store, FOLDER).advance(CheckpointId(2))
    assert leftovers(directory.look()) == {"job/chk-1/x": "unfinished", "job/shared/x": "unfinished"}


def test_beside_the_checkpoints_of_a_job_that_is_over_everything_is_an_orphan(directory):
    directory.checkpoint(5, pointer=False, shared=("a",))
    for path in ("job/chk-4/x", "job/shared/old"):
        directory.store.write(path, b"")
    assert leftovers(directory.look()) == {"job/chk-4/x": "orphan", "job/shared/old": "orphan"}


def test_a_job_whose_first_checkpoint_is_just_being_recorded_is_not_taken_for_over(directory):
    """1. The metadata of checkpoint 1 is written, its pointer is not. 2. Checkpoint 2 is under way."""
    directory.checkpoint(1, pointer=False, shared=("a",))
    for path in ("job/chk-2/x", "job/shared/new"):
        directory.store.write(path, b"")
    assert leftovers(directory.look()) == {"job/chk-2/x": "unfinished", "job/shared/new": "unfinished"}


def test_what_no_job_writes_is_foreign(directory):
    directory.checkpoint(1)
    directory.store.write("job/notes/readme", b"")
    assert leftovers(directory.look()) == {"job/notes/readme": "foreign"}


def test_files_that_writers_did_not_finish_are_found(tmp_path):
    directory = Directory(FileStore(tmp_path))
    directory.checkpoint(5)
    directory.savepoint("savepoint-job-9")
    for path in ("job/chk-4", "job/chk-5", "job/chk-6", "job/completed", "savepoint-job-9"):
        (tmp_path / path).mkdir(exist_ok=True)
        (tmp_path / path / ".writing-1").write_bytes(b"half")
    report = directory.look()
    assert all(left.temporary for left in report.leftovers)
    assert leftovers(report) == {
        "job/chk-4/.writing-1": "orphan",
        "job/chk-5/.writing-1": "orphan",
        "job/chk-6/.writing-1": "unfinished",
        "job/completed/.writing-1": "unfinished",
        "savepoint-job-9/.writing-1": "unfinished",
    }
    only = verify_job(directory.store, FOLDER)
    assert only.is_fine
    assert only.leftovers == ()


# --- what a job was started from -------------------------------------------------------------------------------------

OTHER = layout.job_folder(JobId("other"))


def started_from(directory: Directory, number: int) -> CompletedCheckpoint:
    """Another job has claimed checkpoint `number` of this one, and it is on the record of that job."""
    root = getattr(directory.store, "location", "")
    found = find_snapshot(directory.store, f"{root}/job/chk-{number}")
    record = restored_from(
        found.metadata,
        location=found.folder,
        path=found.path,
        metadata_size=1,
        claim=Claim.CLAIM,
        retention=Retention.DELETE,
    )
    FileCompletedStore(directory.store, OTHER).record(record.checkpoint, msgspec.msgpack.encode(record))
    return record


def test_a_snapshot_that_a_job_was_started_from_is_looked_at_where_it_lies(directory):
    directory.checkpoint(4, pointer=False, shared=("a",))
    started_from(directory, 4)
    report = directory.look(job_ended=True)
    assert report.all_problems == ()
    assert [(s.standing, s.checkpoint) for s in report.snapshots] == [
        (Standing.KEPT, 4),
        (Standing.STARTED_FROM, 4),
    ]
    assert leftovers(report) == {}


@pytest.mark.parametrize("look", ["the directory", "the job"])
def test_what_another_job_still_uses_of_a_claimed_snapshot_is_no_orphan(directory, look):
    """The first checkpoint of the job that claimed it has replaced it, and uses one of its two shared files."""
    directory.checkpoint(4, pointer=False, shared=("a", "b"))
    claimed = started_from(directory, 4)
    used = next(shared.file for shared in claimed.shared_files if shared.file.shared_key == "a")
    directory.store.write("other/chk-5/_metadata", encode_metadata(metadata(5, used, job=JobId("other"))))
    checkpoint_ids(directory.store, OTHER).advance(CheckpointId(6))
    FileCompletedStore(directory.store, OTHER).remove(CheckpointId(4))
    directory.store.delete_tree("job/chk-4")
    report = (
        directory.look(job_ended=True)
        if look == "the directory"
        else verify_job(directory.store, FOLDER, job_ended=True)
    )
    assert leftovers(report) == {"job/shared/b": "orphan"}


def test_a_snapshot_that_a_job_was_started_from_and_that_is_gone_is_told(directory):
    directory.checkpoint(4, pointer=False)
    started_from(directory, 4)
    directory.store.delete_tree("job")
    report = directory.look()
    assert [(s.standing, len(s.problems)) for s in report.snapshots] == [(Standing.STARTED_FROM, 1)]

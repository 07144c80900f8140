"""Finding a snapshot to start from, and files by their full paths."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.core.errors import CorruptFile, StorageError, UsageError
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery.metadata import (
    CheckpointMetadata,
    Claim,
    CompletedCheckpoint,
    OperatorSnapshot,
    SnapshotKind,
    restored_from,
)
from penstock.settings import Retention
from penstock.storage.files import FileStore
from penstock.storage.metadata import encode_metadata
from penstock.storage.places import delete_file, delete_folder, read_file
from penstock.storage.restoring import find_snapshot, read_completed

OP = OperatorId("count")


def metadata(checkpoint: int, kind: SnapshotKind, path: str) -> CheckpointMetadata:
    state = OperatorState(operator=OP, keyed=(StateFile(path=path, size=1, checksum=0),))
    snapshot = OperatorSnapshot(
        operator=OP, vertex=VertexId("count"), parallelism=1, max_parallelism=128, subtasks={0: state}
    )
    return CheckpointMetadata(
        job=JobId("job"),
        checkpoint=CheckpointId(checkpoint),
        timestamp=Instant(0),
        kind=kind,
        operators={OP: snapshot},
    )


def write_savepoint(folder: Path) -> None:
    FileStore(folder).write("_metadata", encode_metadata(metadata(9, SnapshotKind.SAVEPOINT, "count-0-0")))


def write_checkpoint(root: Path, number: int) -> None:
    content = encode_metadata(metadata(number, SnapshotKind.CHECKPOINT, f"job/chk-{number}/count-0-0"))
    FileStore(root).write(f"job/chk-{number}/_metadata", content)


def only_path(found: CheckpointMetadata) -> str | None:
    return found.files[0].path


@pytest.mark.parametrize("given", ["save", "save/", "save/_metadata"])
def test_a_savepoint_is_found_by_its_folder_or_its_metadata(tmp_path, given):
    write_savepoint(tmp_path / "save")
    found = find_snapshot(FileStore(tmp_path), f"{tmp_path}/{given}")
    assert found.folder == str(tmp_path / "save")
    assert found.path == str(tmp_path / "save" / "_metadata")
    assert found.metadata_size == (tmp_path / "save" / "_metadata").stat().st_size
    assert only_path(found.metadata) == str(tmp_path / "save" / "count-0-0")


def test_of_the_folder_of_a_job_the_newest_checkpoint_is_taken(tmp_path):
    for number in (9, 10, 2):
        write_checkpoint(tmp_path, number)
    found = find_snapshot(FileStore(tmp_path), str(tmp_path / "job"))
    assert found.metadata.checkpoint == 10
    assert only_path(found.metadata) == str(tmp_path / "job" / "chk-10" / "count-0-0")


def test_of_a_directory_with_one_snapshot_or_checkpoints_of_one_job_it_is_clear_which_is_meant(tmp_path):
    write_savepoint(tmp_path / "saves" / "deep" / "save")
    assert find_snapshot(FileStore(tmp_path), str(tmp_path / "saves")).folder == f"{tmp_path}/saves/deep/save"
    ckpt = tmp_path / "ckpt"
    for number in (9, 10):
        write_checkpoint(ckpt, number)
        assert find_snapshot(FileStore(ckpt), str(ckpt)).metadata.checkpoint == number
    write_savepoint(ckpt / "savepoints" / "save")
    with pytest.raises(UsageError, match="holds several snapshots"):
        find_snapshot(FileStore(ckpt), str(ckpt))
    assert find_snapshot(FileStore(ckpt), str(ckpt / "job")).metadata.checkpoint == 10


def test_a_checkpoint_is_found_by_its_folder(tmp_path):
    write_checkpoint(tmp_path, 3)
    assert find_snapshot(FileStore(tmp_path), str(tmp_path / "job" / "chk-3")).metadata.checkpoint == 3


def test_where_there_is_nothing_nothing_is_found(tmp_path):
    with pytest.raises(UsageError, match="there is nothing at"):
        find_snapshot(FileStore(tmp_path), str(tmp_path / "nowhere"))


def test_a_folder_without_metadata_is_no_snapshot(tmp_path):
    (tmp_path / "chk-1").mkdir()
    (tmp_path / "chk-1" / "state").write_bytes(b"x")
    with pytest.raises(UsageError, match="holds no snapshot"):
        find_snapshot(FileStore(tmp_path), str(tmp_path))


@pytest.mark.parametrize(("count", "more"), [(2, ""), (7, " and 2 more")])
def test_of_several_savepoints_one_must_be_chosen(tmp_path, count, more):
    for number in range(count):
        write_savepoint(tmp_path / f"save-{number}")
    with pytest.raises(UsageError, match=f"several snapshots: save-0, save-1.*{more}"):
        find_snapshot(FileStore(tmp_path), str(tmp_path))


def test_a_snapshot_that_is_cut_is_refused_by_name(tmp_path):
    (tmp_path / "_metadata").write_bytes(b"PMET")
    with pytest.raises(CorruptFile, match="_metadata is cut"):
        find_snapshot(FileStore(tmp_path), str(tmp_path))


# --- what a job can go back to ---------------------------------------------------------------------------------------


def completed(location: str, path: str, kind: SnapshotKind, checkpoint: int = 9) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        job=JobId("job"),
        checkpoint=CheckpointId(checkpoint),
        timestamp=Instant(0),
        completed=Instant(0),
        kind=kind,
        location=location,
        path=path,
        size=0,
    )


def test_the_files_of_an_own_checkpoint_begin_at_the_root(tmp_path):
    write_checkpoint(tmp_path, 4)
    record = completed("job/chk-4", "job/chk-4/_metadata", SnapshotKind.CHECKPOINT, 4)
    assert only_path(read_completed(FileStore(tmp_path), record)) == "job/chk-4/count-0-0"


def test_the_files_of_an_own_savepoint_lie_in_its_folder(tmp_path):
    folder = tmp_path / "save"
    write_savepoint(folder)
    record = completed(str(folder), f"{folder}/_metadata", SnapshotKind.SUSPEND)
    assert only_path(read_completed(FileStore(tmp_path / "job"), record)) == f"{folder}/count-0-0"


def test_the_files_of_a_checkpoint_of_another_job_lie_in_its_folder(tmp_path):
    write_checkpoint(tmp_path / "old", 4)
    found = find_snapshot(FileStore(tmp_path), str(tmp_path / "old" / "job"))
    record = restored_from(
        found.metadata,
        location=found.folder,
        path=found.path,
        metadata_size=found.metadata_size,
        claim=Claim.NO_CLAIM,
        retention=Retention.DELETE,
    )
    assert record.private_files == (f"{tmp_path}/old/job/chk-4/count-0-0",)
    assert read_completed(FileStore(tmp_path / "new"), record) == found.metadata


def test_another_snapshot_in_its_place_is_refused(tmp_path):
    write_savepoint(tmp_path / "save")
    record = completed(f"{tmp_path}/save", f"{tmp_path}/save/_metadata", SnapshotKind.SAVEPOINT, 5)
    with pytest.raises(StorageError, match="is the metadata of savepoint 9, and 5 is expected there"):
        read_completed(FileStore(tmp_path), record)


# --- files by path ---------------------------------------------------------------------------------------------------


def test_a_path_is_taken_from_the_root_unless_it_is_full(tmp_path):
    store = FileStore(tmp_path / "root")
    store.write("a/b", b"inside")
    FileStore(tmp_path / "other").write("c/d", b"outside")
    assert read_file(store, "a/b") == b"inside"
    assert read_file(store, f"{tmp_path}/other/c/d") == b"outside"
    delete_file(store, f"{tmp_path}/other/c/d")
    assert not (tmp_path / "other" / "c" / "d").exists()
    delete_file(store, "a/b")
    assert store.list_files("") == []
    delete_folder(store, f"{tmp_path}/other/c")
    assert not (tmp_path / "other" / "c").exists()
    store.write("x/y", b"")
    delete_folder(store, "x")
    assert store.list_files("") == []


def test_metadata_without_edges_can_be_read(tmp_path):
    fields = msgspec.to_builtins(metadata(4, SnapshotKind.CHECKPOINT, "job/chk-4/x"))
    del fields["edges"]
    assert msgspec.convert(fields, CheckpointMetadata).edges == ()

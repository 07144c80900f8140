"""Where the files of a snapshot lie, for a job that did not take it."""

from __future__ import annotations

import msgspec
import pytest
from snapshot_rig import in_channel, operator, snapshot_of

from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery.metadata import SnapshotKind, TaskChannels
from penstock.core.recovery.places import folder_and_name, is_full, with_full_paths


def file_at(path: str | None) -> StateFile:
    return StateFile(path=path, size=1, checksum=0, inline=None if path else b"x")


def paths_after(kind: SnapshotKind, folder: str, *paths: str | None) -> list[str | None]:
    state = OperatorState(operator=OperatorId("count"), keyed=tuple(file_at(path) for path in paths))
    metadata = snapshot_of(operator("count", subtasks={0: state}))
    moved = with_full_paths(msgspec.structs.replace(metadata, kind=kind), folder)
    return [file.path for file in moved.operators[OperatorId("count")].subtasks[0].keyed]


@pytest.mark.parametrize(
    ("path", "full"), [("/a/b", True), ("s3://bucket/x", True), ("file:///x", True), ("job/chk-1/x", False)]
)
def test_a_full_path_is_absolute_or_a_uri(path, full):
    assert is_full(path) is full


def test_files_of_a_savepoint_lie_in_its_folder_wherever_that_is():
    found = paths_after(SnapshotKind.SAVEPOINT, "/moved/here", "count-0-0", None, "/elsewhere/x")
    assert found == ["/moved/here/count-0-0", None, "/elsewhere/x"]


def test_files_of_a_checkpoint_lie_in_its_folder_and_beside_it():
    found = paths_after(SnapshotKind.CHECKPOINT, "/data/job/chk-7", "job/chk-7/a/b", "job/shared/c", "s3://b/x")
    assert found == ["/data/job/chk-7/a/b", "/data/job/shared/c", "s3://b/x"]


def test_a_checkpoint_may_have_been_moved_and_renamed():
    assert paths_after(SnapshotKind.CHECKPOINT, "/backup", "job/chk-7/a", "job/shared/c") == ["/backup/a", "/shared/c"]


def test_in_flight_data_moves_with_it():
    state = msgspec.structs.replace(in_channel(0, 0, "x"), file=file_at("job/chk-7/channels-0"))
    channels = (TaskChannels(task=TaskId(VertexId("count"), 0), inputs=(state,), outputs=(state,)),)
    (task,) = with_full_paths(snapshot_of(channels=channels), "/r/job/chk-7").channels
    assert [s.file.path for s in (*task.inputs, *task.outputs)] == ["/r/job/chk-7/channels-0"] * 2


def test_a_full_path_has_a_folder_and_a_name():
    assert folder_and_name("/a/b/c") == ("/a/b", "c")
    assert folder_and_name("/c") == ("/", "c")
    assert folder_and_name("s3://bucket/c") == ("s3://bucket", "c")

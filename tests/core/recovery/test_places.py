"""Where the files of a snapshot lie, for a job that did not take it."""

from __future__ import annotations

import msgspec
import pytest
from snapshot_rig import in_channel, operator, snapshot_of

from penstock.core.errors import CorruptFile
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery.metadata import SnapshotKind, TaskChannels
from penstock.core.recovery.places import is_full, with_full_paths


def file_at(path: str | None, *, size: int = 1, shared: bool = False) -> StateFile:
    return StateFile(
        path=path, size=size, checksum=0, inline=None if path else b"x", shared_key="key" if shared else None
    )


def paths_after(kind: SnapshotKind, folder: str, *paths: str | None, shared: bool = False, **more) -> list[str | None]:
    state = OperatorState(operator=OperatorId("count"), keyed=tuple(file_at(path, shared=shared) for path in paths))
    metadata = snapshot_of(operator("count", subtasks={0: state}))
    moved = with_full_paths(msgspec.structs.replace(metadata, kind=kind), folder, **more)
    return [file.path for file in moved.operators[OperatorId("count")].subtasks[0].keyed]


@pytest.mark.parametrize(
    ("path", "full"), [("/a/b", True), ("s3://bucket/x", True), ("file:///x", True), ("job/chk-1/x", False)]
)
def test_a_full_path_is_absolute_or_a_uri(path, full):
    assert is_full(path) is full


def test_files_of_a_savepoint_lie_in_its_folder_wherever_that_is():
    found = paths_after(SnapshotKind.SAVEPOINT, "/moved/here", "count-0-0", None)
    assert found == ["/moved/here/count-0-0", None]


def test_files_of_a_checkpoint_lie_in_its_folder_and_beside_it():
    assert paths_after(SnapshotKind.CHECKPOINT, "/data/job/chk-7", "job/chk-7/a") == ["/data/job/chk-7/a"]
    found = paths_after(SnapshotKind.CHECKPOINT, "/data/job/chk-7", "job/chk-7/a", "job/shared/c", shared=True)
    assert found == ["/data/job/chk-7/a", "/data/job/shared/c"]


def test_a_checkpoint_may_have_been_moved_and_renamed():
    found = paths_after(SnapshotKind.CHECKPOINT, "/backup", "job/chk-7/a", "job/shared/c", shared=True)
    assert found == ["/backup/a", "/shared/c"]


def test_paths_of_a_checkpoint_stay_as_they_are_where_its_job_has_it():
    found = paths_after(SnapshotKind.CHECKPOINT, "job/chk-7", "job/chk-7/a", "job/shared/c", shared=True)
    assert found == ["job/chk-7/a", "job/shared/c"]


EVERYWHERE = [
    "/etc/passwd",
    "/data/job/chk-7/../../victim",
    "file:///etc/passwd",
    "FILE://host/etc/passwd",
    "s3://bucket/x",
    "what://ever",
    "../victim",
    "a/../../victim",
    "./x",
    "a//b",
    "",
    ".",
    "..",
    "x\0y",
    "job/chk-7/../../victim",
    "job/chk-7/..",
    "job/chk-7/",
    "job/shared/../chk-6/x",
    "job/shared/..",
    "job/chk-6/x",
    "job/completed/x",
    "job/chk-7/a/b",
    "job/chk-7",
    "/chk-7/x",
]


@pytest.mark.parametrize("path", EVERYWHERE)
@pytest.mark.parametrize("kind", [SnapshotKind.SAVEPOINT, SnapshotKind.CHECKPOINT])
@pytest.mark.parametrize("shared", [False, True])
def test_a_path_that_leads_out_of_a_snapshot_is_refused_with_its_name(kind, path, shared):
    with pytest.raises(CorruptFile) as caught:
        paths_after(kind, "/data/job/chk-7", path, shared=shared)
    assert repr(path) in caught.value.message
    assert "in /data/job/chk-7" in caught.value.message


@pytest.mark.parametrize("path", EVERYWHERE)
def test_so_is_that_of_in_flight_data(path):
    state = msgspec.structs.replace(in_channel(0, 0, "x"), file=file_at(path))
    channels = (TaskChannels(task=TaskId(VertexId("count"), 0), inputs=(), outputs=(state,)),)
    with pytest.raises(CorruptFile):
        with_full_paths(snapshot_of(channels=channels), "/r/job/chk-7")


def test_what_only_one_checkpoint_has_does_not_lie_where_others_share():
    with pytest.raises(CorruptFile):
        paths_after(SnapshotKind.CHECKPOINT, "/data/job/chk-7", "job/shared/c")


ELSEWHERE = ["/data/other/shared/c", "/data/saved/savepoint-other-3/c", "/data/savepoint-other-3/c"]


@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_checkpoint_may_use_what_another_job_of_the_directory_shared(path):
    assert paths_after(SnapshotKind.CHECKPOINT, "/data/job/chk-7", path, shared=True) == [path]
    for kind, folder, shared in (
        (SnapshotKind.SAVEPOINT, "/data/job/chk-7", True),
        (SnapshotKind.CHECKPOINT, "/data/job/chk-7", False),
        (SnapshotKind.CHECKPOINT, "/elsewhere/job/chk-7", True),
    ):
        with pytest.raises(CorruptFile):
            paths_after(kind, folder, path, shared=shared)
    moved = paths_after(SnapshotKind.CHECKPOINT, "/elsewhere/job/chk-7", path, shared=True, also_in=("/data",))
    assert moved == [path]


@pytest.mark.parametrize(
    "path", ["/data/x", "/data/other/chk-1/c", "/data/other/shared/../c", "/data/other/x/shared/c"]
)
def test_and_nothing_else_of_it(path):
    with pytest.raises(CorruptFile, match="also_in"):
        paths_after(SnapshotKind.CHECKPOINT, "/data/job/chk-7", path, shared=True, also_in=("/data",))


def test_what_the_job_has_on_record_is_believed():
    found = paths_after(SnapshotKind.CHECKPOINT, "job/chk-7", "/old/x/c", shared=True, known=("/old/x/c",))
    assert found == ["/old/x/c"]


def test_of_an_object_store_the_options_do_not_matter():
    path = "s3://b/data/other/shared/c?region=eu"
    assert paths_after(SnapshotKind.CHECKPOINT, "s3://b/data/job/chk-7?region=us", path, shared=True) == [path]


def in_flight(*ranges: tuple[int, int], size: int = 8, path: str | None = "job/chk-7/channels-0", states: int = 1):
    state = msgspec.structs.replace(in_channel(0, 0, "x"), file=file_at(path, size=size), ranges=ranges)
    task = TaskChannels(task=TaskId(VertexId("count"), 0), inputs=(state,) * states, outputs=())
    return with_full_paths(snapshot_of(channels=(task,)), "/r/job/chk-7").channels


def test_in_flight_data_moves_with_it():
    (task,) = in_flight((0, 4), (4, 4))
    assert [s.file.path for s in task.inputs] == ["/r/job/chk-7/channels-0"]


@pytest.mark.parametrize("ranges", [((0, 9),), ((4, 5),), ((-1, 2),), ((2, -1),), ((0, 5), (0, 5)), ((0, 8),) * 3])
@pytest.mark.parametrize("path", [None, "job/chk-7/channels-0"])
def test_in_flight_data_that_is_more_than_its_file_is_refused(ranges, path):
    with pytest.raises(CorruptFile, match="beyond the end"):
        in_flight(*ranges, path=path)


def test_several_channels_share_a_file_and_not_its_bytes():
    assert in_flight((0, 4), states=2)
    assert in_flight((0, 8), states=2, path=None)
    with pytest.raises(CorruptFile, match="beyond the end"):
        in_flight((0, 4), states=3)

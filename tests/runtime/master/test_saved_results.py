"""Which prepared results must be kept for jobs that start from savepoints."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.messages import OperatorState
from penstock.core.recovery.layout import job_folder
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind
from penstock.runtime.master.saved_results import SavedResults
from penstock.storage.files import FileStore

SINK, OTHER = OperatorId("sink"), OperatorId("map")
FOLDER = job_folder(JobId("job"))


def savepoint(checkpoint: int, *parts: bytes) -> CheckpointMetadata:
    state = OperatorState(operator=SINK, split_lists={"committables": parts} if parts else {})
    snapshots = {
        operator: OperatorSnapshot(
            operator=operator, vertex=VertexId("v"), parallelism=1, max_parallelism=1, subtasks=subtasks
        )
        for operator, subtasks in ((SINK, {0: state}), (OTHER, {}))
    }
    return CheckpointMetadata(
        job=JobId("job"),
        checkpoint=CheckpointId(checkpoint),
        timestamp=Instant(0),
        kind=SnapshotKind.SAVEPOINT,
        operators=snapshots,
    )


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path)


@pytest.fixture
def saved(store):
    return SavedResults(FOLDER, store, taken_over=False)


def take(saved: SavedResults, metadata: CheckpointMetadata) -> None:
    assert saved.begin(metadata)
    saved.write(metadata)
    saved.complete(metadata.checkpoint)


def test_what_a_savepoint_names_may_be_needed_until_a_checkpoint_has_followed(saved, store):
    take(saved, savepoint(3, b"a"))
    assert saved.may_be_needed
    assert saved.follow(CheckpointId(2)) == []
    assert saved.may_be_needed
    done = saved.follow(CheckpointId(4))
    assert done == [3]
    saved.delete(done)
    assert not saved.may_be_needed
    assert store.list_files("") == []


def test_a_savepoint_without_results_keeps_nothing(saved):
    assert not saved.begin(savepoint(3))
    saved.complete(CheckpointId(3))
    assert not saved.may_be_needed


def test_one_that_never_completes_keeps_nothing(saved):
    saved.begin(savepoint(3, b"a"))
    assert saved.abort(CheckpointId(3)) == [3]
    assert saved.abort(CheckpointId(3)) == []
    saved.complete(CheckpointId(3))
    assert not saved.may_be_needed


def test_behind_an_attempt_that_is_over_it_is_kept_for_good(saved):
    take(saved, savepoint(3, b"a"))
    saved.attempt_over()
    take(saved, savepoint(5, b"b"))
    saved.attempt_over()
    assert saved.follow(CheckpointId(9)) == []
    assert saved.owed == {SINK: (b"a", b"b")}
    assert saved.may_be_needed


def test_another_driver_knows_nothing_before_it_has_read_and_then_what_the_first_one_knew(saved, store):
    take(saved, savepoint(3, b"a"))
    take(saved, savepoint(5, b"b", b"c"))
    other = SavedResults(FOLDER, store, taken_over=True)
    assert other.may_be_needed
    other.read()
    other.read()
    assert other.owed == {SINK: (b"a", b"b", b"c")}
    assert not other.is_unread


@pytest.mark.parametrize("needed", [True, False])
def test_another_driver_that_finds_the_job_ended_is_told(store, needed):
    other = SavedResults(FOLDER, store, taken_over=True)
    other.resume(needed=needed)
    assert other.may_be_needed is needed


def test_what_is_written_down_is_read_by_later_versions(store, saved):
    saved.write(savepoint(3, b"a"))
    (path,) = store.list_files("")
    assert path == "job/promised/0000000000000000003"
    assert msgspec.msgpack.decode(store.read(path)) == {"sink": [b"a"]}


def test_a_record_that_cannot_be_read_is_told_by_name(store):
    store.write("job/promised/0000000000000000007", b"\xdf\xff\xff\xff\xff")
    with pytest.raises(CorruptFile, match="job/promised/0000000000000000007 cannot be read"):
        SavedResults(job_folder(JobId("job")), store, taken_over=True).read()

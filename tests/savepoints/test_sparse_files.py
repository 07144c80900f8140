"""Files that say they are large and take no room on the disk: whoever looks at them holds little of them."""

from __future__ import annotations

import tracemalloc

import pytest
import xxhash

from penstock.core.errors import StreamError
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind
from penstock.savepoints.catalog import SnapshotData
from penstock.state.format import MAGIC
from penstock.storage.files import FileStore
from penstock.storage.metadata import encode_metadata
from penstock.storage.verification import verify_savepoint

SIZE = 256 * 1024 * 1024
FEW_BYTES = SIZE // 4


def savepoint(folder, *starts):
    """A savepoint with files that begin with `starts`, and whose checksums are wrong."""
    folder.mkdir()
    for number, start in enumerate(starts):
        with (folder / f"step-{number}").open("wb") as file:
            file.write(start)
            file.truncate(SIZE)
    operator = OperatorId("step")
    files = tuple(StateFile(path=f"step-{number}", size=SIZE, checksum=1) for number in range(len(starts)))
    state = OperatorState(operator=operator, keyed=files, key_groups=(0, 15))
    snapshot = OperatorSnapshot(
        operator=operator, vertex=VertexId("step"), parallelism=1, max_parallelism=16, subtasks={0: state}
    )
    metadata = CheckpointMetadata(
        job=JobId("job"),
        checkpoint=CheckpointId(7),
        timestamp=Instant(1),
        kind=SnapshotKind.SAVEPOINT,
        operators={operator: snapshot},
    )
    (folder / "_metadata").write_bytes(encode_metadata(metadata))
    return folder


@pytest.fixture
def peak():
    """The most memory so far, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_to_verify_a_file_takes_the_memory_of_a_piece(tmp_path, peak):
    folder = savepoint(tmp_path / "saved", b"")
    report = verify_savepoint(FileStore(folder), "saved")
    assert report.all_problems == ("saved: state file step-0 was changed: its checksum does not fit",)
    assert peak() < FEW_BYTES


@pytest.mark.parametrize("starts", [(b"",), (b"", b""), (b"PKRX\x00\x01",)], ids=["one", "two", "native"])
def test_to_list_the_states_in_a_file_of_no_known_format_takes_the_memory_of_a_piece(tmp_path, peak, starts):
    found = SnapshotData(savepoint(tmp_path / "saved", *starts))
    most = FEW_BYTES if not starts[0] else SIZE + FEW_BYTES
    with pytest.raises(StreamError):
        found.states("step")
    assert peak() < most


def test_a_file_that_is_decoded_is_in_memory_once(tmp_path, peak):
    found = SnapshotData(savepoint(tmp_path / "saved", MAGIC))
    with pytest.raises(StreamError, match="its checksum does not fit"):
        found.states("step")
    assert peak() < SIZE + FEW_BYTES


def test_a_whole_file_is_in_memory_once(tmp_path, peak):
    folder = savepoint(tmp_path / "saved", b"start")
    content = FileStore(folder).read("step-0")
    assert (len(content), content[:5]) == (SIZE, b"start")
    assert peak() < SIZE + FEW_BYTES
    assert xxhash.xxh3_64_intdigest(content) != 1

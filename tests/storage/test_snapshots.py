from __future__ import annotations

import shutil

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import CorruptFile, Fault, StorageError, UsageError, fault_of
from penstock.core.messages import StateFile
from penstock.storage.files import FileStore
from penstock.storage.snapshots import SnapshotReader, SnapshotWriter

FOLDER = "job/chk-7"


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path)


def test_large_state_becomes_a_file_and_small_state_stays_inline(store):
    writer = SnapshotWriter(store, FOLDER, "window-2", 4)
    assert writer.put(b"1234") == StateFile(
        path=None, size=4, checksum=xxhash.xxh3_64_intdigest(b"1234"), inline=b"1234"
    )
    assert writer.put(b"12345") == StateFile(
        path="job/chk-7/window-2-0", size=5, checksum=xxhash.xxh3_64_intdigest(b"12345")
    )
    assert store.list_files("") == ["job/chk-7/window-2-0"]
    assert store.read("job/chk-7/window-2-0") == b"12345"


def test_a_shared_piece_is_a_file_under_its_key_however_small(store):
    writer = SnapshotWriter(store, FOLDER, "window-2", 100, shared_folder="job/shared")
    file = writer.put_shared(b"1", "epoch 1/000012.sst")
    checksum = xxhash.xxh3_64_intdigest(b"1")
    path = "job/shared/epoch%201%2F000012.sst"
    assert file == StateFile(path=path, size=1, checksum=checksum, shared_key="epoch 1/000012.sst")
    assert SnapshotReader(store).get(file) == b"1"


def test_a_savepoint_shares_nothing(store):
    file = SnapshotWriter(store, "", "window-2", 0).put_shared(b"1", "key")
    assert (file.path, file.shared_key) == ("window-2-0", None)


def test_every_piece_has_a_file_of_its_own(store):
    writer = SnapshotWriter(store, FOLDER, "window-2", 0)
    files = [writer.put(data) for data in (b"a", b"a", b"b")]
    assert len({file.path for file in files}) == 3
    assert [SnapshotReader(store).get(file) for file in files] == [b"a", b"a", b"b"]


@settings(max_examples=40)
@given(data=st.binary(max_size=40), threshold=st.integers(0, 40))
def test_what_was_put_can_be_got(tmp_path_factory, data, threshold):
    store = FileStore(tmp_path_factory.mktemp("state"))
    file = SnapshotWriter(store, FOLDER, "p", threshold).put(data)
    assert (file.inline is None) == (len(data) > threshold)
    assert SnapshotReader(store).get(file) == data


@pytest.mark.parametrize("threshold", [0, 1_000])
@pytest.mark.parametrize("wrap", [memoryview, bytearray, pa.py_buffer], ids=["view", "array", "arrow"])
def test_state_may_come_in_any_buffer(store, wrap, threshold):
    file = SnapshotWriter(store, FOLDER, "p", threshold).put(wrap(b"some state"))
    assert SnapshotReader(store).get(file) == b"some state"


def test_state_that_could_not_be_written_is_an_error(store):
    store.write("job", b"a file in the way")
    with pytest.raises(StorageError, match="job/chk-7/p-0"):
        SnapshotWriter(store, FOLDER, "p", 0).put(b"x")


@pytest.mark.parametrize(
    ("content", "why"), [(b"", "0 bytes instead of 5"), (b"12", "2 bytes instead of 5"), (b"12346", "was changed")]
)
def test_a_file_that_is_cut_or_changed_is_refused_by_name(store, content, why):
    file = SnapshotWriter(store, FOLDER, "window-2", 0).put(b"12345")
    store.write(file.path, content)
    with pytest.raises(
        CorruptFile, match=f"state file job/chk-7/window-2-0 .*{why}|job/chk-7/window-2-0 {why}"
    ) as caught:
        SnapshotReader(store).get(file)
    assert "restore from another checkpoint" in caught.value.hint


@pytest.mark.parametrize("inline", [b"1234", b"12346"])
def test_inline_state_is_checked_too(store, inline):
    file = StateFile(path=None, size=5, checksum=xxhash.xxh3_64_intdigest(b"12345"), inline=inline)
    with pytest.raises(CorruptFile, match="state inside the metadata"):
        SnapshotReader(store).get(file)


def whole(reader, file):
    return reader.get(file)


def in_pieces(reader, file):
    return b"".join(reader.pieces(file))


@pytest.mark.parametrize("read", [whole, in_pieces])
def test_a_file_that_is_gone_is_an_error_with_its_path_that_no_restart_can_mend(store, read):
    file = SnapshotWriter(store, FOLDER, "p", 0).put(b"x")
    store.delete(file.path)
    with pytest.raises(CorruptFile, match="state file job/chk-7/p-0 is missing: ") as caught:
        read(SnapshotReader(store), file)
    assert fault_of(caught.value) is Fault.PERMANENT
    assert "restore from another checkpoint" in caught.value.hint


@pytest.mark.parametrize("read", [whole, in_pieces])
@pytest.mark.parametrize("root_is_there", [True, False])
def test_a_file_of_a_folder_that_is_not_mounted_at_present_is_tried_again(tmp_path, root_is_there, read):
    store = FileStore(tmp_path / "mounted")
    file = SnapshotWriter(store, FOLDER, "p", 0).put(b"x")
    shutil.rmtree(tmp_path / "mounted")
    if root_is_there:
        (tmp_path / "mounted").mkdir()
    with pytest.raises(StorageError, match="job/chk-7/p-0") as caught:
        read(SnapshotReader(store), file)
    assert fault_of(caught.value) is not Fault.PERMANENT


def test_a_handle_of_nothing_is_refused(store):
    with pytest.raises(CorruptFile, match="neither a path nor content"):
        SnapshotReader(store).get(StateFile(path=None, size=0, checksum=0))


def test_a_negative_threshold_is_refused(store):
    with pytest.raises(UsageError, match="cannot be negative"):
        SnapshotWriter(store, FOLDER, "p", -1)

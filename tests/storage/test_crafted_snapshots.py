"""Snapshots that somebody made in order to read, tell of or delete files of others, or to fill memory."""

from __future__ import annotations

import os
import struct
import tracemalloc
from contextlib import nullcontext

import msgspec
import pyarrow as pa
import pytest
import xxhash

from penstock.api.arrow_bounds import check_batch, check_file, check_stream, check_types
from penstock.core.errors import CorruptFile, StorageError
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery.metadata import CheckpointMetadata, Claim, OperatorSnapshot, SnapshotKind, restored_from
from penstock.core.recovery.tenure import Foreign
from penstock.runtime.task.operators.window_table import read_file
from penstock.savepoints.catalog import SnapshotData
from penstock.settings import Retention
from penstock.storage.files import FileStore
from penstock.storage.metadata import encode_metadata
from penstock.storage.places import Anywhere, delete_foreign, delete_snapshot
from penstock.storage.restoring import find_snapshot
from penstock.storage.snapshots import SnapshotReader

SECRET = b"what others must not read"


def handle(path: str, data: bytes = SECRET, **more) -> StateFile:
    return StateFile(**{"path": path, "size": len(data), "checksum": xxhash.xxh3_64_intdigest(data), **more})


class Crafted:
    """A folder with a snapshot that names whatever it likes, and a victim beside it."""

    def __init__(self, folder, victim) -> None:
        self.folder = folder
        self.victim = victim

    def make(self, *files: StateFile, kind=SnapshotKind.SAVEPOINT, name="evil"):
        state = OperatorState(operator=OperatorId("sum"), keyed=files, key_groups=(0, 127))
        snapshot = OperatorSnapshot(
            operator=OperatorId("sum"), vertex=VertexId("sum"), parallelism=1, max_parallelism=128, subtasks={0: state}
        )
        metadata = CheckpointMetadata(
            job=JobId("job"),
            checkpoint=CheckpointId(7),
            timestamp=Instant(1),
            kind=kind,
            operators={OperatorId("sum"): snapshot},
        )
        place = self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "_metadata").write_bytes(encode_metadata(metadata))
        return place


@pytest.fixture
def crafted(tmp_path) -> Crafted:
    victim = tmp_path / "private" / "victim"
    victim.parent.mkdir()
    victim.write_bytes(SECRET)
    return Crafted(tmp_path / "given", victim)


def claimed(place):
    """The record of a job that is started from there, and owns it."""
    found = find_snapshot(FileStore(place), str(place))
    return restored_from(
        found.metadata,
        location=found.folder,
        path=found.path,
        metadata_size=1,
        claim=Claim.CLAIM,
        retention=Retention.DELETE,
    )


def delete_claimed(place) -> None:
    """What a job does with a claimed snapshot when a checkpoint of its own has replaced it."""
    record = claimed(place)
    shared = [s.file.path for s in record.shared_files if s.owned and s.file.path is not None]
    store = FileStore(place.parent / "checkpoints")
    delete_snapshot(store, record.location, (*record.private_files, *shared))
    delete_foreign(store, [Foreign(folder=None, paths=tuple(shared))])


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared_key", [None, "key"])
@pytest.mark.parametrize("kind", [SnapshotKind.SAVEPOINT, SnapshotKind.CHECKPOINT])
@pytest.mark.parametrize("way", ["absolute", "relative", "uri", "through"])
def test_a_file_elsewhere_is_neither_read_nor_told_of_nor_deleted(crafted, kind, way, shared_key):
    path = {
        "absolute": str(crafted.victim),
        "relative": "../../private/victim",
        "uri": f"file://{crafted.victim}",
        "through": "job/chk-7/../../../private/victim",
    }[way]
    name = "evil/chk-7" if kind is SnapshotKind.CHECKPOINT else "evil"
    place = crafted.make(handle(path, shared_key=shared_key), kind=kind, name=name)
    texts = []
    for _ in range(2):
        for use in (claimed, SnapshotData):
            with pytest.raises(CorruptFile) as caught:
                use(place)
            texts.append(str(caught.value))
        if crafted.victim.exists():
            assert crafted.victim.read_bytes() == SECRET
            crafted.victim.unlink()
    assert len(set(texts)) == 1, "the same is said whether the file is there or not"


@pytest.mark.parametrize("way", ["file", "folder"])
def test_a_link_in_a_snapshot_is_not_followed(crafted, way):
    if way == "file":
        place = crafted.make(handle("data"))
        (place / "data").symlink_to(crafted.victim)
    else:
        place = crafted.make(
            handle("job/shared/victim", shared_key="key"), kind=SnapshotKind.CHECKPOINT, name="j/chk-7"
        )
        (place.parent / "shared").symlink_to(crafted.victim.parent)
    data = SnapshotData(place)
    with pytest.raises(StorageError, match="symbolic link"):
        data.states("sum")
    # Of a file that is a link, the link goes.
    with pytest.raises(StorageError, match="symbolic link") if way == "folder" else nullcontext():
        delete_claimed(place)
    assert crafted.victim.read_bytes() == SECRET


def test_a_folder_that_is_swapped_for_a_link_after_the_look_at_it_is_not_followed(crafted):
    """1. A job starts from a snapshot. 2. Its folder is swapped for a link. 3. The job reads and deletes its files."""
    place = crafted.make(handle("victim"))
    (place / "victim").write_bytes(SECRET)
    record = claimed(place)
    (file,) = find_snapshot(FileStore(place), str(place)).metadata.files
    place.rename(place.with_name("aside"))
    place.symlink_to(crafted.victim.parent)
    store = FileStore(crafted.folder)
    with pytest.raises(StorageError, match="symbolic link"):
        SnapshotReader(Anywhere(store)).get(file)
    with pytest.raises(StorageError, match="symbolic link"):
        delete_snapshot(store, record.location, record.private_files)
    assert crafted.victim.read_bytes() == SECRET


def test_a_link_that_the_user_names_is_the_users(crafted):
    place = crafted.make(handle("data"))
    (place / "data").write_bytes(SECRET)
    (crafted.folder / "latest").symlink_to(place)
    found = find_snapshot(FileStore(crafted.folder / "latest"), str(crafted.folder / "latest"))
    assert found.folder == str(place)
    assert SnapshotReader(Anywhere(FileStore(place))).get(found.metadata.files[0]) == SECRET


def test_a_hard_link_goes_and_the_file_stays(crafted):
    place = crafted.make(handle("data"))
    (place / "data").hardlink_to(crafted.victim)
    delete_claimed(place)
    assert not place.exists()
    assert crafted.victim.read_bytes() == SECRET


def test_whatever_else_lies_in_the_folder_of_a_claimed_snapshot_stays(crafted):
    """Somebody has put a savepoint into a folder that has other things in it."""
    place = crafted.make(handle("data"))
    (place / "data").write_bytes(SECRET)
    (place / "thesis").write_bytes(b"years of work")
    (place / "photos").mkdir()
    delete_claimed(place)
    assert sorted(path.name for path in place.iterdir()) == ["photos", "thesis"]


def test_what_another_job_shared_is_read_and_never_deleted_by_a_claim(crafted):
    elsewhere = crafted.folder / "other" / "shared" / "S"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(SECRET)
    place = crafted.make(handle(str(elsewhere), shared_key="S"), kind=SnapshotKind.CHECKPOINT, name="job/chk-7")
    (file,) = find_snapshot(FileStore(place), str(place)).metadata.files
    assert SnapshotReader(Anywhere(FileStore(place))).get(file) == SECRET
    delete_claimed(place)
    assert elsewhere.exists()


@pytest.mark.parametrize("what", ["read", "write", "create", "list", "delete", "tree"])
def test_no_link_below_the_root_of_a_store_is_followed(tmp_path, crafted, what):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "job").symlink_to(crafted.victim.parent)
    store = FileStore(tmp_path / "root")
    calls = {
        "read": lambda: store.read("job/victim"),
        "write": lambda: store.write("job/victim", b"mine"),
        "create": lambda: store.create("job/new", b"mine"),
        "list": lambda: store.list_files("job"),
        "delete": lambda: store.delete("job/victim"),
        "tree": lambda: store.delete_tree("job/victim"),
    }
    with pytest.raises(StorageError, match="symbolic link") as caught:
        calls[what]()
    assert "links below the directory are not followed" in str(caught.value)
    assert [path.name for path in crafted.victim.parent.iterdir()] == ["victim"]
    assert crafted.victim.read_bytes() == SECRET


# --- what is no file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_metadata", "data"])
def test_a_pipe_does_not_keep_its_reader_waiting(crafted, name):
    place = crafted.make(handle("data"))
    (place / name).unlink(missing_ok=True)
    os.mkfifo(place / name)
    with pytest.raises(StorageError, match="no file, but a pipe"):
        SnapshotData(place).states("sum")


def test_names_that_no_file_system_takes_are_told(crafted):
    for name in ("x" * 5_000, "ä" * 200):
        with pytest.raises(StorageError, match="too long"):
            SnapshotData(crafted.make(handle(name))).states("sum")


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_metadata", "data"])
def test_a_file_that_is_larger_than_it_should_be_is_not_read(crafted, name):
    place = crafted.make(handle("data"))
    with (place / name).open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(StorageError, match=f"{name} failed: it has {1 << 42} bytes"):
        SnapshotData(place).states("sum")


def test_metadata_that_claims_to_have_many_parts_is_refused(tmp_path):
    place = tmp_path / "saved"
    for data in (b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x81\xa8channels\xdd\xff\xff\xff\xff"):
        store = FileStore(place)
        header = struct.pack(">4sHQQ", b"PMET", 1, len(data), xxhash.xxh3_64_intdigest(data))
        store.write("_metadata", header + data)
        with pytest.raises(CorruptFile, match="cannot be read"):
            SnapshotData(place)


@pytest.mark.parametrize("what", ["settings", "subtasks"])
def test_metadata_of_which_a_few_bytes_become_many_values_is_refused_before_it_is_decoded(tmp_path, what):
    """Zeros and empty maps: in a file with holes they take no room at all."""
    count = 4_000_000
    many = b"\xdd" + struct.pack(">I", count)
    if what == "settings":
        fields, more = {}, msgspec.msgpack.encode("settings") + b"\x81\xa1a" + many + b"\x80" * count
    else:
        fields = {"operator": "o", "vertex": "v", "parallelism": 1, "max_parallelism": 1}
        inner = bytearray(msgspec.msgpack.encode(fields) + msgspec.msgpack.encode("finished_subtasks"))
        inner[0] += 1
        more = msgspec.msgpack.encode("operators") + b"\x81\xa1o" + inner + many + b"\0" * count
    data = bytearray(msgspec.msgpack.encode({"job": "j", "checkpoint": 7, "timestamp": 1, "kind": "Savepoint"}) + more)
    data[0] += 1
    header = struct.pack(">4sHQQ", b"PMET", 1, len(data), xxhash.xxh3_64_intdigest(data))
    FileStore(tmp_path).write("_metadata", header + data)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFile, match="cannot be read"):
            SnapshotData(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(data)
    finally:
        tracemalloc.stop()


def bomb(kind: str, compression: str | None, rows: int = 8_000_000) -> pa.Buffer:
    """Zeros: a few kilobytes that become 32 MB."""
    table = pa.table({"__key_group": pa.array([0], pa.int32()).take(pa.array([0] * rows, pa.int32()))})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with make(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_what_is_compressed_is_refused_before_it_is_unpacked(compression):
    file, stream = bomb("file", compression), bomb("stream", compression)
    assert len(stream) < 200_000
    with pytest.raises(ValueError, match="compressed"):
        check_file(file)
    with pytest.raises(ValueError, match="compressed"):
        check_stream(stream)
    with pytest.raises(CorruptFile, match="compressed"):
        read_file(stream.to_pybytes())


def test_a_compressed_batch_in_flight_is_refused():
    check_batch(pa.record_batch({"n": [0] * 10_000}).serialize())
    messages = pa.ipc.MessageReader.open_stream(bomb("stream", "zstd"))
    schema, batch = messages.read_next_message(), messages.read_next_message()
    for message, said in ((batch, "compressed"), (schema, "of kind 1")):
        with pytest.raises(ValueError, match=said):
            check_batch(message.serialize())


def test_what_is_not_compressed_is_read():
    check_file(bomb("file", None, rows=100))
    check_stream(bomb("stream", None, rows=100))


def test_state_that_is_compressed_is_refused_with_the_name_of_its_file(crafted):
    data = bomb("stream", "zstd").to_pybytes()
    place = crafted.make(handle("bomb", data))
    (place / "bomb").write_bytes(data)
    with pytest.raises(CorruptFile, match="compressed") as caught:
        SnapshotData(place).states("sum")
    assert str(place / "bomb") in caught.value.message


@pytest.mark.parametrize("damage", ["cut", "footer", "offset", "twice"])
def test_a_file_whose_footer_lies_is_refused(damage):
    data = bytearray(bomb("file", None, rows=100).to_pybytes())
    if damage == "cut":
        data = data[:20]
    elif damage == "footer":
        data[-10:-6] = (1 << 30).to_bytes(4, "little")
    elif damage == "offset":
        data[-10:-6] = (16).to_bytes(4, "little")
    else:
        data = data[:-10] + data[-10:]
        data[-10:-6] = (0).to_bytes(4, "little")
    with pytest.raises(ValueError):  # noqa: PT011  # what it says differs
        check_file(pa.py_buffer(bytes(data)))


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.null()),
        pa.list_(pa.struct([])),
        pa.list_(pa.list_(pa.int8(), 0)),
        pa.list_(pa.binary(0)),
        pa.struct([("inner", pa.large_list(pa.null()))]),
        pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.string())),
        pa.dictionary(pa.int8(), pa.string()),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.string_view(),
        pa.list_view(pa.int8()),
    ],
)
def test_types_by_which_a_few_bytes_become_many_values_are_refused(kind):
    with pytest.raises(ValueError, match="column 'x' is of type"):
        check_types(pa.schema([("x", kind)]))


def test_every_type_that_state_can_have_is_taken():
    kinds = [
        pa.null(),
        pa.bool_(),
        pa.float16(),
        pa.decimal128(5, 2),
        pa.timestamp("us", "UTC"),
        pa.date32(),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.binary(16),
        pa.large_string(),
        pa.list_(pa.struct([("a", pa.null()), ("b", pa.int8())])),
        pa.list_(pa.int8(), 3),
        pa.map_(pa.string(), pa.list_(pa.int64())),
        pa.uuid(),
    ]
    check_types(pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)]))

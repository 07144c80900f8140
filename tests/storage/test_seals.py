"""What somebody without the key has written or changed is refused before anybody looks into it."""

from __future__ import annotations

import pickle

import msgspec
import pytest
import xxhash

from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId, Instant, JobId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CheckpointMetadata, SnapshotKind
from penstock.core.recovery.tenure import JobOutcome
from penstock.savepoints.catalog import SnapshotData
from penstock.storage.completed import FileCompletedStore
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.metadata import encode_metadata
from penstock.storage.records import FileRecords
from penstock.storage.restoring import find_snapshot
from penstock.storage.seals import SEAL_BYTES, StoreOptions
from penstock.storage.snapshots import SnapshotReader, SnapshotWriter
from penstock.storage.tenure import take_over

KEY, OTHER = b"0123456789abcdef", b"fedcba9876543210"
SEALED = StoreOptions(seal=KEY)
JOB = layout.job_folder(JobId("job"))
SAVEPOINT = CheckpointMetadata(
    job=JobId("job"), checkpoint=CheckpointId(7), timestamp=Instant(1), kind=SnapshotKind.SAVEPOINT
)


@pytest.fixture
def store(tmp_path) -> FileStore:
    return FileStore(tmp_path / "root", options=SEALED)


@pytest.mark.parametrize("size", [0, 1, 40, 100_000])
def test_what_was_sealed_is_read_as_it_was_written(store, size):
    data = bytes(size)
    store.write("a", data)
    store.create("b", data)
    assert store.read("a") == store.read("b") == store.read("a", limit=size) == data
    assert (store.root / "a").stat().st_size == size + SEAL_BYTES
    assert FileStore(store.root).read("a", limit=size) == data, "whoever only looks needs no key"


@pytest.mark.parametrize("place", [0, -1, -SEAL_BYTES, -9])
def test_a_changed_byte_is_found(store, place):
    store.write("a", b"content")
    content = bytearray((store.root / "a").read_bytes())
    content[place] ^= 1
    (store.root / "a").write_bytes(content)
    with pytest.raises(CorruptFile, match=f"{store.root}/a"):
        store.read("a")


@pytest.mark.parametrize("others", [StoreOptions(), StoreOptions(seal=OTHER)])
def test_what_was_written_without_the_key_is_refused(store, others):
    FileStore(store.root, options=others).write("a", b"content")
    with pytest.raises(CorruptFile, match=r"is not sealed|does not fit"):
        store.read("a")


@pytest.mark.parametrize("others", [StoreOptions(), StoreOptions(seal=OTHER)])
def test_pieces_that_were_written_without_the_key_are_refused_at_the_end(store, others):
    for content in (b"", b"content", bytes(1_000)):
        FileStore(store.root, options=others).write("a", content)
        with pytest.raises(CorruptFile, match=r"is not sealed|does not fit"):
            list(store.read_pieces("a"))


@pytest.mark.parametrize("step", [1, 7, 39, 40, 41, 48, 500])
@pytest.mark.parametrize("content", [b"", b"x", bytes(40), bytes(200)], ids=len)
def test_a_seal_is_found_however_the_pieces_are_cut(content, step):
    sealed = content + SEALED.seal_of(content)
    pieces = [sealed[at : at + step] for at in range(0, len(sealed), step)]
    for options in (SEALED, StoreOptions()):
        assert b"".join(options.opened_pieces(pieces, "a")) == content
    plain = [content[at : at + step] for at in range(0, len(content), step)]
    assert b"".join(StoreOptions().opened_pieces(plain, "a")) == content
    with pytest.raises(CorruptFile, match="a is not sealed"):
        list(SEALED.opened_pieces(plain, "a"))


def test_stores_elsewhere_have_the_same_key(store, tmp_path):
    opened = open_store(tmp_path, options=SEALED)
    for elsewhere in (store.at(str(tmp_path / "saved")), opened.at(str(tmp_path / "saved"))):
        elsewhere.write("a", b"x")
        assert (tmp_path / "saved" / "a").stat().st_size == 1 + SEAL_BYTES


def test_a_key_is_not_shown():
    assert "0123456789abcdef" not in repr(SEALED)


# --- by somebody who computes checksums -------------------------------------------------------------------------------


class Bomb:
    """Fails the test when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def test_state_that_was_swapped_with_a_checksum_that_fits_is_refused(store):
    file = SnapshotWriter(store, "job/chk-1", "sum-0", 0).put(pickle.dumps(1))
    evil = pickle.dumps(Bomb())
    forged = msgspec.structs.replace(file, size=len(evil), checksum=xxhash.xxh3_64_intdigest(evil))
    (store.root / file.path).write_bytes(evil)
    with pytest.raises(CorruptFile, match="not sealed"):
        SnapshotReader(store).get(forged)
    assert SnapshotReader(FileStore(store.root)).get(forged) == evil, "without a seal it would be taken"


def test_metadata_that_was_made_by_others_is_refused(store, tmp_path):
    saved = tmp_path / "saved"
    store.at(str(saved)).write("_metadata", encode_metadata(SAVEPOINT))
    assert find_snapshot(store, str(saved)).metadata == SAVEPOINT
    assert SnapshotData(saved).metadata == SAVEPOINT
    (saved / "_metadata").write_bytes(encode_metadata(msgspec.structs.replace(SAVEPOINT, checkpoint=CheckpointId(8))))
    with pytest.raises(CorruptFile, match="_metadata is not sealed"):
        find_snapshot(store, str(saved))


@pytest.mark.parametrize("folder", ["completed", "tenures", "outcome"])
def test_records_that_were_made_by_others_are_refused(store, folder):
    tenure = take_over(store, JOB)
    records = FileRecords(store, JOB, term=tenure.term)
    records.record_outcome(JobOutcome(state=JobState.FAILED))
    FileCompletedStore(store, JOB).record(CheckpointId(1), b"data")
    (path,) = (store.root / JOB / folder).iterdir()
    path.write_bytes(FileStore(store.root).read(f"{JOB}/{folder}/{path.name}"))
    with pytest.raises(CorruptFile, match="is not sealed"):
        take_over(store, JOB)

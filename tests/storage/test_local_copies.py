"""Copies of checkpoint files on a slot's own machine: used when they are right, never missed when they are not."""

from __future__ import annotations

import tempfile

import pytest
import xxhash

from penstock.core.errors import CorruptFile, StorageError
from penstock.core.ids import JobId
from penstock.core.messages import StateFile
from penstock.core.recovery import layout
from penstock.storage import local_copies
from penstock.storage.local_copies import IN_MEMORY_BYTES, CopyingStore, LocalCopies
from penstock.storage.snapshots import SnapshotReader, SnapshotWriter

JOB = layout.job_folder(JobId("job"))
SMALL, LARGE = b"small", b"large" * IN_MEMORY_BYTES


class Counting:
    """A store that counts what is read from it."""

    def __init__(self):
        self.files, self.reads = {}, []

    def at(self, root):
        return self

    def write(self, path, data):
        self.files[path] = bytes(memoryview(data))

    def read(self, path, *, limit=None):
        self.reads.append(path)
        if path not in self.files:
            raise StorageError(f"{path} does not exist")
        return self.files[path]


def handle(path, data):
    return StateFile(path=path, size=len(data), checksum=xxhash.xxh3_64_intdigest(data))


def chk(number, name="a"):
    return f"{layout.checkpoint_folder(JOB, number)}/{name}"


@pytest.fixture
def copies():
    made = LocalCopies(10 * len(LARGE), JOB)
    yield made
    made.close()


@pytest.mark.parametrize("data", [SMALL, LARGE, b""])
def test_what_checkpoints_share_is_read_from_the_store_once_and_what_is_of_one_of_them_whenever_it_is_asked_for(
    copies, data
):
    store = Counting()
    writer = SnapshotWriter(store, chk(1).rpartition("/")[0], "t", 0, shared_folder="job/shared")
    shared, private = writer.put_shared(data, "key"), writer.put(data + b"-")
    reader = SnapshotReader(store, copies)
    assert [reader.get(file) for file in (shared, private, shared, private)] == [data, data + b"-"] * 2
    assert store.reads == [shared.path, private.path, private.path]


def test_what_was_read_and_is_not_what_the_handle_says_is_not_kept(copies):
    store = Counting()
    shared = SnapshotWriter(store, "", "t", 0, shared_folder="job/shared").put_shared(SMALL, "key")
    store.files[shared.path] = b"other"
    with pytest.raises(CorruptFile):
        SnapshotReader(store, copies).get(shared)
    store.files[shared.path] = SMALL
    assert SnapshotReader(store, copies).get(shared) == SMALL
    assert store.reads == [shared.path] * 2


@pytest.mark.parametrize("data", [SMALL, LARGE, b""])
def test_what_was_written_through_the_store_is_not_read_from_it(copies, data):
    store = Counting()
    writer = SnapshotWriter(CopyingStore(store, copies), chk(1).rpartition("/")[0], "t", 0, shared_folder="job/shared")
    files = [writer.put(data), writer.put_shared(data, "key")]
    reader = SnapshotReader(store, copies)
    assert [reader.get(file) for file in files] == [data, data]
    assert store.reads == []


@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_a_copy_that_is_not_what_the_handle_says_is_not_used(copies, data):
    store = Counting()
    store.files[chk(1)] = data
    other = bytes(len(data))
    for wrong in (other, data[:-1], data + b"x"):
        copies.keep(chk(1), wrong)
        assert SnapshotReader(store, copies).get(handle(chk(1), data)) == data
    assert store.reads == [chk(1)] * 3


@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_copies_go_when_their_checkpoint_is_subsumed_or_aborted(copies, data):
    for number in (1, 2, 3, 10):
        copies.keep(chk(number), data)
    copies.keep("job/shared/x", data)
    copies.aborted(10)
    copies.completed(2)
    kept = [n for n in (1, 2, 3, 10) if copies.get(handle(chk(n), data)) is not None]
    assert kept == [2, 3]
    assert copies.get(handle("job/shared/x", data)) == data


def test_no_more_is_kept_than_there_is_room_for_and_shared_files_make_room():
    copies = LocalCopies(10, JOB)
    copies.keep(chk(1), b"x" * 11)
    copies.keep("job/shared/a", b"a" * 6)
    copies.keep("job/shared/b", b"b" * 4)
    copies.keep(chk(2), b"2" * 5)
    copies.keep(chk(3), b"3" * 5)
    copies.keep(chk(2), b"4" * 5)
    wanted = {chk(1): b"x" * 11, "job/shared/a": b"a" * 6, "job/shared/b": b"b" * 4, chk(2): b"4" * 5, chk(3): b"3" * 5}
    found = [path for path, data in wanted.items() if copies.get(handle(path, data)) is not None]
    assert found == [chk(2), chk(3)]
    copies.completed(4)
    copies.keep(chk(4), b"5" * 10)
    assert copies.get(handle(chk(4), b"5" * 10)) is not None


def test_without_room_nothing_is_kept():
    copies = LocalCopies(0, JOB)
    copies.keep(chk(1), SMALL)
    assert copies.get(handle(chk(1), SMALL)) is None


def test_a_disk_that_fails_costs_the_copy_and_nothing_else(copies, monkeypatch):
    class Full:
        def write(self, data):
            raise OSError("no space left")

        def close(self):
            raise OSError("no space left")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    store = Counting()
    CopyingStore(store, copies).write(chk(1), LARGE)
    assert store.files[chk(1)] == LARGE
    assert copies.get(handle(chk(1), LARGE)) is None
    monkeypatch.undo()
    # The room that it had taken is free again.
    for number in range(2, 12):
        copies.keep(chk(number), LARGE)
    assert copies.get(handle(chk(11), LARGE)) == LARGE


def test_a_copy_that_cannot_be_read_is_not_used(copies, monkeypatch):
    copies.keep(chk(1), LARGE)

    def broken(*_):
        raise OSError("input/output error")

    monkeypatch.setattr(local_copies.os, "pread", broken)
    assert copies.get(handle(chk(1), LARGE)) is None


def test_closing_lets_go_of_everything(copies):
    copies.keep(chk(1), LARGE)
    copies.keep(chk(1, "b"), SMALL)
    copies.close()
    assert copies.get(handle(chk(1), LARGE)) is None
    assert copies.get(handle(chk(1, "b"), SMALL)) is None
    copies.keep(chk(1), LARGE)
    assert copies.get(handle(chk(1), LARGE)) is None


def test_what_is_being_copied_while_all_is_closed_is_let_go_of(copies, monkeypatch):
    honest, made = tempfile.TemporaryFile, []

    def late(**given):
        copies.close()
        made.append(honest(**given))
        return made[0]

    monkeypatch.setattr(tempfile, "TemporaryFile", late)
    copies.keep(chk(1), LARGE)
    assert made[0].closed
    assert copies.get(handle(chk(1), LARGE)) is None

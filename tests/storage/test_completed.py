from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import CorruptFile, InvariantError, StorageError
from penstock.core.ids import CheckpointId as Id
from penstock.core.ids import JobId
from penstock.core.recovery.layout import job_folder
from penstock.storage.completed import CompletedEntry, FileCompletedStore, checkpoint_ids
from penstock.storage.files import FileStore

JOB = job_folder(JobId("job"))
OTHER_JOB = job_folder(JobId("job-2"))
POINTER_7 = "job/completed/0000000000000000007"


class FailingStore(FileStore):
    """A store that is out of order for some calls."""

    def __init__(self, root, failing):
        super().__init__(root)
        self.failing = failing

    def write(self, path, data):
        if "write" in self.failing:
            raise StorageError(f"writing {path} failed")
        super().write(path, data)

    def delete(self, path):
        if "delete" in self.failing:
            raise StorageError(f"deleting {path} failed")
        super().delete(path)


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path)


@pytest.fixture
def completed(store):
    return FileCompletedStore(store, JOB)


def test_a_job_that_never_ran_has_no_checkpoints(completed):
    assert completed.load() == []


def test_checkpoints_come_back_by_id_and_not_by_time(completed):
    for i in (10, 9, 100, 2):
        completed.record(Id(i), f"data of {i}".encode())
    assert completed.load() == [CompletedEntry(Id(i), f"data of {i}".encode()) for i in (2, 9, 10, 100)]


def test_a_pointer_lies_where_the_layout_says(completed, store):
    completed.record(Id(7), b"")
    assert store.list_files("") == [POINTER_7]


def test_the_format_of_a_pointer_is_fixed(completed, store):
    completed.record(Id(7), b"abc")
    assert store.read(POINTER_7).hex() == "50434b50000100000000000000070000000000000003" + "8e703f968763ca8a" + "616263"


def test_forgotten_checkpoints_go_and_others_stay(completed):
    for i in (1, 2, 3):
        completed.record(Id(i), b"")
    completed.record(Id(4), b"", forget=[Id(2), Id(1), Id(77)])
    assert [entry.checkpoint for entry in completed.load()] == [3, 4]


def test_recording_again_does_no_harm(completed):
    completed.record(Id(1), b"first")
    completed.record(Id(1), b"again")
    assert completed.load() == [CompletedEntry(Id(1), b"again")]


def test_nothing_is_forgotten_before_the_next_one_is_durable(tmp_path):
    FileCompletedStore(FileStore(tmp_path), JOB).record(Id(1), b"kept")
    broken = FileCompletedStore(FailingStore(tmp_path, {"write"}), JOB)
    with pytest.raises(StorageError):
        broken.record(Id(2), b"", forget=[Id(1)])
    assert broken.load() == [CompletedEntry(Id(1), b"kept")]


def test_a_checkpoint_is_complete_even_if_the_old_one_could_not_be_forgotten(tmp_path):
    FileCompletedStore(FileStore(tmp_path), JOB).record(Id(1), b"old")
    broken = FileCompletedStore(FailingStore(tmp_path, {"delete"}), JOB)
    with pytest.raises(StorageError):
        broken.record(Id(2), b"new", forget=[Id(1)])
    assert [entry.checkpoint for entry in broken.load()] == [1, 2]


def test_a_checkpoint_cannot_be_recorded_and_forgotten_at_once(completed):
    with pytest.raises(InvariantError):
        completed.record(Id(1), b"", forget=[Id(1)])
    assert completed.load() == []


def test_a_removed_checkpoint_is_gone_and_removing_it_again_does_nothing(completed):
    completed.record(Id(1), b"")
    completed.remove(Id(1))
    completed.remove(Id(1))
    assert completed.load() == []


def test_jobs_do_not_see_each_other(completed, store):
    completed.record(Id(1), b"mine")
    other = FileCompletedStore(store, OTHER_JOB)
    assert other.load() == []
    other.remove(Id(1))
    assert completed.load() == [CompletedEntry(Id(1), b"mine")]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda c: b"", "is cut: it has only 0 bytes"),
        (lambda c: c[:29], "is cut: it has only 29 bytes"),
        (lambda c: c[:-1], "10 bytes of data instead of 11"),
        (lambda c: c + b"\0", "12 bytes of data instead of 11"),
        (lambda c: b"XCKP" + c[4:], "is not a pointer"),
        (lambda c: c[:4] + struct.pack(">H", 2) + c[6:], "format version 2; this program reads up to 1"),
        (lambda c: c[:-1] + b"\0", "was changed"),
        (lambda c: c[:29] + bytes([c[29] ^ 1]) + c[30:], "was changed"),
        (lambda c: c[:13] + b"\x08" + c[14:], "was changed"),
    ],
    ids=["empty", "cut header", "cut", "longer", "foreign", "newer", "data", "checksum", "id"],
)
def test_an_entry_that_cannot_be_read_is_an_error_and_not_left_out(completed, store, spoil, why):
    completed.record(Id(6), b"good")
    completed.record(Id(7), b"hello world")
    store.write(POINTER_7, spoil(store.read(POINTER_7)))
    with pytest.raises(CorruptFile, match=why) as caught:
        completed.load()
    assert POINTER_7 in caught.value.message
    assert caught.value.hint


def test_a_pointer_under_the_name_of_another_is_an_error(completed, store):
    completed.record(Id(7), b"hello")
    store.write("job/completed/0000000000000000008", store.read(POINTER_7))
    with pytest.raises(CorruptFile, match="0000000000000000008 was changed"):
        completed.load()


@pytest.mark.parametrize("folder", ["completed", "counter"])
@pytest.mark.parametrize("name", ["7", "notes.txt", "deeper/0000000000000000007"])
def test_a_foreign_file_among_them_is_an_error(store, folder, name):
    store.write(f"job/{folder}/{name}", b"x")
    with pytest.raises(CorruptFile, match=f"job/{folder}/{name} does not belong in folder job/{folder}"):
        FileCompletedStore(store, JOB).load() if folder == "completed" else checkpoint_ids(store, JOB).next()


def test_ids_begin_with_one(store):
    assert checkpoint_ids(store, JOB).next() == 1


def test_ids_go_on_after_a_change_of_driver(store):
    checkpoint_ids(store, JOB).advance(Id(5))
    assert checkpoint_ids(store, JOB).next() == 5
    assert checkpoint_ids(store, OTHER_JOB).next() == 1


def test_only_the_highest_number_is_kept(store):
    counter = checkpoint_ids(store, JOB)
    for i in (2, 3, 11):
        counter.advance(Id(i))
    assert store.list_files("") == ["job/counter/0000000000000000011"]


@settings(max_examples=25)
@given(steps=st.lists(st.integers(1, 50), max_size=8))
def test_the_counter_never_goes_back(tmp_path_factory, steps):
    store = FileStore(tmp_path_factory.mktemp("counter"))
    reached = 1
    for step in steps:
        checkpoint_ids(store, JOB).advance(Id(step))
        reached = max(reached, step)
        assert checkpoint_ids(store, JOB).next() == reached


def test_a_driver_that_lags_behind_cannot_pull_the_counter_back(tmp_path):
    """1. An old driver reads 3. 2. A new one moves on to 9. 3. The old one moves to 4, its deletes included."""
    old, new = (checkpoint_ids(FileStore(tmp_path), JOB) for _ in range(2))
    old.advance(Id(3))

    class Overtaken(FileStore):
        def write(self, path, data):
            new.advance(Id(9))
            super().write(path, data)

    checkpoint_ids(Overtaken(tmp_path), JOB).advance(Id(4))
    assert old.next() == new.next() == 9


def test_a_counter_that_could_not_be_written_stays(tmp_path):
    checkpoint_ids(FileStore(tmp_path), JOB).advance(Id(5))
    for failing in ("write", "delete"):
        with pytest.raises(StorageError):
            checkpoint_ids(FailingStore(tmp_path, {failing}), JOB).advance(Id(6))
        assert checkpoint_ids(FileStore(tmp_path), JOB).next() == (5 if failing == "write" else 6)

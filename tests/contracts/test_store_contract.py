"""What every `ports.Store` promises."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from penstock.core.errors import MissingFile, StorageError, UsageError
from penstock.core.recovery.layout import component


@pytest.mark.parametrize(
    "data",
    [b"bytes", b"", memoryview(b"a view"), bytearray(b"array"), pa.py_buffer(b"arrow")],
    ids=lambda d: str(type(d)),
)
def test_what_was_written_can_be_read(store, data):
    store.write("job/chk-1/file", data)
    assert store.read("job/chk-1/file") == bytes(data)


def test_a_large_file_comes_back_whole(store):
    data = bytes(range(256)) * 4096 * 20
    store.write("large", data)
    assert store.read("large") == data


@pytest.mark.parametrize("size", [0, 1, 40, 41, 16 * 1024 * 1024, 16 * 1024 * 1024 + 7])
def test_a_file_in_pieces_is_the_whole_file(store, size):
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    store.write("file", data)
    assert b"".join(store.read_pieces("file")) == data
    assert b"".join(store.read_pieces("file", limit=size)) == data


def test_of_a_file_that_is_too_large_or_not_there_no_piece_is_read(store):
    store.write("file", bytes(1_000))
    for path in ("file", "nothing"):
        with pytest.raises(StorageError, match=path):
            next(store.read_pieces(path, limit=900))


def test_writing_again_replaces_the_file(store):
    store.write("file", b"a long first version")
    store.write("file", b"short")
    assert store.read("file") == b"short"
    assert store.list_files("") == ["file"]


def test_what_is_changed_after_a_write_is_not_changed_in_the_file(store):
    data = bytearray(b"before")
    store.write("file", data)
    data[:] = b"after!"
    assert store.read("file") == b"before"


def test_reading_what_is_not_there_is_an_error(store):
    store.write("job/file", b"")
    for path in ("nothing", "job/nothing", "nothing/at/all"):
        with pytest.raises(MissingFile, match=path):
            store.read(path)
    with pytest.raises(StorageError, match="job"):
        store.read("job")


def test_files_are_listed_with_all_that_is_below_in_order(store):
    for path in ("job/b/2", "job/a", "job/b/1/x", "job-2/a", "jo", "job/B"):
        store.write(path, b"")
    assert store.list_files("job") == ["job/B", "job/a", "job/b/1/x", "job/b/2"]
    assert store.list_files("job/b") == ["job/b/1/x", "job/b/2"]
    assert store.list_files("") == ["jo", "job-2/a", "job/B", "job/a", "job/b/1/x", "job/b/2"]


def test_below_what_is_no_folder_there_is_nothing(store):
    assert store.list_files("") == []
    assert store.list_files("nothing/here") == []
    store.write("file", b"")
    assert store.list_files("file") == []


def test_deleting_a_file_leaves_the_others(store):
    store.write("job/a", b"a")
    store.write("job/b", b"b")
    store.delete("job/a")
    assert store.list_files("") == ["job/b"]


def test_deleting_a_folder_takes_all_below_and_nothing_beside(store):
    for path in ("chk-1/a", "chk-1/deep/er/b", "chk-11/a", "shared/a"):
        store.write(path, b"")
    store.delete_tree("chk-1")
    assert store.list_files("") == ["chk-11/a", "shared/a"]


def test_deleting_what_is_not_there_does_nothing(store):
    store.delete("nothing")
    store.delete_tree("nothing")
    store.write("file", b"kept")
    store.delete("file/below")
    store.delete_tree("file/below")
    store.delete_tree("file")
    assert store.read("file") == b"kept"


def test_a_deleted_folder_can_be_written_to_again(store):
    for content in (b"first", b"second"):
        store.write("job/chk-1/a", content)
        assert store.read("job/chk-1/a") == content
        store.delete_tree("job/chk-1")
    assert store.list_files("") == []


ODD_NAMES = [
    component(text) for text in ("..", ".hidden", "a b", "50%", "%2E", "ключ", "x" * 60, "a?b=c&d#e", "+", "\udcff")
]


@pytest.mark.parametrize("name", [*ODD_NAMES, "file.gz", "file.bz2", "a-0.lz4"])
def test_a_name_with_odd_characters_is_a_name_like_any_other(store, name):
    store.write(f"{name}/chk-1/{name}", b"content")
    assert store.read(f"{name}/chk-1/{name}") == b"content"
    assert store.list_files(name) == [f"{name}/chk-1/{name}"]
    store.delete(f"{name}/chk-1/{name}")
    assert store.list_files(name) == []
    store.write(f"{name}/chk-1/{name}", b"again")
    store.delete_tree(name)
    assert store.list_files("") == []


def test_writers_of_one_file_leave_the_whole_content_of_one_of_them(store):
    contents = [bytes([i]) * 200_000 for i in range(4)]
    writers = [threading.Thread(target=store.write, args=("job/file", content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert store.read("job/file") in contents
    assert store.list_files("") == ["job/file"]


def test_a_file_is_created_once_and_what_is_there_stays(creating_store):
    assert creating_store.obstacle_to_create() is None
    assert creating_store.create("job/file", b"first")
    assert not creating_store.create("job/file", b"second")
    creating_store.write("job/written", b"first")
    assert not creating_store.create("job/written", memoryview(b"second"))
    assert [creating_store.read(path) for path in creating_store.list_files("")] == [b"first", b"first"]
    creating_store.delete("job/file")
    assert creating_store.create("job/file", b"third")
    assert creating_store.read("job/file") == b"third"


def test_of_many_that_create_a_file_at_once_one_succeeds_and_its_content_is_there(creating_store):
    for number in range(5):
        path, start, succeeded = f"race/{number}", threading.Barrier(8), []

        def create(content, *, path=path, start=start, succeeded=succeeded):
            start.wait(60)
            if creating_store.create(path, content):
                succeeded.append(content)

        threads = [threading.Thread(target=create, args=(bytes([i]) * 1_000,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(succeeded) == 1
        assert creating_store.read(path) == succeeded[0]
    assert creating_store.list_files("") == [f"race/{number}" for number in range(5)]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_file_is_created_where_it_is_read_whatever_its_name(creating_store, name):
    assert creating_store.create(f"{name}/{name}", b"content")
    assert creating_store.list_files("") == [f"{name}/{name}"]
    assert creating_store.read(f"{name}/{name}") == b"content"


@pytest.mark.parametrize("path", ["../a", "a/../../b", "/etc/passwd", "", ".", "a//b", "a/", "a\0b"])
def test_a_path_that_could_leave_the_root_is_an_error(store, path):
    with pytest.raises((UsageError, StorageError)):
        store.read(path)

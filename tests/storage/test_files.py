"""What the store on a file system promises beyond `ports.Store`."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.errors import Retry, StorageError, UsageError
from penstock.storage.files import FileStore
from penstock.storage.seals import StoreOptions


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond `size`: writing fails half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def everything_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_root_is_made_when_it_is_needed(tmp_path):
    store = FileStore(tmp_path / "not" / "there")
    assert store.list_files("") == []
    store.delete("a")
    store.delete_tree("a")
    assert everything_below(tmp_path) == []
    store.write("job/a", b"x")
    assert (tmp_path / "not" / "there" / "job" / "a").read_bytes() == b"x"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    store = FileStore(tmp_path)
    store.write("job/a", b"old")
    with largest_file(4_096), pytest.raises(StorageError, match=r"writing .*/job/a failed: File too large"):
        store.write("job/a", b"new" * 10_000)
    assert store.read("job/a") == b"old"
    assert everything_below(tmp_path) == ["job", "job/a"]


def test_a_reader_sees_one_version_or_the_other_and_never_half_of_one(tmp_path):
    store = FileStore(tmp_path)
    versions = [bytes([i]) * 300_000 for i in range(2)]
    store.write("a", versions[0])
    done = threading.Event()
    torn: list[int] = []

    def read_on() -> None:
        while not done.is_set():
            if store.read("a") not in versions:
                torn.append(1)

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        for i in range(40):
            store.write("a", versions[i % 2])
    finally:
        done.set()
        reader.join()
    assert torn == []


def test_what_a_crashed_writer_left_is_not_listed_and_goes_with_its_folder(tmp_path):
    store = FileStore(tmp_path)
    store.write("chk-1/a", b"x")
    leftover = tmp_path / "chk-1" / ".writing-0123456789abcdef"
    leftover.write_bytes(b"half")
    assert store.list_files("") == ["chk-1/a"]
    assert store.list_temporary("") == ["chk-1/.writing-0123456789abcdef"]
    store.delete_tree("chk-1")
    assert everything_below(tmp_path) == []


def test_what_a_crashed_writer_left_can_be_removed_by_itself(tmp_path):
    store = FileStore(tmp_path)
    store.write("chk-1/a", b"x")
    for leftover in ("chk-1/.writing-1", ".writing-2"):
        (tmp_path / leftover).write_bytes(b"half")
        store.delete_temporary(leftover)
    assert everything_below(tmp_path) == ["chk-1", "chk-1/a"]


def test_a_folder_that_another_process_removed_is_made_again(tmp_path):
    mine, theirs = FileStore(tmp_path), FileStore(tmp_path)
    mine.write("job/chk-1/a", b"x")
    theirs.delete_tree("job")
    mine.write("job/chk-1/b", b"y")
    assert mine.list_files("") == ["job/chk-1/b"]


def test_more_folders_than_are_remembered_can_be_written_to(tmp_path):
    store = FileStore(tmp_path)
    for i in range(70):
        store.write(f"{i}/a", b"")
    store.write("0/b", b"")
    assert len(store.list_files("")) == 71


@pytest.mark.parametrize(
    "path",
    ["../a", "a/../../b", "/etc/passwd", "", ".", "..", "a/..", "a//b", "a/", "./a", "a/./b", "a\0b"],
)
def test_a_path_that_could_leave_the_root_is_refused(tmp_path, path):
    store = FileStore(tmp_path / "root")
    (tmp_path / "a").write_bytes(b"outside")
    calls = [store.read, store.delete, store.delete_tree, lambda p: store.write(p, b"x")]
    if path:
        calls.append(store.list_files)
    for call in calls:
        with pytest.raises(UsageError, match="is not a relative path below"):
            call(path)
    assert everything_below(tmp_path) == ["a"]


def test_a_name_that_would_be_taken_for_a_temporary_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="looks like a temporary file"):
        FileStore(tmp_path).write("job/.writing-x", b"")


def test_deleting_a_link_leaves_what_it_leads_to(tmp_path):
    store = FileStore(tmp_path / "root")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x")
    store.write("job/a", b"x")
    (tmp_path / "root" / "job" / "inner").symlink_to(outside)
    (tmp_path / "root" / "link").symlink_to(outside)
    store.delete_tree("job")
    store.delete_tree("link")
    assert everything_below(tmp_path) == ["outside", "outside/kept", "root"]


@pytest.mark.parametrize("call", [FileStore.write, FileStore.create])
def test_a_folder_that_cannot_be_made_is_not_said_to_have_been_deleted(call):
    # Nobody can make folders there, whoever asks; the error is that nothing is there.
    with pytest.raises(StorageError, match="No such file") as caught:
        call(FileStore("/proc/sp"), "job/_metadata", b"")
    assert caught.value.hint == "the folder of the file could not be made; choose another directory"


def test_a_missing_file_is_not_worth_another_try_and_the_error_says_so(tmp_path):
    with pytest.raises(StorageError) as caught:
        FileStore(tmp_path).read("job/chk-7/_metadata")
    assert str(tmp_path / "job/chk-7/_metadata") in caught.value.message
    assert "deleted by hand" in caught.value.hint
    assert caught.value.retry is Retry.NEVER
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        (lambda s: s.write("file/below", b""), "writing"),
        (lambda s: s.write("folder", b""), "writing"),
        (lambda s: s.read("folder"), "reading"),
        (lambda s: s.delete("folder"), "deleting"),
    ],
)
def test_a_file_or_folder_in_the_way_is_an_error_with_a_hint(tmp_path, call, action):
    store = FileStore(tmp_path)
    store.write("file", b"kept")
    store.write("folder/file", b"kept")
    with pytest.raises(StorageError, match=action) as caught:
        call(store)
    assert "in the way" in caught.value.hint
    assert everything_below(tmp_path) == ["file", "folder", "folder/file"]


def test_too_long_a_name_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(StorageError) as caught:
        FileStore(tmp_path).write("x" * 300, b"")
    assert "shorter names" in caught.value.hint


def test_a_lack_of_descriptors_may_pass(tmp_path):
    store = FileStore(tmp_path)
    store.write("a", b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest free descriptor is the next one to be given out.
    spare = os.open(tmp_path, os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        with pytest.raises(StorageError) as caught:
            store.read("a")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.__cause__.errno == errno.EMFILE
    assert caught.value.retry is Retry.LATER


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_that_is_not_writable_is_an_error_with_a_hint(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied") as caught:
        FileStore(tmp_path / "root").write("a", b"")
    assert "may read and write there" in caught.value.hint
    tmp_path.chmod(0o700)


def test_the_root_may_be_given_as_a_url(tmp_path):
    (tmp_path / "with blank").mkdir()
    FileStore(tmp_path / "with blank").write("a", b"x")
    for url in (f"file://{tmp_path}/with%20blank", f"file:{tmp_path}/with%20blank"):
        assert FileStore(url).read("a") == b"x"


def test_a_relative_root_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = FileStore("ckpt")
    monkeypatch.chdir("/")
    store.write("a", b"x")
    assert store.root == tmp_path / "ckpt"
    assert (tmp_path / "ckpt" / "a").is_file()


@pytest.mark.parametrize("root", ["s3://bucket/ckpt", "hdfs:/ckpt", "GS://x"])
def test_a_file_system_of_another_kind_is_refused(root):
    with pytest.raises(UsageError, match="is on a file system of kind"):
        FileStore(root)


@pytest.mark.parametrize("root", ["", "a\0b"])
def test_a_root_that_is_no_path_is_refused(root):
    with pytest.raises(UsageError, match="is not a directory"):
        FileStore(root)


@pytest.mark.parametrize(
    ("readable_by", "file", "folder"), [("owner", 0o600, 0o700), ("group", 0o640, 0o750), ("all", 0o644, 0o755)]
)
def test_written_files_can_be_read_by_whom_the_user_wants_and_by_default_by_nobody_else(
    tmp_path, readable_by, file, folder
):
    before = os.umask(0o002)
    try:
        options = StoreOptions(readable_by=readable_by) if readable_by != "owner" else StoreOptions()
        store = FileStore(tmp_path / "root", options=options)
        store.write("job/a", b"x")
        store.create("job/b", b"x")
        store.at(str(tmp_path / "root" / "saved")).write("c", b"x")
    finally:
        os.umask(before)
    for path in ("job/a", "job/b", "saved/c"):
        assert (tmp_path / "root" / path).stat().st_mode & 0o777 == file
    for path in ("job", "saved", "."):
        assert (tmp_path / "root" / path).stat().st_mode & 0o777 == folder


def test_a_full_path_is_found_below_the_root_by_whichever_name(tmp_path):
    (tmp_path / "real" / "job").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real-not").mkdir()
    store = FileStore(tmp_path / "link")
    for name in ("real", "link"):
        assert store.path_of(f"{tmp_path}/{name}/job/chk-1") == "job/chk-1"
    assert store.path_of(f"file://{tmp_path}/real/job") == "job"
    for elsewhere in (f"{tmp_path}/real-not/x", f"{tmp_path}/real", "s3://bucket/real/job", f"{tmp_path}/link/../x"):
        assert store.path_of(elsewhere) is None

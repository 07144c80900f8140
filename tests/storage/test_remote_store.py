"""What a store on a remote file system promises beyond `ports.Store`, against a real S3 server of this host."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from botocore.credentials import ReadOnlyCredentials
from botocore.session import Session
from pyarrow.fs import FileSystem, LocalFileSystem
from s3_server import S3Server

from penstock.core.errors import CorruptFile, InvariantError, Retry, StorageError, UsageError
from penstock.core.recovery import roots
from penstock.storage.exclusive import open_exclusive
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.remote import Connection, RemoteStore, connect_by_uri
from penstock.storage.seals import StoreOptions

LARGE = 24 * 1024 * 1024
"""Several parts."""


@pytest.fixture
def folder():
    return f"store/{uuid.uuid4()}"


@pytest.fixture
def store(s3, folder) -> RemoteStore:
    return open_store(s3.uri(folder))


# --- what is opened --------------------------------------------------------------------------------------------------


def test_a_root_decides_what_is_opened(tmp_path):
    assert isinstance(open_store(tmp_path), FileStore)
    assert isinstance(open_store(f"file://{tmp_path}"), FileStore)
    assert isinstance(open_store("s3://bucket/folder"), RemoteStore)
    assert isinstance(open_store("hdfs://name-node/folder"), RemoteStore)
    assert open_store(tmp_path / "x").location == str(tmp_path / "x")
    assert open_store("s3://bucket/x?scheme=http").location == "s3://bucket/x?scheme=http"
    with pytest.raises(UsageError, match="no file system is known by 'ftp'"):
        open_store("ftp://host/x")


def test_each_kind_of_store_leads_to_the_other(s3, store, tmp_path):
    store.at(str(tmp_path)).write("a", b"local")
    assert (tmp_path / "a").read_bytes() == b"local"
    open_store(tmp_path).at(store.location).write("a", b"remote")
    assert store.read("a") == b"remote"
    store.at(roots.below(store.location, "save")).write("_metadata", b"moved")
    assert store.list_files("save") == ["save/_metadata"]


def test_nothing_is_reached_before_the_first_call(tmp_path):
    made: list[str] = []

    def connect(root: str) -> Connection:
        made.append(root)
        files = LocalFileSystem()
        return Connection(files=files, small=files, path=str(tmp_path), renames=True)

    store = RemoteStore("hdfs://name-node/x", connect=connect)
    assert made == []
    assert store.list_files("") == store.list_files("x") == []
    assert made == ["hdfs://name-node/x"]


def test_a_store_is_not_sent_to_another_process():
    with pytest.raises(InvariantError, match="send the location"):
        pickle.dumps(RemoteStore("s3://bucket/folder"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_makes_its_own_connection(tmp_path):
    processes: list[int] = []

    def connect(_root: str) -> Connection:
        processes.append(os.getpid())
        files = LocalFileSystem()
        return Connection(files=files, small=files, path=str(tmp_path), renames=True)

    store = RemoteStore("hdfs://name-node/x", connect=connect)
    store.write("before", b"")
    child = os.fork()
    if child == 0:
        store.write("after", b"")
        os._exit(0 if processes == [os.getppid(), os.getpid()] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.list_files("") == ["after", "before"]


# --- whole or not at all ---------------------------------------------------------------------------------------------

WRITER = """
import sys
from penstock.storage.locations import open_store
store = open_store(sys.argv[1])
store.write("ready", b"")
store.write("job/chk-1/large", bytes(64 * 1024 * 1024))
"""


def test_a_writer_killed_in_the_middle_leaves_nothing_that_looks_complete(s3, store):
    """1. A writer uploads 64 MB. 2. When the server has its first parts, it is killed. 3. Nothing is left."""
    before = s3.uploads()
    s3.hold_parts()
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), store.location])
    try:
        while s3.parts_held() == 0:
            assert writer.poll() is None
        os.kill(writer.pid, signal.SIGKILL)
    finally:
        writer.kill()
        writer.wait()
        s3.release_parts()
    assert s3.uploads() == before + 1, "the upload was under way, and its parts are the bucket's to clean up"
    assert store.list_files("") == ["ready"]
    with pytest.raises(StorageError, match="does not exist"):
        store.read("job/chk-1/large")
    store.write("job/chk-1/large", b"whole")
    assert store.read("job/chk-1/large") == b"whole"


class FailingStream:
    """Takes part of what it is given, raises, and completes its upload when it is closed, as pyarrow's do."""

    def __init__(self, files: FileSystem, target: str) -> None:
        self._files = files
        self._target = target

    def write(self, data: pa.Buffer) -> None:
        raise OSError("out of memory")

    def close(self) -> None:
        with self._files.open_output_stream(self._target, compression=None) as stream:
            stream.write(b"part")


class FailingFiles:
    """A file system whose uploads break off."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    def open_output_stream(self, target: str, compression: str | None) -> FailingStream:
        assert compression is None
        return FailingStream(self._files, target)

    def __getattr__(self, name: str):
        return getattr(self._files, name)


def test_an_upload_that_breaks_off_inside_this_process_leaves_nothing(store):
    found = connect_by_uri(store.location)
    failing = FailingFiles(found.files)
    broken = RemoteStore(
        store.location, connect=lambda _: Connection(files=failing, small=failing, path=found.path, renames=False)
    )
    for size in (10, LARGE):
        with pytest.raises(StorageError, match="out of memory"):
            broken.write("job/file", bytes(size))
    assert store.list_files("") == []


def test_a_small_file_is_one_request_and_a_large_one_has_several_parts(s3, store, folder):
    sent: list[str] = []
    found = connect_by_uri(store.location)

    class Noting(FailingFiles):
        def __init__(self, files: FileSystem, name: str) -> None:
            super().__init__(files)
            self._name = name

        def open_output_stream(self, target: str, compression: str | None):
            sent.append(self._name)
            return self._files.open_output_stream(target, compression=compression)

    noting = Connection(
        files=Noting(found.files, "parts"), small=Noting(found.small, "one"), path=found.path, renames=False
    )
    store = RemoteStore(store.location, connect=lambda _: noting)
    store.write("small", b"x" * 1_000)
    store.write("large", bytes(LARGE))
    assert sent == ["one", "parts"]
    assert len(store.read("large")) == LARGE
    assert s3.keys().count(f"{folder}/large") == 1


def test_a_renaming_file_system_that_takes_no_name_twice_can_replace_a_file(tmp_path):
    class NoReplace(FailingFiles):
        def open_output_stream(self, target: str, compression: str | None):
            return self._files.open_output_stream(target, compression=compression)

        def move(self, source: str, target: str) -> None:
            if self._files.get_file_info(target).is_file:
                raise OSError("rename failed: the target exists")
            self._files.move(source, target)

    files = NoReplace(LocalFileSystem())
    store = RemoteStore(
        "hdfs://name-node/x", connect=lambda _: Connection(files=files, small=files, path=str(tmp_path), renames=True)
    )
    store.write("a", b"first")
    store.write("a", b"second")
    assert store.read("a") == b"second"
    (tmp_path / "folder" / "b").mkdir(parents=True)
    with pytest.raises(StorageError):
        store.write("folder/b", b"a folder is in the way")
    assert store.list_temporary("") == []


def test_what_a_killed_writer_left_on_a_renaming_file_system_is_not_listed_and_can_be_removed(tmp_path):
    files = LocalFileSystem()
    store = RemoteStore(
        "hdfs://name-node/x", connect=lambda _: Connection(files=files, small=files, path=str(tmp_path), renames=True)
    )
    store.write("chk-1/a", b"x")
    (tmp_path / "chk-1" / ".writing-1").write_bytes(b"half")
    assert store.list_files("") == ["chk-1/a"]
    assert store.list_temporary("") == ["chk-1/.writing-1"]
    store.delete_temporary("chk-1/.writing-1")
    assert store.list_temporary("") == []


# --- for one of several writers --------------------------------------------------------------------------------------


def test_what_is_created_is_sealed_like_what_is_written(store, s3, folder):
    sealed = open_store(s3.uri(folder), options=StoreOptions(seal=b"k" * 32))
    assert sealed.create("names/x", b"content")
    assert sealed.read("names/x") == b"content"
    assert store.create("names/y", b"content")
    with pytest.raises(CorruptFile, match="is not sealed"):
        sealed.read("names/y")


def test_it_is_tried_once_whether_a_file_can_be_created_and_the_trial_leaves_nothing(store):
    assert store.obstacle_to_create() is None
    assert store.obstacle_to_create() is None
    assert store.list_files("") == store.list_temporary("") == []


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [("ignored", "does not heed If-None-Match"), ("refused", "refuses uploads with a condition")],
)
def test_a_server_that_does_not_know_conditions_is_found_out_and_creates_nothing(s3, conditions, reason):
    """Everybody would be the first there."""
    server = S3Server(conditions=conditions)
    try:
        store = open_store(server.uri("x"))
        assert reason in (store.obstacle_to_create() or "")
        with pytest.raises(StorageError, match=reason) as caught:
            store.create("names/x", b"mine")
        assert "ZooKeeper" in caught.value.hint
        assert store.list_files("") == store.list_temporary("") == []
    finally:
        server.close()


def test_without_the_extra_nothing_is_created_and_it_is_named(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert store.obstacle_to_create() == "the extra object-storage is not installed"
    with pytest.raises(StorageError, match="the extra object-storage is not installed") as caught:
        store.create("names/x", b"")
    assert "install penstock[object-storage]" in caught.value.hint


@pytest.mark.parametrize("root", ["s3://bucket/x?force_virtual_addressing=true", "gs://bucket/x?endpoint_override=h"])
def test_a_uri_that_only_one_of_the_two_clients_understands_is_an_obstacle(root):
    assert "in the URI" in str(open_exclusive(root, None, "bucket"))


def test_what_is_renamed_cannot_be_created(tmp_path):
    files = LocalFileSystem()
    connection = Connection(files=files, small=files, path=str(tmp_path), renames=True)
    assert RemoteStore("hdfs://name-node/x", connect=lambda _: connection).obstacle_to_create() is not None
    assert "hdfs" in str(open_exclusive("hdfs://name-node/x", files, ""))


def test_an_error_of_the_second_client_says_what_those_of_the_first_say(s3, folder):
    create = open_exclusive(s3.uri(folder), FileSystem.from_uri(s3.uri(folder))[0], "no-such-bucket")
    assert not isinstance(create, str)
    found = connect_by_uri(s3.uri(folder))
    store = RemoteStore(s3.uri(folder), connect=lambda _: replace(found, exclusive=lambda: create))
    with pytest.raises(StorageError, match="NoSuchBucket") as caught:
        store.create("names/x", b"")
    assert caught.value.retry is Retry.NEVER
    assert "make the bucket" in caught.value.hint
    assert "Debug source" not in caught.value.message
    assert store.list_temporary("") == []


def test_credentials_are_asked_for_at_every_upload_so_that_new_ones_count(s3, store, monkeypatch):
    asked: list[str] = []

    class Renewed:
        def get_frozen_credentials(self):
            asked.append("")
            return ReadOnlyCredentials("testing", "testing", None)

    monkeypatch.setattr(Session, "get_credentials", lambda _self: Renewed())
    for number in range(3):
        assert store.create(f"names/{number}", b"")
    assert len(asked) >= 3


@pytest.mark.slow
def test_a_server_that_is_down_is_not_taken_for_one_that_cannot_create(s3, store):
    """Else the job would start over."""
    assert store.obstacle_to_create() is None
    s3.stop()
    try:
        with pytest.raises(StorageError) as caught:
            store.create("names/x", b"")
        with pytest.raises(StorageError):
            open_store(store.location).obstacle_to_create()
    finally:
        s3.start()
    assert caught.value.retry is Retry.LATER
    assert "the server is up" in caught.value.hint
    assert store.create("names/x", b"")


# --- many at once ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_files_than_one_answer_of_the_server_holds_are_listed_and_deleted(store):
    paths = sorted(f"job/chk-1/{i}" for i in range(1_300))

    def write(mine: list[str]) -> None:
        for path in mine:
            store.write(path, b"")

    writers = [threading.Thread(target=write, args=(paths[i::4],)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert store.list_files("job") == paths
    store.delete_tree("job/chk-1")
    assert store.list_files("") == []


def test_writers_of_large_files_do_not_disturb_each_other(store):
    contents = {f"job/{i}": bytes([i]) * (LARGE + i) for i in range(3)}
    writers = [threading.Thread(target=store.write, args=item) for item in contents.items()]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {path: store.read(path) for path in store.list_files("")} == contents


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_that_is_down_may_come_back_and_the_store_goes_on(s3, store):
    store.write("job/a", b"before")
    s3.stop()
    try:
        with pytest.raises(StorageError, match=r"[Cc]ould not connect") as caught:
            store.write("job/b", b"lost")
    finally:
        s3.start()
    assert caught.value.retry is Retry.LATER
    assert "the server is up" in caught.value.hint
    store.write("job/b", b"after")
    assert store.read("job/a") == b"before"
    assert store.list_files("") == ["job/a", "job/b"]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.write("a", b""),
        lambda s: s.write("a", bytes(LARGE)),
        lambda s: s.list_files(""),
        lambda s: s.delete_tree("a"),
        lambda s: s.create("a", b""),
    ],
)
def test_a_bucket_that_is_not_there_is_named_with_what_to_do(s3, call):
    store = open_store(s3.uri("x").replace("//bucket/", "//no-such-bucket/"))
    with pytest.raises(StorageError, match="no-such-bucket") as caught:
        call(store)
    assert "make the bucket" in caught.value.hint
    assert caught.value.retry is Retry.NEVER


def test_a_missing_file_is_not_worth_another_try(store):
    with pytest.raises(StorageError) as caught:
        store.read("job/chk-7/_metadata")
    assert roots.shown(roots.below(store.location, "job/chk-7/_metadata")) in caught.value.message
    assert "deleted by hand" in caught.value.hint
    assert caught.value.retry is Retry.NEVER
    assert "endpoint_override" not in caught.value.message


@pytest.fixture
def strict_server():
    server = S3Server(allows=2)
    yield server
    server.close()


def test_credentials_that_are_not_accepted_are_an_error_with_a_hint(s3, strict_server):
    store = open_store(strict_server.uri("x"))
    store.write("a", b"the last one that was let through")
    for call in (lambda: store.write("a", b""), lambda: store.read("a"), lambda: store.delete_tree("a")):
        with pytest.raises(StorageError) as caught:
            call()
        assert "credentials in the environment" in caught.value.hint
        assert caught.value.retry is Retry.NEVER


@pytest.mark.slow
def test_a_server_that_speaks_no_https_is_an_error_with_a_hint(s3):
    with pytest.raises(StorageError) as caught:
        open_store(s3.uri("x", scheme="https")).read("a")
    assert "does not speak https" in caught.value.hint


def test_an_option_that_nobody_knows_is_the_callers_fault(s3):
    with pytest.raises(UsageError, match="nonsense") as caught:
        open_store(s3.uri("x", nonsense="1")).read("a")
    assert "from_uri" in caught.value.hint


def test_without_hadoop_hdfs_is_refused_with_what_is_missing(monkeypatch, tmp_path):
    for name in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    with pytest.raises(StorageError) as caught:
        open_store("hdfs://127.0.0.1:1/x").list_files("")
    assert len(caught.value.message.splitlines()) == 1
    assert "HADOOP_HOME" in caught.value.hint
    assert caught.value.retry is Retry.NEVER


def test_a_uri_is_found_below_the_root_whatever_its_options():
    store = RemoteStore("s3://bucket/base?region=eu")
    assert store.path_of("s3://bucket/base/job/chk-1?region=eu") == "job/chk-1"
    assert store.path_of("s3://bucket/base/a%25b") == "a%b"
    assert store.path_of("s3://bucket/baseed/job") is None
    assert store.path_of("/folder/job") is None

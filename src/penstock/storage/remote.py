"""The store on a file system that `pyarrow.fs` reaches by a URI: S3, Google Cloud Storage, HDFS, Azure.

There are two kinds of such file systems. Each kind has its own way to show a whole file or no file:

* **Object stores** (S3, Google Cloud Storage). An object appears when its upload is completed, and replaces an object
  of the same name at that moment. A small file is one request. A large file is uploaded in parts. The parts of an
  upload that was never completed are not listed; the bucket's own rule for unfinished uploads deletes them.
* **Renaming** file systems (HDFS, Azure). A file is visible while it is being written, so the file is written under a
  temporary name, as in `storage.files`, and then renamed. To replace an existing file may take two steps.

The connection is made when it is first used, in the process that uses it: a connection has threads, which do not
survive a fork. To `create` a file needs a second connection (`storage.exclusive`), which is tried out before it is
relied upon.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.core.errors import InvariantError, MissingFile, Retry, StorageError, UsageError
from penstock.core.recovery import roots
from penstock.ports import Frame, Store
from penstock.storage.exclusive import EXTRA, Create, Unsupported, open_exclusive
from penstock.storage.paths import check_path, is_temporary, temporary_name
from penstock.storage.seals import PLAIN, SEAL_BYTES, StoreOptions

# Well below the size from which pyarrow uploads in parts.
_ONE_REQUEST_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 16 * 1024 * 1024
_ONE_REQUEST_OPTION = "allow_delayed_open=true"


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A file system, and the path of the root in the file system."""

    files: Any
    small: Any
    """The same file system, for files of one request: an upload does not begin before the file is complete. Larger
    files must not be written in this way: if the upload of a larger file could not begin, an empty object might be
    left."""
    path: str
    """The path of the root, without a slash at its end."""
    renames: bool
    """Whether a file is visible while it is being written."""
    exclusive: Callable[[], Create | str] = lambda: "the file system does not say which writer was first"
    """Returns the function that creates an object for one of several writers; or, if there is no such function, a text
    that says why. The key of an object is its path without the first part, which is the bucket."""


class RemoteStore:
    """Files below `root`, a URI. Implements `ports.Store`.

    May be used from several threads at once. After a fork the store connects again. The store cannot be pickled.
    """

    def __init__(
        self,
        root: str,
        *,
        opener: Callable[[str], Store] | None = None,
        connect: Callable[[str], Connection] | None = None,
        options: StoreOptions = PLAIN,
    ) -> None:
        """`opener` makes the stores that `at` returns; without an `opener`, `at` returns a `RemoteStore`."""
        problem = roots.problem_with(root)
        if problem is not None:
            raise UsageError(problem)
        self._root = root
        self.options = options
        self._open = opener or partial(RemoteStore, options=options)
        self._connect = connect or connect_by_uri
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._exclusive: Create | str | None = None
        self._process = 0

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvariantError("a store cannot be sent to another process; send the location, and open the store there")

    @property
    def location(self) -> str:
        """The root as it was given."""
        return self._root

    def at(self, root: str) -> Store:
        """The files below another root."""
        return self._open(root)

    def path_of(self, place: str) -> str | None:
        """The path, below this root, of a file or folder that has a URI; None if the file or folder lies elsewhere. The
        options of the URIs are ignored."""
        return roots.inside(self._root, place)

    def names(self, place: str) -> str | None:
        """The same as `path_of`: there are no links."""
        return self.path_of(place)

    def followed(self, place: str) -> str:
        """The place itself: there are no links."""
        return place

    def write(self, path: str, data: Frame) -> None:
        """Create or replace a file, all or nothing. The file is durable when the call returns."""
        self._check(path)
        with self._translated("writing", path):
            connection = self._connected()
            seal = self.options.seal_of(data)
            content = pa.py_buffer(b"".join((data, seal)) if seal else data)
            if connection.renames:
                _write_and_rename(connection.files, f"{connection.path}/{path}", content)
            else:
                files = connection.small if content.size <= _ONE_REQUEST_BYTES else connection.files
                _upload(files, f"{connection.path}/{path}", content)

    def create(self, path: str, data: Frame) -> bool:
        """Create a file, all or nothing, unless the file exists. The file is durable when the call returns. Always
        raises `StorageError` if there is an `obstacle_to_create`."""
        self._check(path)
        obstacle = self.obstacle_to_create()
        if obstacle is not None:
            raise StorageError(
                f"{roots.shown(self._root)} cannot let only one of several writers create {path}: {obstacle}",
                hint=f"install penstock[{EXTRA}] for S3 and Google Cloud Storage; or keep the records of jobs that "
                "outlive their driver in ZooKeeper, or in a folder that is mounted",
            )
        with self._translated("creating", path):
            connection = self._connected()
            return _created(self._exclusive, f"{connection.path}/{path}", b"".join((data, self.options.seal_of(data))))

    def obstacle_to_create(self) -> str | None:
        """Why a file cannot be created for one of several writers only; None if there is no obstacle. The answer is
        found out once per connection, with a file for this purpose: a service that ignores the condition would let
        every writer be the first. Raises `StorageError`, also if this process cannot write to the store at all."""
        with self._translated("writing", ""):
            connection = self._connected()
            if self._exclusive is None:
                found = connection.exclusive()
                self._exclusive = found if isinstance(found, str) else _tried(found, connection)
            return self._exclusive if isinstance(self._exclusive, str) else None

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file. Raises `StorageError`, and reads nothing, if the file has more than `limit` bytes. Raises
        `MissingFile` if the file does not exist."""
        self._check(path)
        with self._translated("reading", path):
            connection = self._connected()
            with connection.files.open_input_file(f"{connection.path}/{path}") as file:
                _check_size(file, limit)
                content: bytes = file.read()
        return self.options.opened(content, roots.shown(roots.below(self._root, path)))

    def read_pieces(self, path: str, *, limit: int | None = None) -> Iterator[bytes]:
        """The file in pieces, of which one is in memory at a time. Raises like `read`; a wrong seal raises after the
        last piece."""
        self._check(path)
        with self._translated("reading", path):
            connection = self._connected()
            with connection.files.open_input_file(f"{connection.path}/{path}") as file:
                _check_size(file, limit)
                pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
                yield from self.options.opened_pieces(pieces, roots.shown(roots.below(self._root, path)))

    def list_files(self, prefix: str) -> list[str]:
        """All files below a folder, sorted; empty if there is no such folder. The empty prefix is the root."""
        return [path for path in self._list(prefix) if not is_temporary(path)]

    def list_temporary(self, prefix: str) -> list[str]:
        """The temporary files below a folder, sorted, as far as unfinished files are visible. A writer is at work on
        such a file, or was interrupted."""
        return [path for path in self._list(prefix) if is_temporary(path)]

    def delete(self, path: str) -> None:
        """Remove one file. Nothing happens if the file does not exist."""
        self._check(path)
        self._delete(path)

    def delete_temporary(self, path: str) -> None:
        """Remove a temporary file that an interrupted writer left."""
        self._delete(path)

    def delete_tree(self, prefix: str) -> None:
        """Remove a folder with all its content. Nothing happens if the folder does not exist."""
        self._check(prefix)
        with self._translated("deleting", prefix):
            connection = self._connected()
            target = f"{connection.path}/{prefix}"
            try:
                connection.files.delete_dir(target)
            except (FileNotFoundError, NotADirectoryError):
                return
            except OSError:
                if not connection.files.get_file_info(target).is_file:
                    raise

    def delete_empty(self, prefix: str) -> None:
        """Remove a folder, if the folder is empty. Nothing happens if the folder is not empty or does not exist."""
        if not self._list(prefix):
            self.delete_tree(prefix)

    def _delete(self, path: str) -> None:
        with self._translated("deleting", path):
            connection = self._connected()
            with suppress(FileNotFoundError, NotADirectoryError):
                connection.files.delete_file(f"{connection.path}/{path}")

    def _list(self, prefix: str) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        if prefix:
            self._check(prefix)
        with self._translated("listing", prefix):
            connection = self._connected()
            folder = f"{connection.path}/{prefix}" if prefix else connection.path
            try:
                found = connection.files.get_file_info(FileSelector(folder, recursive=True))
            except (FileNotFoundError, NotADirectoryError):
                return []
            except OSError:
                if prefix and connection.files.get_file_info(folder).is_file:
                    return []
                raise
            start = f"{connection.path}/"
            return sorted(info.path.removeprefix(start) for info in found if info.type == FileType.File)

    def _check(self, path: str) -> None:
        check_path(path, roots.shown(self._root))

    def _connected(self) -> Connection:
        with self._lock:
            if self._connection is None or self._process != os.getpid():
                self._connection, self._exclusive = self._connect(self._root), None
                self._process = os.getpid()
            return self._connection

    @contextmanager
    def _translated(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            where = roots.shown(roots.below(self._root, path) if path else self._root)
            # The first line has the facts. The further lines of HDFS name every place where Java was looked for.
            text = str(error).strip().partition("\n")[0]
            hint, retry = _explain(error, text)
            kind = MissingFile if action == "reading" and isinstance(error, FileNotFoundError) else StorageError
            raise kind(f"{action} {where} failed: {text}", hint=hint, retry=retry) from error


def connect_by_uri(root: str) -> Connection:
    """Connect to the file system of a URI, with credentials from the environment. A request may be sent, to find out
    where a bucket is."""
    from pyarrow.fs import FileSystem

    scheme = roots.scheme_of(root)
    try:
        files, path = FileSystem.from_uri(root)
    except (ValueError, NotImplementedError) as error:
        raise UsageError(
            f"{roots.shown(root)} cannot be used: {error}",
            hint="see pyarrow.fs.FileSystem.from_uri for what a URI may say, and whether this pyarrow knows such URIs",
        ) from error
    small = files
    if scheme == "s3":
        # A pyarrow that does not know the option takes three requests instead of one.
        with suppress(ValueError):
            small, _ = FileSystem.from_uri(f"{root}{'&' if '?' in root else '?'}{_ONE_REQUEST_OPTION}")
    return Connection(
        files=files,
        small=small,
        path=path.rstrip("/"),
        renames=scheme not in roots.OBJECT_STORES,
        exclusive=partial(open_exclusive, root, files, path.partition("/")[0]),
    )


def _check_size(file: Any, limit: int | None) -> None:
    if limit is not None and file.size() > limit + SEAL_BYTES:
        raise OSError(f"it has {file.size()} bytes, and at most {limit} are expected")


def _tried(create: Create, connection: Connection) -> Create | str:
    """The given function, if it does not create a file that exists; otherwise a text that says why the function is of
    no use."""
    target = f"{connection.path}/{temporary_name()}"
    _upload(connection.small, target, pa.py_buffer(b""))
    try:
        if _created(create, target, b""):
            return "the service does not heed If-None-Match, or obstore and pyarrow do not reach the same files"
    except Unsupported as error:
        return f"the service refuses uploads with a condition ({error})"
    finally:
        with suppress(FileNotFoundError):
            connection.files.delete_file(target)
    return create


def _created(create: Create | str | None, target: str, data: bytes) -> bool:
    if create is None or isinstance(create, str):
        raise InvariantError(
            "a file was to be created in a store that cannot let only one of several writers create a file"
        )
    return create(target.partition("/")[2], data)


def _upload(files: Any, target: str, content: pa.Buffer) -> None:
    # Without `compression=None` a name that ends in .gz would have its content compressed.
    stream = files.open_output_stream(target, compression=None)
    try:
        stream.write(content)
    except BaseException:
        # A stream is closed at the latest when it is garbage-collected, and to close a stream completes its upload with
        # the bytes written so far. So the stream is closed here, where the object can be deleted.
        with suppress(OSError, pa.ArrowException):
            stream.close()
        with suppress(OSError, pa.ArrowException):
            files.delete_file(target)
        raise
    # If the upload has failed, `close` raises, and there is no object.
    stream.close()


def _write_and_rename(files: Any, target: str, content: pa.Buffer) -> None:
    folder = target.rpartition("/")[0]
    files.create_dir(folder, recursive=True)
    temporary = f"{folder}/{temporary_name()}"
    try:
        with files.open_output_stream(temporary, compression=None) as stream:
            stream.write(content)
        try:
            files.move(temporary, target)
        except OSError:
            # Some file systems do not rename a file to a name that is taken.
            if not files.get_file_info(target).is_file:
                raise
            files.delete_file(target)
            files.move(temporary, target)
    except BaseException:
        with suppress(OSError, pa.ArrowException):
            files.delete_file(temporary)
        raise


_CREDENTIALS = "see that the credentials in the environment of this process may list, read, write and delete there"
_REASONS: tuple[tuple[str, str, Retry], ...] = (
    (
        r"NO_SUCH_BUCKET|NoSuchBucket|Bucket '.*' not found|bucket does not exist",
        "make the bucket, or correct its name, region and endpoint_override in the URI",
        Retry.NEVER,
    ),
    (
        r"EXPIRED_TOKEN|ExpiredToken|REQUEST_TIME_TOO_SKEWED",
        "renew the credentials, and see that the clock is right",
        Retry.LATER,
    ),
    (
        r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|(HTTP status|status code:) 40[13]",
        _CREDENTIALS,
        Retry.NEVER,
    ),
    (
        r"curlCode: (35|60|77)\b|SSL",
        "the server does not speak https as expected; check endpoint_override, scheme and certificates",
        Retry.NEVER,
    ),
    (
        r"NETWORK_CONNECTION|curlCode|error sending|REQUEST_TIMEOUT|onnection re(fused|set)|[Tt]imed out|UNAVAILABLE",
        "see that the server is up and that endpoint_override and scheme in the URI are right",
        Retry.LATER,
    ),
    (
        r"SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|(HTTP status|status code:) 5\d\d",
        "the service is overloaded or out of order; wait until the service works again",
        Retry.LATER,
    ),
    (
        r"libjvm|libhdfs",
        "HDFS needs Java and Hadoop's client: set JAVA_HOME, HADOOP_HOME, ARROW_LIBHDFS_DIR and CLASSPATH for pyarrow",
        Retry.NEVER,
    ),
)


def _explain(error: Exception, text: str) -> tuple[str, Retry]:
    if isinstance(error, FileNotFoundError):
        return "the file or folder may have been deleted by hand, or may belong to another directory", Retry.NEVER
    for pattern, hint, retry in _REASONS:
        if re.search(pattern, text):
            return hint, retry
    return "see whether the storage service works", Retry.LATER

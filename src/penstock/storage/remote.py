"""The store on a file system that `pyarrow.fs` reaches by a URI: S3, Google Cloud Storage, HDFS, Azure.

There are two kinds, and each has its own way of showing a file whole or not at all:

* **Object stores** (S3, Google Cloud Storage). An object appears when its upload is completed, and replaces the one of
  the same name at that moment. A small file is one request. A large one is uploaded in parts; parts of an upload that
  was never completed are listed nowhere, and go by the bucket's own rule for unfinished uploads.
* **Renaming** file systems (HDFS, Azure). A file grows where everybody can see it, so it is written under a temporary
  name, as in `storage.files`, and renamed. Replacing a file that is there may take two steps.

The connection is made when it is first used, in the process that uses it: what it is made of has threads, which do not
survive a fork. To `create` a file needs a second one (`storage.exclusive`), which is tried before it is believed.
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

from penstock.core.errors import InvariantError, Retry, StorageError, UsageError
from penstock.core.recovery import roots
from penstock.ports import Frame, Store
from penstock.storage.exclusive import EXTRA, Create, Unsupported, open_exclusive
from penstock.storage.paths import check_path, is_temporary, temporary_name
from penstock.storage.seals import PLAIN, SEAL_BYTES, StoreOptions

# Well below the size from which pyarrow uploads in parts.
_ONE_REQUEST_BYTES = 4 * 1024 * 1024
_ONE_REQUEST_OPTION = "allow_delayed_open=true"


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A file system, and where in it the root is."""

    files: Any
    small: Any
    """The same, for files of one request. It does not begin an upload before the file is complete; if a larger file
    went that way and its upload could not begin, an empty object might be left."""
    path: str
    """Of the root, without a slash at its end."""
    renames: bool
    """Whether a file is visible while it is being written."""
    exclusive: Callable[[], Create | str] = lambda: "nothing there says who was first"
    """Opens what creates objects for one of several writers; or says why there is nothing of the kind. Keys are paths
    without the bucket, their first part."""


class RemoteStore:
    """Files below `root`, a URI. Implements `ports.Store`.

    May be used from several threads at once; after a fork it connects again. It cannot be pickled.
    """

    def __init__(
        self,
        root: str,
        *,
        opener: Callable[[str], Store] | None = None,
        connect: Callable[[str], Connection] | None = None,
        options: StoreOptions = PLAIN,
    ) -> None:
        """`opener` makes the stores of `at`; without it they are of this kind."""
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
        raise InvariantError("a store belongs to its process; send its location and open it there")

    @property
    def location(self) -> str:
        """The root as it was given."""
        return self._root

    def at(self, root: str) -> Store:
        """The files below another root."""
        return self._open(root)

    def path_of(self, place: str) -> str | None:
        """The path, below this root, of what has a URI; None if it lies elsewhere. Options of the URIs are not looked
        at."""
        return roots.inside(self._root, place)

    def names(self, place: str) -> str | None:
        """The same: there are no links."""
        return self.path_of(place)

    def followed(self, place: str) -> str:
        """The place as it is: there are no links."""
        return place

    def write(self, path: str, data: Frame) -> None:
        """Create or replace a file, all or nothing; durable when it returns."""
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
        """Create a file, all or nothing, unless there is one; durable when it returns. Always raises if
        `obstacle_to_create` says something."""
        self._check(path)
        obstacle = self.obstacle_to_create()
        if obstacle is not None:
            raise StorageError(
                f"{roots.shown(self._root)} cannot create {path} for one of several writers only: {obstacle}",
                hint=f"install penstock[{EXTRA}] for S3 and Google Cloud Storage; or keep the records of jobs that "
                "outlive their driver in ZooKeeper, or in a folder that is mounted",
            )
        with self._translated("creating", path):
            connection = self._connected()
            return _created(self._exclusive, f"{connection.path}/{path}", b"".join((data, self.options.seal_of(data))))

    def obstacle_to_create(self) -> str | None:
        """Why a file cannot be created for one of several writers only; None if it can. Tried once, with a file of its
        own: a service that does not know of conditions would let everybody be the first. Raises `StorageError`, also
        for who cannot write there at all."""
        with self._translated("writing", ""):
            connection = self._connected()
            if self._exclusive is None:
                found = connection.exclusive()
                self._exclusive = found if isinstance(found, str) else _tried(found, connection)
            return self._exclusive if isinstance(self._exclusive, str) else None

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file; one with more than `limit` bytes is not read, and raises `StorageError`."""
        self._check(path)
        with self._translated("reading", path):
            connection = self._connected()
            with connection.files.open_input_file(f"{connection.path}/{path}") as file:
                if limit is not None and file.size() > limit + SEAL_BYTES:
                    raise OSError(f"it has {file.size()} bytes, and at most {limit} are expected")
                content: bytes = file.read()
        return self.options.opened(content, roots.shown(roots.below(self._root, path)))

    def list_files(self, prefix: str) -> list[str]:
        """All files below a folder, sorted; none if there is no such folder. The empty prefix is the root."""
        return [path for path in self._list(prefix) if not is_temporary(path)]

    def list_temporary(self, prefix: str) -> list[str]:
        """What interrupted writers left below a folder, sorted, as far as it can be seen."""
        return [path for path in self._list(prefix) if is_temporary(path)]

    def delete(self, path: str) -> None:
        """Remove one file; nothing happens if it is not there."""
        self._check(path)
        self._delete(path)

    def delete_temporary(self, path: str) -> None:
        """Remove what an interrupted writer left."""
        self._delete(path)

    def delete_tree(self, prefix: str) -> None:
        """Remove a folder with all that is in it; nothing happens if it is not there."""
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
        """Remove a folder, if nothing is in it; nothing happens if something is, or it is not there."""
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
            # The first line has the facts; HDFS goes on with every place where it looked for Java.
            text = str(error).strip().partition("\n")[0]
            hint, retry = _explain(error, text)
            raise StorageError(f"{action} {where} failed: {text}", hint=hint, retry=retry) from error


def connect_by_uri(root: str) -> Connection:
    """Reach the file system of a URI, with credentials from the environment. May ask the network where a bucket is."""
    from pyarrow.fs import FileSystem

    scheme = roots.scheme_of(root)
    try:
        files, path = FileSystem.from_uri(root)
    except (ValueError, NotImplementedError) as error:
        raise UsageError(
            f"{roots.shown(root)} cannot be used: {error}",
            hint="see pyarrow.fs.FileSystem.from_uri for what a URI may say, and whether this pyarrow was built for it",
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


def _tried(create: Create, connection: Connection) -> Create | str:
    """What creates files, if it does not create one that is there; else why it is of no use."""
    target = f"{connection.path}/{temporary_name()}"
    _upload(connection.small, target, pa.py_buffer(b""))
    try:
        if _created(create, target, b""):
            return "the service does not heed If-None-Match, or has another file of that name for another client"
    except Unsupported as error:
        return f"the service refuses uploads with a condition ({error})"
    finally:
        with suppress(FileNotFoundError):
            connection.files.delete_file(target)
    return create


def _created(create: Create | str | None, target: str, data: bytes) -> bool:
    if create is None or isinstance(create, str):
        raise InvariantError("a file was to be created where that is not possible")
    return create(target.partition("/")[2], data)


def _upload(files: Any, target: str, content: pa.Buffer) -> None:
    # Without `compression=None` a name that ends in .gz would have its content compressed.
    stream = files.open_output_stream(target, compression=None)
    try:
        stream.write(content)
    except BaseException:
        # The stream is closed at the latest when it is collected, and closing completes the upload with what it was
        # given so far. So it is closed here, where what it may have left can be removed.
        with suppress(OSError, pa.ArrowException):
            stream.close()
        with suppress(OSError, pa.ArrowException):
            files.delete_file(target)
        raise
    # If the upload failed this raises, and there is no object.
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
            # Some of them rename to no name that is taken.
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
        "the service is overloaded or in trouble; it may pass",
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
        return "it may have been deleted by hand, or belong to another directory", Retry.NEVER
    for pattern, hint, retry in _REASONS:
        if re.search(pattern, text):
            return hint, retry
    return "see whether the storage service is well", Retry.LATER

"""Signs of life of the drivers of a job: a file for each term, which the driver of that term changes all the time.

In a folder the file is locked, too. The lock goes with the driver: other processes of the driver's host notice at once
that the driver has died. Other hosts do not rely on the lock, and object stores have no locks: there a driver is alive
if its lease changes.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from penstock.core.errors import StorageError
from penstock.core.ids import Term
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.descents import make_folders, opened_folder, read_regular, unlink
from penstock.ports import Store
from penstock.storage.files import FileStore

_LONGEST_LEASE = 4_096
_NO_SURPRISES = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""No link is followed, and no pipe waited for."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


class Lease(Protocol):
    """The lease of the driver that calls. Calls block."""

    def show(self, sign: bytes) -> None:
        """Change the content of the lease to `sign`. Raises `StorageError`."""
        ...

    def close(self) -> None:
        """Let go of the lease."""
        ...


class Leases(Protocol):
    """The leases of one job. Calls block, and raise `StorageError`."""

    looks_are_free: bool
    """Whether a look at a lease costs next to nothing, so that waiting drivers may look all the time."""

    def content(self, term: Term) -> bytes:
        """The content of a lease; empty if the lease does not exist, because its owner has just claimed the term, or
        died before the first sign of life."""
        ...

    def is_let_go(self, term: Term, content: bytes) -> bool:
        """Whether it is certain that the owner of the lease is gone. `content` is the content of the lease."""
        ...

    def is_held(self, term: Term, content: bytes) -> bool:
        """Whether it is certain that the owner of the lease is alive. `content` is the content of the lease."""
        ...

    def open(self, term: Term) -> Lease:
        """Create the lease of a term that the caller has claimed. The leases of earlier terms are deleted."""
        ...


def leases_of(store: Store, job: JobFolder) -> Leases:
    """The leases of a job, of the kind that the store can have."""
    return LockedLeases(store, job) if isinstance(store, FileStore) else StoredLeases(store, job)


# --- in a store ------------------------------------------------------------------------------------------------------


class StoredLeases:
    """Leases in a store of any kind."""

    looks_are_free = False

    def __init__(self, store: Store, job: JobFolder) -> None:
        self._store = store
        self._job = job

    def content(self, term: Term) -> bytes:
        """The content of a lease; empty if the lease does not exist."""
        path = layout.lease_file(self._job, term)
        if path not in self._paths():
            return b""
        try:
            return self._store.read(path)
        except StorageError:
            # A driver that has claimed a later term may have deleted the lease meanwhile.
            if path not in self._paths():
                return b""
            raise

    def is_let_go(self, term: Term, content: bytes) -> bool:  # noqa: ARG002  # the protocol has it
        """Never: without locks this is not known."""
        return False

    def is_held(self, term: Term, content: bytes) -> bool:  # noqa: ARG002  # likewise
        """Never: without locks this is not known."""
        return False

    def open(self, term: Term) -> Lease:
        """Create the lease of a term that the caller has claimed."""
        mine = layout.lease_file(self._job, term)
        for path in self._paths():
            if path < mine:
                self._store.delete(path)
        return _StoredLease(self._store, mine)

    def _paths(self) -> list[str]:
        return self._store.list_files(layout.leases_folder(self._job))


class _StoredLease:
    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path

    def show(self, sign: bytes) -> None:
        self._store.write(self._path, sign + b" " + _this_host())

    def close(self) -> None:
        """Nothing is open."""


# --- in a folder -----------------------------------------------------------------------------------------------------


class LockedLeases:
    """Leases in a folder. A lock is believed only on the host of the process that holds the lock. No link is followed
    on the way to a lease: another user may have put the link there."""

    looks_are_free = True

    def __init__(self, store: FileStore, job: JobFolder) -> None:
        self._store = store
        self._job = job

    def content(self, term: Term) -> bytes:
        """The content of a lease; empty if the lease does not exist."""
        try:
            with self._folder(term) as (folder, name):
                return read_regular(folder, name, limit=_LONGEST_LEASE)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageError(f"reading {self._path(term)} failed: {error.strerror or error}") from error

    def is_let_go(self, term: Term, content: bytes) -> bool:
        """Whether the owner of the lease, a process of this host, has died."""
        return content.endswith(_this_host()) and self._is_free(term) is True

    def is_held(self, term: Term, content: bytes) -> bool:
        """Whether the owner of the lease is a process of this host that is alive."""
        return content.endswith(_this_host()) and self._is_free(term) is False

    def open(self, term: Term) -> Lease:
        """Create the lease of a term that the caller has claimed."""
        path, options = self._path(term), self._store.options
        above = layout.leases_folder(self._job)
        try:
            make_folders(self._store.root, above.split("/"), mode=options.folder_mode)
            with self._folder(term) as (folder, name):
                with os.scandir(folder) as entries:
                    found = [entry.name for entry in entries]
                for other in found:
                    # No other driver has this term: a file with the name of this lease is no lease of a driver, so it
                    # is removed and not written to.
                    if layout.number_of(above, f"{above}/{other}") is not None and other <= name:
                        unlink(folder, other)
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_SURPRISES
                descriptor = os.open(name, flags, options.file_mode, dir_fd=folder)
        except OSError as error:
            raise _unwritten(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network file systems have no locks. Without a lock other drivers have to wait until the lease runs
            # out.
            known = {"path": str(path), "error": str(error)}
            log.info(
                "lease %s could not be locked, so that a takeover waits until the lease runs out: %s",
                path,
                error,
                extra=known,
            )
        return _LockedLease(path, descriptor)

    def _path(self, term: Term) -> Path:
        return self._store.root / layout.lease_file(self._job, term)

    @contextmanager
    def _folder(self, term: Term) -> Iterator[tuple[int, str]]:
        """The opened folder of the leases, and the name of a lease in the folder."""
        above, _, name = layout.lease_file(self._job, term).rpartition("/")
        with opened_folder(self._store.root, above.split("/")) as folder:
            yield folder, name

    def _is_free(self, term: Term) -> bool | None:
        """Whether no process holds the lock of a lease; None if that is not known, for example on a file system without
        locks."""
        try:
            with self._folder(term) as (folder, name):
                lease = os.open(name, os.O_RDWR | _NO_SURPRISES, dir_fd=folder)
                try:
                    fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Only if the file still has that name does the lock say anything about the owner of the lease.
                    named = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    return True if os.fstat(lease).st_ino == named.st_ino else None
                except BlockingIOError:
                    return False
                finally:
                    os.close(lease)
        except OSError:
            return None


class _LockedLease:
    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def show(self, sign: bytes) -> None:
        try:
            # The file is changed in place, because the lock is on the file and not on its name.
            os.pwrite(self._descriptor, sign + b" " + _this_host(), 0)
        except OSError as error:
            raise _unwritten(self._path, error) from error

    def close(self) -> None:
        os.close(self._descriptor)


def _unwritten(path: Path, error: OSError) -> StorageError:
    return StorageError(f"the lease {path} could not be written: {error.strerror or error}")


def _this_host() -> bytes:
    """Names the running kernel of this host: locks can be believed among processes of the same kernel."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return socket.gethostname().encode()

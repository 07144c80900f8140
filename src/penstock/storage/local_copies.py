"""Copies of what a slot has written to checkpoints, or read of what they share, so that it need not read it when only
others have failed.

A copy is found by its path and trusted by its size and checksum. Nothing depends on one: whatever goes wrong with it,
the storage is asked. Small copies lie in memory, others in files without a name, which are gone with the process,
however it ends. Copies of a checkpoint go when it is aborted or a later one is complete; those of shared files when
their room is needed. A copy for which there is no room is not made.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from typing import IO

import xxhash

from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.core.recovery import layout
from penstock.ports import Frame, Store

IN_MEMORY_BYTES = 64 * 1024
"""Copies up to this size lie in memory."""
MAX_COPIES = 512
"""Larger ones need an open file each."""

log = logging.getLogger(__name__)


class LocalCopies:
    """The copies of one slot. Calls come from any thread, and never raise because of the machine's disk."""

    def __init__(self, limit_bytes: int, job: layout.JobFolder) -> None:
        self._limit_bytes = limit_bytes
        self._job = job
        self._kept: dict[str, bytes | IO[bytes]] = {}
        """In the order in which they were made."""
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._closed = False
        self._lock = threading.Lock()

    def keep(self, path: str, data: Frame) -> None:
        """Copy a file that has just been written or read, if there is room."""
        view = memoryview(data)
        with self._lock:
            self._drop(path)
            if self._closed or not self._make_room(view.nbytes):
                return
            # Taken before it is filled: whoever comes meanwhile must not wait for the disk.
            self._bytes += view.nbytes
        try:
            copy = bytes(view) if view.nbytes <= IN_MEMORY_BYTES else _to_file(view)
        except OSError:
            copy = None
        self._settle(path, copy, view.nbytes)

    def _settle(self, path: str, copy: bytes | IO[bytes] | None, size: int) -> None:
        """Take a copy in for which room was taken, or give the room back."""
        with self._lock:
            self._bytes -= size
            if self._closed:
                _let_go(copy)
            elif copy is not None:
                self._drop(path)
                self._kept[path], self._sizes[path] = copy, size
                self._bytes += size

    def get(self, file: StateFile) -> bytes | None:
        """The bytes of a handle; None if there is no copy, or it is not what the handle says."""
        with self._lock:
            kept = self._kept.get(file.path) if file.path is not None else None
        if kept is None:
            return None
        try:
            data = kept if isinstance(kept, bytes) else os.pread(kept.fileno(), file.size + 1, 0)
        except (OSError, ValueError):
            # Out of order, or dropped in the meantime.
            return None
        if len(data) != file.size or xxhash.xxh3_64_intdigest(data) != file.checksum:
            return None
        log.debug("state was read from the local copy", extra={"path": file.path, "bytes": file.size})
        return data

    def completed(self, checkpoint: CheckpointId) -> None:
        """Nobody will go back behind `checkpoint`."""
        with self._lock:
            for path in list(self._kept):
                number = self._checkpoint_of(path)
                if number is not None and number < checkpoint:
                    self._drop(path)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """Nobody will restore `checkpoint`."""
        with self._lock:
            for path in [path for path in self._kept if self._checkpoint_of(path) == checkpoint]:
                self._drop(path)

    def close(self) -> None:
        """Let go of everything, and of what is still being written."""
        with self._lock:
            self._closed = True
            for path in list(self._kept):
                self._drop(path)

    def _checkpoint_of(self, path: str) -> CheckpointId | None:
        folder = layout.checkpoint_folder_of(self._job, path)
        return None if folder is None else layout.checkpoint_number(folder.rpartition("/")[2])

    def _make_room(self, size: int) -> bool:
        """Whether a copy of that size may be made; shared files make room for it, the oldest first."""
        if size > self._limit_bytes:
            return False
        for path in [path for path in self._kept if self._checkpoint_of(path) is None]:
            if self._has_room(size):
                break
            self._drop(path)
        return self._has_room(size)

    def _has_room(self, size: int) -> bool:
        return self._bytes + size <= self._limit_bytes and len(self._kept) < MAX_COPIES

    def _drop(self, path: str) -> None:
        kept = self._kept.pop(path, None)
        if kept is None:
            return
        self._bytes -= self._sizes.pop(path)
        _let_go(kept)


def _let_go(copy: bytes | IO[bytes] | None) -> None:
    if copy is not None and not isinstance(copy, bytes):
        with contextlib.suppress(OSError):
            copy.close()


def _to_file(view: memoryview) -> IO[bytes]:
    file = tempfile.TemporaryFile(prefix="penstock-")  # noqa: SIM115  # stays open: it has no name
    try:
        file.write(view)
        file.flush()
    except OSError:
        with contextlib.suppress(OSError):
            file.close()
        raise
    return file


class CopyingStore:
    """A store whose files are copied when they are written. What it is `at` another root is not."""

    def __init__(self, store: Store, copies: LocalCopies) -> None:
        self._store = store
        self._copies = copies

    @property
    def location(self) -> str:
        """The root of the store."""
        return self._store.location

    def at(self, root: str) -> Store:
        """The files below another root: somebody else's, or a savepoint's, which the job itself does not read."""
        return self._store.at(root)

    def path_of(self, place: str) -> str | None:
        """The path, below this root, of what has a full path; None if it lies elsewhere."""
        return self._store.path_of(place)

    def write(self, path: str, data: Frame) -> None:
        """Create or replace a file, all or nothing; durable when it returns."""
        self._store.write(path, data)
        self._copies.keep(path, data)

    def create(self, path: str, data: Frame) -> bool:
        """Create a file, all or nothing, unless there is one; durable when it returns. No copy is kept."""
        return self._store.create(path, data)

    def names(self, place: str) -> str | None:
        """The path, below this root, that a full path has by its names; None if it names something elsewhere."""
        return self._store.names(place)

    def followed(self, place: str) -> str:
        """A full path with all links in it followed."""
        return self._store.followed(place)

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file, from the store."""
        return self._store.read(path, limit=limit)

    def list_files(self, prefix: str) -> list[str]:
        """All files below a folder, sorted."""
        return self._store.list_files(prefix)

    def delete(self, path: str) -> None:
        """Remove one file."""
        self._store.delete(path)

    def delete_tree(self, prefix: str) -> None:
        """Remove a folder with all that is in it."""
        self._store.delete_tree(prefix)

    def delete_empty(self, prefix: str) -> None:
        """Remove a folder, if nothing is in it."""
        self._store.delete_empty(prefix)

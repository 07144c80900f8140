"""Copies of the files that a slot has written to checkpoints, and of the shared files that the slot has read. If only
other slots have failed, the slot reads its state from these copies, and not from the storage.

A copy is found by its path and trusted by its size and checksum. Nothing depends on a copy: whatever goes wrong with a
copy, the file is read from the storage. Small copies lie in memory, other copies in files without a name, which are
gone with the process, however the process ends. The copies of a checkpoint are dropped when the checkpoint is aborted
or a later checkpoint is complete. Copies of shared files are dropped when their room is needed. A copy for which there
is no room is not made.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

import xxhash

from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.core.recovery import layout
from penstock.ports import Frame, Store

IN_MEMORY_BYTES = 64 * 1024
"""Copies up to this size lie in memory."""
MAX_COPIES = 512
"""The most copies that are kept: each copy larger than `IN_MEMORY_BYTES` needs an open file."""

log = logging.getLogger(__name__)


class LocalCopies:
    """The copies of one slot. Calls come from any thread, and never raise because of the machine's disk."""

    def __init__(self, limit_bytes: int, job: layout.JobFolder) -> None:
        self._limit_bytes = limit_bytes
        self._job = job
        self._kept: dict[str, bytes | IO[bytes]] = {}
        """The copies, in the order in which they were made."""
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
            # The room is taken before the copy is written: other threads must not wait for the disk meanwhile.
            self._bytes += view.nbytes
        try:
            copy = bytes(view) if view.nbytes <= IN_MEMORY_BYTES else _to_file(view)
        except OSError:
            copy = None
        self._settle(path, copy, view.nbytes)

    def _settle(self, path: str, copy: bytes | IO[bytes] | None, size: int) -> None:
        """Keep a copy for which room was taken, or give the room back."""
        with self._lock:
            self._bytes -= size
            if self._closed:
                _let_go(copy)
            elif copy is not None:
                self._drop(path)
                self._kept[path], self._sizes[path] = copy, size
                self._bytes += size

    def get(self, file: StateFile) -> bytes | None:
        """The bytes of a handle; None if there is no copy, or if the copy does not fit the handle."""
        with self._lock:
            kept = self._kept.get(file.path) if file.path is not None else None
        if kept is None:
            return None
        try:
            data = kept if isinstance(kept, bytes) else os.pread(kept.fileno(), file.size + 1, 0)
        except (OSError, ValueError):
            # The disk is out of order, or the copy was dropped meanwhile.
            return None
        if len(data) != file.size or xxhash.xxh3_64_intdigest(data) != file.checksum:
            return None
        log.debug("state was read from the local copy", extra={"path": file.path, "bytes": file.size})
        return data

    def completed(self, checkpoint: CheckpointId) -> None:
        """The job will not go back behind `checkpoint`: drop the copies of earlier checkpoints."""
        with self._lock:
            for path in list(self._kept):
                number = self._checkpoint_of(path)
                if number is not None and number < checkpoint:
                    self._drop(path)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` will never be restored: drop its copies."""
        with self._lock:
            for path in [path for path in self._kept if self._checkpoint_of(path) == checkpoint]:
                self._drop(path)

    def close(self) -> None:
        """Drop all copies, also copies that are still being written."""
        with self._lock:
            self._closed = True
            for path in list(self._kept):
                self._drop(path)

    def _checkpoint_of(self, path: str) -> CheckpointId | None:
        folder = layout.checkpoint_folder_of(self._job, path)
        return None if folder is None else layout.checkpoint_number(folder.rpartition("/")[2])

    def _make_room(self, size: int) -> bool:
        """Whether there is room for a copy of `size` bytes. Copies of shared files are dropped to make room, the oldest
        copy first."""
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
    """A store that keeps a local copy of each file that it writes. Files below another root (`at`) are not copied."""

    def __init__(self, store: Store, copies: LocalCopies) -> None:
        self._store = store
        self._copies = copies

    @property
    def location(self) -> str:
        """The root of the store."""
        return self._store.location

    def at(self, root: str) -> Store:
        """The files below another root: the files of another job or of a savepoint. No copies are kept of these
        files."""
        return self._store.at(root)

    def path_of(self, place: str) -> str | None:
        """The path, below this root, of a file or folder that has a full path; None if the file or folder lies
        elsewhere."""
        return self._store.path_of(place)

    def write(self, path: str, data: Frame) -> None:
        """Create or replace a file, all or nothing. The file is durable when the call returns. A copy is kept."""
        self._store.write(path, data)
        self._copies.keep(path, data)

    def create(self, path: str, data: Frame) -> bool:
        """Create a file, all or nothing, unless the file exists. The file is durable when the call returns. No copy is
        kept."""
        return self._store.create(path, data)

    def names(self, place: str) -> str | None:
        """The path, below this root, that a full path has by its names; None if the full path names something
        elsewhere."""
        return self._store.names(place)

    def followed(self, place: str) -> str:
        """A full path with all links resolved."""
        return self._store.followed(place)

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file, from the store."""
        return self._store.read(path, limit=limit)

    def read_pieces(self, path: str, *, limit: int | None = None) -> Iterator[bytes]:
        """The file in pieces, from the store."""
        return self._store.read_pieces(path, limit=limit)

    def list_files(self, prefix: str) -> list[str]:
        """All files below a folder, sorted."""
        return self._store.list_files(prefix)

    def delete(self, path: str) -> None:
        """Remove one file."""
        self._store.delete(path)

    def delete_tree(self, prefix: str) -> None:
        """Remove a folder with all its content."""
        self._store.delete_tree(prefix)

    def delete_empty(self, prefix: str) -> None:
        """Remove a folder, if the folder is empty."""
        self._store.delete_empty(prefix)

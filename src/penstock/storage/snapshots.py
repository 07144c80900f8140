"""Pieces of state into a store and out of it, checked on the way out."""

from __future__ import annotations

from typing import Protocol

import xxhash

from penstock.core.errors import CorruptFile, UsageError
from penstock.core.messages import StateFile
from penstock.core.recovery.layout import component
from penstock.ports import Frame, Store


class Readable(Protocol):
    """What a reader needs of a store."""

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file; one with more than `limit` bytes is not read, and raises."""
        ...


class SnapshotWriter:
    """Writes the pieces of one subtask's snapshot into `folder` (empty: the store's root), as files `<prefix>-<n>`.
    Calls block.

    Whoever makes two writers for the same folder gives them different prefixes. Pieces of at most `inline_threshold`
    bytes become no file; they travel in their handles. Shared pieces always become files, in `shared_folder`, named by
    their key; without such a folder nothing is shared.
    """

    def __init__(
        self, store: Store, folder: str, prefix: str, inline_threshold: int, *, shared_folder: str | None = None
    ) -> None:
        if inline_threshold < 0:
            raise UsageError(f"inline_threshold is {inline_threshold}; it cannot be negative")
        self._store = store
        self._path_start = f"{folder}/{prefix}-" if folder else f"{prefix}-"
        self._inline_threshold = inline_threshold
        self._shared_folder = shared_folder
        self._files = 0
        self._written: list[str] = []

    def put(self, data: Frame) -> StateFile:
        """Make `data` durable (small data stays inline) and return its handle. Raises `StorageError`."""
        view = memoryview(data)
        checksum = xxhash.xxh3_64_intdigest(view)
        if view.nbytes <= self._inline_threshold:
            return StateFile(path=None, size=view.nbytes, checksum=checksum, inline=bytes(view))
        path = f"{self._path_start}{self._files}"
        self._files += 1
        self._write(path, view)
        return StateFile(path=path, size=view.nbytes, checksum=checksum)

    def put_shared(self, data: Frame, key: str) -> StateFile:
        """Make `data` durable where later checkpoints may refer to it again. Raises `StorageError`."""
        if self._shared_folder is None:
            return self.put(data)
        view = memoryview(data)
        path = f"{self._shared_folder}/{component(key)}"
        self._write(path, view)
        checksum = xxhash.xxh3_64_intdigest(view)
        return StateFile(path=path, size=view.nbytes, checksum=checksum, shared_key=key)

    def take_written(self) -> list[str]:
        """The paths of all files that were written, or may have been, since this was last asked for."""
        written, self._written = self._written, []
        return written

    def _write(self, path: str, view: memoryview) -> None:
        # Before it is written: a call that raises may have written it all the same.
        self._written.append(path)
        self._store.write(path, view)


class Copies(Protocol):
    """Where a piece may lie besides."""

    def get(self, file: StateFile) -> bytes | None:
        """The bytes of a handle, checked; None if they are not there."""
        ...

    def keep(self, path: str, data: Frame) -> None:
        """Have a piece lie there."""
        ...


class SnapshotReader:
    """Reads pieces of state, from copies of them where there are some. Calls block.

    A copy is kept of what is shared: later checkpoints refer to it, and whoever reads it does not write it again.
    """

    def __init__(self, store: Readable, copies: Copies | None = None) -> None:
        self._store = store
        self._copies = copies

    def get(self, file: StateFile) -> bytes:
        """The bytes of a handle, checked against its size and checksum. Raises `CorruptFile` or `StorageError`."""
        if file.inline is not None:
            return _checked(file, file.inline, "state inside the metadata")
        if file.path is None:
            raise CorruptFile(
                "a state handle has neither a path nor content", hint="restore from another checkpoint or savepoint"
            )
        if self._copies is not None and (copy := self._copies.get(file)) is not None:
            return copy
        # What is larger than the metadata says is not even read.
        data = _checked(file, self._store.read(file.path, limit=max(0, file.size)), f"state file {file.path}")
        if self._copies is not None and file.shared_key is not None:
            self._copies.keep(file.path, data)
        return data


def _checked(file: StateFile, data: bytes, what: str) -> bytes:
    hint = "restore it from a copy, or restore from another checkpoint or savepoint"
    if len(data) != file.size:
        raise CorruptFile(f"{what} has {len(data)} bytes instead of {file.size}", hint=hint)
    if xxhash.xxh3_64_intdigest(data) != file.checksum:
        raise CorruptFile(f"{what} was changed: its checksum does not fit", hint=hint)
    return data

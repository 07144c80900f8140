"""Writes pieces of state to a store, and reads them back with a check of size and checksum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import xxhash

from penstock.core.errors import CorruptFile, MissingFile, UsageError
from penstock.core.messages import StateFile
from penstock.core.recovery.layout import component
from penstock.ports import Frame, Store

_HINT = "restore the file from a copy, or restore from another checkpoint or savepoint"


class Readable(Protocol):
    """The part of a store that a reader of snapshots needs."""

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file. Raises, and reads nothing, if the file has more than `limit` bytes."""
        ...

    def read_pieces(self, path: str, *, limit: int | None = None) -> Iterator[bytes]:
        """The file in pieces. Raises, and reads nothing, if the file has more than `limit` bytes."""
        ...


class SnapshotWriter:
    """Writes the pieces of one subtask's snapshot into `folder` (empty: the store's root), as files `<prefix>-<n>`.
    Calls block.

    Two writers for the same folder must have different prefixes. A piece of at most `inline_threshold` bytes becomes no
    file: the piece travels in its handle. A shared piece always becomes a file in `shared_folder`, named by its key;
    without a `shared_folder` nothing is shared.
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
        """Make `data` durable as a file that later checkpoints may refer to. Raises `StorageError`."""
        if self._shared_folder is None:
            return self.put(data)
        view = memoryview(data)
        path = f"{self._shared_folder}/{component(key)}"
        self._write(path, view)
        checksum = xxhash.xxh3_64_intdigest(view)
        return StateFile(path=path, size=view.nbytes, checksum=checksum, shared_key=key)

    def take_written(self) -> list[str]:
        """The paths of all files that were written, or may have been written, since the last call."""
        written, self._written = self._written, []
        return written

    def _write(self, path: str, view: memoryview) -> None:
        # The path is noted before the write: a write that raises may have written the file all the same.
        self._written.append(path)
        self._store.write(path, view)


class Copies(Protocol):
    """Copies of pieces of state, besides the files of the store."""

    def get(self, file: StateFile) -> bytes | None:
        """The bytes of a handle, checked against size and checksum; None if there is no such copy."""
        ...

    def keep(self, path: str, data: Frame) -> None:
        """Keep a copy of a piece."""
        ...


class SnapshotReader:
    """Reads pieces of state, from `copies` where there is a copy, otherwise from the store. Calls block.

    A copy is kept of every shared piece that is read from the store: later checkpoints refer to the piece, and a task
    that has read the piece does not write it again.
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
        try:
            # A file that is larger than the metadata says is not even read.
            found = self._store.read(file.path, limit=max(0, file.size))
        except MissingFile as error:
            raise _gone(file.path, error) from error
        data = _checked(file, found, f"state file {file.path}")
        if self._copies is not None and file.shared_key is not None:
            self._copies.keep(file.path, data)
        return data

    def pieces(self, file: StateFile) -> Iterator[bytes]:
        """The bytes of a handle, in pieces, of which one is in memory at a time. Raises `StorageError`. Raises
        `CorruptFile` after the last piece if size or checksum do not fit, so no piece may be believed before the
        end."""
        if file.path is None or file.inline is not None or self._copies is not None:
            # A slot keeps copies, and a copy is kept of the whole file.
            yield self.get(file)
            return
        found, size = xxhash.xxh3_64(), 0
        try:
            for piece in self._store.read_pieces(file.path, limit=max(0, file.size)):
                found.update(piece)
                size += len(piece)
                yield piece
        except MissingFile as error:
            raise _gone(file.path, error) from error
        _check(file, size, found.intdigest(), f"state file {file.path}")


def _gone(path: str, error: MissingFile) -> CorruptFile:
    return CorruptFile(f"state file {path} is missing: {error.message}", hint=_HINT)


def _checked(file: StateFile, data: bytes, what: str) -> bytes:
    _check(file, len(data), xxhash.xxh3_64_intdigest(data), what)
    return data


def _check(file: StateFile, size: int, checksum: int, what: str) -> None:
    if size != file.size:
        raise CorruptFile(f"{what} has {size} bytes instead of {file.size}", hint=_HINT)
    if checksum != file.checksum:
        raise CorruptFile(f"{what} was changed: its checksum does not fit", hint=_HINT)

"""Where the rows of runs lie: in memory, or in files on the local disk that are mapped into memory.

A mapped file needs no memory that the system cannot take back: its pages are read again when they are needed. So runs
in files may be many times as large as the memory. A file is removed from its folder as soon as it is mapped. The disk
has the room again when the run is not used any more, or when the process ends.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core.errors import HostError, Retry
from penstock.settings import StateSettings
from penstock.state.rocksdb.folder import LocalFolder


class RunBuilder(ABC):
    """Takes the blocks of one run in, in order."""

    @abstractmethod
    def add(self, block: pa.RecordBatch) -> None:
        """The next block."""

    @abstractmethod
    def end(self) -> tuple[list[pa.RecordBatch], pa.Buffer | None]:
        """All blocks, and the file that they lie in, if they lie in a file. The file is an Arrow stream."""

    @abstractmethod
    def give_up(self) -> None:
        """The run is not needed any more."""


class RunPlace(ABC):
    """Where one operator of one subtask keeps its runs. Calls block, and come from any thread."""

    @abstractmethod
    def build(self) -> RunBuilder:
        """Begin a run."""

    @abstractmethod
    def keep(self, pieces: Iterable[bytes]) -> pa.Buffer:
        """Take in a file of a snapshot. Returns its bytes."""

    @abstractmethod
    def close(self) -> None:
        """No more runs are made. Runs that are in use stay usable."""


class MemoryPlace(RunPlace):
    """All runs lie in memory."""

    def build(self) -> RunBuilder:
        """Begin a run."""
        return _InMemory()

    def keep(self, pieces: Iterable[bytes]) -> pa.Buffer:
        """The bytes in memory."""
        found = list(pieces)
        return pa.py_buffer(found[0] if len(found) == 1 else b"".join(found))

    def close(self) -> None:
        """Nothing to do."""


class _InMemory(RunBuilder):
    def __init__(self) -> None:
        self._blocks: list[pa.RecordBatch] = []

    def add(self, block: pa.RecordBatch) -> None:
        """Keep the block."""
        self._blocks.append(block)

    def end(self) -> tuple[list[pa.RecordBatch], pa.Buffer | None]:
        """The blocks."""
        return self._blocks, None

    def give_up(self) -> None:
        """Nothing to do."""


class MappedPlace(RunPlace):
    """Runs of some size lie in files in a folder that no other process uses."""

    def __init__(self, local_directory: str | None, *, file_bytes: int) -> None:
        """Runs with fewer bytes than `file_bytes` lie in memory."""
        self._folder = LocalFolder(local_directory)
        self._file_bytes = file_bytes
        self._made = 0

    def build(self) -> RunBuilder:
        """Begin a run."""
        self._made += 1
        return _InFile(self._folder.path / f"run-{self._made}", self._file_bytes)

    def keep(self, pieces: Iterable[bytes]) -> pa.Buffer:
        """Write the bytes to a file, and map the file."""
        self._made += 1
        path = self._folder.path / f"restored-{self._made}"
        try:
            with path.open("xb") as file:
                for piece in pieces:
                    file.write(piece)
            return mapped(path)
        except OSError as error:
            raise _no_room(path, error) from error

    def close(self) -> None:
        """Remove the folder."""
        self._folder.remove()


class _InFile(RunBuilder):
    """Blocks stay in memory until there are enough of them for a file."""

    def __init__(self, path: Path, file_bytes: int) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._blocks: list[pa.RecordBatch] = []
        self._bytes = 0
        self._stream: Any = None
        self._file: Any = None

    def add(self, block: pa.RecordBatch) -> None:
        """Write the block, or keep it for the moment."""
        self._bytes += block.nbytes
        try:
            if self._stream is None and self._bytes >= self._file_bytes:
                self._file = pa.OSFile(str(self._path), "wb")
                self._stream = pa.ipc.new_stream(self._file, block.schema)
                for earlier in self._blocks:
                    self._stream.write_batch(earlier)
                self._blocks = []
            if self._stream is None:
                self._blocks.append(block)
            else:
                self._stream.write_batch(block)
        except OSError as error:
            self.give_up()
            raise _no_room(self._path, error) from error

    def end(self) -> tuple[list[pa.RecordBatch], pa.Buffer | None]:
        """The blocks, mapped if they lie in a file."""
        if self._stream is None:
            return self._blocks, None
        try:
            self._close()
            buffer = mapped(self._path)
        except OSError as error:
            raise _no_room(self._path, error) from error
        return [block for block in pa.ipc.open_stream(buffer) if block.num_rows], buffer

    def give_up(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._close()
            self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        stream, file, self._file = self._stream, self._file, None
        stream.close()
        file.close()


def make_place(settings: StateSettings, *, file_bytes: int) -> RunPlace:
    """The place that the settings ask for. In a place in files, runs with fewer bytes than `file_bytes` lie in memory.
    Raises `HostError` if no folder can be made."""
    return (
        MappedPlace(settings.local_directory, file_bytes=file_bytes) if settings.backend == "rocksdb" else MemoryPlace()
    )


def mapped(path: Path) -> pa.Buffer:
    """The bytes of a file, mapped into memory. The name of the file is removed: the file is gone when the bytes are
    not used any more."""
    with pa.memory_map(str(path), "r") as file:
        buffer: pa.Buffer = file.read_buffer()
    path.unlink()
    return buffer


def _no_room(path: Path, error: OSError) -> HostError:
    return HostError(
        f"state cannot be written to {path.parent}: {error.strerror or error}",
        hint="give local_directory of the state settings a folder on a disk with enough room",
        retry=Retry.LATER if error.errno in (errno.ENOSPC, errno.EDQUOT) else Retry.NEVER,
    )

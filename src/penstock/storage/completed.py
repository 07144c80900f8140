"""Which checkpoints of a job are complete, and which numbers the job has used, as small files of a store.

A *pointer* says that a checkpoint is complete, and carries what the coordinator has to know about the checkpoint:

    4 bytes   PCKP
    2 bytes   version of this format
    8 bytes   checkpoint id
    8 bytes   number of data bytes
    8 bytes   xxh3-64 of the id and the data
    …         the data

Numbers are unsigned, most significant byte first. A *counter* is a file whose name is the lowest number that was never
given away. A file with a higher name is written before the file with the lower name is deleted, and the highest name
counts: so the counter cannot go back, whichever driver writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from penstock.core.errors import CorruptFile, InvariantError
from penstock.core.ids import CheckpointId
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.ports import Store

_MAGIC = b"PCKP"
_VERSION = 1
_HEADER = struct.Struct(">4sHQQQ")
LARGEST_POINTER_BYTES = 1024 * 1024 * 1024
"""More than the names of any job's files take: a larger file is not read."""
_ID = struct.Struct(">Q")


class CompletedEntry(NamedTuple):
    """One completed checkpoint, as it was recorded."""

    checkpoint: CheckpointId
    data: bytes


class FileCompletedStore:
    """The completed checkpoints of one job. Calls block."""

    def __init__(self, store: Store, job_dir: JobFolder) -> None:
        self._store = store
        self._job_dir = job_dir

    def record(self, checkpoint: CheckpointId, data: bytes, *, forget: Iterable[CheckpointId] = ()) -> None:
        """Make it durable that `checkpoint` is complete; only then remove the pointers to the checkpoints in `forget`.

        If the call raises, the pointer may or may not be there; to record the checkpoint again does no harm.
        """
        forgotten = sorted(forget)
        if checkpoint in forgotten:
            raise InvariantError(f"checkpoint {checkpoint} was to be recorded and dropped in the same call")
        self._store.write(layout.completed_file(self._job_dir, checkpoint), _encode(checkpoint, data))
        for old in forgotten:
            self.remove(old)

    def load(self) -> list[CompletedEntry]:
        """All completed checkpoints, by id. A pointer that cannot be read raises `CorruptFile`: without that checkpoint
        the job could go back to an older checkpoint, although it has already shown later results."""
        return [self.read(path) for path in self._store.list_files(layout.completed_folder(self._job_dir))]

    def read(self, path: str) -> CompletedEntry:
        """A completed checkpoint, by the path of its pointer. Raises `CorruptFile` if the pointer cannot be read."""
        checkpoint = _number(layout.completed_folder(self._job_dir), path)
        content = self._store.read(path, limit=LARGEST_POINTER_BYTES)
        return CompletedEntry(checkpoint, decode_pointer(path, checkpoint, content))

    def remove(self, checkpoint: CheckpointId) -> None:
        """Forget one checkpoint. Nothing happens if there is no pointer to the checkpoint."""
        self._store.delete(layout.completed_file(self._job_dir, checkpoint))


class Counter:
    """Gives numbers away, from `first` on, each number once. The counter has a folder of its own. Calls block."""

    def __init__(self, store: Store, folder: str, *, first: int) -> None:
        self._store = store
        self._folder = folder
        self._first = first

    def next(self) -> int:
        """The lowest number that no driver has ever given away."""
        return max((number for number, _ in self._numbers()), default=self._first)

    def advance(self, following: int) -> None:
        """Make it durable that every number below `following` is used. A call with a `following` that is not higher
        than before does nothing."""
        numbers = self._numbers()
        if following <= max((number for number, _ in numbers), default=self._first):
            return
        self._store.write(layout.counted_file(self._folder, following), f"{following}\n".encode())
        for _, path in numbers:
            self._store.delete(path)

    def claim(self) -> int | None:
        """Take the lowest free number, for this caller alone; None if another caller was quicker."""
        numbers = self._numbers()
        free = max((number for number, _ in numbers), default=self._first)
        following = free + 1
        created = self._store.create(layout.counted_file(self._folder, following), f"{following}\n".encode())
        # Other callers may have taken higher numbers since, and deleted the file with this number: then the file could
        # be created only for that reason.
        if not created or self.next() != following:
            return None
        for _, path in numbers:
            self._store.delete(path)
        return free

    def _numbers(self) -> list[tuple[int, str]]:
        return [(_number(self._folder, path), path) for path in self._store.list_files(self._folder)]


def checkpoint_ids(store: Store, job_dir: JobFolder) -> Counter:
    """The checkpoint ids of one job."""
    return Counter(store, layout.counter_folder(job_dir), first=1)


def _number(folder: str, path: str) -> CheckpointId:
    number = layout.number_of(folder, path)
    if number is None:
        raise CorruptFile(f"{path} does not belong in folder {folder}", hint="move the file out of the job's directory")
    return number


def _encode(checkpoint: CheckpointId, data: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, checkpoint, len(data), _checksum(checkpoint, data)) + data


def decode_pointer(path: str, checkpoint: CheckpointId, content: bytes) -> bytes:
    """The data of the pointer at `path`. Raises `CorruptFile` if the pointer is cut, changed, foreign or of a newer
    format."""
    hint = (
        f"restore the file from a copy; or delete it to give up checkpoint {checkpoint}, if an older checkpoint will do"
    )
    if len(content) < _HEADER.size:
        raise CorruptFile(f"{path} is cut: it has only {len(content)} bytes, less than its header", hint=hint)
    magic, version, number, size, checksum = _HEADER.unpack_from(content)
    data = content[_HEADER.size :]
    if magic != _MAGIC:
        raise CorruptFile(f"{path} is not a pointer to a checkpoint", hint=hint)
    if version > _VERSION:
        raise CorruptFile(
            f"{path} has format version {version}; this program reads up to {_VERSION}", hint="use a newer penstock"
        )
    if len(data) != size:
        raise CorruptFile(f"{path} has {len(data)} bytes of data instead of {size}", hint=hint)
    if number != checkpoint or checksum != _checksum(checkpoint, data):
        raise CorruptFile(f"{path} was changed: its checksum does not fit", hint=hint)
    return data


def _checksum(checkpoint: CheckpointId, data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(_ID.pack(checkpoint) + data)

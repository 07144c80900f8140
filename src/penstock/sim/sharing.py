"""Keyed state of a world whose snapshots consist of files that later checkpoints refer to again, as with RocksDB.

The state itself is in memory. The bytes of a snapshot are cut into pieces. A snapshot refers to the pieces that the
newest completed checkpoint has as well, and writes the other pieces. The name of a piece contains the checkpoint that
the piece was written for. So no later checkpoint uses a piece of an aborted checkpoint, and a piece that the slot does
not delete stays on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.ports import Frame
from penstock.state.backend import SnapshotFiles, StateContext, StateReader, StateWriter, reused
from penstock.state.memory import MemoryBackend

PIECE_BYTES = 256
"""So short that a state has several pieces, and some pieces stay the same."""


class SharingBackend(MemoryBackend):
    """Keyed state in memory, whose checkpoints consist of shared files."""

    def __init__(self, context: StateContext) -> None:
        super().__init__(context)
        # The time makes the name unique: a subtask is not begun twice at the same time.
        self._name = f"{context.operator}-{context.subtask}-{context.now()}"
        self._known: dict[tuple[int, bytes], StateFile] = {}
        """Pieces that later checkpoints may refer to, by their number and content."""
        self._uploaded: dict[CheckpointId, dict[tuple[int, bytes], StateFile]] = {}

    def restore(self, snapshots: Sequence[Sequence[StateFile]], reader: StateReader) -> None:
        """Put the pieces of each old subtask's snapshot together, and restore the state from the whole. The files of a
        savepoint are not cut into pieces, and are restored as they are."""
        super().restore([_put_together(files, reader) for files in snapshots], reader)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotFiles:
        """Freeze the state. The returned work writes the pieces that the newest completed checkpoint does not have."""
        inner = super().snapshot(checkpoint, options)
        if options.savepoint or options.canonical:
            return inner
        known, name, uploaded = {} if options.full else self._known, self._name, self._uploaded

        def write(writer: StateWriter) -> tuple[StateFile, ...]:
            whole = _InMemory()
            inner(whole)
            pieces = [whole.data[at : at + PIECE_BYTES] for at in range(0, len(whole.data), PIECE_BYTES)]
            files: dict[tuple[int, bytes], StateFile] = {}
            handles: list[StateFile] = []
            for place in enumerate(pieces):
                if (file := known.get(place)) is not None:
                    handles.append(reused(file))
                else:
                    file = writer.put_shared(place[1], f"{name}-{checkpoint}-{place[0]}")
                    handles.append(file)
                files[place] = file
            uploaded[checkpoint] = files
            return tuple(handles)

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """Later checkpoints may refer to the pieces of this checkpoint."""
        super().completed(checkpoint)
        self._known = self._uploaded.get(checkpoint, self._known)
        for earlier in [known for known in self._uploaded if known <= checkpoint]:
            del self._uploaded[earlier]


def checkpoint_of(path: str) -> CheckpointId:
    """The checkpoint that a piece was written for, by the path of the piece."""
    return CheckpointId(int(path.rsplit("-", 2)[1]))


class _InMemory:
    """Collects the bytes that a snapshot writes."""

    def __init__(self) -> None:
        self.data = b""

    def put(self, data: Frame) -> StateFile:
        self.data += bytes(memoryview(data))
        return _inline(b"")

    def put_shared(self, data: Frame, key: str) -> StateFile:  # noqa: ARG002
        return self.put(data)


def _put_together(files: Sequence[StateFile], reader: StateReader) -> list[StateFile]:
    if not any(file.shared_key is not None for file in files):
        return list(files)
    return [_inline(b"".join(reader.get(file) for file in files))]


def _inline(data: bytes) -> StateFile:
    return StateFile(path=None, size=len(data), checksum=xxhash.xxh3_64_intdigest(data), inline=data)

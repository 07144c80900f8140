"""Keyed state of a world whose snapshots consist of files that later checkpoints refer to again, as those of RocksDB.

The state itself is in memory. What a snapshot of it would write is cut into pieces; pieces that the newest completed
checkpoint has as well are referred to, the others are written, each under a name that has the checkpoint in it. So a
piece of a checkpoint that is aborted is of no use to any later checkpoint, and lies where nobody looks for it.
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
"""So short that a state has several pieces, of which some stay the same."""


class SharingBackend(MemoryBackend):
    """Keyed state in memory, in shared files in checkpoints."""

    def __init__(self, context: StateContext) -> None:
        super().__init__(context)
        # No two subtasks with the same place in the job begin at the same time.
        self._name = f"{context.operator}-{context.subtask}-{context.now()}"
        self._known: dict[tuple[int, bytes], StateFile] = {}
        """Pieces that later checkpoints may refer to, by their number and content."""
        self._uploaded: dict[CheckpointId, dict[tuple[int, bytes], StateFile]] = {}

    def restore(self, snapshots: Sequence[Sequence[StateFile]], reader: StateReader) -> None:
        """Put the pieces of each old subtask together first. Savepoints have none."""
        super().restore([_put_together(files, reader) for files in snapshots], reader)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotFiles:
        """Freeze the state; the work writes those pieces of it that are new."""
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
        """Later checkpoints may refer to the pieces of this one."""
        super().completed(checkpoint)
        self._known = self._uploaded.get(checkpoint, self._known)
        for earlier in [known for known in self._uploaded if known <= checkpoint]:
            del self._uploaded[earlier]


def checkpoint_of(path: str) -> CheckpointId:
    """For which checkpoint a piece was written."""
    return CheckpointId(int(path.rsplit("-", 2)[1]))


class _InMemory:
    """Takes what a snapshot writes."""

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

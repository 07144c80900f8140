"""The results that sinks prepared for savepoints that do not stop the job, and who commits these results.

A savepoint that does not stop the job closes transactions, as any snapshot does. The transactions are not committed
with the savepoint: a job that fails goes back to an older checkpoint, and would show the same records again. So the
sinks carry the transactions on, and commit them with the next checkpoint. But if the job ends before the next
checkpoint, a job that starts from the savepoint has to commit the transactions. So until a checkpoint has followed in
the same attempt, the transactions are not removed:

    savepoint complete ──► a checkpoint completes in the same attempt      committed with the checkpoint
                      └──► the attempt ends first                          kept for good: the job itself goes back, and
                                                                           shows these records by other transactions

The results of a savepoint are written down before the savepoint is complete, because another driver may end the job.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.core.recovery.metadata import CheckpointMetadata
from penstock.ports import Store
from penstock.runtime.task.operators.sink import COMMITTABLES
from penstock.storage.record_formats import LARGEST_RECORD_BYTES

Saved = dict[OperatorId, tuple[bytes, ...]]
"""The parts of sinks' state that name prepared transactions, by operator."""


def results_in(metadata: CheckpointMetadata) -> Saved:
    """The prepared transactions that a snapshot names."""
    found = {operator: parts_of(metadata, operator, COMMITTABLES) for operator in metadata.operators}
    return {operator: parts for operator, parts in found.items() if parts}


def parts_of(metadata: CheckpointMetadata, operator: OperatorId, name: str) -> tuple[bytes, ...]:
    """The parts of one list of an operator's state, of all its subtasks."""
    snapshot = metadata.operators.get(operator)
    if snapshot is None:
        return ()
    states = (snapshot.subtasks[subtask] for subtask in sorted(snapshot.subtasks))
    return tuple(part for state in states for part in state.split_lists.get(name, ()))


class SavedResults:
    """The results of the savepoints of one job. `write`, `read` and `delete` block: use them in `Background` work
    only."""

    def __init__(self, folder: JobFolder, store: Store, *, taken_over: bool) -> None:
        """`taken_over`: the driver has taken the job over from an earlier driver. Then `read` must be called before the
        first attempt."""
        self.is_unread = taken_over
        self._is_needed = False
        self.owed: Saved = {}
        """Results that only a job that starts from a savepoint can commit."""
        self._folder = layout.promised_folder(folder)
        self._store = store
        self._begun: dict[CheckpointId, Saved] = {}
        """The results of savepoints that are not complete yet."""
        self._fresh: dict[CheckpointId, Saved] = {}
        """The results of complete savepoints of the running attempt that no checkpoint has followed yet."""

    @property
    def may_be_needed(self) -> bool:
        """Whether a job that starts from a savepoint may need what sinks have prepared."""
        return self.is_unread or self._is_needed or bool(self.owed or self._fresh)

    def resume(self, *, needed: bool) -> None:
        """An earlier driver has recorded the outcome of the job. `needed`: a job that starts from a savepoint may need
        results."""
        self.is_unread, self._is_needed = False, needed

    def begin(self, metadata: CheckpointMetadata) -> bool:
        """The metadata of a savepoint is about to be written. Returns whether the savepoint has results: `write` must
        write these results first."""
        results = results_in(metadata)
        if results:
            self._begun[metadata.checkpoint] = results
        return bool(results)

    def complete(self, checkpoint: CheckpointId) -> None:
        """A savepoint that does not stop the job is complete."""
        if results := self._begun.pop(checkpoint, None):
            self._fresh[checkpoint] = results

    def abort(self, checkpoint: CheckpointId) -> list[CheckpointId]:
        """A snapshot is aborted. Returns the savepoints to `delete`."""
        return [checkpoint] if self._begun.pop(checkpoint, None) else []

    def follow(self, checkpoint: CheckpointId) -> list[CheckpointId]:
        """A checkpoint is complete. Returns the savepoints to `delete`: their results are committed with the
        checkpoint."""
        done = [saved for saved in self._fresh if saved < checkpoint]
        for saved in done:
            del self._fresh[saved]
        return done

    def attempt_over(self) -> None:
        """The attempt is over, and tasks go back to an older checkpoint: the results of its savepoints are owed from
        here on."""
        for saved in self._fresh.values():
            self._owe(saved)
        self._fresh = {}

    def _owe(self, saved: Saved) -> None:
        for operator, parts in saved.items():
            self.owed[operator] = (*self.owed.get(operator, ()), *parts)

    # --- off the loop ----------------------------------------------------------------------

    def write(self, metadata: CheckpointMetadata) -> None:
        """Write down the results of a savepoint, before the savepoint is complete."""
        path = layout.counted_file(self._folder, metadata.checkpoint)
        self._store.write(path, msgspec.msgpack.encode(results_in(metadata)))

    def read(self) -> None:
        """Read the results that earlier drivers have written down."""
        if self.is_unread:
            for file in self._store.list_files(self._folder):
                self._owe(_decoded(file, self._store.read(file, limit=LARGEST_RECORD_BYTES)))
            self.is_unread = False

    def delete(self, checkpoints: Iterable[CheckpointId]) -> None:
        """Delete the written results of these savepoints."""
        for checkpoint in checkpoints:
            self._store.delete(layout.counted_file(self._folder, checkpoint))


def _decoded(path: str, data: bytes) -> Saved:
    try:
        return msgspec.msgpack.decode(data, type=Saved)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptFile(
            f"{path} cannot be read: {error}",
            hint="restore the file from a copy; or delete it, if no job will start from the savepoint of that number",
        ) from error

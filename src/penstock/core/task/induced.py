"""When a source takes its part in a checkpoint, if marks in the source's data say where checkpoints begin.

The master's trigger says how a checkpoint is to be taken, the mark in the data says where. Both are needed, and either
may come first:

    trigger first    the source reads on, to the mark
    mark first       the source reads nothing more until the trigger is here

Rules of this file:

* Triggers come in the order of their checkpoint ids. After the trigger of a newer checkpoint, the trigger of an older
  checkpoint does not come.
* A checkpoint that is aborted between its trigger and its mark begins at once. The checkpoint machine of the task knows
  of the abort, and sends a cancel marker. Other sources may have sent their barriers, and the tasks behind would wait
  for the barrier of this source.
* A source reads on behind a mark whose checkpoint was aborted, is older than the newest checkpoint that the source has
  taken, or belongs to an earlier attempt.
* At the end of the data there are no more marks: checkpoints that were triggered begin there.
"""

from __future__ import annotations

from penstock.core.elements import Barrier
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId
from penstock.core.task.checkpoints import MOST_REMEMBERED_ABORTS


class InducedCheckpoints:
    """The checkpoints of one source task. `first` is the lowest checkpoint id that the task's attempt can take."""

    def __init__(self, first: CheckpointId) -> None:
        self._next = first
        """Checkpoints with lower ids are over for this task."""
        self._triggered: dict[CheckpointId, Barrier] = {}
        """Triggers whose marks have not come, in the order of the triggers."""
        self._reached: CheckpointId | None = None
        self._aborted: dict[CheckpointId, None] = {}
        """Checkpoints that were aborted before their marks came; the oldest aborts are forgotten first."""

    @property
    def awaits_trigger(self) -> bool:
        """Whether the data is at a mark whose trigger has not come: nothing behind the mark may be read."""
        return self._reached is not None

    def trigger(self, barrier: Barrier) -> Barrier | None:
        """The master triggers a checkpoint. Returns the barrier if the checkpoint begins now; otherwise None."""
        checkpoint = barrier.checkpoint
        if checkpoint < self._next:
            return None
        if self._reached == checkpoint:
            self._pass(checkpoint)
            return barrier
        if self._reached is not None and self._reached < checkpoint:
            self._reached = None
        self._triggered[checkpoint] = barrier
        return None

    def reach(self, checkpoint: CheckpointId) -> Barrier | None:
        """The data has come to the mark of a checkpoint. Returns the barrier if the checkpoint begins now; otherwise
        None."""
        if self._reached is not None:
            raise InvariantError(
                f"the source read on to the mark of checkpoint {checkpoint}, but must wait at the mark of checkpoint "
                f"{self._reached} until the master triggers that checkpoint"
            )
        barrier = self._triggered.get(checkpoint)
        if barrier is not None:
            self._pass(checkpoint)
        elif checkpoint >= self._next and checkpoint not in self._aborted and not self._is_passed_over(checkpoint):
            self._reached = checkpoint
        return barrier

    def abort(self, checkpoint: CheckpointId) -> Barrier | None:
        """The checkpoint will never complete. Returns the barrier if the checkpoint was triggered and its mark has not
        come; otherwise None."""
        barrier = self._triggered.pop(checkpoint, None)
        if self._reached == checkpoint:
            self._reached = None
        elif checkpoint >= self._next:
            self._aborted[checkpoint] = None
            if len(self._aborted) > MOST_REMEMBERED_ABORTS:
                del self._aborted[next(iter(self._aborted))]
        return barrier

    def end(self) -> list[Barrier]:
        """The data has ended: all checkpoints that were triggered begin now, in the order of the returned barriers."""
        due, self._triggered, self._reached = list(self._triggered.values()), {}, None
        return due

    def _is_passed_over(self, checkpoint: CheckpointId) -> bool:
        return any(newer > checkpoint for newer in self._triggered)

    def _pass(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is taken; older checkpoints cannot be taken any more."""
        self._next = CheckpointId(checkpoint + 1)
        self._reached = None
        self._triggered = {newer: barrier for newer, barrier in self._triggered.items() if newer > checkpoint}
        self._aborted = {newer: None for newer in self._aborted if newer > checkpoint}

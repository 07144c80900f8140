"""How many checkpoints may fail in a row before something has to give.

A failure counts if its reason does, once per checkpoint, and not if a newer checkpoint has succeeded already. A newer
success sets the count to zero. When more have failed than are tolerated, the count starts again and

* the job fails, if the failure was the master's own or came before any task was asked,
* the task that reported it fails, otherwise.

Savepoints: what the master does wrong never fails the job. What a task does wrong counts as for a checkpoint, except in
a synchronous savepoint: tasks have begun to end for it, so the job fails at once.

Every checkpoint here has an id: nothing that counts can go wrong before it has one.
"""

from __future__ import annotations

from penstock.core.coordinator.effects import FailJob, FailTask
from penstock.core.ids import CheckpointId, TaskId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind


class FailureTolerance:
    """Counts failed checkpoints."""

    def __init__(self, tolerable: int | None) -> None:
        self._tolerable = tolerable
        self._count = 0
        self._counted: set[CheckpointId] = set()
        self._last_succeeded: CheckpointId | None = None

    def succeeded(self, checkpoint: CheckpointId) -> None:
        """A checkpoint or savepoint completed."""
        if self._last_succeeded is None or checkpoint > self._last_succeeded:
            self._last_succeeded = checkpoint
            self._start_again()

    def failed(
        self,
        kind: SnapshotKind,
        reason: CheckpointFailure,
        text: str,
        *,
        checkpoint: CheckpointId,
        task: TaskId | None,
    ) -> FailJob | FailTask | None:
        """A checkpoint failed; `task` is who reported the failure, None if it was the master's own."""
        blamed = None if reason.preflight else task
        if blamed is not None and kind.is_synchronous:
            return FailJob(reason=reason, text=f"a task gave up the savepoint that was to stop the job: {text}")
        if kind.is_savepoint and blamed is None:
            return None
        if not self._exceeds(reason, checkpoint):
            return None
        self._start_again()
        story = f"more than {self._tolerable} checkpoints failed in a row, the last because {reason.text}: {text}"
        if blamed is not None:
            return FailTask(task=blamed, reason=reason, text=story)
        return FailJob(reason=reason, text=story)

    def _exceeds(self, reason: CheckpointFailure, checkpoint: CheckpointId) -> bool:
        if self._tolerable is None or not reason.counts or checkpoint in self._counted:
            return False
        if self._last_succeeded is not None and checkpoint <= self._last_succeeded:
            return False
        self._counted.add(checkpoint)
        self._count += 1
        return self._count > self._tolerable

    def _start_again(self) -> None:
        self._count = 0
        self._counted.clear()

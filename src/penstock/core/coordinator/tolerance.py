"""How many checkpoints may fail in a row before the job or a task fails.

A failed checkpoint counts if the reason of its failure counts, at most once, and not if a newer checkpoint has already
completed. A newer completed checkpoint sets the count to zero. When more checkpoints have failed than are tolerated,
the count starts again at zero and

* the job fails, if the failure was the master's own or came before any task was triggered,
* otherwise the task that reported the failure fails.

A failed savepoint never counts: the user asked for the savepoint, and is told of the failure. A savepoint that was to
stop the job may have ended sources, so that the tasks must be started again; that restart is not counted either.

Every checkpoint here has an id, because no failure that counts can happen before a checkpoint has an id.
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
        """A checkpoint failed. `task` is the task that reported the failure; None if the failure was the master's
        own."""
        if kind.is_savepoint or not self._exceeds(reason, checkpoint):
            return None
        blamed = None if reason.preflight else task
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

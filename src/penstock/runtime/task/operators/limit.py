"""The first records of all. When they have come, the step is full, and the sources that feed nothing else may end.

A source that has ended is not read again after a restore. So the step tells that it is full only when no checkpoint can
complete any more whose snapshot has the step as not full: in a checkpoint with barriers that overtake, the snapshot of
this step may be older than those of the sources. A savepoint is aligned: its barriers have come through all of the data
before, and its snapshot of this step is newer than those of the sources.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.api.first_rows import FirstRows
from penstock.api.steps import ProcessStep
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators.base import OperatorContext, Output, SnapshotWork
from penstock.runtime.task.operators.process import ProcessOperator
from penstock.runtime.task.slices import Work


class LimitOperator(ProcessOperator):
    """Hands on the first records, and says when they have come."""

    def __init__(self, step: ProcessStep, function: FirstRows) -> None:
        super().__init__(step)
        self._first = function
        self._undecided: dict[CheckpointId, None] = {}
        """The checkpoints that may still complete, and have the step as not full."""
        self._has_told = False

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start. A step that was full in the restored checkpoint says so again."""
        super().open(context, output)
        self._tell_if_full()

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand on the records that are among the first."""
        work = super().process(batch)
        self._tell_if_full()
        return work

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork | None:
        """Freeze the count."""
        if not options.savepoint and not self._first.is_full:
            self._undecided[checkpoint] = None
        return super().snapshot(checkpoint, options)

    def completed(self, checkpoint: CheckpointId) -> None:
        """No checkpoint before this one can complete any more."""
        super().completed(checkpoint)
        self._undecided = {each: None for each in self._undecided if each > checkpoint}
        self._tell_if_full()

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint will never complete."""
        super().aborted(checkpoint)
        self._undecided.pop(checkpoint, None)
        self._tell_if_full()

    def _tell_if_full(self) -> None:
        if not self._has_told and not self._undecided and self._first.is_full:
            self._has_told = True
            self.context.is_full()

"""What a task asks of the slot in which it runs."""

from __future__ import annotations

from typing import Protocol

from penstock.core.ids import CheckpointId, Instant, OperatorId, TaskId
from penstock.core.task.events import AcknowledgeSnapshot, DeclineSnapshot
from penstock.runtime.task.snapshots import SnapshotHost


class TaskHost(SnapshotHost, Protocol):
    """What a task asks of its slot."""

    slice_rows: int
    """A slice has at most so many rows, timers or results, however fast they are."""

    def now(self) -> Instant:
        """The time of this turn."""
        ...

    def acknowledge(self, task: TaskId, effect: AcknowledgeSnapshot) -> None:
        """Tell the master."""
        ...

    def decline(self, task: TaskId, effect: DeclineSnapshot) -> None:
        """Tell the master."""
        ...

    def barrier_taken(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """Tell the coordinators of the task's operators."""
        ...

    def data_ended(self, task: TaskId) -> None:
        """Tell the master."""
        ...

    def wants_to_end(self, task: TaskId) -> None:
        """Tell the master."""
        ...

    def finished(self, task: TaskId) -> None:
        """Tell the master."""
        ...

    def splits_read(self, task: TaskId, operator: OperatorId, count: int) -> None:
        """Tell the master."""
        ...

    def catching_up(self, task: TaskId, operator: OperatorId, is_behind: bool) -> None:  # noqa: FBT001
        """Tell the master."""
        ...

"""What a task asks of the slot in which it runs."""

from __future__ import annotations

from typing import Protocol

from penstock.core.ids import CheckpointId, Instant, OperatorId, TaskId
from penstock.core.task.events import AcknowledgeSnapshot, DeclineSnapshot
from penstock.ports import AsyncCalls
from penstock.runtime.task.snapshots import SnapshotHost


class TaskHost(SnapshotHost, Protocol):
    """What a task asks of its slot."""

    slice_rows: int
    """A slice has at most this many rows, timers or results, however fast they are."""

    @property
    def calls(self) -> AsyncCalls | None:
        """Runs async functions of the user's. None: the program must not have async functions."""
        ...

    def now(self) -> Instant:
        """The time of this turn."""
        ...

    def acknowledge(self, task: TaskId, effect: AcknowledgeSnapshot) -> None:
        """Tell the master that the task's part of the checkpoint is durable."""
        ...

    def decline(self, task: TaskId, effect: DeclineSnapshot) -> None:
        """Tell the master that the task does not take part in the checkpoint, and why."""
        ...

    def barrier_taken(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """Tell the operator coordinators of the task's operators that the task has the barrier."""
        ...

    def data_ended(self, task: TaskId) -> None:
        """Tell the master that the task has seen all its data."""
        ...

    def wants_to_end(self, task: TaskId) -> None:
        """Tell the master that the task has nothing left to do."""
        ...

    def finished(self, task: TaskId) -> None:
        """Tell the master that the task has ended for good."""
        ...

    def splits_read(self, task: TaskId, operator: OperatorId, count: int) -> None:
        """Tell the master how many splits the task has read to their ends."""
        ...

    def event_time_reached(self, task: TaskId, time_us: int | None) -> None:
        """Tell the watermark group of the task how far the reader of the task has come."""
        ...

    def step_full(self, task: TaskId, operator: OperatorId) -> None:
        """Tell the master that a step of the task takes no more records."""
        ...

    def catching_up(self, task: TaskId, operator: OperatorId, is_behind: bool) -> None:  # noqa: FBT001
        """Tell the master whether the source of the task is behind."""
        ...

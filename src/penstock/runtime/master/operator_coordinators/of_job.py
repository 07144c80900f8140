"""All operator coordinators of a job. This file performs what the checkpoint coordinator wants of them, and takes them
through the attempts of the job to its end.

    start ──► run ──► … ──► stop          once per attempt
    leave ──► end                         once per job: connectors let go of what they have
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from penstock.core.coordinator.effects import (
    SendOperatorEvent,
    SnapshotOperatorCoordinator,
    TellCheckpointAborted,
    TellCheckpointComplete,
)
from penstock.core.coordinator.events import (
    BacklogChanged,
    CoordinatorEvent,
    OperatorCoordinatorFailed,
    OperatorCoordinatorSnapshotted,
    OperatorEventDelivered,
    OperatorEventLost,
    OperatorEventSubmitted,
)
from penstock.core.ids import CheckpointId, Epoch, Instant, OperatorId, TaskId
from penstock.core.messages import OperatorEvent, OperatorEventTaken, SplitsRead, ToSlot
from penstock.core.recovery.assign import Assignment
from penstock.core.recovery.metadata import CheckpointMetadata
from penstock.runtime.master.operator_coordinators.contract import OperatorCoordinator
from penstock.runtime.master.saved_results import Saved, parts_of
from penstock.runtime.task.operators.user_code import driver_cause

CoordinatorWork = SnapshotOperatorCoordinator | SendOperatorEvent | TellCheckpointComplete | TellCheckpointAborted


class OperatorCoordinators:
    """All operator coordinators of a job."""

    def __init__(
        self,
        *,
        feed: Callable[[CoordinatorEvent], None],
        send: Callable[[TaskId, ToSlot], None],
    ) -> None:
        """`send` sends a message to the slot of a task."""
        self._feed = feed
        self._send = send
        self._known: dict[OperatorId, OperatorCoordinator] = {}
        self._parts: dict[CheckpointId, dict[OperatorId, tuple[bytes, ...]]] = {}
        """The parts of checkpoints whose metadata is being written."""
        self._is_leaving = False
        self._is_ending = False

    def add(self, operator: OperatorId, coordinator: OperatorCoordinator) -> None:
        """Add an operator coordinator, before the job starts."""
        self._known[operator] = coordinator

    def say(self, operator: OperatorId, subtask: int, event: bytes) -> None:
        """Have an event sent to a subtask."""
        self._feed(OperatorEventSubmitted(operator=operator, subtask=subtask, event=event))

    def catching_up(self, operator: OperatorId, is_behind: bool) -> None:  # noqa: FBT001
        """An enumerator is behind, or has caught up."""
        self._feed(BacklogChanged(operator=operator, backlog=is_behind))

    def start(
        self, assignment: Assignment, epoch: Epoch, saved: Saved, *, parallelism: Mapping[OperatorId, int]
    ) -> None:
        """An attempt is deployed; `saved` is what savepoints of earlier attempts name, and `parallelism` says how many
        subtasks each operator has."""
        for operator, coordinator in self._known.items():
            parts: list[bytes] = []
            for restore in assignment.tasks.values():
                for state in restore.operators.get(operator, ()):
                    parts += state.split_lists.get(coordinator.parts_name, ())
            restored = assignment.coordinators.get(operator)
            kept = saved.get(operator, ())
            more, subtasks = assignment.more_data, parallelism[operator]
            coordinator.start(restored, parts, parallelism=subtasks, epoch=epoch, saved=kept, more_data=more)

    def run(self) -> None:
        """All tasks run."""
        for coordinator in self._known.values():
            coordinator.run()

    def stop(self) -> None:
        """The attempt is over. The parts of checkpoints that are being stored are not forgotten: such a checkpoint may
        still complete, and its coordinators must then get the parts."""
        for coordinator in self._known.values():
            coordinator.stop()

    def turn(self, now: Instant) -> None:
        """Time has passed, or work has ended."""
        for coordinator in self._known.values():
            coordinator.host.background.collect()
            if coordinator.running:
                coordinator.turn(now)
                coordinator.ask_again(now)

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest."""
        times = [at for c in self._known.values() if c.running for at in (c.next_deadline(), c.asks_at)]
        return min((time for time in times if time is not None), default=None)

    def leave(self) -> None:
        """The outcome of the job is decided: connectors let go of what the slots do not need any more."""
        if not self._is_leaving:
            self._is_leaving = True
            for coordinator in self._known.values():
                if coordinator.outlives_slots:
                    coordinator.stop()
                else:
                    coordinator.end()

    def end(self) -> None:
        """No slot is left, and every checkpoint is decided: all connectors let go of what they have."""
        self.leave()
        if not self._is_ending:
            self._is_ending = True
            for coordinator in self._known.values():
                if coordinator.outlives_slots:
                    coordinator.end()

    @property
    def have_ended(self) -> bool:
        """Whether `end` is done."""
        return all(coordinator.has_ended for coordinator in self._known.values())

    # --- checkpoints ---------------------------------------------------------------------

    def metadata_made(self, metadata: CheckpointMetadata) -> None:
        """All subtasks have acknowledged a checkpoint: their parts are known."""
        if self._known:
            self._parts[metadata.checkpoint] = {o: parts_of(metadata, o, c.parts_name) for o, c in self._known.items()}

    def savepoint_completed(self, checkpoint: CheckpointId) -> None:
        """A savepoint that does not stop the job is complete."""
        for operator, coordinator in self._known.items():
            coordinator.saved_with(checkpoint, self._parts.get(checkpoint, {}).get(operator, ()))

    def perform(self, effect: CoordinatorWork) -> None:
        """Perform one effect of the checkpoint coordinator."""
        match effect:
            case SnapshotOperatorCoordinator():
                self._feed(self._snapshot(effect.operator, effect.checkpoint))
            case SendOperatorEvent():
                message = OperatorEvent(
                    epoch=effect.epoch,
                    task=effect.task,
                    operator=effect.operator,
                    number=effect.number,
                    event=effect.event,
                )
                self._send(effect.task, message)
            case TellCheckpointComplete():
                parts = self._parts.get(effect.checkpoint, {}).get(effect.operator, ())
                self._known[effect.operator].completed(effect.checkpoint, parts)
                # Older checkpoints are subsumed, and cannot complete any more.
                self._forget(effect.operator, [c for c in self._parts if c <= effect.checkpoint])
            case TellCheckpointAborted():
                self._known[effect.operator].aborted(effect.checkpoint)
                # Older checkpoints may still be being stored, and need their parts.
                self._forget(effect.operator, [c for c in self._parts if c == effect.checkpoint])
            case _:
                assert_never(effect)

    def _snapshot(
        self, operator: OperatorId, checkpoint: CheckpointId
    ) -> OperatorCoordinatorSnapshotted | OperatorCoordinatorFailed:
        coordinator = self._known[operator]
        try:
            state = coordinator.snapshot(checkpoint)
        except BaseException as error:  # noqa: BLE001  # of a connector, whose events are in no snapshot
            cause = driver_cause(coordinator.host.name, error)
            return OperatorCoordinatorFailed(
                operator=operator,
                checkpoint=checkpoint,
                error=cause.text,
                name=coordinator.host.name,
                traceback=cause.traceback,
            )
        return OperatorCoordinatorSnapshotted(operator=operator, checkpoint=checkpoint, state=state)

    def taken(self, message: OperatorEventTaken) -> None:
        """A slot says whether an event was delivered."""
        if message.delivered:
            self._feed(OperatorEventDelivered(number=message.number))
        else:
            self._feed(OperatorEventLost(number=message.number, task_not_running=True))

    def splits_read(self, message: SplitsRead) -> None:
        """A slot says how many splits a subtask of a source has read."""
        coordinator = self._known.get(message.operator)
        if coordinator is not None and coordinator.running:
            coordinator.splits_read(message.task.subtask, message.count)

    def not_needed(self, operator: OperatorId) -> None:
        """Nothing needs the records of a source any more."""
        if operator in self._known:
            self._known[operator].not_needed()

    def _forget(self, operator: OperatorId, checkpoints: Sequence[CheckpointId]) -> None:
        for known in checkpoints:
            self._parts[known].pop(operator, None)
            if not self._parts[known]:
                del self._parts[known]

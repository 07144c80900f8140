"""The events and the effects of the checkpoint machine of a task."""

from __future__ import annotations

from penstock.core.barrier.events import AlignmentMetrics
from penstock.core.effects import Effect, Event, Ticked
from penstock.core.elements import Barrier
from penstock.core.ids import CheckpointId
from penstock.core.messages import SubtaskState
from penstock.core.reasons import CheckpointFailure

# --- events ----------------------------------------------------------------------


class TaskStarted(Event, frozen=True, kw_only=True):
    """The task is restored and runs: from here on it can take checkpoints."""


class SnapshotDue(Event, frozen=True, kw_only=True):
    """The barrier handler, or for a source the master, says: take the snapshot now."""

    barrier: Barrier
    metrics: AlignmentMetrics = AlignmentMetrics()


class SnapshotImpossible(Event, frozen=True, kw_only=True):
    """The barrier handler says that this task cannot take the checkpoint."""

    checkpoint: CheckpointId
    reason: CheckpointFailure
    error: str = ""


class InputStateComplete(Event, frozen=True, kw_only=True):
    """All barriers of an unaligned checkpoint are in: its input channel state is complete."""

    checkpoint: CheckpointId
    metrics: AlignmentMetrics


class SnapshotTaken(Event, frozen=True, kw_only=True):
    """The synchronous part is done (`TakeSnapshot` was performed); the asynchronous part has been started."""

    checkpoint: CheckpointId
    sync_ms: float


class SnapshotWritten(Event, frozen=True, kw_only=True):
    """The asynchronous part is done and durable."""

    checkpoint: CheckpointId
    state: SubtaskState | None
    async_ms: float
    checkpointed_bytes: int
    bytes_persisted: int = 0


class SnapshotWriteFailed(Event, frozen=True, kw_only=True):
    """The asynchronous part failed."""

    checkpoint: CheckpointId
    error: str


class CompletionNotified(Event, frozen=True, kw_only=True):
    """The master says that a checkpoint is complete."""

    checkpoint: CheckpointId
    subsumed: CheckpointId | None = None


class AbortNotified(Event, frozen=True, kw_only=True):
    """The master says that a checkpoint will never complete."""

    checkpoint: CheckpointId
    latest_completed: CheckpointId | None = None


class DataFinished(Event, frozen=True, kw_only=True):
    """All data has been seen and the operators have finished (`drained`), or the task was stopped without drain."""

    drained: bool = True


class EndAllowed(Event, frozen=True, kw_only=True):
    """The master says that no checkpoint waits for the task, and that no checkpoint will."""


class TaskStopped(Event, frozen=True, kw_only=True):
    """The task runs no more (cancelled, failed): it declines and acknowledges nothing from here on."""


TaskEvent = (
    TaskStarted
    | SnapshotDue
    | SnapshotImpossible
    | InputStateComplete
    | SnapshotTaken
    | SnapshotWritten
    | SnapshotWriteFailed
    | CompletionNotified
    | AbortNotified
    | DataFinished
    | EndAllowed
    | TaskStopped
    | Ticked
)

# --- effects ---------------------------------------------------------------------


class BroadcastCancelMarker(Effect, frozen=True, kw_only=True):
    """Tell all downstream tasks that this task sends no barrier of this checkpoint."""

    checkpoint: CheckpointId


class PrepareOperators(Effect, frozen=True, kw_only=True):
    """Have the operators emit the records that must come before the barrier."""

    checkpoint: CheckpointId


class BroadcastBarrier(Effect, frozen=True, kw_only=True):
    """Send the task's own barrier into every output channel. An unaligned barrier overtakes the data that waits
    there."""

    barrier: Barrier


class ArmOutputTimeout(Effect, frozen=True, kw_only=True):
    """Have the barrier turn unaligned when it is older than its aligned time-out, if the barrier still waits to be
    sent."""

    barrier: Barrier


class SaveOutput(Effect, frozen=True, kw_only=True):
    """Save the data that the barrier overtook in the output queues: this data belongs to the checkpoint."""

    checkpoint: CheckpointId


class TakeSnapshot(Effect, frozen=True, kw_only=True):
    """Take the synchronous part now and start the asynchronous part. The driver answers with `SnapshotTaken`, later
    with `SnapshotWritten` or `SnapshotWriteFailed`. An exception in the synchronous part fails the task."""

    barrier: Barrier
    after_data: bool
    """Whether the task has reached the end of its data. The saved state says so."""


class TellBarrierPassed(Effect, frozen=True, kw_only=True):
    """Tell the operator coordinators of this task that the synchronous part is done: events that the coordinators send
    from here on find the snapshot frozen, and belong behind the barrier."""

    checkpoint: CheckpointId


class CancelSnapshot(Effect, frozen=True, kw_only=True):
    """Give up the asynchronous part of a snapshot, and delete the files that were written."""

    checkpoint: CheckpointId


class AcknowledgeSnapshot(Effect, frozen=True, kw_only=True):
    """Tell the master that this task's part is durable."""

    checkpoint: CheckpointId
    state: SubtaskState | None
    metrics: AlignmentMetrics
    sync_ms: float
    async_ms: float
    checkpointed_bytes: int
    bytes_persisted: int


class DeclineSnapshot(Effect, frozen=True, kw_only=True):
    """Tell the master that this task will not take part in the checkpoint, and why."""

    checkpoint: CheckpointId
    reason: CheckpointFailure
    error: str


class DiscardSnapshot(Effect, frozen=True, kw_only=True):
    """Delete the files of a snapshot: the checkpoint was aborted, or the task was stopped, while the files were being
    written."""

    checkpoint: CheckpointId
    state: SubtaskState | None
    target: str | None = None
    """The folder that the paths of a savepoint are relative to; None for checkpoints."""


class TellCompleted(Effect, frozen=True, kw_only=True):
    """Operators may commit everything up to this checkpoint."""

    checkpoint: CheckpointId


class TellSubsumed(Effect, frozen=True, kw_only=True):
    """Operators may forget everything up to this checkpoint."""

    checkpoint: CheckpointId


class TellAborted(Effect, frozen=True, kw_only=True):
    """Tell the operators that the checkpoint will never complete."""

    checkpoint: CheckpointId


class AskToEnd(Effect, frozen=True, kw_only=True):
    """The final checkpoint (or the synchronous savepoint) is complete: ask the master to let the task end, as soon as
    everything downstream has processed the task's data, and no operator has anything under way. Until the master agrees
    the task takes part in checkpoints."""


class EndTask(Effect, frozen=True, kw_only=True):
    """The task ends now: nothing but the end of its channels goes out any more."""


class GiveUpStop(Effect, frozen=True, kw_only=True):
    """The savepoint that was to end the task was aborted. The task has ended its data for the savepoint and cannot read
    on, so the task is restarted from the latest checkpoint."""

    checkpoint: CheckpointId


class FailTask(Effect, frozen=True, kw_only=True):
    """The master has told the task something that contradicts the state of the task: the task cannot go on."""

    text: str


TaskEffect = (
    BroadcastCancelMarker
    | PrepareOperators
    | BroadcastBarrier
    | ArmOutputTimeout
    | SaveOutput
    | TakeSnapshot
    | TellBarrierPassed
    | CancelSnapshot
    | AcknowledgeSnapshot
    | DeclineSnapshot
    | DiscardSnapshot
    | TellCompleted
    | TellSubsumed
    | TellAborted
    | AskToEnd
    | EndTask
    | GiveUpStop
    | FailTask
)

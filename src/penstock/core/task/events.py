"""What the checkpoint machine of a subtask is told, and what it wants done."""

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
    """The barrier handler says that the checkpoint cannot be taken here."""

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
    """The master says that no checkpoint waits for the task, and that none will."""


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
    """Tell everything downstream that no barrier of this checkpoint comes from here."""

    checkpoint: CheckpointId


class PrepareOperators(Effect, frozen=True, kw_only=True):
    """Operators emit what must come before the barrier."""

    checkpoint: CheckpointId


class BroadcastBarrier(Effect, frozen=True, kw_only=True):
    """Send the task's own barrier to every channel; one that is unaligned overtakes what waits there."""

    barrier: Barrier


class ArmOutputTimeout(Effect, frozen=True, kw_only=True):
    """When the barrier is older than its aligned time-out and still waits to be sent, it turns unaligned."""

    barrier: Barrier


class SaveOutput(Effect, frozen=True, kw_only=True):
    """The data that the barrier overtook in the output queues belongs to the checkpoint."""

    checkpoint: CheckpointId


class TakeSnapshot(Effect, frozen=True, kw_only=True):
    """Take the synchronous part now and start the asynchronous part. The driver answers with `SnapshotTaken`, later
    with `SnapshotWritten` or `SnapshotWriteFailed`. An exception in the synchronous part fails the task."""

    barrier: Barrier
    after_data: bool
    """The task had reached the end of its data: its state says so."""


class TellBarrierPassed(Effect, frozen=True, kw_only=True):
    """Tell the coordinators of this task's operators that the synchronous part is done: what they say from here on
    finds the snapshot frozen, and belongs behind the barrier."""

    checkpoint: CheckpointId


class CancelSnapshot(Effect, frozen=True, kw_only=True):
    """Give up the asynchronous part of a snapshot, and delete what it wrote."""

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
    """Tell the master that this task will not take part."""

    checkpoint: CheckpointId
    reason: CheckpointFailure
    error: str


class DiscardSnapshot(Effect, frozen=True, kw_only=True):
    """Delete what was written: the checkpoint was aborted while it was being written."""

    checkpoint: CheckpointId
    state: SubtaskState | None
    target: str | None = None
    """The folder of a savepoint, in which its paths begin; None for checkpoints."""


class TellCompleted(Effect, frozen=True, kw_only=True):
    """Operators may commit everything up to this checkpoint."""

    checkpoint: CheckpointId


class TellSubsumed(Effect, frozen=True, kw_only=True):
    """Operators may forget everything up to this checkpoint."""

    checkpoint: CheckpointId


class TellAborted(Effect, frozen=True, kw_only=True):
    """Operators learn that the checkpoint will never complete."""

    checkpoint: CheckpointId


class AskToEnd(Effect, frozen=True, kw_only=True):
    """The final checkpoint (or the synchronous savepoint) is complete: ask the master to let the task end, as soon as
    everything downstream has processed the task's data, and no operator has anything under way. Until the master agrees
    the task takes part in checkpoints."""


class EndTask(Effect, frozen=True, kw_only=True):
    """The task ends now: nothing goes out any more but the end of its partition."""


class GiveUpStop(Effect, frozen=True, kw_only=True):
    """The savepoint that was to end the task was aborted. The task has ended its data for the savepoint and cannot read
    on, so the task is restarted from the latest checkpoint."""

    checkpoint: CheckpointId


class FailTask(Effect, frozen=True, kw_only=True):
    """The master has said something that cannot be: the task cannot go on."""

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

"""Everything the checkpoint coordinator can want done. Performed in list order.

The shell's duties:

1. Work that blocks (location, metadata, pointer, deletes) runs off the loop; its result comes back as the event named
   in the effect's docstring, exactly once, also when the checkpoint has ended meanwhile.
2. Such work ends in bounded time. An aborted checkpoint does not stop it.
3. `SendToTask` and `SendOperatorEvent` to one task arrive in the order they were asked for, or not at all.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.core.effects import Effect
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, Epoch, Instant, OperatorId, RequestId, TaskId
from penstock.core.messages import NotifyAborted, NotifyComplete, TriggerCheckpoint
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CheckpointMetadata, CompletedCheckpoint, SnapshotKind

# --- storage ---------------------------------------------------------------------------------------------------------


class CreateLocation(Effect, frozen=True, kw_only=True):
    """Make the id durably taken, so that another driver begins behind it, and make a folder that only this checkpoint
    uses. Answered by `LocationCreated` or `LocationFailed`."""

    checkpoint: CheckpointId
    kind: SnapshotKind
    options: CheckpointOptions
    """For a savepoint `target` is the folder below which its own folder is to be made."""


class WriteMetadata(Effect, frozen=True, kw_only=True):
    """Write the metadata file into the checkpoint's folder. Answered by `MetadataWritten` or `MetadataFailed`."""

    checkpoint: CheckpointId
    location: str
    metadata: CheckpointMetadata


class StorePointer(Effect, frozen=True, kw_only=True):
    """Record a completed checkpoint such that another driver finds it; only when that is durable drop the records of
    `forget`, best effort. Answered by `PointerStored` or `PointerFailed`."""

    completed: CompletedCheckpoint
    forget: tuple[CheckpointId, ...] = ()


class ForgetPointers(Effect, frozen=True, kw_only=True):
    """Drop these records from the store: the job is over. Not answered."""

    checkpoints: tuple[CheckpointId, ...]


class DeleteFiles(Effect, frozen=True, kw_only=True):
    """Delete files, then the folder with all that is still in it; go on after an error. What is not there is no error.
    Answered by `FilesDeleted`."""

    cleaning: int
    paths: tuple[str, ...] = ()
    """As in `StateFile.path`."""
    folder: str | None = None
    """As in `LocationCreated.location`."""
    root: str | None = None
    """Where the paths begin: the folder of a savepoint; None: in the checkpoint directory."""


# --- operator coordinators and hooks ---------------------------------------------------------------------------------


class SnapshotOperatorCoordinator(Effect, frozen=True, kw_only=True):
    """Have an operator coordinator take its snapshot. Answered by `OperatorCoordinatorSnapshotted` or
    `OperatorCoordinatorFailed`."""

    operator: OperatorId
    checkpoint: CheckpointId


class SendOperatorEvent(Effect, frozen=True, kw_only=True):
    """Send an event of an operator coordinator to its subtask. Answered by `OperatorEventDelivered` or
    `OperatorEventLost`."""

    number: int
    operator: OperatorId
    task: TaskId
    epoch: Epoch
    event: bytes


class TellCheckpointComplete(Effect, frozen=True, kw_only=True):
    """Tell an operator coordinator that `checkpoint`, and all before it, are durable."""

    operator: OperatorId
    checkpoint: CheckpointId


class TellCheckpointAborted(Effect, frozen=True, kw_only=True):
    """Tell an operator coordinator that `checkpoint` will never complete."""

    operator: OperatorId
    checkpoint: CheckpointId


class TriggerHook(Effect, frozen=True, kw_only=True):
    """Run a master hook. Answered by `HookTriggered` or `HookFailed`; a hook that does neither lets the checkpoint
    expire."""

    hook: str
    checkpoint: CheckpointId
    timestamp: Instant


# --- tasks and the job -----------------------------------------------------------------------------------------------


class SendToTask(Effect, frozen=True, kw_only=True):
    """Send a message to the slot of a task. It may be lost together with the connection."""

    task: TaskId
    message: TriggerCheckpoint | NotifyComplete | NotifyAborted


class FailJob(Effect, frozen=True, kw_only=True):
    """Fail the job as a whole: all tasks restart, if the restart strategy allows."""

    reason: CheckpointFailure
    text: str


class FailTask(Effect, frozen=True, kw_only=True):
    """Fail this task; it restarts with its region, if the restart strategy allows."""

    task: TaskId
    reason: CheckpointFailure
    text: str


# --- requesters and people -------------------------------------------------------------------------------------------


class RequestFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not fulfilled."""

    reason: CheckpointFailure | None
    """None: the request itself was wrong."""
    text: str
    savepoint: str | None = None
    """Set if the savepoint exists all the same: its metadata file."""


class AnswerRequest(Effect, frozen=True, kw_only=True):
    """Tell the requester how it ended."""

    request: RequestId
    result: CompletedCheckpoint | RequestFailure


class CheckpointStarted(Effect, frozen=True, kw_only=True):
    """For the log: a checkpoint begins."""

    checkpoint: CheckpointId
    kind: SnapshotKind
    queued_ms: int
    """How long its request had waited."""


class CheckpointCompleted(Effect, frozen=True, kw_only=True):
    """For the log and for whoever follows checkpoints on the driver: it is durable."""

    completed: CompletedCheckpoint
    took_ms: int


class CheckpointAborted(Effect, frozen=True, kw_only=True):
    """For the log: it will never complete."""

    checkpoint: CheckpointId
    reason: CheckpointFailure
    text: str


class RequestDropped(Effect, frozen=True, kw_only=True):
    """For the log: a request was dropped before it became a checkpoint."""

    periodic: bool
    reason: CheckpointFailure
    text: str


class AckVerdict(Enum):
    """What became of an acknowledgement."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """That task had acknowledged already; its files are in use."""
    UNKNOWN = "unknown"
    """That task, or that attempt of it, is not part of the checkpoint; its own files were discarded."""
    LATE = "late"
    """The checkpoint had ended; its own files were discarded."""
    EXPIRED = "expired"
    """Late, and the checkpoint had ended because its time was over: a longer time-out may help."""
    FOREIGN = "foreign"
    """Of another job; its files were not touched."""


class AcknowledgeIgnored(Effect, frozen=True, kw_only=True):
    """For the log: an acknowledgement did not count."""

    checkpoint: CheckpointId
    task: TaskId
    verdict: AckVerdict


CoordinatorEffect = (
    CreateLocation
    | WriteMetadata
    | StorePointer
    | ForgetPointers
    | DeleteFiles
    | SnapshotOperatorCoordinator
    | SendOperatorEvent
    | TellCheckpointComplete
    | TellCheckpointAborted
    | TriggerHook
    | SendToTask
    | FailJob
    | FailTask
    | AnswerRequest
    | CheckpointStarted
    | CheckpointCompleted
    | CheckpointAborted
    | RequestDropped
    | AcknowledgeIgnored
)

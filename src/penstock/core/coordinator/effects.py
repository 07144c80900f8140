"""The effects of the checkpoint coordinator. They are performed in list order.

The shell's duties:

1. Work that blocks (location, metadata, pointer, deletes) runs off the loop. The result of the work comes back as the
   event named in the effect's docstring, exactly once, also if the checkpoint has ended meanwhile.
2. Such work ends in bounded time. The abort of a checkpoint does not stop the work for that checkpoint.
3. `SendToTask` and `SendOperatorEvent` to one task arrive in the order of the effects, or not at all.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.core.effects import Effect
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, Epoch, Instant, OperatorId, RequestId, TaskId
from penstock.core.messages import LetEnd, NotifyAborted, NotifyComplete, TriggerCheckpoint
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CheckpointMetadata, CompletedCheckpoint, SnapshotKind

# --- storage ---------------------------------------------------------------------------------------------------------


class CreateLocation(Effect, frozen=True, kw_only=True):
    """Make durable that the id is taken, so that another driver begins with a higher id, and make a folder that only
    this checkpoint uses. Answered by `LocationCreated` or `LocationFailed`."""

    checkpoint: CheckpointId
    kind: SnapshotKind
    options: CheckpointOptions
    """For a savepoint `target` is the folder below which the savepoint's own folder is to be made."""


class WriteMetadata(Effect, frozen=True, kw_only=True):
    """Write the metadata file into the checkpoint's folder. Answered by `MetadataWritten` or `MetadataFailed`."""

    checkpoint: CheckpointId
    location: str
    metadata: CheckpointMetadata


class StorePointer(Effect, frozen=True, kw_only=True):
    """Store the record of a completed checkpoint, so that another driver finds the checkpoint. Only when the record is
    durable, drop the records of `forget`; a record that cannot be dropped is no failure. Answered by `PointerStored` or
    `PointerFailed`."""

    completed: CompletedCheckpoint
    forget: tuple[CheckpointId, ...] = ()


class ForgetPointers(Effect, frozen=True, kw_only=True):
    """Drop the records of these checkpoints from the store: the checkpoints' files are deleted, or the job is over. Not
    answered."""

    checkpoints: tuple[CheckpointId, ...]


class DeleteFiles(Effect, frozen=True, kw_only=True):
    """Delete the files, then the folder with everything that is still in it; go on after an error. A file that does not
    exist is no error. Answered by `FilesDeleted`."""

    cleaning: int
    paths: tuple[str, ...] = ()
    """As in `StateFile.path`."""
    folder: str | None = None
    """As in `LocationCreated.location`."""
    root: str | None = None
    """The folder that the paths are relative to: the folder of a savepoint; None: the checkpoint directory."""


class CleaningGivenUp(Effect, frozen=True, kw_only=True):
    """For the log: all tries to delete these files have failed. The files are left for people to delete."""

    paths: tuple[str, ...] = ()
    folder: str | None = None
    error: str
    """The error of the last try."""


# --- operator coordinators and hooks ---------------------------------------------------------------------------------


class SnapshotOperatorCoordinator(Effect, frozen=True, kw_only=True):
    """Ask an operator coordinator for its snapshot. Answered by `OperatorCoordinatorSnapshotted` or
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
    """Tell an operator coordinator that `checkpoint` is durable. Everything before that checkpoint is durable, too."""

    operator: OperatorId
    checkpoint: CheckpointId


class TellCheckpointAborted(Effect, frozen=True, kw_only=True):
    """Tell an operator coordinator that `checkpoint` will never complete."""

    operator: OperatorId
    checkpoint: CheckpointId


class TriggerHook(Effect, frozen=True, kw_only=True):
    """Run a master hook. Answered by `HookTriggered` or `HookFailed`; without an answer the checkpoint expires."""

    hook: str
    checkpoint: CheckpointId
    timestamp: Instant


# --- tasks and the job -----------------------------------------------------------------------------------------------


class SendToTask(Effect, frozen=True, kw_only=True):
    """Send a message to the slot of a task. The message may be lost together with the connection."""

    task: TaskId
    message: TriggerCheckpoint | NotifyComplete | NotifyAborted | LetEnd


class FailJob(Effect, frozen=True, kw_only=True):
    """Fail the job as a whole: all tasks restart, if the restart strategy allows."""

    reason: CheckpointFailure
    text: str
    operator: str | None = None
    """The name of the operator, if the job fails because the operator's coordinator on the driver raised."""
    traceback: str = ""
    free: bool = False
    """The restart follows from a request of a user: the restart strategy is not asked, and does not count the
    restart."""


class FailTask(Effect, frozen=True, kw_only=True):
    """Fail this task; the task's region restarts, if the restart strategy allows."""

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
    """The metadata file of the savepoint, if the savepoint exists although the request failed."""


class AnswerRequest(Effect, frozen=True, kw_only=True):
    """Tell the requester how the request ended."""

    request: RequestId
    result: CompletedCheckpoint | RequestFailure


class CheckpointStarted(Effect, frozen=True, kw_only=True):
    """For the log: a checkpoint begins."""

    checkpoint: CheckpointId
    kind: SnapshotKind
    queued_ms: int
    """How long the request for the checkpoint had waited."""


class CheckpointCompleted(Effect, frozen=True, kw_only=True):
    """For the log and for listeners on the driver: the checkpoint is complete and durable."""

    completed: CompletedCheckpoint
    took_ms: int


class CheckpointAborted(Effect, frozen=True, kw_only=True):
    """For the log: the checkpoint will never complete."""

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
    """The task had already acknowledged the checkpoint. The files of the acknowledgement are in use."""
    UNKNOWN = "unknown"
    """The task, or the task's epoch, is not part of the checkpoint. The files of the acknowledgement were discarded."""
    LATE = "late"
    """The checkpoint had ended. The files of the acknowledgement were discarded."""
    EXPIRED = "expired"
    """As `LATE`, and the checkpoint had ended because its time was over: a longer time-out may help."""
    FOREIGN = "foreign"
    """The acknowledgement is of another job. Its files were not touched."""


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
    | CleaningGivenUp
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

"""Everything that can happen to the checkpoint coordinator.

Events that answer an effect name the checkpoint (or cleaning, or event number) that the effect named. Each of them may
arrive late, when its checkpoint has ended meanwhile: the coordinator then cleans up what the work left behind.
"""

from __future__ import annotations

from enum import Enum

from penstock.core.effects import Event, Ticked
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, Epoch, OperatorId, RequestId, TaskId, VertexId
from penstock.core.messages import Acknowledge, Decline
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CompletedCheckpoint

# --- the job and its tasks -------------------------------------------------------------------------------------------


class AttemptStarted(Event, frozen=True, kw_only=True):
    """Job to coordinator: these tasks are being deployed for `epoch`. Until `TaskRunning` none of them runs. Comes
    after `FailedOver`, and only when `is_settled` allows to choose what to restore."""

    epoch: Epoch
    tasks: tuple[TaskId, ...] | None = None
    """None: all tasks of the job."""
    finished_vertices: tuple[VertexId, ...] = ()
    """Vertices that are deployed as finished: they were so in the snapshot that is restored."""
    restored: CompletedCheckpoint | None = None
    """What the tasks start from; for statistics."""
    graph: CheckpointGraph | None = None
    """Set if the job has been rescaled: the same vertices, with another parallelism."""
    drained: bool = False
    """What is restored was taken after a stop with drain, and the tasks go on to end."""


class TaskRunning(Event, frozen=True, kw_only=True):
    """Job to coordinator: the task has restored its state and runs."""

    task: TaskId
    epoch: Epoch


class TaskDataEnded(Event, frozen=True, kw_only=True):
    """Job to coordinator: the task has seen all its data and finished its operators; it waits for a last checkpoint."""

    task: TaskId
    epoch: Epoch


class TaskEnded(Event, frozen=True, kw_only=True):
    """Job to coordinator: the task has ended for good, in success."""

    task: TaskId
    epoch: Epoch


class TaskFailing(Event, frozen=True, kw_only=True):
    """Job to coordinator: the task has failed, or its slot is gone."""

    task: TaskId
    epoch: Epoch
    error: str = ""


class FailedOver(Event, frozen=True, kw_only=True):
    """Job to coordinator: these tasks are being stopped to be restarted. Every pending checkpoint is lost."""

    tasks: tuple[TaskId, ...] | None = None
    """None: all tasks of the job."""


class ScheduleAllowed(Event, frozen=True, kw_only=True):
    """Job to coordinator: the job is in the state `running`. Periodic checkpoints, and the last one after the end of
    all data, are taken only when all tasks run, too."""

    draw: float
    """A random number in [0, 1): spreads the first checkpoints of jobs that start together."""


class ScheduleForbidden(Event, frozen=True, kw_only=True):
    """Job to coordinator: the job is in any other state. Pending and waiting checkpoints are aborted."""


class BacklogChanged(Event, frozen=True, kw_only=True):
    """Source to coordinator: it works through old data, or has caught up."""

    operator: OperatorId
    backlog: bool


class JobEnd(Enum):
    """How a job came to its end."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUSPENDED = "suspended"
    """This driver gives the job up; another one may take it over."""

    @property
    def is_final(self) -> bool:
        """Whether no driver will ever run the job again."""
        return self is not JobEnd.SUSPENDED


class ShutDown(Event, frozen=True, kw_only=True):
    """Job to coordinator: no more checkpoints. Answers to work that is under way must still be fed in until
    `is_settled`."""

    status: JobEnd


# --- requests --------------------------------------------------------------------------------------------------------


class RequestKind(Enum):
    """What a user asks for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    """Take a savepoint, then end the job."""


class CheckpointForm(Enum):
    """Whether a requested checkpoint may build on earlier ones."""

    CONFIGURED = "configured"
    FULL = "full"
    INCREMENTAL = "incremental"


class CheckpointRequested(Event, frozen=True, kw_only=True):
    """User to coordinator: take a snapshot now. Exactly one `AnswerRequest` follows."""

    request: RequestId
    kind: RequestKind
    target: str | None = None
    """Where a savepoint goes; None: to the job's default."""
    drain: bool = False
    """Only with `STOP`: event time goes to its end first."""
    canonical: bool = False
    """Savepoints: in the format that every back end can restore."""
    form: CheckpointForm = CheckpointForm.CONFIGURED
    """Checkpoints only."""


# --- from tasks ------------------------------------------------------------------------------------------------------


class Acknowledged(Event, frozen=True, kw_only=True):
    """Task to coordinator: my part is durable."""

    message: Acknowledge


class Declined(Event, frozen=True, kw_only=True):
    """Task to coordinator: I will not take part."""

    message: Decline


class BarrierPassed(Event, frozen=True, kw_only=True):
    """Task to coordinator: the barrier of `checkpoint` is in, events of the operator's coordinator may come again.
    Optional: the task's acknowledgement says the same, later."""

    operator: OperatorId
    task: TaskId
    epoch: Epoch
    checkpoint: CheckpointId


# --- operator coordinators and hooks ---------------------------------------------------------------------------------


class OperatorCoordinatorSnapshotted(Event, frozen=True, kw_only=True):
    """Operator coordinator to coordinator: my state as of now. Answers `SnapshotOperatorCoordinator`. Events that it
    submitted before belong before the barrier, later ones behind it."""

    operator: OperatorId
    checkpoint: CheckpointId
    state: bytes


class OperatorCoordinatorFailed(Event, frozen=True, kw_only=True):
    """Operator coordinator to coordinator: I cannot take the snapshot."""

    operator: OperatorId
    checkpoint: CheckpointId
    reason: CheckpointFailure = CheckpointFailure.TRIGGER_FAILED
    """`IO` if storage was to blame."""
    error: str = ""


class OperatorEventSubmitted(Event, frozen=True, kw_only=True):
    """Operator coordinator to coordinator: send this to a subtask, when no barrier is in between."""

    operator: OperatorId
    subtask: int
    event: bytes
    may_be_lost: bool = False
    """Losing it to a task that does not run is no failure."""


class OperatorEventDelivered(Event, frozen=True, kw_only=True):
    """Transport to coordinator: the task has the event of `SendOperatorEvent`."""

    number: int


class OperatorEventLost(Event, frozen=True, kw_only=True):
    """Transport to coordinator: the event of `SendOperatorEvent` did not arrive."""

    number: int
    task_not_running: bool = False
    """The slot is well, but said that the task does not run."""


class HookTriggered(Event, frozen=True, kw_only=True):
    """Master hook to coordinator: done, with this state. Answers `TriggerHook`."""

    hook: str
    checkpoint: CheckpointId
    state: bytes | None = None


class HookFailed(Event, frozen=True, kw_only=True):
    """Master hook to coordinator: I failed."""

    hook: str
    checkpoint: CheckpointId
    reason: CheckpointFailure = CheckpointFailure.TRIGGER_FAILED
    """`IO` if an outside system was to blame."""
    error: str = ""


# --- storage ---------------------------------------------------------------------------------------------------------


class LocationCreated(Event, frozen=True, kw_only=True):
    """Storage to coordinator: the id is durably taken and the folder of the checkpoint is `location`."""

    checkpoint: CheckpointId
    location: str


class LocationFailed(Event, frozen=True, kw_only=True):
    """Storage to coordinator: the id could not be taken, or the folder not be made; nothing was left behind."""

    checkpoint: CheckpointId
    error: str = ""


class MetadataWritten(Event, frozen=True, kw_only=True):
    """Storage to coordinator: the metadata is durable."""

    checkpoint: CheckpointId
    path: str
    size: int


class MetadataFailed(Event, frozen=True, kw_only=True):
    """Storage to coordinator: the metadata could not be written; parts of it may lie in the folder."""

    checkpoint: CheckpointId
    error: str = ""


class PointerStored(Event, frozen=True, kw_only=True):
    """Store of completed checkpoints to coordinator: a driver that starts now will find `checkpoint`."""

    checkpoint: CheckpointId


class PointerFailed(Event, frozen=True, kw_only=True):
    """Store of completed checkpoints to coordinator: the record was not stored."""

    checkpoint: CheckpointId
    inconsistent: bool = False
    """It may have been stored all the same. Say so only if a second look at the store did not tell."""
    error: str = ""


class FilesDeleted(Event, frozen=True, kw_only=True):
    """Storage to coordinator: the cleaning has ended, in success or not. What could not be deleted is tried again."""

    cleaning: int
    error: str | None = None


CoordinatorEvent = (
    Ticked
    | AttemptStarted
    | TaskRunning
    | TaskDataEnded
    | TaskEnded
    | TaskFailing
    | FailedOver
    | ScheduleAllowed
    | ScheduleForbidden
    | BacklogChanged
    | ShutDown
    | CheckpointRequested
    | Acknowledged
    | Declined
    | BarrierPassed
    | OperatorCoordinatorSnapshotted
    | OperatorCoordinatorFailed
    | OperatorEventSubmitted
    | OperatorEventDelivered
    | OperatorEventLost
    | HookTriggered
    | HookFailed
    | LocationCreated
    | LocationFailed
    | MetadataWritten
    | MetadataFailed
    | PointerStored
    | PointerFailed
    | FilesDeleted
)

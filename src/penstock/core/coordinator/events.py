"""The events of the checkpoint coordinator.

Events that answer an effect name the checkpoint (or cleaning, or event number) that the effect named. Such an event may
arrive late, after the end of its checkpoint: the coordinator then deletes the files that the work left behind.
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
    """Job to coordinator: these tasks are being deployed for `epoch`. A task runs from its `TaskRunning` on. This event
    comes after `FailedOver`, and only when the coordinator `is_settled`: before that nobody can choose what to
    restore."""

    epoch: Epoch
    tasks: tuple[TaskId, ...] | None = None
    """None: all tasks of the job."""
    finished_vertices: tuple[VertexId, ...] = ()
    """Vertices that are deployed as finished, because they were finished in the snapshot that is restored."""
    restored: CompletedCheckpoint | None = None
    """The checkpoint or savepoint that the tasks start from; for statistics."""
    graph: CheckpointGraph | None = None
    """Set if the job has been rescaled: the same vertices, with another parallelism."""
    drained: bool = False
    """The restored snapshot was taken after a stop with drain, and the tasks go on to their end."""
    is_last: bool = False
    """The restored savepoint is the last checkpoint of every task: the attempt takes no checkpoint."""


class TaskRunning(Event, frozen=True, kw_only=True):
    """Job to coordinator: the task has restored its state and runs."""

    task: TaskId
    epoch: Epoch


class TaskDataEnded(Event, frozen=True, kw_only=True):
    """Job to coordinator: the task has seen all its data and has finished its operators. The task waits for its last
    checkpoint."""

    task: TaskId
    epoch: Epoch


class TaskAsksToEnd(Event, frozen=True, kw_only=True):
    """Job to coordinator: the task has nothing left to do. The task takes part in checkpoints until the coordinator
    sends `LetEnd`."""

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
    """Job to coordinator: the job is in the state `running`. Periodic checkpoints, and the last checkpoint after the
    end of all data, are taken only while all tasks run, too."""

    draw: float
    """A random number in [0, 1): spreads the first checkpoints of jobs that start together."""


class ScheduleForbidden(Event, frozen=True, kw_only=True):
    """Job to coordinator: the job is ending. Pending checkpoints are aborted, and waiting requests are dropped. A
    restart needs no such event: after `FailedOver` the coordinator knows that not all tasks run."""


class BacklogChanged(Event, frozen=True, kw_only=True):
    """Source to coordinator: a part of the source works through old data, or has caught up. The source is behind while
    any part of the source is behind: the enumerator, or a subtask."""

    operator: OperatorId
    backlog: bool
    task: TaskId | None = None
    """The subtask; None: the enumerator."""
    epoch: Epoch | None = None
    """The epoch of the subtask."""


class JobEnd(Enum):
    """How a job came to its end."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUSPENDED = "suspended"
    """This driver lets go of the job; another driver may take the job over."""

    @property
    def is_final(self) -> bool:
        """Whether no driver will ever run the job again."""
        return self is not JobEnd.SUSPENDED


class ShutDown(Event, frozen=True, kw_only=True):
    """Job to coordinator: no checkpoint may begin any more. Answers to work that is under way must still be fed in
    until the coordinator `is_settled`."""

    status: JobEnd


# --- requests --------------------------------------------------------------------------------------------------------


class RequestKind(Enum):
    """What a user asks for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    """Take a savepoint, then end the job."""


class CheckpointForm(Enum):
    """Whether a requested checkpoint may refer to files of earlier checkpoints."""

    CONFIGURED = "configured"
    FULL = "full"


class CheckpointRequested(Event, frozen=True, kw_only=True):
    """User to coordinator: take a snapshot now. Exactly one `AnswerRequest` follows."""

    request: RequestId
    kind: RequestKind
    target: str | None = None
    """Where a savepoint goes."""
    drain: bool = False
    """Only with `STOP`: event time goes to its end before the savepoint."""
    canonical: bool = False
    """Only for savepoints: write the format that every back end can restore."""
    form: CheckpointForm = CheckpointForm.CONFIGURED
    """Only for checkpoints."""


# --- from tasks ------------------------------------------------------------------------------------------------------


class Acknowledged(Event, frozen=True, kw_only=True):
    """Task to coordinator: the task's part of the checkpoint is durable."""

    message: Acknowledge


class Declined(Event, frozen=True, kw_only=True):
    """Task to coordinator: the task will not take part in the checkpoint."""

    message: Decline


class BarrierPassed(Event, frozen=True, kw_only=True):
    """Task to the coordinators of its operators: the synchronous part of the task's snapshot for `checkpoint` is done,
    so events may come again. The task acknowledges to the checkpoint coordinator later, when the snapshot is
    durable."""

    task: TaskId
    epoch: Epoch
    checkpoint: CheckpointId


# --- operator coordinators and hooks ---------------------------------------------------------------------------------


class OperatorCoordinatorSnapshotted(Event, frozen=True, kw_only=True):
    """Operator coordinator to coordinator: the operator coordinator's state as of now. Answers
    `SnapshotOperatorCoordinator`. Events that the operator coordinator submitted before the snapshot belong before the
    barrier, later events behind the barrier."""

    operator: OperatorId
    checkpoint: CheckpointId
    state: bytes


class OperatorCoordinatorFailed(Event, frozen=True, kw_only=True):
    """Operator coordinator to coordinator: the operator coordinator raised when it was to take the snapshot. After that
    nobody can trust the operator coordinator to know what it has sent to its subtasks: the checkpoint is aborted, and
    the job fails as a whole."""

    operator: OperatorId
    checkpoint: CheckpointId
    reason: CheckpointFailure = CheckpointFailure.TRIGGER_FAILED
    """`IO` if storage was to blame."""
    error: str = ""
    name: str = ""
    """The operator's name, for people."""
    traceback: str = ""


class OperatorEventSubmitted(Event, frozen=True, kw_only=True):
    """Operator coordinator to coordinator: send this event to a subtask, on the right side of the barrier."""

    operator: OperatorId
    subtask: int
    event: bytes
    may_be_lost: bool = False
    """If the event is lost because the task does not run, that is no failure."""


class OperatorEventDelivered(Event, frozen=True, kw_only=True):
    """Transport to coordinator: the task has the event of `SendOperatorEvent`."""

    number: int


class OperatorEventLost(Event, frozen=True, kw_only=True):
    """Transport to coordinator: the event of `SendOperatorEvent` did not arrive."""

    number: int
    task_not_running: bool = False
    """The slot has answered that the task does not run."""


class HookTriggered(Event, frozen=True, kw_only=True):
    """Master hook to coordinator: the hook has run and has this state. Answers `TriggerHook`."""

    hook: str
    checkpoint: CheckpointId
    state: bytes | None = None


class HookFailed(Event, frozen=True, kw_only=True):
    """Master hook to coordinator: the hook failed. Answers `TriggerHook`."""

    hook: str
    checkpoint: CheckpointId
    reason: CheckpointFailure = CheckpointFailure.TRIGGER_FAILED
    """`IO` if an outside system was to blame."""
    error: str = ""


# --- storage ---------------------------------------------------------------------------------------------------------


class LocationCreated(Event, frozen=True, kw_only=True):
    """Storage to coordinator: it is durable that the id is taken, and the folder of the checkpoint is `location`."""

    checkpoint: CheckpointId
    location: str


class LocationFailed(Event, frozen=True, kw_only=True):
    """Storage to coordinator: the id could not be taken, or the folder could not be made. No file was left behind."""

    checkpoint: CheckpointId
    error: str = ""


class MetadataWritten(Event, frozen=True, kw_only=True):
    """Storage to coordinator: the metadata is durable."""

    checkpoint: CheckpointId
    path: str
    size: int


class MetadataFailed(Event, frozen=True, kw_only=True):
    """Storage to coordinator: the metadata could not be written. Parts of the metadata may lie in the folder."""

    checkpoint: CheckpointId
    error: str = ""


class PointerStored(Event, frozen=True, kw_only=True):
    """Store of completed checkpoints to coordinator: a driver that starts now will find `checkpoint`."""

    checkpoint: CheckpointId


class PointerFailed(Event, frozen=True, kw_only=True):
    """Store of completed checkpoints to coordinator: the record was not stored."""

    checkpoint: CheckpointId
    inconsistent: bool = False
    """The record may have been stored all the same. Set only if a second look at the store did not tell whether the
    record is stored."""
    error: str = ""


class FilesDeleted(Event, frozen=True, kw_only=True):
    """Storage to coordinator: the cleaning has ended; it succeeded if `error` is None. A failed cleaning is tried
    again."""

    cleaning: int
    error: str | None = None


CoordinatorEvent = (
    Ticked
    | AttemptStarted
    | TaskRunning
    | TaskDataEnded
    | TaskAsksToEnd
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

"""What happens to a job, and what the lifecycle wants done."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from penstock.core.effects import Effect, Event, Ticked
from penstock.core.errors import Fault
from penstock.core.ids import Epoch, SlotId, TaskId
from penstock.core.job.regions import Region


class JobState(Enum):
    """Where a job is in its life."""

    STANDBY = "standby"
    """Another driver has the job. This driver takes the job over when the other driver dies or lets go of the job."""
    CREATED = "created"
    STARTING = "starting"
    """Waiting for slots."""
    DEPLOYING = "deploying"
    """Slots restore their tasks."""
    RUNNING = "running"
    FAILING = "failing"
    """An attempt has failed: its tasks are being dropped, and lost slots are being replaced."""
    RESTARTING = "restarting"
    """All slots are back; the restart strategy's pause runs."""
    REPAIRING = "repairing"
    """The tasks of some regions are being restarted; the other tasks go on."""
    RESCALING = "rescaling"
    """All tasks are being dropped, and will be deployed with another parallelism."""
    ENDING = "ending"
    """Slots leave; the outcome is decided."""
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUSPENDED = "suspended"
    """This driver has let go of the job, and the job has not ended: another driver has the job, or can take it over."""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more will happen to the job in this driver."""
        return self in (JobState.FINISHED, JobState.CANCELLED, JobState.FAILED, JobState.SUSPENDED)


class FailureCause(Effect, frozen=True, kw_only=True):
    """What made an attempt fail: a field of several effects, and no effect by itself."""

    text: str
    traceback: str = ""
    operator: str | None = None
    subtask: int | None = None
    user_code: bool = False
    lacks_room: bool = False
    """Slots were asked for and did not come up, and no error says why: the cluster may have no room for these slots."""
    fault: Fault = Fault.PASSING
    why_final: str = ""
    """Why the job is not started again, if the restart strategy or `fail_fast.py` decided so; otherwise empty."""
    free: bool = False
    """The failure is the price of a request of the user: the job restarts at once, and the restart strategy is not
    asked."""


# --- events ----------------------------------------------------------------------


class JobStarted(Event, frozen=True, kw_only=True):
    """The user started the job."""


class SlotRegistered(Event, frozen=True, kw_only=True):
    """A slot's process called in."""

    slot: SlotId


class SlotHeard(Event, frozen=True, kw_only=True):
    """Any sign of life of a slot."""

    slot: SlotId


class SlotStuck(Event, frozen=True, kw_only=True):
    """A slot says, from beside its loop, that the loop has not turned for `stuck_ms`."""

    slot: SlotId
    stuck_ms: int
    where: str
    """What the loop is in, in words: the code of a step, or its own turn."""


class SlotMute(Event, frozen=True, kw_only=True):
    """The process of a slot lives and cannot say so itself, because native code holds Python's lock: a dump of its
    stacks has come. The loop has not turned for `stuck_ms`."""

    slot: SlotId
    stuck_ms: int
    where: str | None
    """What the loop is in, in words; None before the stacks have come as a whole."""


class SlotLoading(Event, frozen=True, kw_only=True):
    """A slot says that its tasks of `epoch` have been loading for `loading_ms`, and are not ready."""

    slot: SlotId
    epoch: Epoch
    loading_ms: int
    where: str
    """What the slot does, in words: which step loads its state, or is in `open()`."""


class SlotTurned(Event, frozen=True, kw_only=True):
    """The loop of a slot turns."""

    slot: SlotId


class SlotGone(Event, frozen=True, kw_only=True):
    """A slot is gone: the host says so, or the link to the slot is broken. The event is about the incarnation, however
    often the cluster has started that incarnation again: the host does not tell these processes from each other. A
    broken link to a process that the cluster has already replaced is not told."""

    slot: SlotId
    error: str | None
    host_gone: bool = False
    """The host itself is gone: no slot can ever be started again."""


class SlotReady(Event, frozen=True, kw_only=True):
    """A slot has restored its tasks."""

    slot: SlotId
    epoch: Epoch


class SlotCancelled(Event, frozen=True, kw_only=True):
    """A slot has dropped its tasks of all epochs up to `epoch`. If `tasks` is not empty, the slot has dropped only
    these tasks."""

    slot: SlotId
    epoch: Epoch
    tasks: tuple[TaskId, ...] = ()


class AttemptFailed(Event, frozen=True, kw_only=True):
    """Something made the attempt `epoch` unusable: a task raised, too many checkpoints failed, a deployment could not
    be prepared."""

    epoch: Epoch
    """The epoch of the task, if a task failed; otherwise the newest epoch of the job."""
    cause: FailureCause
    task: TaskId | None = None
    """The task that failed; None if the failure is not the failure of one task."""
    whole: bool = False
    """The whole job must restart: to restart the region of the task is not enough."""


class TaskDone(Event, frozen=True, kw_only=True):
    """A task has ended for good."""

    epoch: Epoch
    task: TaskId


class CancelRequested(Event, frozen=True, kw_only=True):
    """The user wants the job to end now."""


class LeadershipLost(Event, frozen=True, kw_only=True):
    """Another driver has taken the job over: this driver must let go of the job, whatever was about to happen."""


class RescaleRequested(Event, frozen=True, kw_only=True):
    """The user wants the running job to have `slots` slots, and so these tasks. The answers are `RescalePrepared` and
    then `AttemptRescaled`; or `RescaleGivenUp`, at any time before `AttemptRescaled`."""

    slots: int
    tasks: tuple[TaskId, ...]
    regions: Mapping[TaskId, Region] = {}


class RescaleConfirmed(Event, frozen=True, kw_only=True):
    """The checkpoint that `RescalePrepared` asks for is complete: the tasks may be deployed with the other
    parallelism."""


class RescaleFailing(Event, frozen=True, kw_only=True):
    """The checkpoint that `RescalePrepared` asks for has failed; `text` says why."""

    text: str


class CheckpointDone(Event, frozen=True, kw_only=True):
    """A checkpoint of the job has completed: the job makes progress."""


class StopChanged(Event, frozen=True, kw_only=True):
    """A stop with savepoint has begun, or has been given up. A stop ends the sources of all regions: while a stop is
    under way, no region can be restarted alone."""

    is_under_way: bool


JobEvent = (
    JobStarted
    | SlotRegistered
    | SlotHeard
    | SlotStuck
    | SlotLoading
    | SlotMute
    | SlotTurned
    | SlotGone
    | SlotReady
    | SlotCancelled
    | AttemptFailed
    | TaskDone
    | CancelRequested
    | LeadershipLost
    | RescaleRequested
    | RescaleConfirmed
    | RescaleFailing
    | CheckpointDone
    | StopChanged
    | Ticked
)


# --- effects ----------------------------------------------------------------------


class StartSlot(Effect, frozen=True, kw_only=True):
    """Ask the host for this slot."""

    slot: SlotId


class StopSlot(Effect, frozen=True, kw_only=True):
    """End a slot that cannot be reached or does not obey."""

    slot: SlotId


class TellLeave(Effect, frozen=True, kw_only=True):
    """Tell a slot to leave by itself."""

    slot: SlotId


class TellCancel(Effect, frozen=True, kw_only=True):
    """Tell a slot to drop its tasks of all epochs up to `epoch`. If `tasks` is not empty, the slot drops only these
    tasks."""

    slot: SlotId
    epoch: Epoch
    tasks: tuple[TaskId, ...] = ()


class ReportStuck(Effect, frozen=True, kw_only=True):
    """Tell people that a slot is stuck."""

    slot: SlotId


class ReportLoading(Effect, frozen=True, kw_only=True):
    """Tell people that a slot takes long to restore its tasks."""

    slot: SlotId


class ReportTurning(Effect, frozen=True, kw_only=True):
    """Tell people that the loop of a stuck slot turns again."""

    slot: SlotId


class TellPeerAlive(Effect, frozen=True, kw_only=True):
    """Tell a slot that another slot, with which it may share channels, lives and cannot say so itself."""

    slot: SlotId
    alive: SlotId


class TellPeerGone(Effect, frozen=True, kw_only=True):
    """Tell a slot that another slot, with which it may share channels, is gone."""

    slot: SlotId
    gone: SlotId


class DeployTasks(Effect, frozen=True, kw_only=True):
    """Send every slot its tasks for `epoch`, restored from the newest completed checkpoint."""

    epoch: Epoch
    slots: tuple[SlotId, ...]
    """All slots of the job, by place."""
    tasks: tuple[TaskId, ...] | None = None
    """Only these tasks are deployed, while other tasks run. None: all tasks of the job."""
    joining: tuple[SlotId, ...] = ()
    """Slots that join slots that run. A joining slot knows nothing of the job, and the other slots do not know its
    address."""


class RunTasks(Effect, frozen=True, kw_only=True):
    """All slots that got tasks are ready: let these tasks begin."""

    epoch: Epoch
    slots: tuple[SlotId, ...]
    """The slots that have tasks of this epoch."""
    tasks: tuple[TaskId, ...] | None = None
    """Only these tasks begin. None: all tasks of the job."""


class AttemptEnded(Effect, frozen=True, kw_only=True):
    """The attempt `epoch` is over, whatever comes next: no checkpoint of the attempt can complete."""

    epoch: Epoch
    cause: FailureCause
    restart_in_ms: int | None
    """None: the job is given up."""


class RegionEnded(Effect, frozen=True, kw_only=True):
    """These tasks are over, and will be restarted; the other tasks go on. No checkpoint that is under way can
    complete."""

    epoch: Epoch
    tasks: tuple[TaskId, ...]
    cause: FailureCause
    restart_in_ms: int


class RescalePrepared(Effect, frozen=True, kw_only=True):
    """Every slot that the other parallelism needs is up: take a checkpoint, then feed in `RescaleConfirmed`. The job
    goes on meanwhile."""


class RescaleGivenUp(Effect, frozen=True, kw_only=True):
    """The rescale is given up: the parallelism stays as it is."""

    text: str


class AttemptRescaled(Effect, frozen=True, kw_only=True):
    """The attempt `epoch` is over: no checkpoint of the attempt can complete. The next attempt has `slots` slots."""

    epoch: Epoch
    slots: int


class JobEnding(Effect, frozen=True, kw_only=True):
    """The outcome is decided; slots are leaving."""

    outcome: JobState
    cause: FailureCause | None


class JobEnded(Effect, frozen=True, kw_only=True):
    """No slot is left; nothing more happens."""

    outcome: JobState
    cause: FailureCause | None


JobEffect = (
    StartSlot
    | StopSlot
    | TellLeave
    | TellCancel
    | TellPeerAlive
    | TellPeerGone
    | ReportStuck
    | ReportLoading
    | ReportTurning
    | DeployTasks
    | RunTasks
    | AttemptEnded
    | RegionEnded
    | RescalePrepared
    | RescaleGivenUp
    | AttemptRescaled
    | JobEnding
    | JobEnded
)

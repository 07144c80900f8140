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
    """Another driver has the job; this one takes it over when that one dies."""
    CREATED = "created"
    STARTING = "starting"
    """Waiting for slots."""
    DEPLOYING = "deploying"
    """Slots restore their tasks."""
    RUNNING = "running"
    FAILING = "failing"
    """An attempt failed: its tasks are being dropped, lost slots replaced."""
    RESTARTING = "restarting"
    """All slots are back; the restart strategy's pause runs."""
    REPAIRING = "repairing"
    """Some tasks are being restarted; the others go on."""
    RESCALING = "rescaling"
    """Tasks are being dropped, to be deployed with another parallelism."""
    ENDING = "ending"
    """Slots leave; the outcome is decided."""
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUSPENDED = "suspended"
    """This driver has let go of the job, which has not ended: another driver has it, or can take it over."""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more will happen."""
        return self in (JobState.FINISHED, JobState.CANCELLED, JobState.FAILED, JobState.SUSPENDED)


class FailureCause(Effect, frozen=True, kw_only=True):
    """What made an attempt fail. Not an effect of its own: a part of several."""

    text: str
    traceback: str = ""
    operator: str | None = None
    subtask: int | None = None
    user_code: bool = False
    lacks_room: bool = False
    """Slots were asked for and did not come up, and nobody said why: the cluster may have no room for them."""
    fault: Fault = Fault.PASSING
    why_final: str = ""
    """Why the job is not started again, if it is not."""
    free: bool = False
    """It is the price of what a user asked for: the job restarts at once, and the restart strategy is not asked."""


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
    """A slot says from beside its loop that the loop has not turned for so long."""

    slot: SlotId
    stuck_ms: int
    where: str
    """What the loop is in: a step, or else."""


class SlotTurned(Event, frozen=True, kw_only=True):
    """The loop of a slot turns."""

    slot: SlotId


class SlotGone(Event, frozen=True, kw_only=True):
    """The host, or a broken link, says that a slot is no more, whatever attempt of its incarnation it is: the host
    knows a slot as it was asked for. A link that broke to an attempt with a successor is no news, and is not told."""

    slot: SlotId
    error: str | None
    host_gone: bool = False
    """The host itself is no more: no slot can ever be started again."""


class SlotReady(Event, frozen=True, kw_only=True):
    """A slot has restored its tasks."""

    slot: SlotId
    epoch: Epoch


class SlotCancelled(Event, frozen=True, kw_only=True):
    """A slot has dropped the tasks of all epochs up to `epoch`; or of these only `tasks`, if there are any."""

    slot: SlotId
    epoch: Epoch
    tasks: tuple[TaskId, ...] = ()


class AttemptFailed(Event, frozen=True, kw_only=True):
    """Something made the attempt `epoch` unusable: a task raised, too many checkpoints failed, a deployment could not
    be prepared."""

    epoch: Epoch
    """That of the task, if it was one."""
    cause: FailureCause
    task: TaskId | None = None
    """The task that failed, if it was one."""
    whole: bool = False
    """It is not enough to restart the region of the task."""


class TaskDone(Event, frozen=True, kw_only=True):
    """A task has ended for good."""

    epoch: Epoch
    task: TaskId


class CancelRequested(Event, frozen=True, kw_only=True):
    """The user wants the job to end now."""


class LeadershipLost(Event, frozen=True, kw_only=True):
    """Another driver has taken the job over: this one must let go of it, whatever it was about to do."""


class RescaleRequested(Event, frozen=True, kw_only=True):
    """The user wants the running job to have `slots` slots, and so these tasks. Answered by `RescalePrepared`, then
    `AttemptRescaled`; or by `RescaleGivenUp`, at any time before that."""

    slots: int
    tasks: tuple[TaskId, ...]
    regions: Mapping[TaskId, Region] = {}


class RescaleConfirmed(Event, frozen=True, kw_only=True):
    """The checkpoint that was to be taken first is complete: the tasks may go over."""


class RescaleFailing(Event, frozen=True, kw_only=True):
    """What was to be done first could not be."""

    text: str


class CheckpointDone(Event, frozen=True, kw_only=True):
    """A checkpoint of the job has completed: the job gets on."""


class StopChanged(Event, frozen=True, kw_only=True):
    """A stop with savepoint has begun, or has come to nothing. Sources end for it everywhere: while one is under way,
    no task can be restarted beside others."""

    is_under_way: bool


JobEvent = (
    JobStarted
    | SlotRegistered
    | SlotHeard
    | SlotStuck
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
    """Tell a slot to drop its tasks of all epochs up to `epoch`; or of these only `tasks`, if there are any."""

    slot: SlotId
    epoch: Epoch
    tasks: tuple[TaskId, ...] = ()


class ReportStuck(Effect, frozen=True, kw_only=True):
    """Tell people that a slot is stuck."""

    slot: SlotId


class ReportTurning(Effect, frozen=True, kw_only=True):
    """Tell people that a slot which was stuck is not any more."""

    slot: SlotId


class TellPeerGone(Effect, frozen=True, kw_only=True):
    """Tell a slot that another one, with which its tasks shared channels, is no more."""

    slot: SlotId
    gone: SlotId


class DeployTasks(Effect, frozen=True, kw_only=True):
    """Send every slot its tasks for `epoch`, restored from the newest completed checkpoint."""

    epoch: Epoch
    slots: tuple[SlotId, ...]
    """All of the job, by place."""
    tasks: tuple[TaskId, ...] | None = None
    """Only these, beside others that run. None: all tasks of the job."""
    joining: tuple[SlotId, ...] = ()
    """Slots that come to others that run: they know nothing of the job, and those that get tasks nothing of them."""


class RunTasks(Effect, frozen=True, kw_only=True):
    """All slots are ready: let the attempt begin."""

    epoch: Epoch
    slots: tuple[SlotId, ...]
    """Those that have tasks of it."""
    tasks: tuple[TaskId, ...] | None = None
    """Only these begin. None: all tasks of the job."""


class AttemptEnded(Effect, frozen=True, kw_only=True):
    """The attempt `epoch` is over, whatever comes next: no checkpoint of it can complete."""

    epoch: Epoch
    cause: FailureCause
    restart_in_ms: int | None
    """None: the job gives up."""


class RegionEnded(Effect, frozen=True, kw_only=True):
    """These tasks are over, and will be restarted; the others go on. No checkpoint that is under way can complete."""

    epoch: Epoch
    tasks: tuple[TaskId, ...]
    cause: FailureCause
    restart_in_ms: int


class RescalePrepared(Effect, frozen=True, kw_only=True):
    """Every slot that the new parallelism needs is there: take a checkpoint, then say `RescaleConfirmed`. The job goes
    on meanwhile."""


class RescaleGivenUp(Effect, frozen=True, kw_only=True):
    """The parallelism stays as it is."""

    text: str


class AttemptRescaled(Effect, frozen=True, kw_only=True):
    """The attempt `epoch` is over, and the next one has another parallelism: no checkpoint of it can complete."""

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
    | TellPeerGone
    | ReportStuck
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

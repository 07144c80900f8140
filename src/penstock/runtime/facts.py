"""Everything that a job's driver knows about the job, frozen at one moment: what pages, metrics and archives are made
from."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.ids import CheckpointId, Epoch, Instant, TaskId
from penstock.core.job.events import FailureCause, JobState
from penstock.core.views import CheckpointDetails
from penstock.plan.graph import Plan
from penstock.runtime.views import JobView


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """One task of the newest attempt."""

    attempt: int
    """How often the task was deployed before, since the driver began or the parallelism changed."""
    epoch: Epoch
    deployed: Instant
    ran: Instant | None = None
    ended: Instant | None = None
    failed: bool = False


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """One deployment of all tasks, or of the tasks of some regions."""

    epoch: Epoch
    tasks: int | None
    """How many tasks were deployed; None: all tasks."""
    deployed: Instant
    ran: Instant | None = None
    ended: Instant | None = None
    how: str = ""
    """How the deployment ended: `failed`, `region failed`, `rescaled`, `finished`, `cancelled`; empty while it runs."""
    restored: CheckpointId | None = None
    """The checkpoint that the tasks started from; None: from the beginning."""
    cause: FailureCause | None = None
    restart_in_ms: int | None = None
    rows_read_before: int = 0
    """How many records the sources had read in all attempts when the tasks were deployed."""
    rows_read_after: int | None = None
    """How many records the sources had read in all attempts when the deployment ended."""


@dataclass(frozen=True, kw_only=True)
class RescaleView:
    """A change of the parallelism."""

    asked: Instant
    before: int
    after: int
    state: str = "asked"
    """`asked`, `prepared` (all slots are there), `changing`, `completed` or `failed`."""
    times: dict[str, Instant] = field(default_factory=dict)
    """When each state was reached."""
    text: str = ""
    """Why the parallelism was not changed."""

    @property
    def is_over(self) -> bool:
        """Whether the change is done or given up."""
        return self.state in ("completed", "failed")


@dataclass(frozen=True, kw_only=True)
class SlotFacts:
    """What a slot has told about itself."""

    number: int
    incarnation: int
    name: str
    host: str | None
    pid: int | None
    spare: bool
    heard: Instant | None
    """When the loop of the slot turned last, as far as is known."""
    process: dict[str, float]
    """Memory and processor time of the slot's process, by name."""


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """A job at one moment."""

    now: Instant
    view: JobView
    plan: Plan | None
    """None on a driver that is on standby."""
    checkpoints: tuple[CheckpointDetails, ...] = ()
    """Newest first."""
    entered: dict[JobState, Instant] = field(default_factory=dict)
    attempts: tuple[AttemptView, ...] = ()
    """Oldest first."""
    tasks: dict[TaskId, TaskView] = field(default_factory=dict)
    rescales: tuple[RescaleView, ...] = ()
    """Oldest first."""
    slots: tuple[SlotFacts, ...] = ()

"""The program of a world that is run again by its name: the job of the name goes on, or a new job gets the name.

Every further driver is the same program, run again: after a cancel, a failure, a stop, a driver that died, or a job
that has finished. `runtime.master.runs` decides what a run does, as for a real program. Checked here: when the program
starts over, the files of the job before stay until the next job has a checkpoint of its own, and are gone at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from penstock.core.ids import CheckpointId, JobId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.tenure import Tenure
from penstock.plan.graph import Plan
from penstock.runtime.master.runs import LostJob, Run, take_job
from penstock.runtime.master.starting import StartingPoint, inherited
from penstock.settings import JobSettings
from penstock.sim.disk import Disk, is_below
from penstock.sim.rules import Rule
from penstock.sim.world import Actor, World
from penstock.storage.names import JobName
from penstock.storage.records import FileRecords
from penstock.storage.tenure import end_of, outcome_format, take_over

NAME = "program"
NAMES = layout.name_folder(NAME)
"""The folder of the records that say which job has the name."""


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """How the program of a world is run again."""

    fresh: bool = False
    """Whether the user asks the program to start over."""


def draw_rerun(random: Random, *, may_start_over: bool) -> Rerun:
    """How the program of a world is run again."""
    return Rerun(fresh=random.random() < 0.35 and may_start_over)


@dataclass
class SimLeader:
    """`Leader` of a world: terms alone keep drivers apart, since leases only say when to look."""

    tenure: Tenure
    records: FileRecords
    is_lost: bool = False

    def resign(self) -> None:
        """Nothing to do: no other driver waits for the job."""


class Program:
    """The program of one simulated job."""

    def __init__(
        self, disk: Disk, job: JobId, *, fresh: bool, make_plan: Callable[[], Plan], settings: JobSettings
    ) -> None:
        self._disk = disk
        self._job = job
        self._fresh = fresh
        self._make_plan = make_plan
        self._settings = settings
        self.run: Run | None = None
        """The run of the newest driver."""
        self.plan: Plan = make_plan()
        """The plan of the newest driver."""
        self.found: Tenure | None = None
        """What the first driver of the program found."""

    def begin(self, actor: Actor) -> Tenure:
        """Run the program, in a process that comes up. Raises `StorageError` or `JobTakenOver`."""
        store = self._disk.store(actor)

        def lead(job: JobId, _: LostJob, goes_on: bool) -> SimLeader:  # noqa: FBT001
            folder = layout.job_folder(job)
            tenure = take_over(store, folder, goes_on=goes_on)
            return SimLeader(tenure, FileRecords(store, folder, term=tenure.term))

        names = JobName(store, NAME, NAME)
        run = take_job(names, None, fresh=self._fresh, lead=lead, new_job=lambda: self._job, path_of=store.path_of)
        # Only the first driver starts over: the next driver goes on.
        self._fresh = False
        tenure, plan = run.leader.tenure, self._make_plan()
        try:
            point = plan if tenure.outcome is not None else inherited(plan, store, tenure, self._settings)
        except BaseException:
            run.abandon()
            raise
        run.began()
        self.run, self.plan = run, point.plan if isinstance(point, StartingPoint) else point
        self.found = self.found or tenure
        return tenure

    def when_safe(self, actor: Actor) -> Callable[[], None] | None:
        """What the newest driver does when the job has a checkpoint."""
        return None if self.run is None else self.run.when_safe(self._disk.store(actor), None, self.plan)

    def end(self, actor: Actor) -> JobState | None:
        """How the job has ended; None if it has not ended. The next run of the program takes care of what is left."""
        if self.found is not None and self.found.outcome is not None:
            return self.found.outcome.state
        store, folder = self._disk.store(actor), layout.job_folder(self._job)
        end = end_of(store, folder)
        if end is None or end.term is None:
            return None
        path = layout.outcome_file(folder, end.term)
        return outcome_format.decode(path, store.read(path)).state


class StartedOver:
    """Watches the files of a job whose name was given to another job."""

    def __init__(self, world: World, disk: Disk, job: JobId) -> None:
        self._world = world
        self._disk = disk
        self._folder = layout.job_folder(job)
        self._left = {path: data for path, data in disk.files.items() if is_below(path, self._folder)}
        self._looks = True

    def checkpoint_durable(self) -> None:
        """The next job has a checkpoint: up to here no file of the job before may be deleted."""
        if not self._looks:
            return
        self._looks = False
        # With the name, a term of the job before was taken, and the records of its earlier terms were deleted.
        lasting = [p for p in self._left if not layout.outlives_the_job(self._folder, p.rpartition("/")[0])]
        gone = [path for path in lasting if path not in self._disk.files]
        if gone:
            text = f"{len(gone)} files of the job before were deleted before the next job had a checkpoint: {gone[0]}"
            self._world.violate(Rule.STARTED_OVER, text)

    def check_end(self, checkpoints: Iterable[CheckpointId]) -> None:
        """The next job has ended, and has had these checkpoints: check the files of the job before."""
        if not any(True for _ in checkpoints):
            self.checkpoint_durable()
            return
        left = [path for path in self._disk.files if is_below(path, self._folder)]
        if left and not self._disk.errors:
            self._world.violate(Rule.STARTED_OVER, f"{len(left)} files of the job before are left, such as {left[0]}")

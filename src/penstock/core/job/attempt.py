"""When the tasks of a job are deployed, run, dropped and deployed again, one attempt after another.

* A new attempt is deployed only when every slot is registered, every surviving slot has dropped its tasks, and the
  pause before a restart is over. So tasks of two attempts of the whole job never run in one slot.
* A region that is restarted alone is dropped and deployed in the same way, with the next epoch, while the other tasks
  go on. A region restarts alone only if the job runs, no task has ended, and neither a stop nor a rescale is under way.
* Every wait has a deadline: for tasks to be dropped, and for tasks to be restored. When the deadline for tasks to be
  restored comes, a slot that has said what it is doing is waited for: a slot in its place would load the same state.

Why an attempt ends, and whether there is another attempt, is for `lifecycle.py` to decide.
"""

from __future__ import annotations

from penstock.core.ids import Epoch, Instant, SlotId
from penstock.core.job.attempt_tasks import AttemptTasks
from penstock.core.job.events import DeployTasks, JobState, RunTasks, TellCancel, TellPeerGone
from penstock.core.job.regions import Region
from penstock.core.job.repair import Repair
from penstock.core.job.restart_pause import RestartPause
from penstock.core.job.slot_states import SlotState, SlotStates
from penstock.settings import SlotSettings

WAITING_FOR_SLOTS = (JobState.STARTING, JobState.FAILING, JobState.RESTARTING, JobState.RESCALING)


class Attempt:
    """The attempts of one job, one after another, and the state of the job."""

    def __init__(
        self, epoch: Epoch, *, tasks: AttemptTasks, slots: SlotStates, pause: RestartPause, settings: SlotSettings
    ) -> None:
        self.state = JobState.CREATED
        self.epoch = epoch
        self.deadline: Instant | None = None
        """When the slots must have dropped or restored their tasks, or, if the job ends, must have left; None if no
        slot is waited for in this way."""
        self.repair: Repair | None = None
        """The restart of a region alone that is under way; None if there is no such restart."""
        self._tasks = tasks
        self._slots = slots
        self._pause = pause
        self._settings = settings

    @property
    def slots(self) -> tuple[SlotId, ...]:
        """The current incarnation of every member, by place."""
        return tuple(known.slot for known in self._slots.in_order)

    @property
    def is_on(self) -> bool:
        """Whether tasks run, or are being restored."""
        return self.state in (JobState.DEPLOYING, JobState.RUNNING, JobState.REPAIRING)

    @property
    def is_restoring(self) -> bool:
        """Whether tasks are being restored: of all regions, or of the regions that restart alone."""
        return self.state is JobState.DEPLOYING or (self.repair is not None and self.repair.is_deploying)

    def awaits(self, known: SlotState, epoch: Epoch) -> bool:
        """Whether a slot has still to restore tasks of `epoch`."""
        if epoch != self.epoch or not self.is_restoring or known not in self._slots.in_order:
            return False
        if self.repair is not None:
            return self._slots.place_of(known) in self.repair.missing
        return known.ready_for != epoch

    def wait_on(self, now: Instant) -> None:
        """All slots that are not ready have said what they are doing: the time-out of the deployment begins anew."""
        self.deadline = Instant(now + self._settings.deploy_timeout_ms)

    # --- to the next attempt -------------------------------------------------------------

    def advance(self, now: Instant) -> list[DeployTasks]:
        """Deploy the next attempt, or the region that restarts alone, if nothing is missing for the deployment."""
        if self.repair is not None:
            return self._advance_repair(self.repair, now)
        slots = self._slots.in_order
        if self.state not in WAITING_FOR_SLOTS or not all(s.registered and s.clean_up_to >= self.epoch for s in slots):
            return []
        if self._pause.lasts(now):
            self.state = JobState.RESTARTING
            self.deadline = None
            return []
        self._pause.end()
        self.epoch = Epoch(self.epoch + 1)
        self.state = JobState.DEPLOYING
        self.deadline = Instant(now + self._settings.deploy_timeout_ms)
        self._tasks.deploy_all(self.epoch)
        self._forget_loads()
        return [DeployTasks(epoch=self.epoch, slots=self.slots)]

    def _forget_loads(self) -> None:
        for known in self._slots.in_order:
            known.loading.end()

    def _advance_repair(self, repair: Repair, now: Instant) -> list[DeployTasks]:
        if not repair.can_deploy(self._slots):
            return []
        self.deadline = None
        if self._pause.lasts(now):
            return []
        self._pause.end()
        self.epoch = Epoch(self.epoch + 1)
        self._tasks.deploy(repair.region, self.epoch)
        self.deadline = Instant(now + self._settings.deploy_timeout_ms)
        self._forget_loads()
        return [repair.deploys(self._slots, self.epoch)]

    def ready(self, known: SlotState, epoch: Epoch) -> list[RunTasks]:
        """A slot has restored its tasks of `epoch`. When the last slot has done so, all tasks of `epoch` run."""
        if epoch != self.epoch:
            return []
        # If the slot is lost later, the slot is not lost in the start of a step.
        known.loading.end()
        if self.repair is not None:
            return self._region_ready(self.repair, known)
        if self.state is not JobState.DEPLOYING:
            return []
        known.ready_for = epoch
        if not all(s.ready_for == self.epoch for s in self._slots.in_order):
            return []
        self.state = JobState.RUNNING
        self.deadline = None
        self._pause.ran()
        return [RunTasks(epoch=self.epoch, slots=self.slots)]

    def _region_ready(self, repair: Repair, known: SlotState) -> list[RunTasks]:
        if not repair.is_deploying or not repair.done(self._slots.place_of(known)):
            return []
        self.state = JobState.RUNNING
        self.repair = self.deadline = None
        for member in self._slots.in_order:
            member.ready_for = self.epoch
        return [repair.runs(self._slots, self.epoch)]

    # --- dropping tasks ------------------------------------------------------------------

    def can_repair(self, region: Region) -> bool:
        """Whether the state of the attempt allows that this region restarts alone."""
        is_whole = self.state is JobState.RUNNING and not self._tasks.finished
        return is_whole and self._tasks.are_more_than(region)

    def drop_all(self, now: Instant) -> list[TellCancel]:
        """The attempt has failed, and another attempt will follow: the slots drop their tasks."""
        self.repair = None
        return self._drop(JobState.FAILING, self._slots.in_order, now)

    def drop_region(self, region: Region, lost: int | None, now: Instant) -> list[TellCancel | TellPeerGone]:
        """The region is to restart alone: the slots drop its tasks. `lost` is the place whose slot is gone; None if no
        slot is gone."""
        self.repair = Repair(region, lost)
        self._drop(JobState.REPAIRING, [], now)
        return self.repair.begins(self._slots, self.epoch)

    def go_over(self, now: Instant) -> list[TellCancel]:
        """The job gets another parallelism: the slots that have tasks drop their tasks."""
        survivors = [s for s in self._slots.in_order if s.clean_up_to < self.epoch]
        return self._drop(JobState.RESCALING, survivors, now)

    def _drop(self, state: JobState, slots: list[SlotState], now: Instant) -> list[TellCancel]:
        self.state = state
        self.deadline = Instant(now + self._settings.cancel_timeout_ms)
        return [TellCancel(slot=s.slot, epoch=self.epoch) for s in slots if s.registered]

    def dropped(self, known: SlotState, epoch: Epoch, now: Instant) -> list[DeployTasks]:
        """A slot has dropped its tasks of all epochs up to `epoch`."""
        known.clean_up_to = max(known.clean_up_to, epoch)
        return self.advance(now)

    def region_dropped(self, known: SlotState, epoch: Epoch, now: Instant) -> list[DeployTasks]:
        """A slot has dropped its tasks of the region that restarts alone."""
        repair = self.repair
        if repair is None or repair.is_deploying or epoch != self.epoch:
            # The whole job restarts instead, and the slot has been told so.
            return []
        return self._advance_repair(repair, now) if repair.done(self._slots.place_of(known)) else []

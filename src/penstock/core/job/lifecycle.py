"""The life of a job: slots come up, attempts run, fail and start again, and at last the job ends.

    STANDBY ─► CREATED ─► STARTING ─► DEPLOYING ─► RUNNING ─► ENDING ─► FINISHED | CANCELLED | FAILED | SUSPENDED
                                        ▲    ▲        │ │ failure    ▲
                                        │    │rescale │ │            │ the strategy gives up, cancel
                                        │    RESCALING◄ ▼            │
                                        └── RESTARTING ◄─ FAILING ───┘

    RUNNING ── a task fails, or a slot is lost, and ──► REPAIRING ── they run again ──► RUNNING
               its regions are not the whole job            └── anything else fails ──► FAILING

Rules of this file:
* An attempt is one epoch, and the next attempt has the next epoch. Whatever fails in it ends it as a whole; except that
  with a task only its region is restarted, and with a slot the regions of its tasks, with the next epoch for these
  tasks, while the others keep theirs. That is done only when nothing else is under way and no task has ended yet; a
  second failure meanwhile, be it that no slot comes up for the lost one, restarts everything.
* A slot that was up and is lost is replaced at once. If the next one cannot even be started, the one after it is asked
  for when the strategy's pause is over, one pause for all that fail in it: a host that cannot start slots must not be
  asked all the time. Who is missing has until the first start time-out, however often it is asked for. When the host
  itself is gone the job fails at once.
* A new attempt is deployed only when every slot is registered and every survivor has dropped the old tasks, so that no
  task of two epochs ever runs in one slot.
* A slot is known by its incarnation. News of an older incarnation changes nothing.
* Every wait has a deadline: for slots to come up, to cancel, to deploy, to be heard of, to leave.
* A change of parallelism disturbs the running attempt only when nothing is missing for the next one: additional slots
  come up first, then a checkpoint is taken, and then the tasks go over. What goes wrong before that leaves
  the job as it is.
* Spare slots stand by once the job runs. One that is up gets the place of a member that dies, at once; the next one is
  asked for when the job runs again, so that its start does not delay that. One that is lost is asked for again after a
  pause. One that comes up while a member is missing gets its place: the cluster may have no core left for the member.

Not handled here: what a slot is (the host's business), what is restored (the driver asks recovery), checkpoints, and
which driver has the job: one on STANDBY has no lifecycle yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from penstock.core.effects import Ticked
from penstock.core.errors import InvariantError
from penstock.core.ids import Epoch, Instant, SlotId, TaskId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    AttemptRescaled,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEffect,
    JobEnded,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    LeadershipLost,
    RegionEnded,
    RescaleConfirmed,
    RescaleFailing,
    RescaleGivenUp,
    RescalePrepared,
    RescaleRequested,
    RunTasks,
    SlotCancelled,
    SlotGone,
    SlotHeard,
    SlotReady,
    SlotRegistered,
    StartSlot,
    StopChanged,
    StopSlot,
    TaskDone,
    TellCancel,
    TellLeave,
)
from penstock.core.job.regions import Region, regions_at
from penstock.core.job.repair import Repair
from penstock.core.job.rescale import Rescale, refusal_of
from penstock.core.job.restart import make_restart_strategy
from penstock.core.job.slot_states import LEAVE_TIMEOUT_MS as LEAVE_TIMEOUT_MS
from penstock.core.job.slot_states import SlotState, SlotStates
from penstock.core.job.standby_pause import StandbyPause
from penstock.settings import Restart, SlotSettings

ATTEMPT_IS_ON = (JobState.DEPLOYING, JobState.RUNNING, JobState.REPAIRING)

START_FAILURES_BEFORE_FIRST_RUN = 3
"""A job with a slot that dies this often in a row, before the job ever ran, has a wrong environment, not bad luck."""


class JobLifecycle:
    """Decides when slots are asked for, deployed, cancelled and let go."""

    def __init__(
        self,
        *,
        slots: int,
        tasks: tuple[TaskId, ...] | Mapping[TaskId, Region],
        settings: SlotSettings,
        restart: Restart,
        first_epoch: int = 1,
        ran_before: bool = False,
        draws: tuple[float, ...] = (0.5,),
    ) -> None:
        """`tasks` may come with the region of each, to be restarted alone. `first_epoch` lies above all epochs and
        incarnations of drivers that had the job before; `ran_before` says that it ran with one of them."""
        self.state = JobState.CREATED
        self.epoch = Epoch(first_epoch - 1)
        self._settings = settings
        self._strategy = make_restart_strategy(restart)
        self._tasks = dict.fromkeys(tasks)
        self._regions = tasks if isinstance(tasks, Mapping) else {}
        self._epochs: dict[TaskId, Epoch] = {}
        """That of every task, since it was deployed."""
        self._repair: Repair | None = None
        self._is_stopping = False
        self._unfinished: dict[TaskId, None] = {}
        self._slots = SlotStates(first_epoch, settings)
        self._slot_count = slots
        self._rescale: Rescale | None = None
        self._standby_pause = StandbyPause()
        self._draws = draws
        self._failures = 0
        self._ever_ran = ran_before
        self._deadline: Instant | None = None
        self._restart_at: Instant | None = None
        self._outcome: JobState | None = None
        self._cause: FailureCause | None = None

    # --- the machine's contract -----------------------------------------------------------------------

    def handle(self, event: JobEvent, now: Instant) -> list[JobEffect]:
        """Take one event in; say what to do."""
        match event:
            case JobStarted():
                return self._handle_started(now)
            case SlotRegistered():
                return self._handle_registered(event, now)
            case SlotHeard():
                self._hear(event.slot, now)
            case SlotGone():
                return self._handle_gone(event, now)
            case SlotReady():
                return self._handle_ready(event, now)
            case SlotCancelled():
                return self._handle_cancelled(event, now)
            case AttemptFailed():
                return self._handle_attempt_failed(event, now)
            case TaskDone():
                return self._handle_task_done(event, now)
            case CancelRequested():
                return self._handle_cancel_requested(now)
            case LeadershipLost():
                return self._handle_leadership_lost(now)
            case RescaleRequested():
                return self._handle_rescale_requested(event, now)
            case RescaleConfirmed():
                return self._handle_rescale_confirmed(now)
            case RescaleFailing():
                return self._give_up_rescale(event.text, now)
            case StopChanged():
                self._is_stopping = event.is_under_way
            case Ticked():
                return self._handle_ticked(now)
            case _:
                assert_never(event)
        return []

    def next_deadline(self) -> Instant | None:
        """The latest time at which `Ticked` must be fed in; None if only an event can help."""
        if self.state.is_terminal:
            return None
        rescale_until = None if self._rescale is None else self._rescale.until
        times = [t for t in (self._deadline, self._restart_at, rescale_until) if t is not None]
        if self.state is not JobState.ENDING:
            times += self._slots.deadlines
        if self.state is JobState.RUNNING and self._standby_pause.until is not None:
            times.append(self._standby_pause.until)
        return min(times, default=None)

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's own state contradicts itself."""
        if self.state is JobState.RUNNING and not all(s.ready_for == self.epoch for s in self._slots.in_order):
            raise InvariantError(f"job runs epoch {self.epoch} with slots that are not ready for it")
        if (self.state is JobState.REPAIRING) != (self._repair is not None):
            raise InvariantError(f"job is {self.state.value}, and its repair is another matter")
        if self.state.is_terminal and not self._slots.is_empty:
            raise InvariantError(f"job is {self.state.value} with slots left")
        if self._rescale is not None and self.state is not JobState.RUNNING:
            raise InvariantError(f"job is {self.state.value} and still to be rescaled")
        if self._outcome is None and self._restart_at is None and any(s.waits for s in self._slots.missing):
            raise InvariantError("a slot waits for the end of a pause, and there is none")

    @property
    def slots(self) -> tuple[SlotId, ...]:
        """The current incarnation of every slot, in order."""
        return tuple(known.slot for known in self._slots.in_order)

    @property
    def spares(self) -> tuple[SlotId, ...]:
        """The slots that are up and stand by."""
        return tuple(known.slot for known in self._slots.standbys.values() if known.registered)

    @property
    def finished_tasks(self) -> int:
        """How many tasks of the running attempt have ended for good."""
        return len(self._tasks) - len(self._unfinished) if self.state is JobState.RUNNING else 0

    # --- starting -----------------------------------------------------------------------

    def _handle_started(self, now: Instant) -> list[JobEffect]:
        if self.state is not JobState.CREATED:
            raise InvariantError(f"job started twice, it is {self.state.value}")
        self.state = JobState.STARTING
        return [StartSlot(slot=known.slot) for known in self._slots.add_members(self._slot_count, now)]

    def _handle_registered(self, event: SlotRegistered, now: Instant) -> list[JobEffect]:
        known = self._slots.of(event.slot.number)
        if known is None or known.left or self.state in (JobState.ENDING, JobState.CREATED) or self.state.is_terminal:
            return [TellLeave(slot=event.slot)]
        if event.slot[:2] != known.slot[:2] or event.slot.attempt < known.slot.attempt:
            # A process of an incarnation that was given up, woken again.
            return [TellLeave(slot=event.slot)]
        if known.registered:
            if event.slot == known.slot:
                known.heard = now
                return []
            # The cluster itself started the slot again: the process before it is dead.
            effects: list[JobEffect] = []
            if known in self._slots.in_order:
                effects = self._lose(known, f"{known.slot} was started again by the cluster", now, replace=False)
            known.slot = event.slot
            return effects + self._arrived(known, now)
        known.slot = event.slot
        return self._arrived(known, now)

    def _arrived(self, known: SlotState, now: Instant) -> list[JobEffect]:
        known.arrive(now)
        known.clean_up_to = self.epoch
        if self._slots.is_standby(known):
            self._standby_pause.reset()
            self._slots.exchange(known)
        if self._rescale is not None and self._slots.is_additional(known):
            return self._additional_arrived(self._rescale)
        return self._advance(now)

    def _advance(self, now: Instant) -> list[JobEffect]:
        """Go on to the next attempt as soon as nothing is missing for it."""
        if self._repair is not None:
            return self._advance_repair(self._repair, now)
        waiting = (JobState.STARTING, JobState.FAILING, JobState.RESTARTING, JobState.RESCALING)
        slots = self._slots.in_order
        if self.state not in waiting or not all(s.registered and s.clean_up_to >= self.epoch for s in slots):
            return []
        if self._restart_at is not None and now < self._restart_at:
            self.state = JobState.RESTARTING
            self._deadline = None
            return []
        self._restart_at = None
        self.epoch = Epoch(self.epoch + 1)
        self.state = JobState.DEPLOYING
        self._deadline = Instant(now + self._settings.deploy_timeout_ms)
        self._unfinished = dict(self._tasks)
        self._epochs = dict.fromkeys(self._tasks, self.epoch)
        return [DeployTasks(epoch=self.epoch, slots=self.slots)]

    def _handle_ready(self, event: SlotReady, now: Instant) -> list[JobEffect]:
        known = self._hear(event.slot, now)
        if known is None:
            return []
        if event.epoch == self.epoch and self._repair is not None:
            return self._region_ready(self._repair, known, now)
        if event.epoch != self.epoch or self.state is not JobState.DEPLOYING:
            return []
        known.ready_for = event.epoch
        if not all(s.ready_for == self.epoch for s in self._slots.in_order):
            return []
        self.state = JobState.RUNNING
        self._deadline = None
        self._ever_ran = True
        return [RunTasks(epoch=self.epoch, slots=self.slots), *self._ask_for_standbys(now)]

    # --- failing -----------------------------------------------------------------------

    def _handle_attempt_failed(self, event: AttemptFailed, now: Instant) -> list[JobEffect]:
        epoch = self.epoch if event.task is None else self._epochs.get(event.task)
        if event.epoch != epoch or self.state not in ATTEMPT_IS_ON:
            return []
        if self._repair is not None and self._repair.drops(event.task) and not event.whole:
            # It fails with its region, which is on its way out.
            return []
        region = () if event.task is None or event.whole else self._regions.get(event.task, ())
        return self._fail_region(region, event.cause, now)

    def _handle_gone(self, event: SlotGone, now: Instant) -> list[JobEffect]:
        self._slots.depart(event.slot)
        known = self._slots.hosted(event.slot)
        if self.state is JobState.ENDING:
            if known is not None:
                known.left = True
            return self._end_if_empty()
        if event.host_gone and not self.state.is_terminal:
            # Then, of the job that ends, this slot is gone.
            return self._lose_host(event.error or "the host of the slots is gone", now) + self._handle_gone(event, now)
        if known is None or self.state.is_terminal:
            return []
        if known not in self._slots.in_order:
            return self._lose_other(known, event.error or "it left without being told to", now)
        return self._lose(known, event.error or f"{event.slot} left without being told to", now, replace=True)

    def _lose(self, known: SlotState, error: str, now: Instant, *, replace: bool) -> list[JobEffect]:
        """A slot's process is gone: end what ran there if an attempt is on, and ask for the next incarnation."""
        never_came_up = not known.registered
        known.lose(error, now)
        cause = FailureCause(text=f"slot {known.slot.number} was lost: {error}")
        effects: list[JobEffect] = []
        if self.state in ATTEMPT_IS_ON:
            place = self._slots.place_of(known)
            effects += self._fail_region(regions_at(place, self._regions), cause, now, lost=place)
        elif never_came_up:
            effects += self._could_not_start(known, cause, now)
        known.waits = never_came_up and self._ever_ran and self._restart_at is not None and now < self._restart_at
        if self._outcome is not None:
            return effects
        if replace and (standby := self._slots.take_standby_in(known)) is not None:
            standby.clean_up_to = self.epoch
            return effects + self._advance(now)
        return [*effects, *self._slots.ask_for(known)] if replace else effects

    def _could_not_start(self, known: SlotState, cause: FailureCause, now: Instant) -> list[JobEffect]:
        """Begin a pause, if none is on; or give up."""
        if not self._ever_ran:
            too_often = known.failed_starts >= START_FAILURES_BEFORE_FIRST_RUN
            return self._end(JobState.FAILED, cause, now) if too_often else []
        if self._restart_at is not None and now < self._restart_at:
            return []
        delay_ms = self._next_delay_ms(now)
        self._restart_at = None if delay_ms is None else Instant(now + delay_ms)
        return self._end(JobState.FAILED, cause, now) if delay_ms is None else []

    def _lose_host(self, error: str, now: Instant) -> list[JobEffect]:
        cause = FailureCause(text=error)
        ended = AttemptEnded(epoch=self.epoch, cause=cause, restart_in_ms=None)
        return [*([ended] if self.state in ATTEMPT_IS_ON else []), *self._end(JobState.FAILED, cause, now)]

    def _fail(self, cause: FailureCause, now: Instant) -> list[JobEffect]:
        """End the running attempt; start over or give up, as the strategy says."""
        self._repair = None
        delay_ms = self._next_delay_ms(now)
        ended = AttemptEnded(epoch=self.epoch, cause=cause, restart_in_ms=delay_ms)
        given_up = self._give_up_rescale(f"the attempt failed meanwhile: {cause.text}", now)
        if delay_ms is None:
            return [ended, *given_up, *self._end(JobState.FAILED, cause, now)]
        self.state = JobState.FAILING
        self._restart_at = Instant(now + delay_ms)
        self._deadline = Instant(now + self._settings.cancel_timeout_ms)
        return [ended, *given_up, *self._cancel_all()]

    def _cancel_all(self) -> list[JobEffect]:
        return [TellCancel(slot=s.slot, epoch=self.epoch) for s in self._slots.in_order if s.registered]

    def _handle_cancelled(self, event: SlotCancelled, now: Instant) -> list[JobEffect]:
        known = self._hear(event.slot, now)
        if known is None:
            return []
        if event.tasks:
            return self._region_dropped(known, event, now)
        known.clean_up_to = max(known.clean_up_to, event.epoch)
        return self._advance(now)

    # --- repairing -----------------------------------------------------------------------

    def _fail_region(
        self, region: Region, cause: FailureCause, now: Instant, *, lost: int | None = None
    ) -> list[JobEffect]:
        """Restart these tasks and no others, where that can be; or give up, as the strategy says."""
        is_undisturbed = self.state is JobState.RUNNING and self._rescale is None and not self._is_stopping
        if not is_undisturbed or self.finished_tasks or not 0 < len(region) < len(self._tasks):
            return self._fail(cause, now)
        delay_ms = self._next_delay_ms(now)
        if delay_ms is None:
            ended = AttemptEnded(epoch=self.epoch, cause=cause, restart_in_ms=None)
            return [ended, *self._end(JobState.FAILED, cause, now)]
        self.state = JobState.REPAIRING
        self._repair = Repair(region, lost)
        self._restart_at = Instant(now + delay_ms)
        self._deadline = Instant(now + self._settings.cancel_timeout_ms)
        region_ended = RegionEnded(epoch=self.epoch, tasks=region, cause=cause, restart_in_ms=delay_ms)
        return [region_ended, *self._repair.begins(self._slots, self.epoch)]

    def _region_dropped(self, known: SlotState, event: SlotCancelled, now: Instant) -> list[JobEffect]:
        repair = self._repair
        if repair is None or repair.is_deploying or event.epoch != self.epoch:
            # The whole job restarts instead, and the slot has been told so.
            return []
        return self._advance_repair(repair, now) if repair.done(self._slots.place_of(known)) else []

    def _advance_repair(self, repair: Repair, now: Instant) -> list[JobEffect]:
        if not repair.can_deploy(self._slots):
            return []
        self._deadline = None
        if self._restart_at is not None and now < self._restart_at:
            return []
        self._restart_at = None
        self.epoch = Epoch(self.epoch + 1)
        self._epochs |= dict.fromkeys(repair.region, self.epoch)
        self._deadline = Instant(now + self._settings.deploy_timeout_ms)
        return [repair.deploys(self._slots, self.epoch)]

    def _region_ready(self, repair: Repair, known: SlotState, now: Instant) -> list[JobEffect]:
        if not repair.is_deploying or not repair.done(self._slots.place_of(known)):
            return []
        self.state = JobState.RUNNING
        self._repair = self._deadline = None
        for member in self._slots.in_order:
            member.ready_for = self.epoch
        return [repair.runs(self._slots, self.epoch), *self._ask_for_standbys(now)]

    # --- rescaling -----------------------------------------------------------------------

    def _handle_rescale_requested(self, event: RescaleRequested, now: Instant) -> list[JobEffect]:
        refusal = refusal_of(event, self.state, self._slot_count, self._rescale)
        if refusal is not None:
            return [RescaleGivenUp(text=refusal)]
        self._rescale = Rescale(event, Instant(now + self._settings.start_timeout_ms))
        additional = self._slots.add_additional(event.slots, now)
        return [*(StartSlot(slot=known.slot) for known in additional), *self._additional_arrived(self._rescale)]

    def _additional_arrived(self, rescale: Rescale) -> list[JobEffect]:
        """Go on with the rescale as soon as nothing is missing for it."""
        if rescale.is_prepared or not all(s.registered for s in self._slots.additional.values()):
            return []
        rescale.until = None
        return [RescalePrepared()]

    def _handle_rescale_confirmed(self, now: Instant) -> list[JobEffect]:
        if self._rescale is None or not self._rescale.is_prepared:
            # It was given up meanwhile.
            return []
        rescale, self._rescale = self._rescale.request, None
        self._slots.take_additional_in()
        surplus = self._slots.take_out(rescale.slots)
        self._slot_count = rescale.slots
        self._tasks = dict.fromkeys(rescale.tasks)
        self._regions = rescale.regions
        self.state = JobState.RESCALING
        self._deadline = Instant(now + self._settings.cancel_timeout_ms)
        effects: list[JobEffect] = [AttemptRescaled(epoch=self.epoch, slots=rescale.slots)]
        effects += self._slots.dismiss(surplus, now)
        survivors = [s for s in self._slots.in_order if s.clean_up_to < self.epoch]
        return [*effects, *(TellCancel(slot=s.slot, epoch=self.epoch) for s in survivors)]

    def _give_up_rescale(self, text: str, now: Instant) -> list[JobEffect]:
        if self._rescale is None:
            return []
        self._rescale = None
        return [RescaleGivenUp(text=text), *self._slots.dismiss(self._slots.take_additional_out(), now)]

    # --- standing by -----------------------------------------------------------------------

    def _ask_for_standbys(self, now: Instant) -> list[JobEffect]:
        """See that as many slots stand by as the settings say, while the job runs."""
        missing = self._settings.spares - len(self._slots.standbys)
        if self.state is not JobState.RUNNING or self._standby_pause.lasts(now):
            return []
        self._standby_pause.until = None
        return [StartSlot(slot=self._slots.add_standby(now).slot) for _ in range(missing)]

    def _lose_other(self, known: SlotState, error: str, now: Instant) -> list[JobEffect]:
        """A slot is gone that ran nothing."""
        is_additional = self._slots.is_additional(known)
        self._slots.lose(known)
        if is_additional:
            return self._give_up_rescale(f"slot {known.slot.number}, which it needs besides, was lost: {error}", now)
        self._standby_pause.begin(now)
        return []

    # --- ending -----------------------------------------------------------------------

    def _handle_task_done(self, event: TaskDone, now: Instant) -> list[JobEffect]:
        if event.epoch != self._epochs.get(event.task) or self.state not in (JobState.RUNNING, JobState.REPAIRING):
            return []
        if self._repair is not None and self._repair.drops(event.task):
            # It ended with what is forgotten: its successor ends again.
            return []
        self._unfinished.pop(event.task, None)
        return [] if self._unfinished else self._end(JobState.FINISHED, None, now)

    def _handle_cancel_requested(self, now: Instant) -> list[JobEffect]:
        if self.state is JobState.ENDING or self.state.is_terminal:
            return []
        return self._end(JobState.CANCELLED, None, now)

    def _handle_leadership_lost(self, now: Instant) -> list[JobEffect]:
        if self.state is not JobState.ENDING and not self.state.is_terminal:
            return self._end(JobState.SUSPENDED, None, now)
        # However it was to end: it does not end with this driver.
        self._outcome, self._cause = JobState.SUSPENDED, None
        return [JobEnding(outcome=JobState.SUSPENDED, cause=None), *self._end_if_empty()]

    def _end(self, outcome: JobState, cause: FailureCause | None, now: Instant) -> list[JobEffect]:
        self._repair = None
        given_up = self._give_up_rescale("the job ends", now)
        unneeded = self._slots.dismiss(self._slots.take_standbys_out(), now)
        self._standby_pause.until = None
        self.state = JobState.ENDING
        self._outcome, self._cause = outcome, cause
        self._restart_at = None
        self._deadline = Instant(now + LEAVE_TIMEOUT_MS)
        ending = JobEnding(outcome=outcome, cause=cause)
        return [*given_up, *unneeded, ending, *self._slots.dismiss_all(), *self._end_if_empty()]

    def _end_if_empty(self) -> list[JobEffect]:
        if self._outcome is None or not self._slots.is_empty:
            return []
        self.state = self._outcome
        self._deadline = None
        return [JobEnded(outcome=self._outcome, cause=self._cause)]

    # --- time -----------------------------------------------------------------------

    def _hear(self, slot: SlotId, now: Instant) -> SlotState | None:
        known = self._slots.current(slot)
        if known is not None:
            known.heard = now
        return known

    def _handle_ticked(self, now: Instant) -> list[JobEffect]:
        if self.state.is_terminal:
            return []
        effects: list[JobEffect] = []
        if self.state is not JobState.ENDING:
            for known in self._slots.watched:
                silent_ms = now - known.heard
                if known.registered and silent_ms >= self._settings.heartbeat_timeout_ms:
                    effects += self._give_up(known, f"not heard of for {silent_ms} ms", now)
            effects += [StopSlot(slot=slot) for slot in self._slots.take_late_out(now)]
            effects += self._give_up_missing(now)
        if self._rescale is not None and self._rescale.is_late(now):
            effects += self._additional_too_late(now)
        if self._deadline is not None and now >= self._deadline:
            effects += self._handle_deadline(now)
        if self._restart_at is not None and now >= self._restart_at:
            effects += [*self._slots.ask_for_waiting(), *self._advance(now)]
            # If that was not all, only slots are missing now, which have a deadline of their own.
            self._restart_at = None
        if self._standby_pause.until is not None and not self._standby_pause.lasts(now):
            effects += self._ask_for_standbys(now)
        return effects

    def _handle_deadline(self, now: Instant) -> list[JobEffect]:
        self._deadline = None
        if self.state is JobState.ENDING:
            return [*self._slots.stop_all(), *self._end_if_empty()]
        members = self._slots.in_order
        if self._repair is not None:
            late = self._repair.late(self._slots)
        elif self.state is JobState.DEPLOYING:
            late = [(s, "did not restore its tasks in time") for s in members if s.ready_for != self.epoch]
        else:
            unclean = [s for s in members if s.registered and s.clean_up_to < self.epoch]
            late = [(s, "did not drop its tasks in time") for s in unclean]
        effects: list[JobEffect] = []
        for known, text in late:
            effects += self._give_up(known, text, now)
        return effects

    def _give_up_missing(self, now: Instant) -> list[JobEffect]:
        late = self._slots.late_to_start(now)
        if late and self._repair is None:
            return self._end(JobState.FAILED, self._slots.why_missing(), now)
        effects: list[JobEffect] = []
        for known in late:
            effects += self._give_up(known, "did not come up in time", now)
            # All restart, without those that went on so far, and it has as long again.
            known.begin_again(now)
        return effects

    def _give_up(self, known: SlotState, error: str, now: Instant) -> list[JobEffect]:
        if self.state is JobState.ENDING or known.left or self._slots.current(known.slot) is not known:
            return []
        stop = StopSlot(slot=known.slot)
        if known not in self._slots.in_order:
            return [stop, *self._lose_other(known, error, now)]
        return [stop, *self._lose(known, error, now, replace=True)]

    def _additional_too_late(self, now: Instant) -> list[JobEffect]:
        there = [known.registered for known in self._slots.additional.values()]
        text = f"only {sum(there)} of {len(there)} additional slots came up in {self._settings.start_timeout_ms} ms"
        return self._give_up_rescale(text, now)

    # --- small things -----------------------------------------------------------------------

    def _next_delay_ms(self, now: Instant) -> int | None:
        """Something has failed: the pause before it is started again, or None to give up."""
        self._failures += 1
        return self._strategy.failed(now, self._draws[self._failures % len(self._draws)])

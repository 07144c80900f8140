"""The life of a job: slots come up, attempts run, fail and start again, and at last the job ends.

    STANDBY ─► CREATED ─► STARTING ─► DEPLOYING ─► RUNNING ─► ENDING ─► FINISHED | CANCELLED | FAILED | SUSPENDED
                                        ▲    ▲        │ │ failure    ▲
                                        │    │rescale │ │            │ the strategy gives up, cancel
                                        │    RESCALING◄ ▼            │
                                        └── RESTARTING ◄─ FAILING ───┘

    RUNNING ── a task fails, or a slot is lost, and ──► REPAIRING ── the regions run again ──► RUNNING
               its regions are not the whole job            └── anything else fails ──► FAILING

Rules of this file:
* An attempt has one epoch, and the next attempt has the next epoch. A failure ends the attempt as a whole, unless only
  some regions are hit: a task that fails restarts its region, and a lost slot restarts the regions of its tasks. The
  restarted tasks get the next epoch, and the other tasks keep theirs.
* Regions restart alone only if nothing else is under way and no task has ended. A second failure meanwhile restarts the
  whole job, also if the second failure is that no slot comes up for the lost slot.
* A slot that was up and is lost is replaced at once. If the replacement cannot even be started, the next start is asked
  for when the strategy's pause is over. All slots that fail to start during a pause share that pause: a host that
  cannot start slots must not be asked all the time. The start time-out of a missing slot runs from its loss or its
  first start, however often the slot is asked for. When the host itself is gone the job fails at once.
* When the tasks of an attempt are deployed, run and dropped: see `attempt.py`.
* A slot is known by its incarnation. News of an older incarnation changes nothing.
* Every wait has a deadline: for slots to come up, to cancel, to deploy, to be heard of, to leave.
* A slot that is heard of is alive, also if its loop is stuck in user code: see `stuck.py`.

Not handled here: what a slot is (the host's business), what is restored (the driver asks recovery), checkpoints, and
which driver has the job: a driver on STANDBY has no lifecycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from penstock.core.effects import Ticked
from penstock.core.errors import InvariantError
from penstock.core.ids import Epoch, Instant, SlotId, TaskId
from penstock.core.job.attempt import Attempt
from penstock.core.job.attempt_tasks import AttemptTasks
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    AttemptRescaled,
    CancelRequested,
    CheckpointDone,
    FailureCause,
    JobEffect,
    JobEnded,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    LeadershipLost,
    RegionEnded,
    ReportLoading,
    ReportStuck,
    ReportTurning,
    RescaleConfirmed,
    RescaleFailing,
    RescaleRequested,
    SlotCancelled,
    SlotGone,
    SlotHeard,
    SlotLoading,
    SlotMute,
    SlotReady,
    SlotRegistered,
    SlotStuck,
    SlotTurned,
    StartSlot,
    StopChanged,
    StopSlot,
    TaskDone,
    TellLeave,
    TellPeerAlive,
)
from penstock.core.job.late_slots import silent_slots, slots_late_with_tasks
from penstock.core.job.regions import Region
from penstock.core.job.rescale import Rescaling
from penstock.core.job.restart_pause import RestartPause
from penstock.core.job.slot_states import LEAVE_TIMEOUT_MS as LEAVE_TIMEOUT_MS
from penstock.core.job.slot_states import SlotState, SlotStates
from penstock.core.job.standby_pause import StandbyPause
from penstock.settings import Restart, SlotSettings


class JobLifecycle:
    """Decides when slots are asked for, deployed, cancelled and let go."""

    def __init__(
        self,
        *,
        slots: int,
        tasks: tuple[TaskId, ...] | Mapping[TaskId, Region],
        settings: SlotSettings,
        restart: Restart | None,
        first_epoch: int = 1,
        ran_before: bool = False,
        draws: tuple[float, ...] = (0.5,),
    ) -> None:
        """`tasks` may map each task to its region; without regions every failure restarts the whole job. `first_epoch`
        lies above all epochs and incarnations of earlier drivers of the job; `ran_before` says that the job ran with an
        earlier driver."""
        self._settings = settings
        self._pause = RestartPause(restart, ran_before=ran_before, draws=draws)
        self._tasks = AttemptTasks(tasks, tasks if isinstance(tasks, Mapping) else {})
        self._is_stopping = False
        self._slots = SlotStates(first_epoch, settings)
        self._attempt = Attempt(
            Epoch(first_epoch - 1), tasks=self._tasks, slots=self._slots, pause=self._pause, settings=settings
        )
        self._first_slots = slots
        self._rescaling = Rescaling(self._slots, settings)
        self._standby_pause = StandbyPause()
        self._outcome: JobState | None = None
        self._cause: FailureCause | None = None

    # --- the machine's contract -----------------------------------------------------------------------

    def handle(self, event: JobEvent, now: Instant) -> list[JobEffect]:
        """Take one event in; say what to do."""
        effects: list[JobEffect] = []
        match event:
            case JobStarted():
                return self._handle_started(now)
            case SlotRegistered():
                return self._handle_registered(event, now)
            case SlotHeard():
                self._hear(event.slot, now)
            case SlotStuck() | SlotMute() | SlotTurned():
                effects = self._handle_loop(event, now)
            case SlotLoading():
                effects = self._handle_loading(event, now)
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
                return [*self._rescaling.request(event, self.state, now)]
            case RescaleConfirmed():
                return self._handle_rescale_confirmed(now)
            case RescaleFailing():
                return [*self._rescaling.give_up(event.text, now)]
            case CheckpointDone():
                self._pause.progressed()
            case StopChanged():
                self._is_stopping = event.is_under_way
            case Ticked():
                return self._handle_ticked(now)
            case _:
                assert_never(event)
        return effects

    def next_deadline(self) -> Instant | None:
        """The latest time at which `Ticked` must be fed in; None if only an event can help."""
        if self.state.is_terminal:
            return None
        times = [t for t in (self._attempt.deadline, self._pause.until, self._rescaling.until) if t is not None]
        if self.state is not JobState.ENDING:
            times += self._slots.deadlines
        if self.state is JobState.RUNNING and self._standby_pause.until is not None:
            times.append(self._standby_pause.until)
        return min(times, default=None)

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's own state contradicts itself."""
        if self.state is JobState.RUNNING and not all(s.ready_for == self.epoch for s in self._slots.in_order):
            raise InvariantError(f"the job runs epoch {self.epoch} with slots that are not ready for that epoch")
        if (self.state is JobState.REPAIRING) != (self._attempt.repair is not None):
            raise InvariantError(
                f"the job is {self.state.value}: it must be repairing exactly while a region restarts alone"
            )
        if self.state.is_terminal and not self._slots.is_empty:
            raise InvariantError(f"the job is {self.state.value}, and slots are left")
        if self._rescaling.is_under_way and self.state is not JobState.RUNNING:
            raise InvariantError(f"the job is {self.state.value}, and a rescale is still under way")
        if self._outcome is None and self._pause.until is None and any(s.waits for s in self._slots.missing):
            raise InvariantError("a slot waits for the end of a pause, and no pause is on")

    @property
    def state(self) -> JobState:
        """Where the job is in its life."""
        return self._attempt.state

    @property
    def epoch(self) -> Epoch:
        """The newest epoch: of an attempt of the whole job, or of a region that restarted alone."""
        return self._attempt.epoch

    @property
    def slots(self) -> tuple[SlotId, ...]:
        """The current incarnation of every slot that has a place, by place."""
        return self._attempt.slots

    @property
    def spares(self) -> tuple[SlotId, ...]:
        """The spare slots that are up."""
        return tuple(known.slot for known in self._slots.standbys.values() if known.registered)

    def epoch_of(self, task: TaskId) -> Epoch:
        """The epoch with which a task was deployed last. Tasks of a region that restarted alone have a later epoch than
        the other tasks."""
        return self._tasks.epochs[task]

    @property
    def finished_tasks(self) -> int:
        """How many tasks of the running attempt have ended for good."""
        return self._tasks.finished if self.state is JobState.RUNNING else 0

    # --- starting -----------------------------------------------------------------------

    def _handle_started(self, now: Instant) -> list[JobEffect]:
        if self.state is not JobState.CREATED:
            raise InvariantError(f"the job was started a second time while it is {self.state.value}")
        self._attempt.state = JobState.STARTING
        return [StartSlot(slot=known.slot) for known in self._slots.add_members(self._first_slots, now)]

    def _handle_registered(self, event: SlotRegistered, now: Instant) -> list[JobEffect]:
        known = self._slots.of(event.slot.number)
        if known is None or known.left or self.state in (JobState.ENDING, JobState.CREATED) or self.state.is_terminal:
            return [TellLeave(slot=event.slot)]
        if event.slot[:2] != known.slot[:2] or event.slot.attempt < known.slot.attempt:
            # A process that was given up, or that the cluster has replaced, has woken up.
            return [TellLeave(slot=event.slot)]
        if known.registered:
            if event.slot == known.slot:
                known.heard = now
                return []
            # The cluster itself has started this incarnation again: the process that was registered is dead.
            effects: list[JobEffect] = []
            if known in self._slots.in_order:
                effects = self._lose(known, f"the cluster started {known.slot} again", now, replace=False)
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
        if self._rescaling.is_under_way and self._slots.is_additional(known):
            return [*self._rescaling.additional_arrived()]
        return [*self._attempt.advance(now)]

    def _handle_ready(self, event: SlotReady, now: Instant) -> list[JobEffect]:
        known = self._hear(event.slot, now)
        run = [] if known is None else self._attempt.ready(known, event.epoch)
        return [*run, *self._ask_for_standbys(now)] if run else []

    # --- failing -----------------------------------------------------------------------

    def _handle_attempt_failed(self, event: AttemptFailed, now: Instant) -> list[JobEffect]:
        epoch = self.epoch if event.task is None else self._tasks.epochs.get(event.task)
        if event.epoch != epoch or not self._attempt.is_on:
            return []
        if self._attempt.repair is not None and self._attempt.repair.drops(event.task) and not event.whole:
            # The region of the task is already being dropped: nothing more follows from this failure.
            return []
        region = () if event.whole else self._tasks.region_of(event.task)
        return self._fail(region, event.cause, now)

    def _handle_gone(self, event: SlotGone, now: Instant) -> list[JobEffect]:
        self._slots.depart(event.slot)
        known = self._slots.hosted(event.slot)
        if self.state is JobState.ENDING:
            if known is not None:
                known.left = True
            return self._end_if_empty()
        if event.host_gone and not self.state.is_terminal:
            # The first call ends the job. The second call then counts this slot among the slots that have left.
            return self._lose_host(event.error or "the host of the slots is gone", now) + self._handle_gone(event, now)
        if known is None or self.state.is_terminal:
            return []
        if known not in self._slots.in_order:
            return self._lose_other(known, event.error or "the slot left without being told to", now)
        return self._lose(known, event.error or f"{event.slot} left without being told to", now, replace=True)

    def _lose(self, known: SlotState, error: str, now: Instant, *, replace: bool) -> list[JobEffect]:
        """The process of a member is gone. If an attempt is on, the attempt fails, or only the regions of the slot's
        tasks. With `replace` a spare slot takes the place over, or the next incarnation of the slot is asked for."""
        never_came_up = not known.registered
        known.lose(error, now)
        cause = FailureCause(text=f"slot {known.slot.number} was lost: {error}")
        effects: list[JobEffect] = []
        if self._attempt.is_on:
            place = self._slots.place_of(known)
            effects += self._fail(self._tasks.region_at(place), cause, now, lost=place)
        elif never_came_up:
            final = self._pause.begin_for_slot(cause, known.failed_starts, now)
            effects += [] if final is None else self._end(JobState.FAILED, final, now)
        known.waits = never_came_up and self._pause.keeps_slots_waiting(now)
        if self._outcome is not None:
            return effects
        if replace and (standby := self._slots.take_standby_in(known)) is not None:
            standby.clean_up_to = self.epoch
            return [*effects, *self._attempt.advance(now)]
        return [*effects, *self._slots.ask_for(known)] if replace else effects

    def _lose_host(self, error: str, now: Instant) -> list[JobEffect]:
        cause = FailureCause(text=error)
        ended = AttemptEnded(epoch=self.epoch, cause=cause, restart_in_ms=None)
        return [*([ended] if self._attempt.is_on else []), *self._end(JobState.FAILED, cause, now)]

    def _handle_cancelled(self, event: SlotCancelled, now: Instant) -> list[JobEffect]:
        known = self._hear(event.slot, now)
        if known is None:
            return []
        if event.tasks:
            return [*self._attempt.region_dropped(known, event.epoch, now)]
        return [*self._attempt.dropped(known, event.epoch, now)]

    def _fail(self, region: Region, cause: FailureCause, now: Instant, *, lost: int | None = None) -> list[JobEffect]:
        """End only the tasks of `region`, if the region can restart alone; otherwise end the attempt. The restart
        strategy says whether a restart follows. `lost` is the place whose slot is gone."""
        is_undisturbed = not self._rescaling.is_under_way and not self._is_stopping
        can_repair = is_undisturbed and self._attempt.can_repair(region)
        cause, delay_ms = self._pause.begin(cause, now)
        if can_repair and delay_ms is not None:
            region_ended = RegionEnded(epoch=self.epoch, tasks=region, cause=cause, restart_in_ms=delay_ms)
            return [region_ended, *self._attempt.drop_region(region, lost, now)]
        ended = AttemptEnded(epoch=self.epoch, cause=cause, restart_in_ms=delay_ms)
        given_up = self._rescaling.give_up(f"the attempt failed meanwhile: {cause.text}", now)
        if delay_ms is None:
            return [ended, *given_up, *self._end(JobState.FAILED, cause, now)]
        return [ended, *given_up, *self._attempt.drop_all(now)]

    # --- rescaling -----------------------------------------------------------------------

    def _handle_rescale_confirmed(self, now: Instant) -> list[JobEffect]:
        rescale = self._rescaling.confirm()
        if rescale is None:
            return []
        surplus = self._slots.take_out(rescale.slots)
        self._tasks.become(rescale.tasks, rescale.regions)
        rescaled = AttemptRescaled(epoch=self.epoch, slots=rescale.slots)
        return [rescaled, *self._slots.dismiss(surplus, now), *self._attempt.go_over(now)]

    # --- standing by -----------------------------------------------------------------------

    def _ask_for_standbys(self, now: Instant) -> list[JobEffect]:
        """While the job runs, ask for as many spare slots as the settings say."""
        if self.state is not JobState.RUNNING:
            return []
        return [*self._standby_pause.ask(self._slots, self._settings.spares, now)]

    def _lose_other(self, known: SlotState, error: str, now: Instant) -> list[JobEffect]:
        """A slot without tasks is gone: an additional slot or a spare slot."""
        is_additional = self._slots.is_additional(known)
        self._slots.lose(known)
        if is_additional:
            text = f"slot {known.slot.number}, which was started for the rescale, was lost: {error}"
            return [*self._rescaling.give_up(text, now)]
        self._standby_pause.begin(now)
        return []

    # --- ending -----------------------------------------------------------------------

    def _handle_task_done(self, event: TaskDone, now: Instant) -> list[JobEffect]:
        runs = self.state in (JobState.RUNNING, JobState.REPAIRING)
        if not runs or event.epoch != self._tasks.epochs.get(event.task):
            return []
        if self._attempt.repair is not None and self._attempt.repair.drops(event.task):
            # The region of the task is being dropped: the restarted task comes to its end once more.
            return []
        return self._end(JobState.FINISHED, None, now) if self._tasks.end(event.task) else []

    def _handle_cancel_requested(self, now: Instant) -> list[JobEffect]:
        if self.state is JobState.ENDING or self.state.is_terminal:
            return []
        return self._end(JobState.CANCELLED, None, now)

    def _handle_leadership_lost(self, now: Instant) -> list[JobEffect]:
        if self.state is not JobState.ENDING and not self.state.is_terminal:
            return self._end(JobState.SUSPENDED, None, now)
        # Whatever outcome was decided: the job does not end with this driver.
        self._outcome, self._cause = JobState.SUSPENDED, None
        return [JobEnding(outcome=JobState.SUSPENDED, cause=None), *self._end_if_empty()]

    def _end(self, outcome: JobState, cause: FailureCause | None, now: Instant) -> list[JobEffect]:
        self._attempt.repair = None
        given_up = self._rescaling.give_up("the job ends", now)
        unneeded = self._slots.dismiss(self._slots.take_standbys_out(), now)
        self._standby_pause.until = None
        self._attempt.state = JobState.ENDING
        self._outcome, self._cause = outcome, cause
        self._pause.end()
        self._attempt.deadline = Instant(now + LEAVE_TIMEOUT_MS)
        ending = JobEnding(outcome=outcome, cause=cause)
        return [*given_up, *unneeded, ending, *self._slots.dismiss_all(), *self._end_if_empty()]

    def _end_if_empty(self) -> list[JobEffect]:
        if self._outcome is None or not self._slots.is_empty:
            return []
        self._attempt.state = self._outcome
        self._attempt.deadline = None
        return [JobEnded(outcome=self._outcome, cause=self._cause)]

    # --- time -----------------------------------------------------------------------

    def _hear(self, slot: SlotId, now: Instant) -> SlotState | None:
        known = self._slots.current(slot)
        if known is not None:
            known.heard = now
        return known

    def _handle_loop(self, event: SlotStuck | SlotMute | SlotTurned, now: Instant) -> list[JobEffect]:
        known = self._hear(event.slot, now)
        if known is None or self.state is JobState.ENDING or self.state.is_terminal:
            return []
        if isinstance(event, SlotTurned):
            return [ReportTurning(slot=event.slot)] if known.stuck.end() else []
        effects: list[JobEffect] = []
        if isinstance(event, SlotMute):
            others = [other for other in self._slots.in_order if other.registered and other is not known]
            effects += [TellPeerAlive(slot=other.slot, alive=event.slot) for other in others]
        is_early = isinstance(event, SlotMute) and event.stuck_ms < self._settings.stuck_after_ms
        if event.where is None or is_early:
            return effects
        is_due, timeout_ms = known.stuck.hear(event.stuck_ms, event.where), self._settings.stuck_timeout_ms
        effects += [ReportStuck(slot=event.slot)] if is_due else []
        if timeout_ms is not None and event.stuck_ms >= timeout_ms:
            effects += self._give_up(known, f"its loop did not turn for {event.stuck_ms} ms", now)
        return effects

    def _handle_loading(self, event: SlotLoading, now: Instant) -> list[JobEffect]:
        known = self._hear(event.slot, now)
        if known is None or not self._attempt.awaits(known, event.epoch):
            return []
        is_due, timeout_ms = known.loading.hear(event.loading_ms, event.where), self._settings.stuck_timeout_ms
        effects: list[JobEffect] = [ReportLoading(slot=event.slot)] if is_due else []
        if timeout_ms is not None and event.loading_ms >= timeout_ms:
            effects += self._give_up(known, f"the slot did not restore its tasks in {event.loading_ms} ms", now)
        return effects

    def _handle_ticked(self, now: Instant) -> list[JobEffect]:
        if self.state.is_terminal:
            return []
        effects: list[JobEffect] = []
        if self.state is not JobState.ENDING:
            for known, text in silent_slots(self._slots, self._settings.heartbeat_timeout_ms, now):
                effects += self._give_up(known, text, now)
            effects += [StopSlot(slot=slot) for slot in self._slots.take_late_out(now)]
            effects += self._give_up_missing(now)
        effects += self._rescaling.give_up_if_late(now)
        if self._attempt.deadline is not None and now >= self._attempt.deadline:
            effects += self._handle_deadline(now)
        if self._pause.until is not None and now >= self._pause.until:
            effects += [*self._slots.ask_for_waiting(), *self._attempt.advance(now)]
            # If no attempt is deployed, only slots are missing. Missing slots have a deadline of their own.
            self._pause.end()
        if self._standby_pause.until is not None and not self._standby_pause.lasts(now):
            effects += self._ask_for_standbys(now)
        return effects

    def _handle_deadline(self, now: Instant) -> list[JobEffect]:
        self._attempt.deadline = None
        if self.state is JobState.ENDING:
            return [*self._slots.stop_all(), *self._end_if_empty()]
        effects: list[JobEffect] = []
        late = slots_late_with_tasks(self._slots, self.state, self.epoch, self._attempt.repair)
        for known, text in late:
            effects += self._give_up(known, text, now)
        if not late and self._attempt.is_restoring:
            self._attempt.wait_on(now)
        return effects

    def _give_up_missing(self, now: Instant) -> list[JobEffect]:
        late = self._slots.late_to_start(now)
        if late and self._attempt.repair is None:
            return self._end(JobState.FAILED, self._slots.why_missing(), now)
        effects: list[JobEffect] = []
        for known in late:
            effects += self._give_up(known, "the slot did not come up in time", now)
            # The whole job restarts, and the start time-out of the slot begins anew. Otherwise the slot would be late
            # again at once, and the job would fail.
            known.begin_again(now)
        return effects

    def _give_up(self, known: SlotState, error: str, now: Instant) -> list[JobEffect]:
        if self.state is JobState.ENDING or known.left or self._slots.current(known.slot) is not known:
            return []
        stop = StopSlot(slot=known.slot)
        error += known.stuck.where or known.loading.where
        if known not in self._slots.in_order:
            return [stop, *self._lose_other(known, error, now)]
        return [stop, *self._lose(known, error, now, replace=True)]

"""The life of a job: slots come up, attempts run, fail and start again, and at last the job ends.

    CREATED ─► STARTING ─► DEPLOYING ─► RUNNING ─► ENDING ─► FINISHED | CANCELLED | FAILED
                   ▲            ▲          │ failure    ▲
                   │            │          ▼            │ the strategy gives up, cancel
                   └──────── RESTARTING ◄─ FAILING ─────┘

Rules of this file:
* An attempt is one epoch. Whatever fails in it ends it as a whole; the next attempt has the next epoch.
* A new attempt is deployed only when every slot is registered and every survivor has dropped the old tasks, so that no
  task of two epochs ever runs in one slot.
* A slot is known by its incarnation. News of an older incarnation changes nothing.
* Every wait has a deadline: for slots to come up, to cancel, to deploy, to be heard of, to leave.

Not handled here: what a slot is (the host's business), what is restored (the driver asks recovery), checkpoints.
"""

from __future__ import annotations

from typing import assert_never

from penstock.core.effects import Ticked
from penstock.core.errors import InvariantError
from penstock.core.ids import Epoch, Instant, SlotId, SlotIndex, TaskId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEffect,
    JobEnded,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    RunTasks,
    SlotCancelled,
    SlotGone,
    SlotHeard,
    SlotReady,
    SlotRegistered,
    StartSlot,
    StopSlot,
    TaskDone,
    TellCancel,
    TellLeave,
)
from penstock.core.job.restart import make_restart_strategy
from penstock.settings import Restart, SlotSettings

START_FAILURES_BEFORE_FIRST_RUN = 3
"""A job with a slot that dies this often in a row, before the job ever ran, has a wrong environment, not bad luck."""

LEAVE_TIMEOUT_MS = 5_000


class _Slot:
    """What is known of one slot."""

    def __init__(self, slot: SlotId, now: Instant) -> None:
        self.slot = slot
        self.registered = False
        self.left = False
        self.heard: Instant = now
        self.failed_starts = 0
        """How many times in a row it was gone before it called in."""
        self.clean_up_to = Epoch(0)
        """No task of an epoch up to this one runs there."""
        self.ready_for = Epoch(0)


class JobLifecycle:
    """Decides when slots are asked for, deployed, cancelled and let go."""

    def __init__(
        self,
        *,
        slots: int,
        tasks: tuple[TaskId, ...],
        settings: SlotSettings,
        restart: Restart,
        first_epoch: int = 1,
        ran_before: bool = False,
        draws: tuple[float, ...] = (0.5,),
    ) -> None:
        """`first_epoch` lies above all epochs and incarnations of drivers that had the job before; `ran_before` says
        that it ran with one of them."""
        self.state = JobState.CREATED
        self.epoch = Epoch(first_epoch - 1)
        self._settings = settings
        self._strategy = make_restart_strategy(restart)
        self._tasks = dict.fromkeys(tasks)
        self._unfinished: dict[TaskId, None] = {}
        self._slots: dict[SlotIndex, _Slot] = {}
        self._slot_count = slots
        self._first_incarnation = first_epoch
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
                return self._handle_heard(event, now)
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
            case Ticked():
                return self._handle_ticked(now)
            case _:
                assert_never(event)

    def next_deadline(self) -> Instant | None:
        """The latest time at which `Ticked` must be fed in; None if only an event can help."""
        if self.state.is_terminal:
            return None
        times = [t for t in (self._deadline, self._restart_at) if t is not None]
        if self.state is not JobState.ENDING:
            timeout = self._settings.heartbeat_timeout_ms
            times += [Instant(s.heard + timeout) for s in self._slots.values() if s.registered]
        return min(times, default=None)

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's own state contradicts itself."""
        if self.state is JobState.RUNNING and not all(s.ready_for == self.epoch for s in self._slots.values()):
            raise InvariantError(f"job runs epoch {self.epoch} with slots that are not ready for it")
        if self.state.is_terminal and any(not s.left for s in self._slots.values()):
            raise InvariantError(f"job is {self.state.value} with slots left")

    @property
    def slots(self) -> tuple[SlotId, ...]:
        """The current incarnation of every slot, in order."""
        return tuple(self._slots[i].slot for i in sorted(self._slots))

    @property
    def finished_tasks(self) -> int:
        """How many tasks of the running attempt have ended for good."""
        return len(self._tasks) - len(self._unfinished) if self.state is JobState.RUNNING else 0

    # --- starting -----------------------------------------------------------------------

    def _handle_started(self, now: Instant) -> list[JobEffect]:
        if self.state is not JobState.CREATED:
            raise InvariantError(f"job started twice, it is {self.state.value}")
        self.state = JobState.STARTING
        self._deadline = Instant(now + self._settings.start_timeout_ms)
        for i in range(self._slot_count):
            self._slots[SlotIndex(i)] = _Slot(SlotId(SlotIndex(i), self._first_incarnation), now)
        return [StartSlot(slot=s.slot) for s in self._slots.values()]

    def _handle_registered(self, event: SlotRegistered, now: Instant) -> list[JobEffect]:
        known = self._slots.get(event.slot.number)
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
            effects = self._lose(known, f"{known.slot} was started again by the cluster", now, replace=False)
            known.slot = event.slot
            return effects + self._arrived(known, now)
        known.slot = event.slot
        return self._arrived(known, now)

    def _arrived(self, known: _Slot, now: Instant) -> list[JobEffect]:
        known.registered = True
        known.failed_starts = 0
        known.heard = now
        known.clean_up_to = self.epoch
        return self._advance(now)

    def _advance(self, now: Instant) -> list[JobEffect]:
        """Go on to the next attempt as soon as nothing is missing for it."""
        waiting = (JobState.STARTING, JobState.FAILING, JobState.RESTARTING)
        slots = [self._slots[i] for i in sorted(self._slots)]
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
        return [DeployTasks(epoch=self.epoch, slots=self.slots)]

    def _handle_ready(self, event: SlotReady, now: Instant) -> list[JobEffect]:
        known = self._current(event.slot)
        if known is None:
            return []
        known.heard = now
        if event.epoch != self.epoch or self.state is not JobState.DEPLOYING:
            return []
        known.ready_for = event.epoch
        if not all(s.ready_for == self.epoch for s in self._slots.values()):
            return []
        self.state = JobState.RUNNING
        self._deadline = None
        self._ever_ran = True
        return [RunTasks(epoch=self.epoch, slots=self.slots)]

    # --- failing -----------------------------------------------------------------------

    def _handle_attempt_failed(self, event: AttemptFailed, now: Instant) -> list[JobEffect]:
        if event.epoch != self.epoch or self.state not in (JobState.DEPLOYING, JobState.RUNNING):
            return []
        return self._fail(event.cause, now)

    def _handle_gone(self, event: SlotGone, now: Instant) -> list[JobEffect]:
        known = self._current(event.slot)
        if known is None or self.state.is_terminal:
            return []
        if self.state is JobState.ENDING:
            known.left = True
            return self._end_if_empty()
        return self._lose(known, event.error or f"{event.slot} left without being told to", now, replace=True)

    def _lose(self, known: _Slot, error: str, now: Instant, *, replace: bool) -> list[JobEffect]:
        """A slot's process is gone: end the attempt if one is on, and ask for the next incarnation."""
        never_came_up = not known.registered
        known.registered = False
        known.heard = now
        lost = known.slot
        cause = FailureCause(text=f"slot {lost.number} was lost: {error}")
        effects: list[JobEffect] = []
        if self.state in (JobState.DEPLOYING, JobState.RUNNING):
            effects += self._fail(cause, now)
        elif never_came_up:
            effects += self._could_not_start(known, cause, now)
        if self._outcome is not None:
            return effects
        if replace:
            known.slot = SlotId(lost.number, lost.incarnation + 1)
            effects.append(StartSlot(slot=known.slot))
        self._deadline = Instant(now + self._settings.start_timeout_ms)
        return effects

    def _could_not_start(self, known: _Slot, cause: FailureCause, now: Instant) -> list[JobEffect]:
        known.failed_starts += 1
        if not self._ever_ran:
            given_up = known.failed_starts >= START_FAILURES_BEFORE_FIRST_RUN
        else:
            self._failures += 1
            given_up = self._strategy.failed(now, self._draw()) is None
        return self._end(JobState.FAILED, cause, now) if given_up else []

    def _fail(self, cause: FailureCause, now: Instant) -> list[JobEffect]:
        """End the running attempt; start over or give up, as the strategy says."""
        self._failures += 1
        delay_ms = self._strategy.failed(now, self._draw())
        ended = AttemptEnded(epoch=self.epoch, cause=cause, restart_in_ms=delay_ms)
        if delay_ms is None:
            return [ended, *self._end(JobState.FAILED, cause, now)]
        self.state = JobState.FAILING
        self._restart_at = Instant(now + delay_ms)
        self._deadline = Instant(now + self._settings.cancel_timeout_ms)
        live = [s for i, s in sorted(self._slots.items()) if s.registered]
        return [ended, *(TellCancel(slot=s.slot, epoch=self.epoch) for s in live)]

    def _handle_cancelled(self, event: SlotCancelled, now: Instant) -> list[JobEffect]:
        known = self._current(event.slot)
        if known is None:
            return []
        known.heard = now
        known.clean_up_to = max(known.clean_up_to, event.epoch)
        return self._advance(now)

    # --- ending -----------------------------------------------------------------------

    def _handle_task_done(self, event: TaskDone, now: Instant) -> list[JobEffect]:
        if event.epoch != self.epoch or self.state is not JobState.RUNNING:
            return []
        self._unfinished.pop(event.task, None)
        return [] if self._unfinished else self._end(JobState.FINISHED, None, now)

    def _handle_cancel_requested(self, now: Instant) -> list[JobEffect]:
        if self.state is JobState.ENDING or self.state.is_terminal:
            return []
        return self._end(JobState.CANCELLED, None, now)

    def _end(self, outcome: JobState, cause: FailureCause | None, now: Instant) -> list[JobEffect]:
        self.state = JobState.ENDING
        self._outcome, self._cause = outcome, cause
        self._restart_at = None
        self._deadline = Instant(now + LEAVE_TIMEOUT_MS)
        effects: list[JobEffect] = [JobEnding(outcome=outcome, cause=cause)]
        for index in sorted(self._slots):
            known = self._slots[index]
            # A slot that never called in cannot be told: it is stopped, and told again should it still call.
            effects.append(TellLeave(slot=known.slot) if known.registered else StopSlot(slot=known.slot))
            known.left = not known.registered
        return effects + self._end_if_empty()

    def _end_if_empty(self) -> list[JobEffect]:
        if self._outcome is None or not all(s.left for s in self._slots.values()):
            return []
        self.state = self._outcome
        self._deadline = None
        return [JobEnded(outcome=self._outcome, cause=self._cause)]

    # --- time -----------------------------------------------------------------------

    def _handle_heard(self, event: SlotHeard, now: Instant) -> list[JobEffect]:
        known = self._current(event.slot)
        if known is not None:
            known.heard = now
        return []

    def _handle_ticked(self, now: Instant) -> list[JobEffect]:
        if self.state.is_terminal:
            return []
        effects: list[JobEffect] = []
        if self.state is not JobState.ENDING:
            for index in sorted(self._slots):
                known = self._slots[index]
                silent_ms = now - known.heard
                if known.registered and silent_ms >= self._settings.heartbeat_timeout_ms:
                    effects += self._give_up(known, f"not heard of for {silent_ms} ms", now)
        if self._deadline is not None and now >= self._deadline:
            effects += self._handle_deadline(now)
        if self._restart_at is not None and now >= self._restart_at:
            effects += self._advance(now)
            # If that was not all, only slots are missing now, which have a deadline of their own.
            self._restart_at = None
        return effects

    def _handle_deadline(self, now: Instant) -> list[JobEffect]:
        self._deadline = None
        slots = [self._slots[i] for i in sorted(self._slots)]
        effects: list[JobEffect] = []
        if self.state is JobState.ENDING:
            for known in slots:
                if not known.left:
                    known.left = True
                    effects.append(StopSlot(slot=known.slot))
            return effects + self._end_if_empty()
        if self.state is JobState.DEPLOYING:
            for known in slots:
                if known.ready_for != self.epoch:
                    effects += self._give_up(known, "did not restore its tasks in time", now)
            return effects
        missing = [s for s in slots if not s.registered]
        unclean = [s for s in slots if s.registered and s.clean_up_to < self.epoch]
        for known in unclean:
            effects += self._give_up(known, "did not drop its tasks in time", now)
        if missing and not unclean:
            names = ", ".join(str(s.slot.number) for s in missing)
            text = (
                f"only {len(slots) - len(missing)} of {len(slots)} slots came up in "
                f"{self._settings.start_timeout_ms} ms (missing: {names})"
            )
            return effects + self._end(JobState.FAILED, FailureCause(text=text), now)
        return effects

    def _give_up(self, known: _Slot, error: str, now: Instant) -> list[JobEffect]:
        if self.state is JobState.ENDING or known.left:
            return []
        return [StopSlot(slot=known.slot), *self._lose(known, error, now, replace=True)]

    # --- small things -----------------------------------------------------------------------

    def _current(self, slot: SlotId) -> _Slot | None:
        known = self._slots.get(slot.number)
        return known if known is not None and known.slot == slot else None

    def _draw(self) -> float:
        return self._draws[self._failures % len(self._draws)]

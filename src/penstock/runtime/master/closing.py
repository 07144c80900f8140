"""The end of a job: performs the effects of the machine in `core.job.ending`."""

from __future__ import annotations

import logging
from typing import assert_never

from penstock.core.coordinator.effects import AnswerRequest
from penstock.core.coordinator.events import JobEnd, ShutDown
from penstock.core.ids import Instant, JobId, RequestId
from penstock.core.job.ending import (
    AllHeard,
    AnswerStop,
    CleanUpJob,
    EndedBefore,
    EndingEffect,
    EndingEvent,
    EndOfJob,
    EndParts,
    OutcomeDecided,
    Over,
    ShutDownCheckpoints,
    SlotsLeft,
    StopSaved,
    WriteRecord,
)
from penstock.core.job.events import FailureCause, JobEnded, JobEnding, JobState
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import JobOutcome, Tenure
from penstock.runtime.master.decisions import Decisions
from penstock.runtime.master.driver_parts import DriverParts
from penstock.runtime.master.ending import JOB_END, Ending, outcome_of, retained_after
from penstock.runtime.master.guard import Guard
from penstock.runtime.master.requests import SnapshotRequests, answer_to_stop

log = logging.getLogger(__name__)


class Closing:
    """Takes a job from its decided outcome to its end."""

    def __init__(
        self,
        work: Ending,
        *,
        tenure: Tenure | None,
        is_run: bool,
        decisions: Decisions,
        parts: DriverParts,
        guard: Guard,
        requests: SnapshotRequests,
    ) -> None:
        """`tenure` is as in `MasterDriver`, and `is_run` as in `MasterPorts`. `guard` is the guard of `parts`."""
        self.outcome: JobState | None = None
        """How the job ended; None as long as anything is left to do."""
        self.cause: FailureCause | None = None
        self.job: JobId = work.job
        self._machine = EndOfJob(is_recorded=tenure is not None)
        self._work = work
        self._tenure = tenure
        self._is_run = is_run
        self._decisions = decisions
        self._parts = parts
        self._guard = guard
        self._requests = requests
        self._stops: dict[RequestId, AnswerRequest] = {}

    # --- what other parts ask ----------------------------------------------------------------

    @property
    def goes_on_from(self) -> CompletedCheckpoint | None:
        """The snapshot that the ended job goes on from when its program is run again; None if the job does not go
        on."""
        return self._work.goes_on_from

    @property
    def is_decided(self) -> bool:
        """Whether the outcome of the job is decided."""
        return self._machine.is_decided

    @property
    def is_shut_down(self) -> bool:
        """Whether the checkpoints are shut down: the job ends with this driver, even if another driver takes the job
        over from here on."""
        return self._machine.is_shut_down

    @property
    def has_no_slot(self) -> bool:
        """Whether the last slot has left: nothing can be asked of the job any more."""
        return self._machine.has_no_slot

    # --- what happens ------------------------------------------------------------------------

    def end_again(self, outcome: JobOutcome) -> None:
        """An earlier driver recorded this outcome, and may not have cleaned up everything: end the job again."""
        self._work.resume(outcome)
        cause = FailureCause(text=outcome.cause) if outcome.cause else None
        self._feed(EndedBefore(outcome=outcome.state, cause=cause))

    def decided(self, effect: JobEnding) -> None:
        """The outcome of the job is decided."""
        self._feed(OutcomeDecided(outcome=effect.outcome, cause=effect.cause))

    def slots_left(self, effect: JobEnded) -> None:
        """No slot is left."""
        self._feed(SlotsLeft(outcome=effect.outcome, cause=effect.cause))

    def answer(self, effect: AnswerRequest) -> None:
        """Answer a request for a snapshot. A stop with a savepoint is answered only when a driver that takes the job
        over would know that the job has stopped."""
        if isinstance(effect.result, CompletedCheckpoint) and effect.result.kind.is_synchronous:
            self._stops[effect.request] = effect
            self._feed(StopSaved(request=effect.request))
        else:
            self._requests.tell(effect.request, effect.result)

    def turn(self, now: Instant) -> None:
        """All messages that had arrived have been heard: go on with the end of the job as far as possible."""
        for event in self._work.turn(now):
            self._feed(event)
        while self._feed(
            AllHeard(
                checkpoints_settled=self._decisions.coordinator.is_settled,
                parts_ended=self._parts.have_ended,
            )
        ):
            pass

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest; None if only an event can help."""
        return self._work.next_deadline()

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's state contradicts itself."""
        self._machine.validate()

    # --- what follows ------------------------------------------------------------------------

    def _feed(self, event: EndingEvent) -> bool:
        """Feed an event to the machine, and perform the effects; returns whether there were any effects."""
        effects = self._machine.handle(event, self._decisions.now)
        for effect in effects:
            self._perform(effect)
        return bool(effects)

    def _perform(self, effect: EndingEffect) -> None:
        match effect:
            case WriteRecord():
                coordinator, saved = self._decisions.coordinator, self._parts.saved
                recorded = outcome_of(effect, coordinator, saved, may_go_on=self._is_run)
                self._work.write_record(recorded, self._decisions.now)
            case AnswerStop():
                answered = self._stops.pop(effect.request)
                self._requests.tell(effect.request, answer_to_stop(answered, has_stopped=effect.has_stopped))
            case ShutDownCheckpoints():
                self._shut_down(JOB_END[effect.outcome])
            case EndParts():
                self._parts.end()
            case CleanUpJob():
                coordinator = self._decisions.coordinator
                retained = retained_after(effect.outcome, self._tenure, coordinator.retained)
                self._work.clean_up(retained, coordinator.failed_savepoints, self._decisions.now)
            case Over():
                self.outcome, self.cause = effect.outcome, effect.cause
                outcome = effect.outcome.value
                log.info("job %s ended: %s", self.job, outcome, extra={"job": self.job, "outcome": outcome})
            case _:
                assert_never(effect)

    def _shut_down(self, status: JobEnd) -> None:
        self._work.spare(self._decisions.coordinator.spared_after(status))
        if status is JobEnd.SUSPENDED:
            # Another driver may take the job over: from here on, connectors of this driver must not commit or delete.
            self._guard.hold.let_go()
        self._decisions.feed_coordinator(ShutDown(status=status))

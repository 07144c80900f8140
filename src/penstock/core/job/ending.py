"""How a job ends: its outcome is recorded, its checkpoints end, its slots leave, and files that are not needed any more
are deleted.

    UNDECIDED ─► DECIDED ─► RECORDING ─► RECORDED ─► LEAVING ─► ENDING_PARTS ─► CLEANING ─► OVER
                  │  ▲          │                      ▲              │                      ▲
                  │  └──────────┘                      │              │ suspended            │
                  │   the record is given up,          │              └──────────────────────┘
                  │   or the job is lost: suspended    │
                  └────────────────────────────────────┘
                      not to be recorded, or suspended

Rules of this file:
* Nothing follows from a decided outcome before the driver has handled everything that had arrived. Until the
  checkpoints are shut down, it may turn out that another driver has the job: then the job is suspended, whatever its
  outcome was to be.
* Only the outcome of a job that may outlive its driver, or whose program may be run again, is recorded. The outcome is
  recorded before anything of the job is deleted: a driver that crashes in between leaves a job that has ended, and not
  a job that seems never to have begun.
* If the outcome cannot be recorded, the checkpoints are kept as the checkpoints of a suspended job are, so that another
  driver can take the job over.
* A caller that stops the job with a savepoint is answered only when the outcome is on record, if the outcome is to be
  recorded: a driver that takes the job over must know that the job has stopped.
* The parts of operators on the driver, and hooks, end when no slot is left and no storage work of checkpoints is under
  way.
* A suspended job is not cleaned up: another driver needs the files of the job.

Not handled here: which outcome a job has (`lifecycle.py`), how often a step of cleaning up is tried (`clean_up.py`),
and what is cleaned up.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from penstock.core.effects import Effect, Event
from penstock.core.errors import InvariantError
from penstock.core.ids import Instant, RequestId
from penstock.core.job.events import FailureCause, JobState


class EndingStage(Enum):
    """How far the end of a job has come."""

    UNDECIDED = "undecided"
    """The job goes on."""
    DECIDED = "decided"
    """The outcome is decided, and nothing has followed from it yet."""
    RECORDING = "recording"
    """The outcome is being recorded."""
    RECORDED = "recorded"
    """The outcome is on record; storage work of checkpoints is awaited."""
    LEAVING = "leaving"
    """No checkpoint begins any more. Slots leave, and storage work of checkpoints comes to its end."""
    ENDING_PARTS = "ending parts"
    """No slot is left. The parts of operators on the driver, and hooks, let go of what they have."""
    CLEANING = "cleaning"
    """Files that are not needed any more are being deleted."""
    OVER = "over"
    """Nothing more happens."""


# --- events ----------------------------------------------------------------------------------------------------------


class OutcomeDecided(Event, frozen=True, kw_only=True):
    """Job lifecycle: the outcome of the job is decided. The event comes a second time only if the job is suspended
    after all."""

    outcome: JobState
    cause: FailureCause | None = None


class EndedBefore(Event, frozen=True, kw_only=True):
    """Driver, instead of starting the job: an earlier driver recorded this outcome, and may not have cleaned up."""

    outcome: JobState
    cause: FailureCause | None = None


class StopSaved(Event, frozen=True, kw_only=True):
    """Checkpoint coordinator: the savepoint that `request` asked for, and that stops the job, is complete."""

    request: RequestId


class AllHeard(Event, frozen=True, kw_only=True):
    """Driver, at the end of each turn: the driver has handled everything that had arrived."""

    checkpoints_settled: bool
    """Whether no storage work of checkpoints is under way."""
    parts_ended: bool
    """Whether the parts of operators on the driver, and hooks, have let go of what they had."""


class OutcomeRecorded(Event, frozen=True, kw_only=True):
    """The answer to `WriteRecord`: the outcome is durable."""


class RecordGivenUp(Event, frozen=True, kw_only=True):
    """The answer to `WriteRecord`: the outcome could not be recorded, and no further try is made."""


class SlotsLeft(Event, frozen=True, kw_only=True):
    """Job lifecycle: no slot is left."""

    outcome: JobState
    cause: FailureCause | None = None


class CleanedUp(Event, frozen=True, kw_only=True):
    """The answer to `CleanUpJob`: every step of cleaning up has succeeded or is given up."""


EndingEvent = (
    OutcomeDecided | EndedBefore | StopSaved | AllHeard | OutcomeRecorded | RecordGivenUp | SlotsLeft | CleanedUp
)


# --- effects ---------------------------------------------------------------------------------------------------------


class WriteRecord(Effect, frozen=True, kw_only=True):
    """Record the outcome."""

    outcome: JobState
    cause: FailureCause | None


class AnswerStop(Effect, frozen=True, kw_only=True):
    """Answer the request that stopped the job with a savepoint. If the job has not stopped, another driver can take the
    job over."""

    request: RequestId
    has_stopped: bool


class ShutDownCheckpoints(Effect, frozen=True, kw_only=True):
    """No checkpoint begins any more. Checkpoints that do not outlive a job with this outcome are deleted."""

    outcome: JobState


class EndParts(Effect, frozen=True, kw_only=True):
    """Have the parts of operators on the driver, and hooks, let go of what they have."""


class CleanUpJob(Effect, frozen=True, kw_only=True):
    """Delete what is not needed any more after a job with this outcome."""

    outcome: JobState


class Over(Effect, frozen=True, kw_only=True):
    """The job has ended, and nothing is left to do."""

    outcome: JobState
    cause: FailureCause | None


EndingEffect = WriteRecord | AnswerStop | ShutDownCheckpoints | EndParts | CleanUpJob | Over


class EndOfJob:
    """Decides what follows when the outcome of a job is decided."""

    def __init__(self, *, is_recorded: bool) -> None:
        """`is_recorded` says that the outcome is to be recorded."""
        self.stage = EndingStage.UNDECIDED
        self._is_recorded = is_recorded
        self._decided: OutcomeDecided | None = None
        self._shut_down_as: JobState | None = None
        """The outcome with which the checkpoints were shut down; None before that."""
        self._left: SlotsLeft | None = None
        self._stops: list[RequestId] = []
        """Requests whose savepoint stopped the job and that have no answer yet."""

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is decided."""
        return self.stage is not EndingStage.UNDECIDED

    @property
    def is_shut_down(self) -> bool:
        """Whether the checkpoints are shut down: from here on the job ends as decided, also if another driver takes the
        job over."""
        return self._shut_down_as is not None

    @property
    def has_no_slot(self) -> bool:
        """Whether the last slot has left."""
        return self._left is not None

    def handle(self, event: EndingEvent, now: Instant) -> list[EndingEffect]:  # noqa: ARG002  # nothing here takes time
        """Take one event in; say what to do."""
        match event:
            case OutcomeDecided():
                return self._handle_outcome_decided(event)
            case EndedBefore():
                self._shut_down_as = event.outcome
                self._left = SlotsLeft(outcome=event.outcome, cause=event.cause)
                self.stage = EndingStage.LEAVING
                return []
            case StopSaved():
                self._stops.append(event.request)
                # A job whose outcome is not recorded has stopped as soon as its savepoint is complete.
                return self._answer_stops() if self.is_shut_down or not self._is_recorded else []
            case AllHeard():
                return self._handle_all_heard(event)
            case OutcomeRecorded():
                # In any other stage the answer is late: the job was suspended while its outcome was being recorded.
                if self.stage is EndingStage.RECORDING:
                    self.stage = EndingStage.RECORDED
                return []
            case RecordGivenUp():
                if self.stage is EndingStage.RECORDING:
                    self._decided = OutcomeDecided(outcome=JobState.SUSPENDED)
                    self.stage = EndingStage.DECIDED
                return []
            case SlotsLeft():
                self._left = event
                return []
            case CleanedUp():
                return self._end()
            case _:
                assert_never(event)

    def _handle_outcome_decided(self, event: OutcomeDecided) -> list[EndingEffect]:
        # After the shutdown it is too late to suspend the job: the checkpoints have ended with the first outcome.
        if not self.is_shut_down:
            self._decided = event
            self.stage = EndingStage.DECIDED
        return []

    def _handle_all_heard(self, event: AllHeard) -> list[EndingEffect]:
        match self.stage:
            case EndingStage.DECIDED:
                return self._record(event)
            case EndingStage.RECORDED:
                return self._shut_down() if event.checkpoints_settled else []
            case EndingStage.LEAVING:
                if self._left is None or not event.checkpoints_settled:
                    return []
                self.stage = EndingStage.ENDING_PARTS
                return [EndParts()]
            case EndingStage.ENDING_PARTS:
                return self._clean_up() if event.parts_ended else []
            case _:
                return []

    def _record(self, event: AllHeard) -> list[EndingEffect]:
        decided = self._known_decision()
        if not self._is_recorded or decided.outcome is JobState.SUSPENDED:
            return self._shut_down()
        if not event.checkpoints_settled:
            # The record names the checkpoints that outlive the job, and storage work under way may still change which
            # these are.
            return []
        self.stage = EndingStage.RECORDING
        return [WriteRecord(outcome=decided.outcome, cause=decided.cause)]

    def _shut_down(self) -> list[EndingEffect]:
        self._shut_down_as = self._known_decision().outcome
        self.stage = EndingStage.LEAVING
        return [*self._answer_stops(), ShutDownCheckpoints(outcome=self._shut_down_as)]

    def _answer_stops(self) -> list[EndingEffect]:
        stops, self._stops = self._stops, []
        has_stopped = self._shut_down_as is not JobState.SUSPENDED
        return [AnswerStop(request=request, has_stopped=has_stopped) for request in stops]

    def _clean_up(self) -> list[EndingEffect]:
        if self._shut_down_as is JobState.SUSPENDED:
            return self._end()
        self.stage = EndingStage.CLEANING
        return [CleanUpJob(outcome=self._known_end().outcome)]

    def _end(self) -> list[EndingEffect]:
        left = self._known_end()
        self.stage = EndingStage.OVER
        return [Over(outcome=left.outcome, cause=left.cause)]

    def _known_decision(self) -> OutcomeDecided:
        if self._decided is None:
            raise InvariantError(f"the end of the job is {self.stage.value}, and no outcome is decided")
        return self._decided

    def _known_end(self) -> SlotsLeft:
        if self._left is None:
            raise InvariantError(f"the end of the job is {self.stage.value}, and slots are left")
        return self._left

    def next_deadline(self) -> Instant | None:
        """Only an event can help."""
        return None

    def validate(self) -> None:
        """Raise `InvariantError` if the state contradicts itself."""
        before = (EndingStage.UNDECIDED, EndingStage.DECIDED, EndingStage.RECORDING, EndingStage.RECORDED)
        if self.is_shut_down is (self.stage in before):
            raise InvariantError(
                f"the end of the job is {self.stage.value}, and the checkpoints are shut down: {self.is_shut_down}"
            )
        if self.is_shut_down and self._stops:
            raise InvariantError(
                f"the checkpoints of the job are shut down, and stops were not answered: {self._stops}"
            )

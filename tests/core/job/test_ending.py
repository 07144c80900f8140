"""The end of a job: in which order its outcome is recorded, told and cleaned up after, and who learns what when."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import InvariantError
from penstock.core.ids import Instant, RequestId
from penstock.core.job.ending import (
    AllHeard,
    AnswerStop,
    CleanedUp,
    CleanUpJob,
    EndedBefore,
    EndingEffect,
    EndingEvent,
    EndingStage,
    EndOfJob,
    EndParts,
    OutcomeDecided,
    OutcomeRecorded,
    Over,
    RecordGivenUp,
    ShutDownCheckpoints,
    SlotsLeft,
    StopSaved,
    WriteRecord,
)
from penstock.core.job.events import FailureCause, JobState

FINISHED, FAILED, CANCELLED, SUSPENDED = JobState.FINISHED, JobState.FAILED, JobState.CANCELLED, JobState.SUSPENDED
CAUSE = FailureCause(text="bad luck")
SETTLED = AllHeard(checkpoints_settled=True, parts_ended=False)
STORING = AllHeard(checkpoints_settled=False, parts_ended=False)
PARTS_ENDED = AllHeard(checkpoints_settled=True, parts_ended=True)


def decided(outcome: JobState, cause: FailureCause | None = None) -> OutcomeDecided:
    return OutcomeDecided(outcome=outcome, cause=cause)


def left(outcome: JobState, cause: FailureCause | None = None) -> SlotsLeft:
    return SlotsLeft(outcome=outcome, cause=cause)


def feed(end: EndOfJob, *events: EndingEvent) -> list[EndingEffect]:
    effects: list[EndingEffect] = []
    for event in events:
        effects += end.handle(event, Instant(0))
        end.validate()
        assert end.next_deadline() is None
    return effects


@pytest.fixture
def alone() -> EndOfJob:
    """The end of a job that ends with its driver."""
    return EndOfJob(is_recorded=False)


@pytest.fixture
def recorded() -> EndOfJob:
    """The end of a job that may outlive its driver."""
    return EndOfJob(is_recorded=True)


def test_a_job_goes_on_until_its_outcome_is_decided(alone: EndOfJob):
    assert feed(alone, SETTLED, PARTS_ENDED) == []
    assert (alone.stage, alone.is_decided) == (EndingStage.UNDECIDED, False)


def test_a_job_that_ends_with_its_driver_goes_through_all_steps_but_the_record(alone: EndOfJob):
    assert feed(alone, decided(FAILED, CAUSE)) == []
    assert (alone.is_decided, alone.is_shut_down) == (True, False)
    assert feed(alone, STORING) == [ShutDownCheckpoints(outcome=FAILED)]
    assert feed(alone, SETTLED) == [], "slots are left"
    assert (alone.is_shut_down, alone.has_no_slot) == (True, False)
    assert feed(alone, left(FAILED, CAUSE), STORING) == [], "files are still being deleted"
    assert alone.has_no_slot
    assert feed(alone, SETTLED) == [EndParts()]
    assert feed(alone, SETTLED) == [], "a committer is still being closed"
    assert feed(alone, PARTS_ENDED) == [CleanUpJob(outcome=FAILED)]
    assert feed(alone, PARTS_ENDED) == []
    assert feed(alone, CleanedUp()) == [Over(outcome=FAILED, cause=CAUSE)]
    assert feed(alone, PARTS_ENDED) == []
    assert alone.stage is EndingStage.OVER


def test_an_outcome_is_recorded_before_the_first_checkpoint_goes(recorded: EndOfJob):
    assert feed(recorded, decided(FAILED, CAUSE), STORING) == [], "what outlives the job is not certain yet"
    assert feed(recorded, SETTLED) == [WriteRecord(outcome=FAILED, cause=CAUSE)]
    assert feed(recorded, left(FAILED, CAUSE), SETTLED) == []
    assert feed(recorded, OutcomeRecorded(), STORING) == []
    assert feed(recorded, SETTLED) == [ShutDownCheckpoints(outcome=FAILED)]
    assert feed(recorded, SETTLED, PARTS_ENDED) == [EndParts(), CleanUpJob(outcome=FAILED)]


def test_an_outcome_that_cannot_be_recorded_leaves_a_job_that_another_driver_can_take_over(recorded: EndOfJob):
    feed(recorded, decided(FINISHED), SETTLED)
    assert feed(recorded, RecordGivenUp()) == []
    assert feed(recorded, SETTLED) == [ShutDownCheckpoints(outcome=SUSPENDED)]
    over = Over(outcome=FINISHED, cause=None)
    assert feed(recorded, left(FINISHED), SETTLED, PARTS_ENDED) == [EndParts(), over], "nothing is cleaned up"


@pytest.mark.parametrize("late", [OutcomeRecorded(), RecordGivenUp()], ids=lambda event: type(event).__name__)
def test_a_job_that_is_lost_while_its_outcome_is_recorded_is_suspended(recorded: EndOfJob, late: Any):
    """1. The outcome is being recorded. 2. Another driver turns out to have the job. 3. The recording ends."""
    feed(recorded, decided(FINISHED), SETTLED)
    assert feed(recorded, decided(SUSPENDED), late) == []
    assert feed(recorded, STORING) == [ShutDownCheckpoints(outcome=SUSPENDED)]
    assert feed(recorded, left(SUSPENDED), SETTLED, PARTS_ENDED) == [EndParts(), Over(outcome=SUSPENDED, cause=None)]


def test_a_job_that_is_lost_in_the_turn_in_which_it_was_to_end_is_suspended(alone: EndOfJob):
    assert feed(alone, decided(FINISHED), decided(SUSPENDED), SETTLED) == [ShutDownCheckpoints(outcome=SUSPENDED)]


def test_a_job_that_has_ended_cannot_be_lost_any_more(alone: EndOfJob):
    feed(alone, decided(FINISHED), SETTLED)
    assert feed(alone, decided(SUSPENDED), left(FINISHED), SETTLED, PARTS_ENDED) == [
        EndParts(),
        CleanUpJob(outcome=FINISHED),
    ]


def test_a_job_that_an_earlier_driver_saw_end_is_cleaned_up_again(recorded: EndOfJob):
    assert feed(recorded, EndedBefore(outcome=CANCELLED, cause=CAUSE), SETTLED) == [EndParts()]
    assert feed(recorded, PARTS_ENDED, CleanedUp()) == [
        CleanUpJob(outcome=CANCELLED),
        Over(outcome=CANCELLED, cause=CAUSE),
    ]


# --- stops -----------------------------------------------------------------------------------------------------------


def stopped(number: int, *, has_stopped: bool = True) -> AnswerStop:
    return AnswerStop(request=RequestId(number), has_stopped=has_stopped)


def saved(number: int) -> StopSaved:
    return StopSaved(request=RequestId(number))


def test_who_stops_a_job_that_ends_with_its_driver_is_told_at_once(alone: EndOfJob):
    assert feed(alone, saved(7)) == [stopped(7)]
    assert feed(alone, decided(FINISHED), SETTLED) == [ShutDownCheckpoints(outcome=FINISHED)], "and only once"


def test_who_stops_a_job_that_may_outlive_its_driver_is_told_when_that_is_on_record(recorded: EndOfJob):
    assert feed(recorded, saved(7), saved(8), decided(FINISHED)) == []
    assert feed(recorded, SETTLED) == [WriteRecord(outcome=FINISHED, cause=None)]
    assert feed(recorded, OutcomeRecorded(), SETTLED) == [
        stopped(7),
        stopped(8),
        ShutDownCheckpoints(outcome=FINISHED),
    ]


def test_who_stops_a_job_that_another_driver_takes_over_is_told_that_it_has_not_stopped(recorded: EndOfJob):
    assert feed(recorded, saved(7), decided(SUSPENDED), SETTLED) == [
        stopped(7, has_stopped=False),
        ShutDownCheckpoints(outcome=SUSPENDED),
    ]
    assert feed(recorded, saved(8)) == [stopped(8, has_stopped=False)], "late, and answered all the same"


# --- contradictions --------------------------------------------------------------------------------------------------


def test_a_state_that_contradicts_itself_is_found(alone: EndOfJob, recorded: EndOfJob):
    alone.stage = EndingStage.LEAVING
    with pytest.raises(InvariantError, match="leaving, and the checkpoints are shut down: False"):
        alone.validate()
    feed(recorded, decided(SUSPENDED), SETTLED)
    recorded._stops.append(RequestId(1))
    with pytest.raises(InvariantError, match="stops were not answered"):
        recorded.validate()


def test_an_end_without_an_outcome_is_a_bug(alone: EndOfJob):
    with pytest.raises(InvariantError, match="slots are left"):
        alone.handle(CleanedUp(), Instant(0))
    alone.stage = EndingStage.DECIDED
    with pytest.raises(InvariantError, match="no outcome is decided"):
        alone.handle(SETTLED, Instant(0))

"""What every `ports.JobRecords` promises: two drivers at once never both act upon a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from completed_records import completed, encoded
from election_rig import Office

from penstock.core.errors import InvariantError, JobTakenOver
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery.tenure import JobOutcome, Start
from penstock.ports import JobRecords

START = Start(splits={OperatorId("read"): (b"one", b"two"), OperatorId("other"): ()}, max_parallelism=128)
OUTCOME = JobOutcome(state=JobState.FAILED, cause="boom", retained=(CheckpointId(4),))


def change_everything(records: JobRecords) -> list[Callable[[], object]]:
    """All that a driver may do to the records of its job."""
    return [
        lambda: records.record(CheckpointId(5), encoded(5)),
        lambda: records.record(CheckpointId(6), encoded(6), forget=[CheckpointId(4), CheckpointId(5)]),
        lambda: records.holds(CheckpointId(4)),
        lambda: records.remove(CheckpointId(4)),
        lambda: records.take_ids(CheckpointId(600)),
        lambda: records.record_start(START, completed(5)),
        lambda: records.record_outcome(OUTCOME),
        records.clear,
        records.check,
    ]


def first_driver(office: Office) -> JobRecords:
    """One that has a checkpoint on record."""
    records = office.take_over().records
    records.take_ids(CheckpointId(64))
    records.record(CheckpointId(4), encoded(4))
    return records


def test_the_first_driver_finds_nothing(office: Office):
    found = office.take_over().tenure
    assert (found.term, found.next_id, found.completed, found.outcome, found.start) == (0, 1, (), None, None)


def test_every_driver_has_a_term_of_its_own(office: Office):
    assert [office.take_over().tenure.term for _ in range(3)] == [0, 1, 2]


def test_a_driver_finds_what_the_one_before_recorded(office: Office):
    records = first_driver(office)
    records.record(CheckpointId(7), encoded(7))
    records.record_start(START, None)
    for _ in range(2):
        found = office.take_over().tenure
        assert (found.completed, found.next_id, found.start) == ((completed(4), completed(7)), 64, START)
        assert found.outcome is None


def test_the_snapshot_that_a_job_began_with_is_its_first_checkpoint(office: Office):
    office.take_over().records.record_start(START, completed(12))
    found = office.take_over().tenure
    assert (found.completed, found.start) == ((completed(12),), START)


def test_what_was_forgotten_or_removed_is_not_found(office: Office):
    records = first_driver(office)
    records.record(CheckpointId(7), encoded(7), forget=[CheckpointId(4)])
    records.record(CheckpointId(8), encoded(8))
    records.remove(CheckpointId(8))
    records.remove(CheckpointId(9))
    assert (records.holds(CheckpointId(7)), records.holds(CheckpointId(8))) == (True, False)
    assert office.take_over().tenure.completed == (completed(7),)


def test_doing_it_again_does_no_harm(office: Office):
    records = first_driver(office)
    for _ in range(2):
        records.record(CheckpointId(7), encoded(7), forget=[CheckpointId(4)])
        records.take_ids(CheckpointId(128))
        records.record_start(START, None)
        records.record_outcome(OUTCOME)
    records.take_ids(CheckpointId(100))
    found = office.take_over().tenure
    assert (found.completed, found.next_id, found.start, found.outcome) == ((completed(7),), 128, START, OUTCOME)


def test_a_checkpoint_cannot_be_recorded_and_forgotten_at_once(office: Office):
    with pytest.raises(InvariantError, match="the record of the same checkpoint"):
        office.take_over().records.record(CheckpointId(4), encoded(4), forget=[CheckpointId(4)])


def test_a_job_that_has_ended_has_an_outcome_and_no_checkpoints(office: Office):
    records = first_driver(office)
    records.record_outcome(OUTCOME)
    records.clear()
    assert not records.holds(CheckpointId(4))
    assert [office.take_over().tenure.outcome for _ in range(2)] == [OUTCOME, OUTCOME]


# --- two drivers at once ---------------------------------------------------------------------------------------------


def test_whatever_a_driver_changes_it_learns_that_another_has_the_job(office: Office):
    old = first_driver(office)
    office.take_over()
    for change in change_everything(old):
        with pytest.raises(JobTakenOver, match="another driver has taken job job over"):
            change()


def test_what_a_driver_changes_too_late_changes_nothing_for_those_that_come_later(office: Office):
    """1. A second driver takes the job over. 2. The first, which was asleep, does all that it was about to do. 3. The
    second dies before its first checkpoint. 4. A third finds what the second found."""
    old = first_driver(office)
    second = office.take_over().tenure
    for change in change_everything(old):
        with suppress(JobTakenOver):
            change()
    third = office.take_over().tenure
    assert third.completed == second.completed == (completed(4),)
    assert (third.outcome, third.start) == (None, None)
    assert third.next_id >= second.next_id


def test_ids_of_two_drivers_never_meet(office: Office):
    """1. The second driver takes over. 2. Both take the next ids, the first too late. 3. So do all who come later."""
    old = first_driver(office)
    second = office.take_over()
    with suppress(JobTakenOver):
        old.take_ids(CheckpointId(128))
    second.records.take_ids(CheckpointId(second.tenure.next_id + 64))
    assert office.take_over().tenure.next_id >= second.tenure.next_id + 64


def test_a_record_that_was_there_before_counts(office: Office):
    first_driver(office).record(CheckpointId(5), encoded(5), forget=[CheckpointId(4)])
    assert office.take_over().tenure.completed == (completed(5),)


def test_a_driver_that_dropped_what_it_found_for_something_newer_left_only_that(office: Office):
    first_driver(office)
    second = office.take_over()
    checkpoint = second.tenure.next_id
    second.records.record(checkpoint, encoded(checkpoint), forget=[CheckpointId(4)])
    assert office.take_over().tenure.completed == (completed(checkpoint),)


# --- once more -------------------------------------------------------------------------------------------------------


def test_a_job_that_has_ended_begins_anew_only_if_that_is_asked_for(office: Office):
    old = first_driver(office)
    old.record_start(START, None)
    old.record_outcome(OUTCOME)
    assert office.take_over().tenure.outcome == OUTCOME
    again = office.take_over(anew=True).tenure
    assert (again.outcome, again.completed, again.start) == (None, (), None)
    assert again.next_id >= 64
    later = office.take_over().tenure
    assert (later.outcome, later.completed) == (None, ())


def test_a_job_that_has_not_ended_goes_on_whatever_is_asked_for(office: Office):
    first_driver(office)
    assert office.take_over(anew=True).tenure.completed == (completed(4),)

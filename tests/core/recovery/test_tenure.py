from __future__ import annotations

import completed_records
import msgspec
import pytest

from penstock.core.graph import CheckpointVertex, OperatorLabel
from penstock.core.ids import CheckpointId, OperatorId, Term, VertexId
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint, SnapshotKind
from penstock.core.recovery.tenure import EPOCHS_PER_TERM, Inheritance, JobOutcome, Start, Tenure, attempt_of


def completed(*checkpoints: int) -> tuple[CompletedCheckpoint, ...]:
    return tuple(completed_records.completed(checkpoint) for checkpoint in checkpoints)


FOUND = Inheritance(first_id=CheckpointId(65), completed=completed(4, 7))


def test_the_epochs_of_a_term_lie_above_those_of_all_terms_before_it() -> None:
    assert Tenure().first_epoch == 1
    assert Tenure(term=Term(1)).first_epoch > EPOCHS_PER_TERM
    assert Tenure(term=Term(2)).first_epoch - Tenure(term=Term(1)).first_epoch == EPOCHS_PER_TERM


def test_attempts_are_counted_anew_in_every_term() -> None:
    assert attempt_of(Tenure(term=Term(2)).first_epoch) == attempt_of(Tenure().first_epoch) == 1


def test_a_driver_that_found_nothing_has_whatever_is_on_record() -> None:
    assert Inheritance().counting(completed(1, 2)) == completed(1, 2)
    assert Inheritance().counting(()) == ()


def test_what_a_driver_found_counts_as_long_as_it_is_on_record() -> None:
    assert FOUND.counting(completed(4, 7)) == completed(4, 7)
    assert FOUND.counting(completed(7, 65)) == completed(7, 65)
    assert FOUND.counting(completed(66)) == completed(66)


def test_what_a_driver_before_records_too_late_does_not_count() -> None:
    assert FOUND.counting(completed(7, 8, 64)) == completed(7)
    assert FOUND.counting(completed(7, 8, 65)) == completed(7, 65)


def test_what_a_driver_before_removes_too_late_counts_all_the_same() -> None:
    assert FOUND.counting(()) == completed(7)
    assert FOUND.counting(completed(4)) == completed(4, 7)
    assert FOUND.counting(completed(4, 65)) == completed(4, 65)


def program(*operators: str) -> Start:
    """One whose steps are named, but for the first."""
    vertex = CheckpointVertex(
        vertex=VertexId("v"),
        parallelism=1,
        operators=tuple(OperatorId(o) for o in operators),
        labels={OperatorId(o): OperatorLabel(name=f"the {o}") for o in operators[1:]},
    )
    return Start(splits={}, max_parallelism=128, vertices=(vertex,))


def test_a_program_with_other_steps_is_told_by_what_is_gone_and_what_is_new() -> None:
    job = program("read", "count", "write")
    assert job.changed_steps(job) == ()
    assert job.changed_steps(program("read", "write", "sort")) == ("'the count' is gone", "'the sort' is new")
    assert job.changed_steps(program("look", "count", "write")) == ("'read' is gone", "'look' is new")


def test_of_a_job_whose_graph_is_not_on_record_nothing_is_told() -> None:
    assert Start(splits={}, max_parallelism=128).changed_steps(program("read")) == ()


def test_a_part_on_the_driver_has_its_place_on_record_if_it_has_one() -> None:
    read, write = OperatorId("read"), OperatorId("write")
    assert Start(splits={}, max_parallelism=128).place_of(write) is None
    placed = Start(splits={}, max_parallelism=128, places={write: "results/job/write/1"})
    assert (placed.place_of(read), placed.place_of(write)) == (None, "results/job/write/1")


def test_what_sinks_prepared_stays_if_a_checkpoint_outlives_the_job_or_a_savepoint_names_it() -> None:
    assert not JobOutcome(state=JobState.CANCELLED).keeps_prepared
    assert JobOutcome(state=JobState.CANCELLED, retained=(CheckpointId(3),)).keeps_prepared
    assert JobOutcome(state=JobState.FAILED, saved=True).keeps_prepared


# --- a program that is run again --------------------------------------------------------------------------------------


def ended(state: JobState, *kept: CompletedCheckpoint) -> Inheritance:
    outcome = JobOutcome(state=state, kept=kept or msgspec.UNSET)
    start = program("read")
    return Inheritance(first_id=CheckpointId(65), outcome=outcome, start=start, ended_in=Term(3))


def test_a_job_that_has_not_ended_goes_on_as_any_driver_would_find_it() -> None:
    assert FOUND.going_on() == FOUND


def test_a_job_whose_driver_died_after_the_savepoint_of_a_stop_goes_on_as_if_the_stop_were_on_record() -> None:
    """1. The savepoint that stops the job is complete. 2. The driver dies before the outcome is on record. 3. The
    program is run again: after a drain the sources go on reading, and the job does not end a second time."""
    for kind, at in ((SnapshotKind.SUSPEND, msgspec.UNSET), (SnapshotKind.TERMINATE, 7)):
        found = msgspec.structs.replace(FOUND, completed=(completed_records.completed(7, kind=kind),))
        assert found.going_on() == msgspec.structs.replace(found, finished_with=at)
    assert Inheritance().going_on() == Inheritance()


def test_a_job_that_was_cancelled_or_failed_goes_on_from_what_it_kept() -> None:
    for state in (JobState.CANCELLED, JobState.FAILED):
        found = ended(state, *completed(4, 7)).going_on()
        assert found == Inheritance(first_id=CheckpointId(65), completed=completed(4, 7), start=program("read"))


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED])
def test_a_job_that_was_drained_and_then_ended_in_another_way_goes_on_behind_the_end_of_its_data(
    state: JobState,
) -> None:
    """1. The savepoint that drains the job is complete. 2. The user cancels the job before its end, or the job fails.
    3. The program is run again: the job goes on, and does not end a second time."""
    saved = completed_records.completed(7, kind=SnapshotKind.TERMINATE)
    assert ended(state, saved).going_on().finished_with == 7


@pytest.mark.parametrize("kind", [SnapshotKind.CHECKPOINT, SnapshotKind.TERMINATE])
def test_a_run_that_had_no_checkpoint_of_its_own_leaves_the_data_where_it_was(kind: SnapshotKind) -> None:
    """1. A job has finished, and kept its last checkpoint. 2. A run goes on behind the end of the data, and is
    cancelled, or loses its driver, before the run has a checkpoint. 3. The next run goes on behind the end, too."""
    last, own = completed_records.completed(7, kind=kind), completed(66)
    before = ended(JobState.FINISHED, last).going_on()
    assert before.going_on() == before
    cancelled = msgspec.structs.replace(before, outcome=JobOutcome(state=JobState.CANCELLED, kept=(last,)))
    assert cancelled.going_on() == before
    further = msgspec.structs.replace(before, outcome=JobOutcome(state=JobState.CANCELLED, kept=(last, *own)))
    assert further.going_on().finished_with is msgspec.UNSET


def test_a_job_that_kept_nothing_begins_at_its_beginning_with_new_ids() -> None:
    for state in (JobState.CANCELLED, JobState.FAILED):
        assert ended(state).going_on() == Inheritance(first_id=CheckpointId(65))


def test_a_job_that_has_finished_and_kept_nothing_stays_finished() -> None:
    finished = ended(JobState.FINISHED)
    assert finished.going_on() is finished


def test_a_job_that_has_finished_and_kept_its_last_checkpoint_goes_on_behind_the_end_of_its_data() -> None:
    found = ended(JobState.FINISHED, *completed(7)).going_on()
    assert (found.completed, found.outcome, found.finished_with) == (completed(7), None, 7)


def test_a_job_that_was_stopped_goes_on_from_the_savepoint_and_one_that_was_drained_behind_the_end_of_its_data() -> (
    None
):
    for kind, at in ((SnapshotKind.SUSPEND, msgspec.UNSET), (SnapshotKind.TERMINATE, 7)):
        saved = completed_records.completed(7, kind=kind)
        found = ended(JobState.FINISHED, saved).going_on()
        assert (found.completed, found.finished_with) == ((saved,), at)


def test_what_sinks_prepared_stays_for_a_job_that_goes_on() -> None:
    assert JobOutcome(state=JobState.CANCELLED, kept=completed(7)).keeps_prepared
    assert not JobOutcome(state=JobState.CANCELLED).keeps_prepared

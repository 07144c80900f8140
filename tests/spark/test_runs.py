"""Whose turn it is to run a job, and which job it is that a name goes on with; without a Spark."""

from __future__ import annotations

import subprocess
import sys
import uuid

import completed_records
import msgspec
import pytest

from penstock.api.job_names import job_slug
from penstock.api.restoring import restore
from penstock.core.errors import JobTakenOver, UsageError
from penstock.core.ids import CheckpointId, Term
from penstock.core.job.events import JobState
from penstock.core.recovery import layout, roots
from penstock.core.recovery.tenure import JobOutcome, Tenure
from penstock.spark.runs import announcement, begin_run, starts_over
from penstock.storage.locations import open_store
from penstock.storage.tenure import take_over

HELD = []
"""Runs that have not let go of their jobs."""


# There it takes seconds until a driver is known to be alive, or dead.
ON_S3 = pytest.param("s3", marks=pytest.mark.slow)


# Of the session, so that the server is there before anybody looks what a test leaves behind.
@pytest.fixture(scope="session", params=["files", ON_S3])
def server(request):
    return request.getfixturevalue("s3") if request.param == "s3" else None


@pytest.fixture
def store(server, tmp_path):
    yield open_store(tmp_path / "ckpt" if server is None else server.uri(f"runs/{uuid.uuid4()}"))
    while HELD:
        let_go(HELD[0])


def begun(store, *, given=None, fresh=False, name="Orders EU"):
    run = begin_run(store, name, job_slug(name), given, fresh=fresh)
    run.began()
    HELD.append(run)
    return run


def let_go(run):
    HELD.remove(run)
    run.leader.resign()


def end(run, state=JobState.CANCELLED, *kept):
    run.leader.records.record_outcome(JobOutcome(state=state, kept=kept or msgspec.UNSET))
    let_go(run)


def test_a_run_goes_on_with_the_job_of_the_run_before(store):
    first = begun(store)
    assert first.job.startswith("orders-eu-")
    assert first.leader.tenure == Tenure()
    end(first, JobState.CANCELLED, completed_records.completed(7))
    again = begun(store)
    assert again.job == first.job
    assert again.leader.tenure.term == 1
    assert [c.checkpoint for c in again.leader.tenure.completed] == [7]
    assert again.leader.tenure.outcome is None


def test_a_run_that_died_without_a_word_is_gone_on_with(store):
    code = (
        "import os, sys; from penstock.spark.runs import begin_run; from penstock.storage.locations import open_store\n"
        "run = begin_run(open_store(sys.argv[1]), 'Orders EU', sys.argv[2], None, fresh=False)\n"
        "print(run.job, flush=True); os._exit(9)"
    )
    died = subprocess.run(
        [sys.executable, "-c", code, store.location, job_slug("Orders EU")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    again = begun(store)
    assert again.job == died.stdout.strip()
    assert again.leader.tenure.term == 1


def test_a_run_that_was_taken_for_dead_has_lost_the_job_and_records_nothing(store):
    first = begun(store)
    take_over(store, layout.job_folder(first.job))
    with pytest.raises(JobTakenOver):
        first.leader.records.record(CheckpointId(1), completed_records.encoded(1))


@pytest.mark.parametrize("how", [{}, {"fresh": True}, {"given": restore("/elsewhere")}])
def test_a_second_driver_is_refused_whatever_it_wants(store, how):
    first = begun(store)
    with pytest.raises(UsageError, match="job 'Orders EU' is running already"):
        begun(store, **how)
    end(first)
    assert begun(store).job == first.job


def test_a_job_of_another_name_or_directory_is_not_in_the_way(store, tmp_path):
    first = begun(store)
    other = begun(store, name="orders.eu")
    elsewhere = begun(open_store(tmp_path / "elsewhere"))
    assert len({first.job, other.job, elsewhere.job}) == 3


def test_to_start_over_is_another_job_and_the_old_one_is_given_up(store):
    first = begun(store)
    end(first, JobState.CANCELLED, completed_records.completed(7))
    anew = begun(store, fresh=True)
    assert anew.job != first.job
    assert anew.leader.tenure == Tenure()
    assert anew.gives_up == (first.job,)
    let_go(anew)
    # It died before its first checkpoint: the next run knows what is left to be deleted.
    assert begun(store).gives_up == (first.job,)


def test_a_run_from_a_snapshot_goes_on_if_it_is_run_again_with_the_same(store):
    first = begun(store)
    end(first, JobState.CANCELLED, completed_records.completed(7))
    second = begun(store, given=restore("/saved"))
    assert second.job != first.job
    assert second.gives_up == ()
    end(second, JobState.CANCELLED, completed_records.completed(9))
    third = begun(store, given=restore("/saved"))
    assert (third.job, third.leader.tenure.completed[0].checkpoint) == (second.job, 9)
    let_go(third)
    another = begun(store, given=restore("/other"))
    assert another.job != second.job


def test_a_snapshot_is_tried_before_anything_changes_and_not_for_a_job_that_goes_on(store):
    """A snapshot that a job began with may be gone when the job goes on: the job has claimed it."""

    def refuse(given):
        raise UsageError(f"{given.path} is not there")

    slug = job_slug("Orders EU")
    with pytest.raises(UsageError, match="is not there"):
        begin_run(store, "Orders EU", slug, restore("/saved"), fresh=False, check=refuse)
    assert store.list_files("") == []
    first = begun(store, given=restore("/saved"))
    end(first, JobState.CANCELLED, completed_records.completed(7))
    again = begin_run(store, "Orders EU", slug, restore("/saved"), fresh=False, check=refuse)
    assert again.job == first.job
    again.leader.resign()


def test_a_snapshot_in_the_folder_of_the_job_that_is_given_up_stays(store):
    first = begun(store)
    end(first, JobState.CANCELLED, completed_records.completed(7))
    inside = roots.below(store.location, f"{layout.job_folder(first.job)}/chk-7")
    assert begun(store, given=restore(inside), fresh=True).gives_up == ()


def test_a_job_that_could_not_begin_gives_the_name_back(store):
    first = begun(store)
    end(first, JobState.CANCELLED, completed_records.completed(7))
    begin_run(store, "Orders EU", job_slug("Orders EU"), restore("/saved"), fresh=False).abandon()
    again = begun(store)
    assert (again.job, len(again.leader.tenure.completed)) == (first.job, 1)


def test_a_job_that_has_finished_stays_so(store):
    first = begun(store)
    end(first, JobState.FINISHED)
    again = begun(store)
    assert again.leader.tenure.outcome == JobOutcome(state=JobState.FINISHED)


def test_why_a_job_starts_over_is_said_in_one_line_with_what_to_do(store):
    said = starts_over("x", store, "the extra object-storage is not installed")
    assert said.startswith("job 'x' starts over as a new job, whatever ran before")
    assert f"in {roots.shown(store.location)} two drivers could create the same file: the extra" in said
    for way in ("penstock[object-storage]", "restore=", "ps.zookeeper("):
        assert way in said
    assert "endpoint_override" not in said


def test_what_becomes_of_a_job_is_said_in_one_line(store):
    assert announcement("x", Tenure(), store) is None
    going_on = announcement("x", Tenure(term=Term(1), completed=(completed_records.completed(7),)), store)
    assert going_on is not None
    assert going_on.startswith("job 'x' goes on from checkpoint 7 of ")
    assert f"in {roots.shown(store.location)}/job/chk-7; fresh=True starts the job over" in going_on
    assert "begins at its beginning" in (announcement("x", Tenure(term=Term(1)), store) or "")
    finished = Tenure(term=Term(1), outcome=JobOutcome(state=JobState.FINISHED), next_id=CheckpointId(9))
    assert "has finished before" in (announcement("x", finished, store) or "")

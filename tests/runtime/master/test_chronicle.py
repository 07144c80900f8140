"""What the driver remembers of attempts, tasks and changes of parallelism."""

from __future__ import annotations

import pytest
from web_rig import make_plan, task

from penstock.core.ids import SlotId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptRescaled,
    DeployTasks,
    FailureCause,
    JobEnding,
    JobState,
    RegionEnded,
    RescaleGivenUp,
    RescalePrepared,
    RunTasks,
)
from penstock.runtime.master.chronicle import ATTEMPTS_KEPT, Chronicle

SLOTS = (SlotId(0, 1), SlotId(1, 1))
PLAN = make_plan()
CAUSE = FailureCause(text="it broke", operator="window", subtask=1)


@pytest.fixture
def chronicle():
    return Chronicle()


def deploy(chronicle, epoch, now, *, tasks=None, rows=0, restored=None):
    chronicle.saw(DeployTasks(epoch=epoch, slots=SLOTS, tasks=tasks), now, rows_read=rows)
    chronicle.deployed(PLAN, epoch, tasks, now + 1)
    chronicle.run(RunTasks(epoch=epoch, slots=SLOTS, tasks=tasks), now + 5, restored=restored)


def test_an_attempt_has_its_times_its_checkpoint_and_its_end(chronicle):
    deploy(chronicle, 1, 100)
    chronicle.saw(AttemptEnded(epoch=1, cause=CAUSE, restart_in_ms=50), 200, rows_read=30)
    deploy(chronicle, 2, 300, rows=30, restored=4)
    first, second = chronicle.attempts
    assert (first.deployed, first.ran, first.ended, first.how, first.rows_read_after) == (100, 105, 200, "failed", 30)
    assert (second.ran, second.ended, second.restored, second.rows_read_before) == (305, None, 4, 30)


def test_a_task_counts_how_often_it_was_deployed_before(chronicle):
    deploy(chronicle, 1, 100)
    chronicle.saw(AttemptEnded(epoch=1, cause=CAUSE, restart_in_ms=50), 200, rows_read=0)
    assert [t.failed for t in chronicle.tasks.values()] == [False, True, False, True]
    deploy(chronicle, 2, 300)
    assert {t.attempt for t in chronicle.tasks.values()} == {1}
    assert {t.ended for t in chronicle.tasks.values()} == {None}


def test_only_the_tasks_of_a_region_begin_again(chronicle):
    deploy(chronicle, 1, 100)
    region = (task("bids", 0), task("window", 0))
    chronicle.saw(RegionEnded(epoch=1, tasks=region, cause=CAUSE, restart_in_ms=0), 200, rows_read=9)
    deploy(chronicle, 2, 300, tasks=region)
    assert [(t.attempt, t.epoch) for t in chronicle.tasks.values()] == [(1, 2), (0, 1), (1, 2), (0, 1)]
    assert [a.tasks for a in chronicle.attempts] == [None, 2]


def test_a_task_that_has_ended_has_the_time_of_its_end(chronicle):
    deploy(chronicle, 1, 100)
    chronicle.task_ended(task("bids", 1), 150)
    chronicle.task_ended(task("gone", 9), 150)
    assert [t.ended for t in chronicle.tasks.values()] == [None, 150, None, None]


def test_a_change_of_parallelism_goes_through_its_states(chronicle):
    deploy(chronicle, 1, 100)
    chronicle.rescale_asked(2, 3, 200)
    chronicle.saw(RescalePrepared(), 210, rows_read=0)
    chronicle.saw(AttemptRescaled(epoch=1, slots=3), 220, rows_read=0)
    deploy(chronicle, 2, 230)
    (found,) = chronicle.rescales
    assert (found.state, found.times) == ("completed", {"prepared": 210, "changing": 220, "completed": 235})
    # The end of the job gives up whatever is under way; this change is over.
    chronicle.saw(RescaleGivenUp(text="the job ended"), 300, rows_read=0)
    assert chronicle.rescales[0].state == "completed"


def test_a_change_that_is_given_up_says_why(chronicle):
    chronicle.rescale_asked(2, 3, 200)
    chronicle.saw(RescaleGivenUp(text="no room"), 210, rows_read=0)
    assert (chronicle.rescales[0].state, chronicle.rescales[0].text) == ("failed", "no room")


def test_the_end_of_the_job_ends_the_last_attempt(chronicle):
    deploy(chronicle, 1, 100)
    chronicle.saw(JobEnding(outcome=JobState.CANCELLED, cause=None), 400, rows_read=5)
    assert (chronicle.attempts[-1].how, chronicle.attempts[-1].ended) == ("cancelled", 400)


def test_few_attempts_are_remembered(chronicle):
    for number in range(ATTEMPTS_KEPT + 5):
        deploy(chronicle, number + 1, number)
    assert len(chronicle.attempts) == ATTEMPTS_KEPT


def test_a_state_is_remembered_with_its_time(chronicle):
    for now, state in ((1, JobState.RUNNING), (2, JobState.RUNNING), (3, JobState.FAILING), (4, JobState.RUNNING)):
        chronicle.is_in(state, now)
    assert chronicle.entered == {JobState.RUNNING: 4, JobState.FAILING: 3}

"""The tasks of a job: regions, epochs, and which tasks have ended."""

from __future__ import annotations

from penstock.core.ids import Epoch, TaskId, VertexId
from penstock.core.job.attempt_tasks import AttemptTasks

A0, A1, B0, B1 = (TaskId(VertexId(vertex), subtask) for vertex in "ab" for subtask in (0, 1))
REGIONS = {A0: (A0, B0), A1: (A1, B1), B0: (A0, B0), B1: (A1, B1)}


def test_all_tasks_begin_with_the_epoch_of_the_attempt_and_a_region_alone_with_the_next():
    tasks = AttemptTasks(REGIONS, REGIONS)
    assert tasks.epochs == {}
    tasks.deploy_all(Epoch(3))
    tasks.deploy(tasks.region_of(A1), Epoch(4))
    assert tasks.epochs == {A0: 3, B0: 3, A1: 4, B1: 4}
    tasks.deploy_all(Epoch(5))
    assert set(tasks.epochs.values()) == {5}


def test_a_region_that_is_not_the_whole_job_can_be_restarted_while_others_go_on():
    tasks = AttemptTasks(REGIONS, REGIONS)
    assert tasks.are_more_than(tasks.region_of(A0))
    assert tasks.region_at(1) == (A1, B1)
    assert not tasks.are_more_than(tuple(REGIONS))
    assert not tasks.are_more_than(tasks.region_of(None))


def test_without_regions_all_tasks_restart_together():
    tasks = AttemptTasks(REGIONS, {})
    assert tasks.region_of(A0) == tasks.region_at(0) == ()


def test_a_job_has_ended_with_its_last_task_whatever_is_said_twice():
    tasks = AttemptTasks((A0, B0), {})
    tasks.deploy_all(Epoch(1))
    assert [tasks.end(A0), tasks.end(A0), tasks.finished, tasks.end(B0)] == [False, False, 1, True]
    tasks.deploy_all(Epoch(2))
    assert tasks.finished == 0


def test_another_parallelism_has_other_tasks_in_the_next_attempt():
    tasks = AttemptTasks((A0, B0), {})
    tasks.become(REGIONS, REGIONS)
    tasks.deploy_all(Epoch(2))
    assert set(tasks.epochs) == set(REGIONS)
    assert tasks.region_of(B1) == (A1, B1)

"""What had finished stays finished, and the program must still allow it."""

from __future__ import annotations

import msgspec
import pytest
from snapshot_rig import edge, graph_of, operator, simple_graph, snapshot_of, vertex

from penstock.core.errors import UsageError
from penstock.core.graph import Partitioning
from penstock.core.ids import TaskId, VertexId
from penstock.core.recovery.assign import assign
from penstock.core.recovery.finished import reopened, with_more_data
from penstock.core.recovery.metadata import SnapshotKind

READ, COUNT = VertexId("read"), VertexId("count")


def done(name: str, **more):
    return operator(name, state=False, finished=True, **more)


def partly(name: str):
    return operator(name, state=False, finished_subtasks=(0,))


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_finished_vertex_is_deployed_as_finished_at_any_parallelism(parallelism):
    assignment = assign(snapshot_of(done("read"), operator("count")), simple_graph(parallelism))
    assert assignment.finished == (READ,)
    assert [assignment.tasks[TaskId(READ, i)].finished for i in range(parallelism)] == [True] * parallelism
    assert not any(assignment.tasks[TaskId(COUNT, i)].finished for i in range(parallelism))


def test_a_chain_must_not_mix_what_has_finished_with_what_has_not():
    metadata = snapshot_of(done("read"))
    with pytest.raises(UsageError, match="read finished and new not finished, which the program runs in one chain"):
        assign(metadata, graph_of(vertex("read", "new")))


@pytest.mark.parametrize(
    ("upstream", "downstream", "partitioning", "fits"),
    [
        (done, done, Partitioning.HASH, True),
        (partly, done, Partitioning.HASH, False),
        (partly, done, Partitioning.FORWARD, False),
        (operator, done, Partitioning.HASH, False),
        (done, partly, Partitioning.HASH, True),
        (partly, partly, Partitioning.HASH, False),
        (partly, partly, Partitioning.FORWARD, True),
        (operator, partly, Partitioning.FORWARD, False),
        (done, operator, Partitioning.HASH, True),
        (operator, operator, Partitioning.HASH, True),
    ],
)
def test_whatever_comes_before_must_have_come_as_far(upstream, downstream, partitioning, fits):
    metadata = snapshot_of(upstream("read"), downstream("count"))
    if fits:
        assign(metadata, simple_graph(2, partitioning))
        return
    with pytest.raises(UsageError, match="it reads from read") as caught:
        assign(metadata, simple_graph(2, partitioning))
    assert caught.value.hint is not None


def test_a_new_source_before_what_has_finished_is_refused():
    today = graph_of(
        vertex("read"), vertex("new"), vertex("count"), edges=(edge("read", "count"), edge("new", "count", number=1))
    )
    with pytest.raises(UsageError, match="count finished, but in the program it reads from new, which is not finished"):
        assign(snapshot_of(done("read"), done("count")), today)


# --- tasks that had seen all their data, but had not ended -----------------------------------------------------------


def ended(name: str, *subtasks: int, **more):
    return operator(name, ended_subtasks=subtasks, **more)


def over(metadata, graph) -> dict[VertexId, list[bool]]:
    tasks = assign(metadata, graph).tasks
    return {v.vertex: [tasks[t].data_ended for t in v.tasks] for v in graph.vertices}


def test_a_subtask_that_had_seen_all_its_data_does_not_finish_again():
    metadata = snapshot_of(ended("read", 0, 1), ended("count", 1))
    assert over(metadata, simple_graph(2)) == {READ: [True, True], COUNT: [False, True]}


def test_at_another_parallelism_all_must_have_seen_all_their_data():
    assert over(snapshot_of(ended("read", 0), operator("count")), simple_graph(3))[READ] == [False] * 3
    metadata = snapshot_of(ended("read", 0, finished_subtasks=(1,)), operator("count"))
    assert over(metadata, simple_graph(3))[READ] == [True] * 3


def test_a_subtask_goes_on_if_whoever_feeds_it_does():
    today = graph_of(
        vertex("read"), vertex("new"), vertex("count"), edges=(edge("read", "count"), edge("new", "count", number=1))
    )
    metadata = snapshot_of(ended("read", 0, 1), ended("count", 0, 1))
    assert over(metadata, today) == {READ: [True, True], VertexId("new"): [False, False], COUNT: [False, False]}


def test_a_pairwise_edge_feeds_its_own_subtask_only():
    metadata = snapshot_of(ended("read", 1), ended("count", 0, 1))
    assert over(metadata, simple_graph(2, Partitioning.FORWARD)) == {READ: [False, True], COUNT: [False, True]}


def test_a_chain_with_a_new_operator_goes_on():
    assert over(snapshot_of(ended("read", 0, 1)), graph_of(vertex("read", "new")))[READ] == [False, False]


def test_behind_a_finished_vertex_those_that_had_seen_all_their_data_stay_so():
    assert over(snapshot_of(done("read"), ended("count", 0, 1)), simple_graph(2))[COUNT] == [True, True]


@pytest.mark.parametrize("kind", SnapshotKind)
def test_a_job_that_is_started_from_a_stop_with_drain_goes_on_reading(kind):
    """The same job restarts from such a stop only because it failed before it had ended: then it ends again."""
    drained = snapshot_of(operator("read", ended_subtasks=(0, 1)), operator("count", ended_subtasks=(0, 1)))
    metadata = msgspec.structs.replace(drained, kind=kind)
    again = assign(metadata, simple_graph(2))
    assert all(task.data_ended for task in again.tasks.values())
    started = assign(with_more_data(metadata, simple_graph(2)), simple_graph(2))
    assert any(task.data_ended for task in started.tasks.values()) is (kind is not SnapshotKind.TERMINATE)


def drained(*operators, kind=SnapshotKind.TERMINATE, **more):
    """A snapshot of a job that a stop with drain had taken to the end of its data."""
    return msgspec.structs.replace(snapshot_of(*operators), kind=kind, **more)


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_job_that_restarts_from_a_stop_with_drain_ends_with_that_savepoint(parallelism):
    for read in (ended("read", 0, 1), done("read")):
        again = assign(drained(read, ended("count", 0, 1)), simple_graph(parallelism))
        assert again.is_last
        assert all(task.is_last for task in again.tasks.values())


def test_a_job_that_has_something_to_save_after_a_stop_with_drain_does_not_end_with_that_savepoint():
    ends = (ended("read", 0, 1), ended("count", 0, 1))
    new_source = graph_of(
        vertex("read"), vertex("new"), vertex("count"), edges=(edge("read", "count"), edge("new", "count", number=1))
    )
    for metadata, graph in (
        (drained(*ends), new_source),
        (with_more_data(drained(*ends), simple_graph(2)), simple_graph(2)),
        (drained(*ends, kind=SnapshotKind.SUSPEND), simple_graph(2)),
        (drained(*ends, kind=SnapshotKind.CHECKPOINT, drained=True), simple_graph(2)),
    ):
        again = assign(metadata, graph)
        assert not again.is_last
        assert not any(task.is_last for task in again.tasks.values())


def test_a_job_that_goes_on_behind_the_end_of_its_data_has_no_task_that_has_ended():
    finished = snapshot_of(done("read"), ended("count", 0, 1))
    going_on = assign(reopened(finished, simple_graph(2)), simple_graph(2))
    assert going_on.finished == ()
    assert not any(task.data_ended for task in going_on.tasks.values())


def test_a_job_that_goes_on_from_a_stop_with_drain_keeps_what_had_finished_before():
    drained = snapshot_of(done("read"), operator("count", ended_subtasks=(0, 1)))
    metadata = msgspec.structs.replace(drained, kind=SnapshotKind.TERMINATE)
    assert reopened(metadata, simple_graph(2)) == with_more_data(metadata, simple_graph(2))


def test_what_a_drained_job_saves_before_it_has_ended_is_as_good_as_the_stop_itself():
    ended = snapshot_of(operator("read", ended_subtasks=(0, 1)), operator("count", ended_subtasks=(0, 1)))
    metadata = msgspec.structs.replace(ended, kind=SnapshotKind.SUSPEND, drained=True)
    again = assign(metadata, simple_graph(2))
    assert again.drained
    assert all(task.data_ended for task in again.tasks.values())
    started = assign(with_more_data(metadata, simple_graph(2)), simple_graph(2))
    assert not started.drained
    assert not any(task.data_ended for task in started.tasks.values())


def test_who_has_seen_all_data_counts_as_ended_for_those_behind():
    """1. A source and what it feeds have ended. 2. The master hears of the latter first, and completes a checkpoint.
    3. It must be possible to go back to that one."""
    metadata = snapshot_of(
        operator("read", finished_subtasks=(0,), ended_subtasks=(1,)), operator("count", finished_subtasks=(0,))
    )
    assert assign(metadata, simple_graph(2)).finished == ()
    running = snapshot_of(operator("read", finished_subtasks=(0,)), operator("count", finished_subtasks=(0,)))
    with pytest.raises(UsageError, match="partly finished"):
        assign(running, simple_graph(2))
    apart = snapshot_of(operator("read", ended_subtasks=(1,)), operator("count", finished_subtasks=(0,)))
    with pytest.raises(UsageError, match="partly finished"):
        assign(apart, simple_graph(2))


@pytest.mark.parametrize("partitioning", [Partitioning.FORWARD, Partitioning.HASH])
def test_data_that_had_ended_before_the_drain_stays_at_its_end(partitioning):
    """1. The data of some readers ends, and then all data of the task behind them. 2. That task ends for good. The
    readers wait for one more checkpoint. 3. The job is stopped with drain, which ends the data of the other readers."""
    feeds_all = partitioning is Partitioning.HASH
    today = graph_of(
        vertex("before"),
        vertex("read"),
        vertex("count"),
        edges=(edge("before", "read", Partitioning.FORWARD), edge("read", "count", partitioning, number=1)),
    )
    metadata = drained(ended("before", 0, 1), ended("read", 0, 1), partly("count"))
    assert over(with_more_data(metadata, today), today) == {
        VertexId("before"): [True, feeds_all],
        READ: [True, feeds_all],
        COUNT: [True, False],
    }


def test_what_feeds_a_finished_vertex_had_ended_before_the_drain():
    metadata = drained(ended("read", 0, 1), done("count"))
    started = assign(with_more_data(metadata, simple_graph(2)), simple_graph(2))
    assert started.finished == (COUNT,)
    assert [started.tasks[TaskId(READ, i)].data_ended for i in range(2)] == [True, True]

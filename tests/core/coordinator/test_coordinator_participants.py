"""Whom a checkpoint concerns, and what is written down about tasks that have finished."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.effects import WriteMetadata
from penstock.core.coordinator.events import AttemptStarted, ScheduleAllowed, TaskEnded, TaskRunning
from penstock.core.coordinator.participants import CheckpointPlan, NotReady, Planner
from penstock.core.coordinator.tasks import TaskBoard
from penstock.core.errors import InvariantError
from penstock.core.graph import CheckpointEdge, CheckpointGraph
from penstock.core.ids import Epoch, VertexId
from penstock.core.messages import ChannelState, SubtaskState
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import TaskChannels

S, T = VertexId("s"), VertexId("t")


def plan(graph, *, finished=(), down=(), deployed_as_finished=(), after_tasks_finish=True):
    board = TaskBoard(graph)
    board.deploy(Epoch(1), graph.tasks, deployed_as_finished)
    for task in graph.tasks:
        if task not in down:
            board.run(task)
    for task in finished:
        board.finish(task)
    board.validate()
    return Planner(graph, after_tasks_finish=after_tasks_finish).plan(board)


def two_steps(make, source, target, *, all_to_all):
    return make.graph(
        make.vertex("s", source, is_source=True), make.vertex("t", target), edges=(("s", "t", all_to_all),)
    )


def test_when_all_run_the_sources_are_triggered_and_everybody_is_waited_for(make):
    graph = two_steps(make, 2, 2, all_to_all=True)
    assert plan(graph) == CheckpointPlan(trigger=(make.task("s", 0), make.task("s", 1)), wait=graph.tasks)


def test_a_running_source_feeds_all_subtasks_behind_an_exchange(make):
    graph = two_steps(make, 3, 4, all_to_all=True)
    made = plan(graph, finished=[make.task("s", 0), make.task("s", 1)])
    assert made.trigger == (make.task("s", 2),)
    assert made.wait == (make.task("s", 2), *(make.task("t", i) for i in range(4)))
    assert made.finished == (make.task("s", 0), make.task("s", 1))
    assert made.finished_vertices == ()


def test_a_subtask_whose_own_feeder_has_finished_is_triggered_itself(make):
    graph = two_steps(make, 4, 4, all_to_all=False)
    made = plan(graph, finished=[make.task("s", 0), make.task("s", 1)])
    assert made.trigger == (make.task("s", 2), make.task("s", 3), make.task("t", 0), make.task("t", 1))


def test_all_subtasks_behind_a_finished_vertex_are_triggered(make):
    graph = two_steps(make, 2, 3, all_to_all=True)
    made = plan(graph, finished=[make.task("s", 0), make.task("s", 1)])
    assert made.trigger == tuple(make.task("t", i) for i in range(3))
    assert made.finished_vertices == ("s",)


def test_a_subtask_with_two_feeders_is_triggered_only_when_both_have_finished(make):
    graph = make.graph(
        make.vertex("a", 2, is_source=True),
        make.vertex("b", 2, is_source=True),
        make.vertex("t", 2),
        edges=(("a", "t", False), ("b", "t", False)),
    )
    made = plan(graph, finished=[make.task("a", 0), make.task("a", 1), make.task("b", 1)])
    assert made.trigger == (make.task("b", 0), make.task("t", 1))


def test_a_running_feeder_over_an_exchange_outweighs_a_finished_one_beside(make):
    graph = make.graph(
        make.vertex("a", 1, is_source=True),
        make.vertex("b", 1, is_source=True),
        make.vertex("t", 1),
        edges=(("a", "t", True), ("b", "t", False)),
    )
    assert plan(graph, finished=[make.task("b", 0)]).trigger == (make.task("a", 0),)


def test_no_checkpoint_while_a_task_is_neither_running_nor_finished(make):
    graph = two_steps(make, 2, 2, all_to_all=True)
    assert plan(graph, down=[make.task("t", 1)]) == NotReady(text="task t[1] not running")
    assert plan(graph, down=graph.tasks) == NotReady(text="task s[0] and 3 more not running")


def test_no_checkpoint_when_all_tasks_have_finished(make):
    graph = two_steps(make, 1, 1, all_to_all=True)
    assert plan(graph, finished=graph.tasks) == NotReady(text="all tasks have finished")


def test_no_checkpoint_after_a_task_finished_if_switched_off(make):
    graph = two_steps(make, 1, 1, all_to_all=True)
    made = plan(graph, finished=[make.task("s", 0)], after_tasks_finish=False)
    assert made == NotReady(text="tasks have finished, and checkpoints after that are switched off")


def test_vertices_deployed_as_finished_take_part_and_are_written_down_as_finished(make):
    graph = two_steps(make, 1, 1, all_to_all=True)
    made = plan(graph, deployed_as_finished=("s",))
    assert (made.wait, made.finished_vertices) == (graph.tasks, ("s",))
    later = plan(graph, deployed_as_finished=("s",), finished=[make.task("s", 0)])
    assert later.finished_vertices == ("s",)


def test_what_was_deployed_as_finished_once_is_not_so_in_the_next_attempt(rig, pick):
    r = rig().start(finished_vertices=("t1",))
    r.start()
    r.request()
    effects = r.ack_all(1)
    assert not metadata_of(pick, effects).operators["op-t1"].finished


def test_a_request_that_cannot_be_planned_is_answered(rig, pick):
    r = rig()
    r.feed(AttemptStarted(epoch=Epoch(1)), ScheduleAllowed(draw=0.0))
    failure = pick.answers(r.request())[1]
    assert failure.reason is CheckpointFailure.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert failure.text == "not all required tasks are running: task t1[0] and 1 more not running"
    assert r.coordinator.next_id == 1


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        (CheckpointEdge(upstream=S, downstream=VertexId("x")), "does not exist"),
        (CheckpointEdge(upstream=VertexId("x"), downstream=T), "does not exist"),
        (CheckpointEdge(upstream=S, downstream=T, all_to_all=False), "different parallelisms pairwise"),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(make, edge, text):
    with pytest.raises(InvariantError, match=text):
        CheckpointGraph(vertices=(make.vertex("s", 1), make.vertex("t", 2)), edges=(edge,))


def test_two_vertices_of_one_name_are_refused(make):
    with pytest.raises(InvariantError, match="same id"):
        CheckpointGraph(vertices=(make.vertex("s"), make.vertex("s")))


def test_a_count_of_tasks_that_went_wrong_is_noticed(make):
    board = TaskBoard(two_steps(make, 1, 1, all_to_all=True))
    board._num_running = 1
    with pytest.raises(InvariantError, match="counts"):
        board.validate()


# --- what is written down --------------------------------------------------------------------------------------------


def metadata_of(pick, effects):
    (write,) = pick.of(effects, WriteMetadata)
    return write.metadata


def test_metadata_holds_what_every_subtask_reported(rig, make, pick):
    r = rig(two_steps(make, 1, 2, all_to_all=True)).start()
    r.request()
    r.ack("s", 1)
    one = make.state("t", make.file("ckpt/chk-1/a"))
    r.ack("t", 1, one, subtask=1)
    metadata = metadata_of(pick, r.ack("t", 1, subtask=0))
    target = metadata.operators["op-t"]
    assert (target.vertex, target.parallelism, target.max_parallelism) == ("t", 2, 128)
    assert target.subtasks == {1: one.operators[0]}
    assert metadata.operators["op-s"].subtasks == {}
    assert not target.finished
    assert target.ended_subtasks == ()
    assert metadata.private_files == ("ckpt/chk-1/a",)


def test_metadata_holds_the_in_flight_data_of_every_task_that_saved_some(rig, make, pick):
    r = rig(make.sources(4)).start()
    r.request()
    channel = ChannelState(edge=0, upstream=0, downstream=0, file=make.file("c"), ranges=((0, 6),))
    r.ack("t1", 1, SubtaskState(input_channels=(channel,)))
    r.ack("t2", 1, SubtaskState(output_channels=(channel,)))
    r.ack("t3", 1, make.state("t3", make.file("x")))
    metadata = metadata_of(pick, r.ack("t4", 1))
    assert metadata.channels == (
        TaskChannels(task=make.task("t1"), inputs=(channel,)),
        TaskChannels(task=make.task("t2"), outputs=(channel,)),
    )


def test_a_finished_vertex_is_written_down_as_finished_and_ended_subtasks_by_number(rig, make, pick):
    graph = make.graph(
        make.vertex("s", 1, is_source=True),
        make.vertex("m", 2),
        make.vertex("t", 2),
        edges=(("s", "m", True), ("m", "t", False)),
    )
    r = rig(graph).start()
    for ended in (make.task("s", 0), make.task("m", 1)):
        r.feed(TaskEnded(task=ended, epoch=Epoch(1)))
    assert pick.triggered(r.request()) == [make.task("m", 0), make.task("t", 1)]
    r.ack("m", 1)
    r.ack("t", 1, make.state("t", finished=True), subtask=0)
    operators = metadata_of(pick, r.ack("t", 1, subtask=1)).operators
    assert operators["op-s"].finished
    assert (operators["op-m"].finished, operators["op-m"].finished_subtasks) == (False, (1,))
    assert (operators["op-t"].finished_subtasks, operators["op-t"].ended_subtasks) == ((), (0,))


def test_union_state_forbids_that_only_some_subtasks_have_finished_their_operators(rig, make, pick):
    r = rig(make.graph(make.vertex("t", 2, is_source=True))).start()
    r.request()
    r.ack("t", 1, make.state("t", union=True, finished=True), subtask=0)
    effects = r.ack("t", 1, make.state("t", union=True), subtask=1)
    assert pick.aborted(effects) == [(1, CheckpointFailure.DECLINED_TASK_CLOSING)]
    assert "1 of 2 subtasks of t have finished" in pick.answers(effects)[1].text


@pytest.mark.parametrize("others_finished", [False, True])
def test_union_state_forbids_that_only_some_subtasks_have_ended(rig, make, pick, others_finished):
    """Whether or not the others have finished their operators: the parts of the ended ones are missing."""
    r = rig(make.graph(make.vertex("t", 2, is_source=True))).start()
    r.feed(TaskEnded(task=make.task("t", 0), epoch=Epoch(1)))
    r.request()
    effects = r.ack("t", 1, make.state("t", union=True, finished=others_finished), subtask=1)
    assert pick.aborted(effects) == [(1, CheckpointFailure.DECLINED_TASK_CLOSING)]


def test_union_state_is_fine_when_all_subtasks_have_finished_their_operators(rig, make, pick):
    r = rig(make.graph(make.vertex("t", 2, is_source=True))).start()
    r.request()
    r.ack("t", 1, make.state("t", union=True, finished=True), subtask=0)
    assert pick.completed(r.ack("t", 1, make.state("t", union=True, finished=True), subtask=1)) == [1]


def test_other_state_allows_partial_finishing(rig, make, pick):
    r = rig(make.graph(make.vertex("t", 2, is_source=True))).start()
    r.request()
    r.ack("t", 1, make.state("t", make.file("f"), finished=True), subtask=0)
    assert pick.completed(r.ack("t", 1, subtask=1)) == [1]


def test_a_task_deployed_as_finished_must_not_report_state(rig, make, pick):
    r = rig(tolerable_failures=None).start(finished_vertices=("t1",))
    r.feed(TaskRunning(task=make.task("t1"), epoch=Epoch(1)))
    r.request()
    r.ack("t2", 1)
    effects = r.ack("t1", 1, make.state("t1", make.file("f")))
    assert pick.aborted(effects) == [(1, CheckpointFailure.FINALIZE_FAILED)]
    assert "f" in r.deleted


@pytest.mark.parametrize("says_so", [False, True])
def test_a_task_deployed_as_finished_may_say_so(rig, make, pick, says_so):
    r = rig().start(finished_vertices=("t1",))
    r.request()
    r.ack("t2", 1)
    metadata = metadata_of(pick, r.ack("t1", 1, make.state("t1", finished=True) if says_so else None))
    assert metadata.operators["op-t1"].finished
    assert metadata.operators["op-t1"].ended_subtasks == ()

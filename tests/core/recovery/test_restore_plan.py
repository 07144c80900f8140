"""What a restore would do, as people read it."""

from __future__ import annotations

import pytest
from snapshot_rig import edge, graph_of, in_channel, operator, simple_graph, snapshot_of, vertex

from penstock.core.graph import Partitioning
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery.metadata import MatchingRules, TaskChannels, Unmatched
from penstock.core.recovery.restore_plan import OperatorFate, SubtaskShare, plan_restore

COUNT = OperatorId("count")


def keyed_count(parallelism: int):
    """An operator with a file of keyed state in each subtask."""
    last = parallelism - 1
    states = {
        i: OperatorState(
            operator=COUNT,
            keyed=(StateFile(path=f"chk-7/{i}", size=100, checksum=0),),
            key_groups=(i * 64, 127 if i == last else i * 64 + 63),
            union_lists={"u": (b"ab",)},
            broadcast={"b": b"c"},
        )
        for i in range(parallelism)
    }
    return operator("count", parallelism=parallelism, subtasks=states)


def fates(plan) -> dict[str, OperatorFate]:
    return {o.operator: o.fate for o in plan.operators}


def test_every_operator_of_both_sides_is_accounted_for():
    metadata = snapshot_of(
        operator("read"),
        operator("map", state=False),
        operator("dropped"),
        operator("gone"),
        operator("nothing", state=False),
    )
    rules = MatchingRules(unmatched=Unmatched.IGNORE, drop=(OperatorId("dropped"),))
    plan = plan_restore(metadata, graph_of(vertex("read", "map", "new")), rules)
    assert fates(plan) == {
        "read": OperatorFate.RESTORED,
        "map": OperatorFate.STATELESS,
        "new": OperatorFate.FRESH,
        "dropped": OperatorFate.DROPPED,
        "gone": OperatorFate.LEFT_OVER,
    }
    assert plan.size == 4
    assert [o.vertex for o in plan.operators] == [VertexId("read")] * 3 + [None, None]


def test_a_step_of_the_program_can_be_dropped_and_another_have_finished():
    metadata = snapshot_of(operator("read", state=False, finished=True), operator("count"))
    plan = plan_restore(metadata, simple_graph(2), MatchingRules(drop=(COUNT,)))
    assert fates(plan) == {"read": OperatorFate.FINISHED, "count": OperatorFate.DROPPED}
    assert plan.finished == (VertexId("read"),)


def test_shares_say_what_each_subtask_reads():
    plan = plan_restore(snapshot_of(keyed_count(2)), graph_of(vertex("count", parallelism=3)))
    (count,) = plan.operators
    assert (count.old_parallelism, count.new_parallelism, count.size) == (2, 3, 206)
    assert count.shares == (
        SubtaskShare(subtask=0, key_groups=(0, 42), files=1, size=105, parts=3),
        SubtaskShare(subtask=1, key_groups=(43, 85), files=2, size=205, parts=3),
        SubtaskShare(subtask=2, key_groups=(86, 127), files=1, size=105, parts=3),
    )
    assert plan.tasks[TaskId(VertexId("count"), 1)].rescaled


@pytest.mark.parametrize(
    ("old", "new", "partitioning", "how"),
    [
        (2, 2, Partitioning.HASH, "back into the same channels"),
        (2, 3, Partitioning.HASH, "input of 3 subtasks, by key, each taking its own rows"),
        (2, 1, Partitioning.HASH, "input of 1 subtasks, by key"),
        (2, 3, Partitioning.REBALANCE, "input of 2 subtasks, in turn"),
    ],
)
def test_in_flight_data_says_where_it_goes(old, new, partitioning, how):
    metadata = snapshot_of(
        operator("read", parallelism=old),
        operator("count", parallelism=old),
        graph=simple_graph(old, partitioning),
        channels=(
            TaskChannels(task=TaskId(VertexId("count"), 0), inputs=(in_channel(0, 0, "12345"),)),
            TaskChannels(task=TaskId(VertexId("read"), 1), outputs=(in_channel(1, 1, "678"),)),
        ),
    )
    plan = plan_restore(metadata, simple_graph(new, partitioning))
    (moved,) = plan.edges
    assert (moved.upstream, moved.downstream, moved.size, moved.channels, moved.how) == ("read", "count", 8, 2, how)
    assert plan.size == 16


def test_in_flight_data_that_nobody_wants_is_said_to_be_left_over():
    metadata = snapshot_of(
        operator("read"),
        operator("count"),
        graph=simple_graph(2),
        channels=(TaskChannels(task=TaskId(VertexId("count"), 0), inputs=(in_channel(0, 0, "12345"),)),),
    )
    plan = plan_restore(metadata, graph_of(vertex("read")), MatchingRules(unmatched=Unmatched.IGNORE))
    assert plan.edges[0].how == "left over, nobody reads it"


def test_the_text_has_it_all_in_columns():
    metadata = snapshot_of(
        operator("read"),
        keyed_count(2),
        graph=simple_graph(2),
        channels=(TaskChannels(task=TaskId(VertexId("count"), 0), inputs=(in_channel(0, 0, "12345"),)),),
    )
    today = graph_of(
        vertex("read", parallelism=1),
        vertex("count", parallelism=1),
        vertex("new", parallelism=1),
        edges=(edge("read", "count"),),
    )
    assert str(plan_restore(metadata, today)) == (
        "Checkpoint 7 of job job, 128 key groups\n"
        "\n"
        "operator  subtasks  bytes\n"
        "read      2 -> 1    4      restored\n"
        "count     2 -> 1    206    restored\n"
        "new       - -> 1    0      new, starts without state\n"
        "\n"
        "subtask   key groups  files  bytes  list parts\n"
        "read[0]               0      4      1\n"
        "count[0]  0 to 127    2      205    3\n"
        "\n"
        "in flight      channels  bytes\n"
        "read to count  1         5      input of 1 subtasks, by key"
    )


def test_a_restore_of_nothing_has_a_short_text():
    assert str(plan_restore(snapshot_of(), graph_of(vertex("new")))).count("\n") == 3

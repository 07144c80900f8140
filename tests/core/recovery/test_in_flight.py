"""In-flight data: back where it was, or dealt out anew, or refused with what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from snapshot_rig import edge, graph_of, in_channel, operator, simple_graph, snapshot_of, vertex

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph, Partitioning, Side
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.messages import ChannelState, DealtChannel, TaskRestore
from penstock.core.recovery.assign import assign
from penstock.core.recovery.metadata import CheckpointMetadata, MatchingRules, TaskChannels, Unmatched

READ, COUNT = VertexId("read"), VertexId("count")


def unaligned(
    graph: CheckpointGraph, inputs: tuple[ChannelState, ...] = (), outputs: tuple[ChannelState, ...] = ()
) -> CheckpointMetadata:
    """A snapshot of `simple_graph`, with something in flight."""
    parallelism = graph.vertices[0].parallelism
    return snapshot_of(
        operator("read", parallelism=parallelism),
        operator("count", parallelism=parallelism),
        graph=graph,
        channels=(
            *(TaskChannels(task=TaskId(COUNT, s.downstream), inputs=(s,)) for s in inputs),
            *(TaskChannels(task=TaskId(READ, s.upstream), outputs=(s,)) for s in outputs),
        ),
    )


def dealt_to(restore: TaskRestore) -> list[tuple[int, list[bytes | None], bool]]:
    """(channel it is put into, its parts, whether rows are picked) of everything dealt."""
    return [(d.upstream, [p.file.inline for p in d.parts], d.own_keys_only) for d in restore.dealt_channels]


def test_at_the_same_parallelism_each_end_gets_back_what_it_saved():
    metadata = unaligned(simple_graph(2), inputs=(in_channel(1, 1, "in"),), outputs=(in_channel(0, 1, "out"),))
    tasks = assign(metadata, simple_graph(2)).tasks
    assert tasks[TaskId(COUNT, 1)].input_channels == (in_channel(1, 1, "in"),)
    assert tasks[TaskId(READ, 0)].output_channels == (in_channel(0, 1, "out"),)
    assert all(not t.input_channels for task, t in tasks.items() if task != TaskId(COUNT, 1))
    assert all(not t.output_channels for task, t in tasks.items() if task != TaskId(READ, 0))
    assert all(not t.dealt_channels for t in tasks.values())


def test_from_three_to_two_by_key_the_receiver_in_the_middle_is_ambiguous():
    inputs = tuple(in_channel(0, d, f"in{d}") for d in range(3))
    tasks = assign(unaligned(simple_graph(3), inputs), simple_graph(2)).tasks
    assert dealt_to(tasks[TaskId(COUNT, 0)]) == [(0, [b"in0"], False), (0, [b"in1"], True)]
    assert dealt_to(tasks[TaskId(COUNT, 1)]) == [(0, [b"in1"], True), (0, [b"in2"], False)]
    assert all(not t.input_channels and not t.output_channels for t in tasks.values())


def test_from_two_to_three_by_key_both_receivers_are_ambiguous():
    inputs = tuple(in_channel(1, d, f"in{d}") for d in range(2))
    tasks = assign(unaligned(simple_graph(2), inputs), simple_graph(3)).tasks
    assert [dealt_to(tasks[TaskId(COUNT, i)]) for i in range(3)] == [
        [(1, [b"in0"], True)],
        [(1, [b"in0"], True), (1, [b"in1"], True)],
        [(1, [b"in1"], True)],
    ]


def test_what_the_receiver_had_not_read_comes_before_what_the_sender_had_not_sent():
    metadata = unaligned(simple_graph(2), inputs=(in_channel(0, 0, "in"),), outputs=(in_channel(0, 0, "out"),))
    tasks = assign(metadata, simple_graph(1)).tasks
    assert dealt_to(tasks[TaskId(COUNT, 0)]) == [(0, [b"in", b"out"], False)]
    assert tasks[TaskId(READ, 0)].output_channels == ()


def test_a_channel_of_then_goes_into_one_that_there_is_today():
    inputs = tuple(in_channel(u, 0, f"from{u}") for u in range(4))
    tasks = assign(unaligned(simple_graph(4), inputs), simple_graph(3)).tasks
    assert [upstream for upstream, _, _ in dealt_to(tasks[TaskId(COUNT, 0)])] == [0, 1, 2, 0]


def test_in_turn_each_receiver_of_then_goes_to_one_of_today_with_all_its_rows():
    rebalanced = Partitioning.REBALANCE
    inputs = tuple(in_channel(0, d, f"in{d}") for d in range(3))
    tasks = assign(unaligned(simple_graph(3, rebalanced), inputs), simple_graph(2, rebalanced)).tasks
    assert dealt_to(tasks[TaskId(COUNT, 0)]) == [(0, [b"in0"], False), (0, [b"in2"], False)]
    assert dealt_to(tasks[TaskId(COUNT, 1)]) == [(0, [b"in1"], False)]


@pytest.mark.parametrize("partitioning", [Partitioning.FORWARD, Partitioning.BROADCAST])
def test_other_edges_hold_nothing_that_could_be_dealt_out(partitioning):
    metadata = unaligned(simple_graph(2, partitioning), inputs=(in_channel(0, 0, "in"),))
    with pytest.raises(UsageError, match="cannot be dealt out to another parallelism") as caught:
        assign(metadata, simple_graph(3, partitioning))
    assert "parallelism of 2" in (caught.value.hint or "")
    same = assign(metadata, simple_graph(2, partitioning)).tasks
    assert same[TaskId(COUNT, 0)].input_channels == (in_channel(0, 0, "in"),)


def test_one_side_with_another_parallelism_is_enough_to_deal_anew():
    today = graph_of(vertex("read", parallelism=1), vertex("count"), edges=(edge("read", "count"),))
    metadata = unaligned(simple_graph(2), inputs=(in_channel(1, 1, "in"),))
    assert dealt_to(assign(metadata, today).tasks[TaskId(COUNT, 1)]) == [(0, [b"in"], False)]


# --- edges are found by what they join -------------------------------------------------------------------------------


def test_an_edge_is_found_again_under_another_number():
    today = graph_of(
        vertex("other"),
        vertex("read"),
        vertex("count"),
        edges=(edge("other", "count", number=0, input_number=1), edge("read", "count", number=1)),
    )
    metadata = unaligned(simple_graph(2), inputs=(in_channel(0, 0, "in"),), outputs=(in_channel(1, 0, "out"),))
    tasks = assign(metadata, today).tasks
    assert tasks[TaskId(COUNT, 0)].input_channels == (in_channel(0, 0, "in", number=1),)
    assert tasks[TaskId(READ, 1)].output_channels == (in_channel(1, 0, "out", number=1),)


def test_a_vertex_that_begins_with_another_step_still_has_its_edge():
    today = graph_of(vertex("new", "read"), vertex("count"), edges=(edge("new", "count"),))
    metadata = unaligned(simple_graph(2), outputs=(in_channel(1, 0, "out"),))
    tasks = assign(metadata, today).tasks
    assert tasks[TaskId(VertexId("new"), 1)].output_channels == (in_channel(1, 0, "out"),)


@pytest.mark.parametrize(
    ("today", "text"),
    [
        (graph_of(vertex("read", "count")), "which the program runs in one chain"),
        (graph_of(vertex("read"), vertex("count")), "does not join the two any more"),
        (
            graph_of(vertex("read", "more"), vertex("count"), edges=(edge("read", "count"),)),
            "does not join the two any more",
        ),
        (
            graph_of(vertex("read"), vertex("count"), edges=(edge("read", "count", input_number=1),)),
            "does not join the two any more",
        ),
        (simple_graph(2, Partitioning.REBALANCE), "exchanges in another way"),
        (
            graph_of(vertex("read"), vertex("count"), edges=(edge("read", "count", keys=("other",)),)),
            "exchanges in another way",
        ),
    ],
    ids=["chained", "parted", "another last step", "another input", "another exchange", "another key"],
)
def test_in_flight_data_without_its_edge_is_refused_with_what_to_do(today, text):
    metadata = unaligned(simple_graph(2), inputs=(in_channel(0, 0, "in"),))
    with pytest.raises(UsageError, match=text) as caught:
        assign(metadata, today)
    assert "savepoint" in (caught.value.hint or "")
    assert assign(unaligned(simple_graph(2)), today).flows == ()


def test_data_on_its_way_to_a_step_that_is_gone_is_refused_unless_the_user_knows():
    stateless = snapshot_of(
        operator("read"),
        operator("count", state=False),
        graph=simple_graph(2),
        channels=(TaskChannels(task=TaskId(COUNT, 0), inputs=(in_channel(0, 0, "in"),)),),
    )
    today = graph_of(vertex("read"))
    with pytest.raises(UsageError, match="from read to count"):
        assign(stateless, today)
    for rules in (MatchingRules(unmatched=Unmatched.IGNORE), MatchingRules(drop=(OperatorId("count"),))):
        (flow,) = assign(stateless, today, rules).flows
        assert (flow.edge, flow.size) == (None, 2)


# --- side outputs ----------------------------------------------------------------------------------------------------


def aside(operator: str, name: str) -> Side:
    return Side(operator=OperatorId(operator), name=name)


def with_side(*, number: int = 0, name: str = "errors", **more: Any) -> CheckpointGraph:
    """`read`, in the middle of its chain, has a side output that `count` reads."""
    side = edge("read", "count", number=number, side=aside("read", name), **more)
    return graph_of(vertex("read", "more"), vertex("count"), edges=(side,))


def test_data_of_a_side_output_is_found_again_by_its_operator_and_its_name():
    today = graph_of(
        vertex("new", "read", "more", "again"),
        vertex("count"),
        edges=(
            edge("new", "count", number=0, side=aside("read", "others")),
            edge("new", "count", number=1),
            edge("new", "count", number=2, side=aside("read", "errors")),
        ),
    )
    metadata = unaligned(with_side(), inputs=(in_channel(0, 0, "in"),), outputs=(in_channel(1, 0, "out"),))
    tasks = assign(metadata, today).tasks
    assert tasks[TaskId(COUNT, 0)].input_channels == (in_channel(0, 0, "in", number=2),)
    assert tasks[TaskId(VertexId("new"), 1)].output_channels == (in_channel(1, 0, "out", number=2),)


def test_data_of_a_side_output_is_dealt_out_to_another_parallelism():
    metadata = unaligned(with_side(), inputs=(in_channel(0, 1, "in"),))
    today = with_side()
    today = msgspec.structs.replace(
        today, vertices=tuple(msgspec.structs.replace(v, parallelism=1) for v in today.vertices)
    )
    assert dealt_to(assign(metadata, today).tasks[TaskId(COUNT, 0)]) == [(0, [b"in"], False)]


@pytest.mark.parametrize(
    "today",
    [
        with_side(name="others"),
        graph_of(vertex("read"), vertex("count"), edges=(edge("read", "count"),)),
        graph_of(vertex("more"), vertex("count"), edges=(edge("more", "count", side=aside("more", "errors")),)),
    ],
    ids=["another name", "the main output", "another operator"],
)
def test_data_of_a_side_output_that_is_gone_is_refused_and_the_side_output_is_named(today):
    metadata = unaligned(with_side(), inputs=(in_channel(0, 0, "in"),))
    rules = MatchingRules(drop=(OperatorId("read"),))
    with pytest.raises(UsageError, match="from the side output 'errors', and the program does not join") as caught:
        assign(metadata, today, rules)
    assert "savepoint" in (caught.value.hint or "")


def test_data_of_the_main_output_does_not_go_to_a_side_output():
    metadata = unaligned(simple_graph(2), inputs=(in_channel(0, 0, "in"),))
    today = graph_of(vertex("read"), vertex("count"), edges=(edge("read", "count", side=aside("read", "errors")),))
    with pytest.raises(UsageError, match="does not join the two any more"):
        assign(metadata, today)


# --- metadata of before edges were written down ----------------------------------------------------------------------


def without_edges(metadata: CheckpointMetadata) -> CheckpointMetadata:
    return msgspec.structs.replace(metadata, edges=())


def test_without_a_record_of_edges_numbers_mean_what_they_mean_today():
    metadata = without_edges(unaligned(simple_graph(2), inputs=(in_channel(0, 1, "in"),)))
    assert assign(metadata, simple_graph(2)).tasks[TaskId(COUNT, 1)].input_channels == (in_channel(0, 1, "in"),)
    dealt = assign(metadata, simple_graph(1)).tasks[TaskId(COUNT, 0)].dealt_channels
    assert dealt == (DealtChannel(parts=(in_channel(0, 1, "in"),), upstream=0),)


def test_without_a_record_of_edges_a_number_that_there_is_not_is_refused():
    metadata = without_edges(unaligned(simple_graph(2), inputs=(in_channel(0, 1, "in", number=5),)))
    with pytest.raises(UsageError, match="on edge 5, which the program does not have"):
        assign(metadata, simple_graph(2))

"""What a checkpoint knows of a plan."""

from __future__ import annotations

from penstock.core.graph import OperatorLabel, Side
from penstock.core.ids import OperatorId
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Input, Node, Partitioning, build_plan


class ReadStep:
    """Stands for a step of that kind."""


def test_vertices_have_labels_and_edges_say_what_they_join():
    nodes = (
        Node(number=0, operator=OperatorId("bids"), name="all bids", step=ReadStep(), is_source=True),
        Node(
            number=1,
            operator=OperatorId("top"),
            name="top",
            step=ReadStep(),
            inputs=(Input(node=0, partitioning=Partitioning.HASH, keys=("auction",)),),
        ),
    )
    graph = checkpoint_graph(build_plan(nodes, parallelism=3, max_parallelism=64))
    assert graph.max_parallelism == 64
    assert [v.parallelism for v in graph.vertices] == [3, 3]
    assert graph.vertices[0].labels == {OperatorId("bids"): OperatorLabel(name="all bids", kind="read")}
    (edge,) = graph.edges
    assert (edge.number, edge.partitioning, edge.keys, edge.all_to_all) == (0, Partitioning.HASH, ("auction",), True)


def test_an_edge_says_which_side_output_it_carries():
    nodes = (
        Node(number=0, operator=OperatorId("bids"), name="bids", step=ReadStep(), is_source=True),
        Node(number=1, operator=OperatorId("out"), name="out", step=ReadStep(), inputs=(Input(node=0),)),
        Node(number=2, operator=OperatorId("late"), name="late", step=ReadStep(), inputs=(Input(node=0, side="a"),)),
    )
    (edge,) = checkpoint_graph(build_plan(nodes, parallelism=1, max_parallelism=64)).edges
    assert edge.side == Side(operator=OperatorId("bids"), name="a")

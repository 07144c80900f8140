"""Plans: what is chained, what is joined by edges, and which channels that makes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvariantError
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Input, Node, Partitioning, Plan, Side, build_plan

FORWARD, HASH, REBALANCE = Partitioning.FORWARD, Partitioning.HASH, Partitioning.REBALANCE


def node(number: int, name: str, *inputs: int | Input) -> Node:
    """A step; an input given as a number is a forward one."""
    sources = tuple(source if isinstance(source, Input) else Input(node=source) for source in inputs)
    return Node(number=number, operator=OperatorId(name), name=name, step=None, inputs=sources, is_source=not sources)


def hashed(number: int, *keys: str) -> Input:
    return Input(node=number, partitioning=HASH, keys=keys)


def rebalanced(number: int) -> Input:
    return Input(node=number, partitioning=REBALANCE)


def plan_of(*nodes: Node, parallelism: int = 2) -> Plan:
    return build_plan(nodes, parallelism=parallelism, max_parallelism=None)


def chains(plan: Plan) -> list[list[str]]:
    return [[operator.name for operator in vertex.operators] for vertex in plan.vertices]


def edges(plan: Plan) -> list[tuple[str, str, Partitioning, int]]:
    return [(e.upstream, e.downstream, e.partitioning, e.input_number) for e in plan.edges]


def test_forward_steps_are_chained() -> None:
    plan = plan_of(node(0, "source"), node(1, "where", 0), node(2, "sink", 1))
    assert chains(plan) == [["source", "where", "sink"]]
    assert plan.edges == ()
    (vertex,) = plan.vertices
    assert (vertex.vertex, vertex.name, vertex.is_source) == ("source", "source → where → sink", True)


def test_an_exchange_ends_a_chain() -> None:
    plan = plan_of(node(0, "source"), node(1, "combine", 0), node(2, "window", hashed(1, "k")), node(3, "sink", 2))
    assert chains(plan) == [["source", "combine"], ["window", "sink"]]
    assert edges(plan) == [("source", "window", HASH, 0)]
    assert plan.edges[0].keys == ("k",)
    assert not plan.vertices[1].is_source


def test_a_rebalance_ends_a_chain_also_with_one_subtask() -> None:
    plan = plan_of(node(0, "source"), node(1, "sink", rebalanced(0)), parallelism=1)
    assert chains(plan) == [["source"], ["sink"]]
    assert edges(plan) == [("source", "sink", REBALANCE, 0)]


def test_a_fork_ends_a_chain_and_each_branch_has_its_own_edge() -> None:
    plan = plan_of(
        node(0, "source"), node(1, "where", 0), node(2, "left", 1), node(3, "sink left", 2), node(4, "right", 1)
    )
    assert chains(plan) == [["source", "where"], ["left", "sink left"], ["right"]]
    assert edges(plan) == [("source", "left", FORWARD, 0), ("source", "right", FORWARD, 0)]


def test_a_fork_into_a_forward_and_a_hashed_branch() -> None:
    plan = plan_of(node(0, "source"), node(1, "sink", 0), node(2, "window", hashed(0, "k")))
    assert chains(plan) == [["source"], ["sink"], ["window"]]
    assert edges(plan) == [("source", "sink", FORWARD, 0), ("source", "window", HASH, 0)]


def test_a_union_begins_a_chain_and_numbers_its_inputs() -> None:
    plan = plan_of(node(0, "a"), node(1, "b"), node(2, "union", 0, 1), node(3, "sink", 2))
    assert chains(plan) == [["a"], ["b"], ["union", "sink"]]
    assert edges(plan) == [("a", "union", FORWARD, 0), ("b", "union", FORWARD, 1)]


def test_a_diamond_keeps_both_ways() -> None:
    plan = plan_of(
        node(0, "source"), node(1, "left", 0), node(2, "right", 0), node(3, "union", 1, 2), node(4, "sink", 3)
    )
    assert chains(plan) == [["source"], ["left"], ["right"], ["union", "sink"]]
    assert edges(plan) == [
        ("source", "left", FORWARD, 0),
        ("source", "right", FORWARD, 0),
        ("left", "union", FORWARD, 0),
        ("right", "union", FORWARD, 1),
    ]


def test_a_stream_joined_with_itself_has_two_edges() -> None:
    plan = plan_of(node(0, "source"), node(1, "join", hashed(0, "a"), hashed(0, "b")))
    assert edges(plan) == [("source", "join", HASH, 0), ("source", "join", HASH, 1)]
    assert [edge.keys for edge in plan.edges] == [("a",), ("b",)]
    assert [(e.number, i) for e, i in plan.channels_into(TaskId(VertexId("join"), 1))] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_channels_of_forward_and_of_exchanging_edges() -> None:
    plan = plan_of(node(0, "a"), node(1, "b"), node(2, "union", 0, rebalanced(1)), parallelism=3)
    task = TaskId(VertexId("union"), 2)
    assert [(edge.number, upstream) for edge, upstream in plan.channels_into(task)] == [(0, 2), (1, 0), (1, 1), (1, 2)]
    assert plan.targets_of(plan.edges[0], 2) == (2,)
    assert plan.targets_of(plan.edges[1], 2) == (0, 1, 2)
    assert plan.inputs_of(VertexId("union")) == plan.edges
    assert plan.outputs_of(VertexId("b")) == plan.edges[1:]


@pytest.mark.parametrize(
    ("inputs", "carried"),
    [
        ((hashed(0, "k"), rebalanced(1)), [True, True]),
        ((hashed(0, "k"), 1), [False, False]),
        ((hashed(0, "k"), Input(node=1, partitioning=Partitioning.BROADCAST)), [False, False]),
    ],
)
def test_an_edge_carries_barriers_that_overtake_if_all_edges_into_its_vertex_do(
    inputs: tuple[Input | int, ...], carried: list[bool]
) -> None:
    plan = plan_of(node(0, "a"), node(1, "b"), node(2, "join", *inputs), node(3, "sink", hashed(2, "k")))
    into_join = plan.inputs_of(VertexId("join"))
    assert [plan.carries_unaligned_barriers(edge) for edge in into_join] == carried
    # What another vertex has to wait for does not matter.
    assert plan.carries_unaligned_barriers(plan.inputs_of(VertexId("sink"))[0])


def test_a_slot_runs_one_subtask_of_every_vertex() -> None:
    plan = plan_of(node(0, "source"), node(1, "sink", rebalanced(0)))
    assert plan.tasks_of_slot(1) == (TaskId(VertexId("source"), 1), TaskId(VertexId("sink"), 1))
    assert len(plan.tasks) == 4
    assert plan.vertex(VertexId("sink")).tasks == plan.tasks[2:]


@pytest.mark.parametrize(
    ("nodes", "neighbours"),
    [
        ((node(0, "source"), node(1, "sink", 0)), [(), (), ()]),
        ((node(0, "source"), node(1, "one", 0), node(2, "other", 0)), [(), (), ()]),
        ((node(0, "source"), node(1, "sink", rebalanced(0))), [(1, 2), (0, 2), (0, 1)]),
        ((node(0, "alone"), node(1, "source"), node(2, "sink", hashed(1, "k"))), [(1, 2), (0, 2), (0, 1)]),
    ],
    ids=["one chain", "forward edges", "an exchange", "an exchange beside others"],
)
def test_slots_are_neighbours_if_an_exchange_joins_them(
    nodes: tuple[Node, ...], neighbours: list[tuple[int, ...]]
) -> None:
    plan = plan_of(*nodes, parallelism=3)
    assert [plan.neighbours_of_slot(slot) for slot in range(3)] == neighbours


def test_only_slots_that_run_either_side_of_an_exchange_are_neighbours() -> None:
    plan = plan_of(node(0, "source"), node(1, "sink", hashed(0, "k")), parallelism=4)
    narrow = tuple(replace(vertex, parallelism=number) for vertex, number in zip(plan.vertices, (3, 2), strict=True))
    mixed = replace(plan, vertices=narrow, _by_id={})
    assert [mixed.neighbours_of_slot(slot) for slot in range(4)] == [(1, 2), (0, 2), (0, 1), ()]


def test_the_number_of_key_groups_is_derived_unless_given() -> None:
    nodes = (node(0, "source"),)
    assert build_plan(nodes, parallelism=2, max_parallelism=None).max_parallelism == 128
    assert build_plan(nodes, parallelism=2, max_parallelism=7).max_parallelism == 7


@pytest.mark.parametrize(
    ("nodes", "fact"),
    [
        ((node(0, "a", 1), node(1, "b")), "node 0 reads from node 1, which does not come before node 0"),
        ((node(0, "a"), node(0, "b")), "two nodes have the number 0"),
        ((node(0, "a"), node(1, "a", 0)), "two nodes have the operator id a"),
        ((node(0, "a"), node(1, "b", Input(node=0, keys=("k",)))), "node 1 has keys ('k',) for partitioning forward"),
    ],
)
def test_nodes_that_make_no_plan_are_a_bug(nodes: tuple[Node, ...], fact: str) -> None:
    with pytest.raises(InvariantError) as caught:
        plan_of(*nodes)
    assert caught.value.message == fact


@st.composite
def programs(draw: st.DrawFn) -> tuple[Node, ...]:
    made: list[Node] = []
    for number in range(draw(st.integers(1, 12))):
        sources = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        kinds = [draw(st.sampled_from(Partitioning)) for _ in sources]
        inputs = [
            Input(
                node=source,
                partitioning=kind,
                keys=("k",) if kind is HASH else (),
                partitioner=max if kind is Partitioning.CUSTOM else None,
                at_most=draw(st.sampled_from((None, None, 1, 2))),
            )
            for source, kind in zip(sources, kinds, strict=True)
        ]
        made.append(node(number, f"n{number}", *inputs))
    return tuple(made)


@given(programs())
def test_any_program_becomes_chains_in_order_and_one_edge_per_input_between_them(nodes: tuple[Node, ...]) -> None:
    plan = plan_of(*nodes)
    placed = [operator.operator for vertex in plan.vertices for operator in vertex.operators]
    assert sorted(placed) == sorted(n.operator for n in nodes)
    position = {vertex.vertex: i for i, vertex in enumerate(plan.vertices)}
    assert all(position[edge.upstream] < position[edge.downstream] for edge in plan.edges)
    assert [edge.number for edge in plan.edges] == list(range(len(plan.edges)))

    by_operator = {n.operator: n for n in nodes}
    last_of = {vertex.vertex: by_operator[vertex.operators[-1].operator].number for vertex in plan.vertices}
    inside = 0
    for vertex in plan.vertices:
        chain = [by_operator[operator.operator] for operator in vertex.operators]
        # Whatever enters a vertex enters its first operator, in the order of its inputs, from the last one upstream.
        found = [(last_of[edge.upstream], edge.partitioning, edge.keys) for edge in plan.inputs_of(vertex.vertex)]
        wanted = [(source.node, source.partitioning, source.keys) for source in chain[0].inputs]
        in_turn = [(upstream, REBALANCE if kind is FORWARD else kind, keys) for upstream, kind, keys in wanted]
        for edge, entered, direct, dealt in zip(plan.inputs_of(vertex.vertex), found, wanted, in_turn, strict=True):
            assert entered == (direct if plan.vertex(edge.upstream).at_most == vertex.at_most else dealt)
        for before, behind in pairwise(chain):
            (source,) = behind.inputs
            assert (source.node, source.partitioning) == (before.number, FORWARD)
            inside += 1
    assert len(plan.edges) + inside == sum(len(n.inputs) for n in nodes)
    # Nothing is left apart that could run together.
    consumers = [source.node for n in nodes for source in n.inputs]
    for edge in plan.edges:
        alone = consumers.count(last_of[edge.upstream]) == 1 and len(plan.inputs_of(edge.downstream)) == 1
        assert not (alone and edge.partitioning is FORWARD)
    # Subtask i can feed subtask i at every parallelism.
    for parallelism in (1, 2, 3):
        rescaled = plan.rescaled(parallelism)
        assert edges(rescaled) == edges(plan_of(*nodes, parallelism=parallelism)) == edges(plan)
        assert checkpoint_graph(rescaled).edges == checkpoint_graph(plan).edges


def test_a_plan_can_be_rescaled_and_the_one_before_stays_as_it_is():
    nodes = (Node(number=0, operator=OperatorId("a"), name="a", step=None, is_source=True),)
    plan = build_plan(nodes, parallelism=2, max_parallelism=None)
    more = plan.rescaled(5).with_key_groups(64)
    assert (more.parallelism, more.max_parallelism, len(more.tasks)) == (5, 64, 5)
    assert (plan.parallelism, plan.max_parallelism, len(plan.tasks)) == (2, 128, 2)
    assert plan.vertex(VertexId("a")).parallelism == 2


# --- steps with fewer subtasks ----------------------------------------------------------------------------------------


def limited(number: int, name: str, at_most: int, *inputs: int | Input) -> Node:
    return replace(node(number, name, *inputs), at_most=at_most)


def to_one(number: int) -> Input:
    return Input(node=number, partitioning=REBALANCE, at_most=1)


def subtasks(plan: Plan) -> list[int]:
    return [vertex.parallelism for vertex in plan.vertices]


def test_a_limited_step_is_no_part_of_the_chain_before_it() -> None:
    plan = plan_of(node(0, "source"), limited(1, "map", 2, 0), parallelism=3)
    assert chains(plan) == [["source"], ["map"]]
    assert subtasks(plan) == [3, 2]
    assert edges(plan) == [("source", "map", REBALANCE, 0)]


def test_steps_that_get_records_directly_have_the_same_limit() -> None:
    plan = plan_of(node(0, "source"), node(1, "one", to_one(0)), node(2, "map", 1), node(3, "sink", 2), parallelism=3)
    assert chains(plan) == [["source"], ["one", "map", "sink"]]
    assert subtasks(plan) == [3, 1]


def test_two_branches_behind_a_limited_step_have_its_limit() -> None:
    plan = plan_of(node(0, "source"), node(1, "one", to_one(0)), node(2, "left", 1), node(3, "right", 1), parallelism=3)
    assert subtasks(plan) == [3, 1, 1, 1]
    assert edges(plan)[1:] == [("one", "left", FORWARD, 0), ("one", "right", FORWARD, 0)]


def test_an_exchange_ends_a_limit() -> None:
    plan = plan_of(node(0, "source"), node(1, "one", to_one(0)), node(2, "window", hashed(1, "k")), parallelism=3)
    assert subtasks(plan) == [3, 1, 3]


def test_the_least_limit_counts() -> None:
    plan = plan_of(node(0, "source"), limited(1, "map", 2, to_one(0)), parallelism=3)
    assert subtasks(plan) == [3, 1]


def test_a_union_of_different_limits_has_no_limit_and_gets_records_in_turn() -> None:
    plan = plan_of(node(0, "source"), node(1, "one", to_one(0)), node(2, "union", 0, 1), parallelism=3)
    assert subtasks(plan) == [3, 1, 3]
    assert edges(plan)[1:] == [("source", "union", FORWARD, 0), ("one", "union", REBALANCE, 1)]


def test_a_union_of_equal_limits_has_that_limit() -> None:
    plan = plan_of(
        node(0, "source"), limited(1, "a", 2, 0), limited(2, "b", 2, 0), node(3, "union", 1, 2), parallelism=3
    )
    assert subtasks(plan) == [3, 2, 2, 2]
    assert edges(plan)[2:] == [("a", "union", FORWARD, 0), ("b", "union", FORWARD, 1)]


def test_a_limit_stays_at_any_parallelism_and_so_do_the_edges() -> None:
    nodes = (node(0, "source"), limited(1, "map", 2, 0), node(2, "sink", 1))
    plans = [plan_of(*nodes, parallelism=parallelism) for parallelism in (1, 2, 4)]
    assert [subtasks(plan) for plan in plans] == [[1, 1], [2, 2], [4, 2]]
    assert edges(plans[0]) == edges(plans[1]) == edges(plans[2]) == [("source", "map", REBALANCE, 0)]
    assert [subtasks(plans[2].rescaled(parallelism)) for parallelism in (1, 2, 3)] == [[1, 1], [2, 2], [3, 2]]
    assert subtasks(plans[2].rescaled(1).rescaled(4)) == [4, 2]


def test_a_slot_runs_only_the_subtasks_that_there_are() -> None:
    plan = plan_of(node(0, "source"), node(1, "one", to_one(0)), node(2, "window", hashed(1, "k")), parallelism=3)
    assert [str(task) for task in plan.tasks_of_slot(2)] == ["source[2]", "window[2]"]
    assert plan.neighbours_of_slot(2) == (0,)
    assert plan.neighbours_of_slot(0) == (1, 2)
    assert [upstream for _, upstream in plan.channels_into(TaskId(VertexId("window"), 2))] == [0]
    assert plan.targets_of(plan.edges[0], 2) == (0,)


# --- a function that chooses subtasks ---------------------------------------------------------------------------------


def test_a_function_that_chooses_subtasks_is_part_of_the_edge_and_keeps_barriers_in_line() -> None:
    chosen = Input(node=0, partitioning=Partitioning.CUSTOM, partitioner=max)
    plan = plan_of(node(0, "source"), node(1, "map", chosen))
    (edge,) = plan.edges
    assert (edge.partitioning, edge.partitioner) == (Partitioning.CUSTOM, max)
    assert plan.targets_of(edge, 0) == (0, 1)
    assert not plan.carries_unaligned_barriers(edge)


@pytest.mark.parametrize(
    "wrong",
    [Input(node=0, partitioning=Partitioning.CUSTOM), Input(node=0, partitioning=REBALANCE, partitioner=max)],
)
def test_a_function_without_its_partitioning_is_a_bug(wrong: Input) -> None:
    with pytest.raises(InvariantError, match="node 1 has partitioner"):
        plan_of(node(0, "source"), node(1, "map", wrong))


# --- side outputs ----------------------------------------------------------------------------------------------------


def side(number: int, name: str, partitioning: Partitioning = FORWARD, *keys: str) -> Input:
    return Input(node=number, partitioning=partitioning, keys=keys, side=name)


def test_a_side_output_leaves_the_vertex_from_the_middle_of_its_chain() -> None:
    plan = plan_of(
        node(0, "source"),
        node(1, "split", 0),
        node(2, "sink", 1),
        node(3, "errors", side(1, "errors", HASH, "k")),
        node(4, "slow", side(1, "slow")),
    )
    assert chains(plan) == [["source", "split", "sink"], ["errors"], ["slow"]]
    assert edges(plan) == [("source", "errors", HASH, 0), ("source", "slow", FORWARD, 0)]
    assert [e.side for e in plan.edges] == [
        Side(operator=OperatorId("split"), name="errors"),
        Side(operator=OperatorId("split"), name="slow"),
    ]


def test_every_reader_of_a_side_output_has_an_edge_of_its_own() -> None:
    plan = plan_of(node(0, "source"), node(1, "left", side(0, "a")), node(2, "right", side(0, "a")))
    assert chains(plan) == [["source"], ["left"], ["right"]]
    assert [e.side for e in plan.edges] == [Side(operator=OperatorId("source"), name="a")] * 2


def test_a_step_may_read_the_main_output_and_a_side_output_of_one_step() -> None:
    plan = plan_of(node(0, "source"), node(1, "both", 0, side(0, "a")))
    assert edges(plan) == [("source", "both", FORWARD, 0), ("source", "both", FORWARD, 1)]
    assert [e.side is None for e in plan.edges] == [True, False]


def test_a_step_that_reads_a_side_output_directly_has_the_limit_of_the_step_before() -> None:
    plan = plan_of(
        node(0, "source"), node(1, "one", to_one(0)), node(2, "sink", 1), node(3, "errors", side(1, "e")), parallelism=3
    )
    assert chains(plan) == [["source"], ["one", "sink"], ["errors"]]
    assert subtasks(plan) == [3, 1, 1]
    assert edges(plan)[1:] == [("one", "errors", FORWARD, 0)]


def test_a_side_output_is_dealt_out_in_turn_to_another_number_of_subtasks() -> None:
    plan = plan_of(node(0, "source"), limited(1, "errors", 2, side(0, "e")), parallelism=3)
    assert subtasks(plan) == [3, 2]
    assert edges(plan) == [("source", "errors", REBALANCE, 0)]
    assert [e.side for e in plan.edges] == [Side(operator=OperatorId("source"), name="e")]


def test_all_records_of_a_side_output_may_go_to_one_subtask_or_where_a_function_says() -> None:
    chosen = Input(node=0, partitioning=Partitioning.CUSTOM, partitioner=max, side="e")
    plan = plan_of(node(0, "source"), node(1, "one", replace(to_one(0), side="e")), node(2, "placed", chosen))
    assert subtasks(plan) == [2, 1, 2]
    assert [(e.partitioning, e.partitioner, e.side is None) for e in plan.edges] == [
        (REBALANCE, None, False),
        (Partitioning.CUSTOM, max, False),
    ]

"""A plan as text shows every vertex once, with its operators, and every edge."""

from __future__ import annotations

from penstock.core.ids import OperatorId
from penstock.plan.explain import explain_plan
from penstock.plan.graph import Input, Node, Partitioning, build_plan


def node(number: int, name: str, *inputs: Input) -> Node:
    operator = OperatorId(name.replace(" ", "-"))
    return Node(number=number, operator=operator, name=name, step=None, inputs=inputs, is_source=not inputs)


def explained(*nodes: Node, parallelism: int = 2) -> str:
    return explain_plan(build_plan(nodes, parallelism=parallelism, max_parallelism=None))


def test_a_chain() -> None:
    text = explained(node(0, "bids"), node(1, "where", Input(node=0)), parallelism=1)
    assert text == (
        "parallelism 1 of at most 128\n\n[1] bids → where  (source, 1 subtask)\n     bids   bids\n     where  where"
    )


def test_an_exchange_by_key() -> None:
    keyed = Input(node=0, partitioning=Partitioning.HASH, keys=("auction", "bidder"))
    text = explained(node(0, "bids"), node(1, "window", keyed), node(2, "out", Input(node=1)))
    assert text == (
        "parallelism 2 of at most 128\n"
        "\n"
        "[1] bids  (source, 2 subtasks)\n"
        " │   bids  bids\n"
        " └─ hash by auction, bidder ─► [2] window → out  (2 subtasks)\n"
        "         window  window\n"
        "         out     out"
    )


def test_a_vertex_with_two_inputs_is_shown_once() -> None:
    text = explained(
        node(0, "a"),
        node(1, "left", Input(node=0)),
        node(2, "right", Input(node=0, partitioning=Partitioning.REBALANCE)),
        node(3, "b"),
        node(4, "all", Input(node=1), Input(node=2), Input(node=3, partitioning=Partitioning.BROADCAST)),
    )
    assert text == (
        "parallelism 2 of at most 128\n"
        "\n"
        "[1] a  (source, 2 subtasks)\n"
        " │   a  a\n"
        " ├─ forward ─► [2] left  (2 subtasks)\n"
        " │   │   left  left\n"
        " │   └─ forward ─► [5] all  (2 subtasks)\n"
        " │           all  all\n"
        " └─ rebalance ─► [3] right  (2 subtasks)\n"
        "     │   right  right\n"
        "     └─ forward ─► [5] all  (see above)\n"
        "\n"
        "[4] b  (source, 2 subtasks)\n"
        " │   b  b\n"
        " └─ broadcast ─► [5] all  (see above)"
    )


def test_steps_with_fewer_subtasks() -> None:
    text = explained(
        node(0, "a"),
        node(1, "one", Input(node=0, partitioning=Partitioning.REBALANCE, at_most=1)),
        node(2, "two", Input(node=1, partitioning=Partitioning.CUSTOM, partitioner=max, at_most=2)),
        node(3, "three", Input(node=2, at_most=3)),
        parallelism=4,
    )
    assert text == (
        "parallelism 4 of at most 128\n"
        "\n"
        "[1] a  (source, 4 subtasks)\n"
        " │   a  a\n"
        " └─ all to one ─► [2] one  (1 subtask)\n"
        "     │   one  one\n"
        "     └─ custom ─► [3] two  (2 subtasks)\n"
        "         │   two  two\n"
        "         └─ rebalance ─► [4] three  (3 subtasks)\n"
        "                 three  three"
    )


def test_a_side_output_is_shown_with_its_name_and_its_operator() -> None:
    text = explained(
        node(0, "bids"),
        node(1, "split", Input(node=0)),
        node(2, "out", Input(node=1)),
        node(3, "errors", Input(node=1, side="errors")),
    )
    assert text == (
        "parallelism 2 of at most 128\n"
        "\n"
        "[1] bids → split → out  (source, 2 subtasks)\n"
        " │   bids   bids\n"
        " │   split  split\n"
        " │   out    out\n"
        " └─ 'errors' of split, forward ─► [2] errors  (2 subtasks)\n"
        "         errors  errors"
    )

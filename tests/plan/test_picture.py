"""A plan as a picture shows every vertex once, with its operators, and every edge, and nothing covers anything."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

from penstock.core.ids import OperatorId
from penstock.plan.graph import Input, Node, Partitioning, Plan, build_plan
from penstock.plan.picture import Explanation

SVG = "{http://www.w3.org/2000/svg}"


def node(number: int, name: str, *inputs: Input) -> Node:
    operator = OperatorId(name.replace(" ", "-"))
    return Node(number=number, operator=operator, name=name, step=None, inputs=inputs, is_source=not inputs)


def diamond() -> Plan:
    """Two ways of different lengths, and an edge that passes both."""
    keyed = Input(node=2, partitioning=Partitioning.HASH, keys=("user",))
    nodes = (
        node(0, "clicks"),
        node(1, "left <b> & co", Input(node=0)),
        node(2, "right", Input(node=0)),
        node(3, "window", keyed),
        node(4, "all", Input(node=1), Input(node=3), Input(node=0, partitioning=Partitioning.REBALANCE)),
    )
    return build_plan(nodes, parallelism=2, max_parallelism=None)


def boxes(picture: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    found = [[float(box.attrib[name]) for name in ("x", "y", "width", "height")] for box in picture.iter(f"{SVG}rect")]
    return [(x, y, x + width, y + height) for x, y, width, height in found]


def test_each_vertex_has_a_box_and_each_edge_an_arrow_with_its_text() -> None:
    plan = diamond()
    picture = ElementTree.fromstring(Explanation.of(plan).svg)
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert len(boxes(picture)) == len(plan.vertices)
    assert [path.get("class") for path in picture.iter(f"{SVG}path")].count("arrow") == len(plan.edges)
    assert {"clicks", "left <b> & co", "right", "window", "all", "hash by user", "rebalance"} <= set(texts)
    assert texts.count("source, 2 subtasks") == 1


def test_boxes_do_not_cover_each_other_and_lie_in_the_picture() -> None:
    picture = ElementTree.fromstring(Explanation.of(diamond()).svg)
    for one, other in combinations(boxes(picture), 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    assert max(box[2] for box in boxes(picture)) <= float(picture.attrib["width"])
    assert max(box[3] for box in boxes(picture)) <= float(picture.attrib["height"])


def test_a_vertex_stands_right_of_the_vertices_that_send_to_it() -> None:
    plan = diamond()
    placed = boxes(ElementTree.fromstring(Explanation.of(plan).svg))
    left = dict(zip([v.vertex for v in plan.vertices], placed, strict=True))
    assert all(left[edge.upstream][2] < left[edge.downstream][0] for edge in plan.edges)


def test_a_mermaid_diagram_names_the_same_vertices_and_edges() -> None:
    assert Explanation.of(diamond()).mermaid.splitlines() == [
        "flowchart LR",
        '    v1["<b>source, 2 subtasks</b><br/>clicks"]',
        '    v2["<b>2 subtasks</b><br/>left #60;b#62; #38; co"]',
        '    v3["<b>2 subtasks</b><br/>right"]',
        '    v4["<b>2 subtasks</b><br/>window"]',
        '    v5["<b>2 subtasks</b><br/>all"]',
        '    v1 -- "forward" --> v2',
        '    v1 -- "forward" --> v3',
        '    v3 -- "hash by user" --> v4',
        '    v2 -- "forward" --> v5',
        '    v4 -- "forward" --> v5',
        '    v1 -- "rebalance" --> v5',
    ]


def test_an_explanation_is_text_and_a_notebook_shows_the_picture() -> None:
    explained = Explanation.of(diamond())
    assert explained.startswith("parallelism 2 of at most 128")
    assert explained._repr_svg_() == explained.svg

"""A plan as a picture, for people: as SVG, and as the text of a Mermaid diagram.

A picture is read from left to right. Each vertex is a box that lists its operators, and each edge is an arrow that says
how records are spread. The boxes stand in columns: a vertex stands right of all vertices that send to it. An arrow that
passes a column without a stop has a place of its own in that column, so that the arrow crosses no box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from penstock.core.ids import VertexId
from penstock.plan.explain import arrow_text, details, explain_plan, vertex_text
from penstock.plan.graph import Edge, OperatorPlan, Plan, Vertex

_CHARACTER = 7.3
"""The width of a character of the picture's font, at 12 px, in px. Text that is a little narrower than its box does no
harm."""
_LINE, _HEAD, _PADDING = 18, 30, 12
_MOST_CHARACTERS = 60
"""A step says no more of itself than this: a long pattern would make its box as wide as the page."""
_GAP = 26
"""Between two boxes of a column."""
_MARGIN = 12
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
_STYLE = (
    f"text{{font:12px {_FONT};fill:#1f2328}}"
    ".box{fill:#f6f8fa;stroke:#57606a}.source{fill:#ddf4ff;stroke:#0969da}"
    ".head{font-weight:600}.arrow{fill:none;stroke:#57606a;stroke-width:1.5}"
    ".label{fill:#57606a;paint-order:stroke;stroke:#fff;stroke-width:4px}"
)


class Explanation(str):
    """A plan as text. The same plan can be had as a picture; a notebook shows the picture.

    >>> from penstock.testing import collect, run
    >>> def program(env):
    ...     lines = env.from_iterable(["a b"], schema="line string").where("line <> ''")
    ...     print(lines.explain().mermaid)  # for pages that know Mermaid
    ...     lines.write(collect())
    >>> run(program, parallelism=1)
    flowchart LR
        v1["<b>source, 1 subtask</b><br/>iterable<br/>where"]
    [{'line': 'a b'}]
    """

    __slots__ = ("_plan",)
    _plan: Plan

    @classmethod
    def of(cls, plan: Plan) -> Explanation:
        """The explanation of a plan."""
        made = cls(explain_plan(plan))
        made._plan = plan
        return made

    @property
    def svg(self) -> str:
        """The picture as SVG."""
        return as_svg(self._plan)

    @property
    def mermaid(self) -> str:
        """The picture as the text of a Mermaid diagram."""
        return as_mermaid(self._plan)

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return self.svg


def as_mermaid(plan: Plan) -> str:
    """A plan as the text of a Mermaid diagram, without a line break at the end."""
    numbers = {vertex.vertex: f"v{number}" for number, vertex in enumerate(plan.vertices, start=1)}
    lines = ["flowchart LR"]
    for vertex in plan.vertices:
        texts = [f"<b>{vertex_text(vertex)}</b>", *(_plain(_operator_text(operator)) for operator in vertex.operators)]
        lines.append(f'    {numbers[vertex.vertex]}["{"<br/>".join(texts)}"]')
    lines += [
        f'    {numbers[edge.upstream]} -- "{_plain(arrow_text(plan, edge))}" --> {numbers[edge.downstream]}'
        for edge in plan.edges
    ]
    return "\n".join(lines)


def _operator_text(operator: OperatorPlan) -> str:
    """The name of an operator, with what the operator says of itself."""
    shown = details(operator)
    if len(shown) > _MOST_CHARACTERS:
        shown = f"{shown[:_MOST_CHARACTERS]}…"
    return f"{operator.name}: {shown}" if shown else operator.name


def _plain(text: str) -> str:
    """The text with the characters that Mermaid would read as something else named by their numbers."""
    return "".join(f"#{ord(c)};" if c in '"#;<>&`\\' else c for c in text)


def as_svg(plan: Plan) -> str:
    """A plan as SVG."""
    columns = _columns(plan)
    boxes = _placed(plan, columns)
    width = max((box.x + box.width for box in boxes.values()), default=0) + _MARGIN
    height = max((box.y + box.height for box in boxes.values()), default=0) + _MARGIN
    entries = _entries(plan, columns, boxes)
    arrows = [
        _arrow(arrow_text(plan, edge), [boxes[stop] for stop in _stops(edge, columns)], entries[edge.number])
        for edge in plan.edges
    ]
    # No arrow crosses a text: all arrows come before all texts.
    lines = "".join(path for path, _ in arrows) + "".join(label for _, label in arrows)
    drawn = [_drawn(vertex, boxes[vertex.vertex]) for vertex in plan.vertices]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="The plan of the job"><style>{_STYLE}</style><defs>'
        '<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="#57606a"/></marker></defs>{lines}{"".join(drawn)}</svg>'
    )


_Stop = VertexId | tuple[int, int]
"""What stands in a column: a vertex, or an edge that passes the column, named by edge and column."""


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float
    right: float
    """Where the column of the box ends: an arrow bends only behind the widest box of its column."""

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def _columns(plan: Plan) -> dict[_Stop, int]:
    """The column of each vertex, and of each passing edge."""
    columns: dict[_Stop, int] = {}
    for vertex in plan.vertices:
        before = [columns[edge.upstream] for edge in plan.inputs_of(vertex.vertex)]
        columns[vertex.vertex] = max(before, default=-1) + 1
    for edge in plan.edges:
        for column in range(columns[edge.upstream] + 1, columns[edge.downstream]):
            columns[edge.number, column] = column
    return columns


def _stops(edge: Edge, columns: dict[_Stop, int]) -> list[_Stop]:
    """Where the arrow of an edge begins, what it passes, and where it ends."""
    between = range(columns[edge.upstream] + 1, columns[edge.downstream])
    return [edge.upstream, *((edge.number, column) for column in between), edge.downstream]


def _placed(plan: Plan, columns: dict[_Stop, int]) -> dict[_Stop, _Box]:
    """A box for each vertex and each passing edge. What stands in a column is ordered by the height of what leads
    there, so that few arrows cross."""
    before: dict[_Stop, list[_Stop]] = {stop: [] for stop in columns}
    gaps: dict[int, float] = {}
    for edge in plan.edges:
        stops = _stops(edge, columns)
        for one, other in pairwise(stops):
            before[other].append(one)
        text = len(arrow_text(plan, edge)) * _CHARACTER + 50
        gaps[columns[edge.upstream]] = max(gaps.get(columns[edge.upstream], 0), text)
    boxes: dict[_Stop, _Box] = {}
    x = float(_MARGIN)
    for column in range(max(columns.values(), default=-1) + 1):
        standing = [stop for stop, number in columns.items() if number == column]
        standing.sort(key=lambda stop: _mean([boxes[one].middle for one in before[stop]]))
        sizes = [_size(plan, stop) for stop in standing]
        width = max(size[0] for size in sizes)
        y = float(_MARGIN)
        for stop, (own_width, height) in zip(standing, sizes, strict=True):
            wanted = _mean([boxes[one].middle for one in before[stop]]) - height / 2
            y = max(y, wanted)
            boxes[stop] = _Box(x, y, own_width or width, height, x + width)
            y += height + _GAP
        x += width + gaps.get(column, 60)
    return boxes


def _entries(plan: Plan, columns: dict[_Stop, int], boxes: dict[_Stop, _Box]) -> dict[int, float]:
    """At which height the arrow of each edge meets its box: arrows into one box come in at different heights."""
    found: dict[int, float] = {}
    for vertex in plan.vertices:
        box = boxes[vertex.vertex]
        edges = sorted(plan.inputs_of(vertex.vertex), key=lambda edge: boxes[_stops(edge, columns)[-2]].middle)
        for number, edge in enumerate(edges, start=1):
            found[edge.number] = box.y + box.height * number / (len(edges) + 1)
    return found


def _size(plan: Plan, stop: _Stop) -> tuple[float, float]:
    if isinstance(stop, tuple):
        return 0, _LINE
    vertex = plan.vertex(stop)
    texts = [vertex_text(vertex), *map(_operator_text, vertex.operators)]
    return max(map(len, texts)) * _CHARACTER + 2 * _PADDING, max(
        _HEAD + _LINE * len(vertex.operators) + _PADDING / 2,
        # The texts of arrows that come in must not cover each other.
        _LINE * (len(plan.inputs_of(stop)) + 1),
    )


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _arrow(text: str, stops: Sequence[_Box], entry: float) -> tuple[str, str]:
    """The arrow of an edge, which ends at height `entry`, and its `text`. The text stands where the first bend ends:
    the arrows out of one box have parted there."""
    path = f"M{stops[0].x + stops[0].width:g} {stops[0].middle:g}H{stops[0].right:g}"
    for one, other in pairwise(stops):
        bend, y = (one.right + other.x) / 2, entry if other is stops[-1] else other.middle
        path += f"C{bend:g} {one.middle:g} {bend:g} {y:g} {other.x:g} {y:g}"
        if other is not stops[-1]:
            path += f"H{other.right:g}"
    second = stops[1]
    x, y = second.x - 12, (entry if second is stops[-1] else second.middle) - 5
    label = f'<text class="label" x="{x:g}" y="{y:g}" text-anchor="end">{escape(text)}</text>'
    return f'<path class="arrow" d="{path}" marker-end="url(#end)"/>', label


def _drawn(vertex: Vertex, box: _Box) -> str:
    kind = "source" if vertex.is_source else "box"
    x = box.x + _PADDING
    lines = [f'<text class="head" x="{x:g}" y="{box.y + 20:g}">{escape(vertex_text(vertex))}</text>']
    for number, operator in enumerate(vertex.operators):
        y = box.y + _HEAD + _LINE * number + 10
        text, title = escape(_operator_text(operator)), escape(operator.operator)
        lines.append(f'<text x="{x:g}" y="{y:g}">{text}<title>{title}</title></text>')
    frame = f'<rect class="{kind}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="6"/>'
    return f"<g>{frame}{''.join(lines)}</g>"

"""A plan as text, for people.

    parallelism 2 of at most 128

    [1] bids → watermark → where → combine  (source, 2 subtasks)
     │   bids       bids
     │   watermark  bids.watermark
     │   where      bids.where
     │   combine    bids.combine
     └─ hash by auction ─► [2] window → parquet  (2 subtasks)
         window   bids.window-auction
         parquet  bids.window-auction.parquet

Below each vertex stand its operators with their ids, then the vertices that the vertex sends to. Behind some operators
stands what they say of themselves: a pattern, a window, or the kind of a join. A vertex with several inputs is shown in
full below its first input, and by its number below the other inputs.
An arrow that carries a side output begins with the name of the side output and the id of its operator.
"""

from __future__ import annotations

from penstock.core.ids import VertexId
from penstock.plan.graph import Edge, OperatorPlan, Partitioning, Plan, Vertex


def explain_plan(plan: Plan) -> str:
    """The plan as lines of text, without a line break at the end."""
    view = _View(plan)
    lines = [f"parallelism {plan.parallelism} of at most {plan.max_parallelism}"]
    for vertex in plan.vertices:
        if not plan.inputs_of(vertex.vertex):
            lines += ["", *view.tree(vertex)]
    return "\n".join(lines)


class _View:
    """Remembers which vertices are on the page."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._numbers = {vertex.vertex: number for number, vertex in enumerate(plan.vertices, start=1)}
        self._shown: set[VertexId] = set()

    def tree(self, vertex: Vertex) -> list[str]:
        """The lines of a vertex and of all vertices downstream of it."""
        number = f"[{self._numbers[vertex.vertex]}]"
        if vertex.vertex in self._shown:
            return [f"{number} {vertex.name}  (see above)"]
        self._shown.add(vertex.vertex)
        outputs = self._plan.outputs_of(vertex.vertex)
        lines = [f"{number} {vertex.name}  ({vertex_text(vertex)})"]
        widest = max(len(operator.name) for operator in vertex.operators)
        margin = " │   " if outputs else "     "
        for operator in vertex.operators:
            shown = details(operator)
            lines.append(f"{margin}{operator.name.ljust(widest)}  {operator.operator}{f': {shown}' if shown else ''}")
        for edge in outputs:
            is_last = edge is outputs[-1]
            first, *rest = self.tree(self._plan.vertex(edge.downstream))
            lines.append(f" {'└─' if is_last else '├─'} {arrow_text(self._plan, edge)} ─► {first}")
            lines += [f"{'    ' if is_last else ' │  '}{line}" for line in rest]
        return lines


def details(operator: OperatorPlan) -> str:
    """What a step says of itself besides its name, such as the kind of a join; an empty text if there is nothing."""
    return str(getattr(operator.step, "shown", ""))


def vertex_text(vertex: Vertex) -> str:
    """Whether a vertex is a source, and how many subtasks the vertex has."""
    count = f"{vertex.parallelism} subtask{'' if vertex.parallelism == 1 else 's'}"
    return f"source, {count}" if vertex.is_source else count


def arrow_text(plan: Plan, edge: Edge) -> str:
    """Which side output an edge carries, if it carries one, and how the edge spreads records."""
    how = _spreading(plan, edge)
    return how if edge.side is None else f"{edge.side.name!r} of {edge.side.operator}, {how}"


def _spreading(plan: Plan, edge: Edge) -> str:
    if edge.partitioning is Partitioning.HASH:
        return f"hash by {', '.join(edge.keys)}" if edge.keys else "all to one"
    if edge.partitioning is Partitioning.REBALANCE and plan.vertex(edge.downstream).at_most == 1:
        return "all to one"
    return str(edge.partitioning.value)

"""Whether the sources of a program can be aligned where the program wants them to be."""

from __future__ import annotations

from penstock.api.alignment import Alignment
from penstock.api.steps import KeyedProcessStep, ReadStep, WatermarkStep
from penstock.core.errors import UsageError
from penstock.core.task.waiting import WaitFor
from penstock.plan.graph import OperatorPlan, Plan, Vertex


def aligned_steps(vertex: Vertex) -> list[tuple[OperatorPlan, Alignment]]:
    """The steps of a vertex that make an aligned watermark. In a checked plan a vertex has one at most."""
    found = ((operator, operator.step) for operator in vertex.operators)
    return [(o, step.align) for o, step in found if isinstance(step, WatermarkStep) and step.align is not None]


def check_aligned_sources(plan: Plan) -> None:
    """Raise `UsageError` if something is aligned that is no source, or that must not wait, or if two aligned sources
    would wait for each other."""
    for vertex in plan.vertices:
        found = [operator.name for operator, _ in aligned_steps(vertex)]
        if not found:
            continue
        head = vertex.operators[0]
        if not isinstance(head.step, ReadStep):
            raise UsageError(
                f"step {found[0]!r} is aligned, and is not in the task of a source: its records come through step "
                f"{head.name!r} from other tasks, and only a source can wait",
                hint="give align= to the watermark right behind the source, before any other step uses the source",
            )
        if len(found) > 1:
            raise UsageError(f"source {head.name!r} has {len(found)} aligned watermarks; align one of them")
        if head.step.source.induces_checkpoints:
            raise UsageError(
                f"source {head.name!r} is aligned, and marks in its data say where checkpoints begin: a source that "
                "waits would not come to its marks",
                hint="leave out align= for this source",
            )
    _check_waits(plan)


def _check_waits(plan: Plan) -> None:
    """Raise `UsageError` if records wait for the end of a stream that is aligned with them. Their source is blocked
    meanwhile, and so the source of that stream would be held back before its end."""
    for vertex in plan.vertices:
        head = vertex.operators[0]
        step = head.step
        # A wait that ends by the clock ends whatever the sources do. And an event time may be near enough.
        if not isinstance(step, KeyedProcessStep) or step.wait != WaitFor():
            continue
        waiting, awaited = (_groups_before(plan, vertex, number) for number in (0, 1))
        for group, source in waiting.items():
            if group in awaited:
                raise UsageError(
                    f"step {head.name!r} lets the records of source {source!r} wait for source {awaited[group]!r}, and "
                    f"both are aligned in the group {group!r}: each would wait for the other",
                    hint="leave out align= for one of the two sources, or wait for a time, such as wait='30s'",
                )


def _groups_before(plan: Plan, vertex: Vertex, number: int) -> dict[str, str]:
    """The groups of the aligned sources whose records come to one input of a vertex, each with the name of a source."""
    found: dict[str, str] = {}
    wanted = [edge.upstream for edge in plan.inputs_of(vertex.vertex) if edge.input_number == number]
    seen = dict.fromkeys(wanted)
    while wanted:
        before = plan.vertex(wanted.pop())
        for _, alignment in aligned_steps(before):
            found.setdefault(alignment.group, before.operators[0].name)
        further = [edge.upstream for edge in plan.inputs_of(before.vertex) if edge.upstream not in seen]
        seen.update(dict.fromkeys(further))
        wanted += further
    return found

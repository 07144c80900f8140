"""Whether the sources of a program can be aligned where the program wants them to be."""

from __future__ import annotations

from penstock.api.alignment import Alignment
from penstock.api.steps import ReadStep, WatermarkStep
from penstock.core.errors import UsageError
from penstock.plan.graph import OperatorPlan, Plan, Vertex


def aligned_steps(vertex: Vertex) -> list[tuple[OperatorPlan, Alignment]]:
    """The steps of a vertex that make an aligned watermark. In a checked plan a vertex has one at most."""
    found = ((operator, operator.step) for operator in vertex.operators)
    return [(o, step.align) for o, step in found if isinstance(step, WatermarkStep) and step.align is not None]


def check_aligned_sources(plan: Plan) -> None:
    """Raise `UsageError` if something is aligned that is no source, or is a source that must not wait."""
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

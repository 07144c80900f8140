"""What the checkpoint coordinator, and a restore, must know about a plan."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex, OperatorLabel
from penstock.plan.graph import OperatorPlan, Plan


def checkpoint_graph(plan: Plan) -> CheckpointGraph:
    """The plan as the coordinator and a restore see it: without the code of the steps."""
    return CheckpointGraph(
        vertices=tuple(
            CheckpointVertex(
                vertex=v.vertex,
                parallelism=v.parallelism,
                operators=tuple(o.operator for o in v.operators),
                is_source=v.is_source,
                coordinators=tuple(o.operator for o in v.operators if getattr(o.step, "is_coordinated", False)),
                labels={o.operator: _label_of(o) for o in v.operators},
            )
            for v in plan.vertices
        ),
        edges=tuple(
            CheckpointEdge(
                upstream=e.upstream,
                downstream=e.downstream,
                all_to_all=e.partitioning.all_to_all,
                number=e.number,
                partitioning=e.partitioning,
                keys=e.keys,
                input_number=e.input_number,
                side=msgspec.UNSET if e.side is None else e.side,
            )
            for e in plan.edges
        ),
        max_parallelism=plan.max_parallelism,
        hooks=plan.hooks,
    )


def _label_of(operator: OperatorPlan) -> OperatorLabel:
    step = operator.step
    return OperatorLabel(
        name=operator.name,
        kind=_kind_of(step),
        states=getattr(step, "declared_states", {}),
        keys=getattr(step, "declared_keys", ()),
        connector=getattr(step, "connector", ""),
    )


def _kind_of(step: Any) -> str:
    """What a step does, in a word."""
    return type(step).__name__.removesuffix("Step").lower()

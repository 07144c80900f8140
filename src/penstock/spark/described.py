"""A job in plain values, for JSON: what the commands show, and what other processes are told about a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec

from penstock.core.reasons import CheckpointFailure
from penstock.core.slowness import diagnosis, timeline
from penstock.core.views import CheckpointDetails
from penstock.plan.graph import Plan
from penstock.plan.picture import as_svg
from penstock.runtime.views import JobView


def plain(value: Any) -> Any:
    """A view in plain values, for JSON."""
    if isinstance(value, CheckpointFailure):
        return value.name
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value


def summary_of(name: str, view: JobView) -> dict[str, Any]:
    """A job in a few values."""
    counts, latest = view.checkpoints.counts, view.checkpoints.latest_completed
    return {
        "id": view.job,
        "name": name,
        "state": view.state.value,
        "slots": len(view.slots),
        "restarts": view.restarts,
        "rows_read": view.rows_read,
        "watermark_us": view.watermark_us,
        "checkpoints_completed": counts.completed,
        "checkpoints_failed": counts.failed,
        "last_checkpoint": latest.checkpoint if latest is not None else None,
        "last_checkpoint_ms": latest.duration_ms if latest is not None else None,
        "last_failure": view.failures[-1].text if view.failures else None,
    }


def job_of(name: str, view: JobView, plan: Plan | None, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything that is known about a job at one moment, but for the subtasks of its checkpoints."""
    everything = {field.name: plain(getattr(view, field.name)) for field in fields(view) if field.name != "job"}
    everything["slots"], everything["slot_views"] = len(view.slots), everything["slots"]
    return {
        **summary_of(name, view),
        **everything,
        "plan": None if plan is None else plan_of(plan),
        "graph": None if plan is None else as_svg(plan),
        "settings": plain(settings or {}),
    }


def plan_of(plan: Plan) -> dict[str, Any]:
    """The vertices and the edges of a plan, in topological order."""
    return {
        "parallelism": plan.parallelism,
        "max_parallelism": plan.max_parallelism,
        "vertices": [
            {
                "id": vertex.vertex,
                "name": vertex.name,
                "parallelism": vertex.parallelism,
                "is_source": vertex.is_source,
                "operators": [{"id": operator.operator, "name": operator.name} for operator in vertex.operators],
            }
            for vertex in plan.vertices
        ],
        "edges": [
            {
                "from": edge.upstream,
                "to": edge.downstream,
                "partitioning": edge.partitioning.value,
                "keys": list(edge.keys),
            }
            for edge in plan.edges
        ],
    }


def inputs_of(plan: Plan | None) -> dict[str, Sequence[str]]:
    """The vertices that send to each vertex."""
    if plan is None:
        return {}
    return {
        str(vertex.vertex): [str(edge.upstream) for edge in plan.inputs_of(vertex.vertex)] for vertex in plan.vertices
    }


def checkpoint_of(details: CheckpointDetails, plan: Plan | None) -> dict[str, Any]:
    """A checkpoint with its subtasks, its timeline, slowest first, and the sentence that says why it was slow."""
    return {
        **plain(details),
        "diagnosis": diagnosis(details, inputs_of(plan)),
        "timeline": [plain(bar) for bar in timeline(details)],
    }


def failures_of(view: JobView) -> list[dict[str, Any]]:
    """The last failures, newest first."""
    return [plain(failure) for failure in reversed(view.failures)]

"""Checkpoints in the document of a job."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.views import (
    CheckpointDetails,
    CheckpointsView,
    CheckpointTotals,
    CheckpointView,
    Spread,
    SubtasksView,
)
from penstock.web.ids import operator_id, vertex_id

COLUMNS = (
    "acknowledged",
    "duration_ms",
    "checkpointed_bytes",
    "state_bytes",
    "processed_bytes",
    "persisted_bytes",
    "sync_ms",
    "async_ms",
    "alignment_ms",
    "start_delay_ms",
    "unaligned",
    "aborted",
    "rows_in",
)
SPREADS = (
    "durations_ms",
    "checkpointed_bytes",
    "state_bytes",
    "processed_bytes",
    "persisted_bytes",
    "sync_ms",
    "async_ms",
    "alignment_ms",
    "start_delay_ms",
)


def pictured_checkpoints(view: CheckpointsView, details: tuple[CheckpointDetails, ...]) -> dict[str, Any]:
    """All checkpoints without their subtasks, newest first, and the numbers over them."""
    restored = view.latest_restored
    return {
        "counts": msgspec.to_builtins(view.counts),
        "summary": {name: _spread(getattr(view.summary, name)) for name in view.summary.__struct_fields__},
        "latest_completed": _head(view.latest_completed),
        "latest_savepoint": _head(view.latest_savepoint),
        "latest_failed": _head(view.latest_failed),
        "latest_restored": None
        if restored is None
        else {
            "checkpoint": restored.checkpoint,
            "is_savepoint": restored.kind.is_savepoint,
            "restored": restored.restored,
            "path": restored.path,
        },
        "waiting": view.waiting,
        "next_trigger": view.next_trigger,
        "history": [_head(each) for each in view.history],
        "failures": _grouped(details),
    }


def _grouped(details: tuple[CheckpointDetails, ...]) -> list[dict[str, Any]]:
    """The failed checkpoints that are remembered, by cause, the most frequent cause first."""
    groups: dict[str, list[int]] = {}
    for each in details:
        if each.failure is not None:
            groups.setdefault(each.failure.text, []).append(each.checkpoint)
    found = [{"reason": reason, "checkpoints": numbers} for reason, numbers in groups.items()]
    return sorted(found, key=lambda group: -len(group["checkpoints"]))


def _head(view: CheckpointView | None) -> dict[str, Any] | None:
    """One checkpoint without its vertices."""
    if view is None:
        return None
    return {
        "checkpoint": view.checkpoint,
        "kind": view.kind.name,
        "is_savepoint": view.kind.is_savepoint,
        "canonical": view.canonical,
        "status": view.status.value,
        "triggered": view.triggered,
        "queued_ms": view.queued_ms,
        "duration_ms": view.duration_ms,
        "ended": view.ended,
        "path": view.path,
        "metadata_bytes": view.metadata_bytes,
        "discarded": view.discarded,
        "failure": None if view.failure is None else view.failure.name,
        "failure_text": view.why_failed(),
        **_totals(view.totals),
    }


def _totals(totals: CheckpointTotals) -> dict[str, Any]:
    return {name: getattr(totals, name) for name in totals.__struct_fields__}


def _spread(spread: Spread) -> dict[str, float]:
    return {name: getattr(spread, name) for name in spread.__struct_fields__}


def pictured_details(details: CheckpointDetails) -> dict[str, Any]:
    """One checkpoint with all subtasks, whose numbers stand in columns."""
    head = _head(details)
    assert head is not None
    return {**head, "vertices": [_vertex(each) for each in details.vertices]}


def _vertex(view: SubtasksView) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {"subtask": [s.subtask for s in view.subtasks]}
    for name in COLUMNS:
        columns[name] = [getattr(subtask, name) for subtask in view.subtasks]
    waited = [s.waited_for for s in view.subtasks]
    columns["waited_for"] = [
        None if w is None else {"vertex": vertex_id(w.vertex), "key": str(w.vertex), "subtask": w.subtask}
        for w in waited
    ]
    known = dict.fromkeys(operator for subtask in view.subtasks for operator in subtask.operators)
    sizes = {o: [subtask.operators.get(o, 0) for subtask in view.subtasks] for o in known}
    return {
        "vertex": vertex_id(view.vertex),
        "key": str(view.vertex),
        "status": view.status.value,
        "duration_ms": view.duration_ms,
        **_totals(view.totals),
        "summary": {name: _spread(getattr(view, name)) for name in SPREADS},
        "operators": [
            {"id": operator_id(o), "key": o, "state_bytes": sum(found), "subtasks": found} for o, found in sizes.items()
        ],
        "subtasks": columns,
    }

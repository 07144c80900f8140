"""One plain document per job: everything that the page, the REST interface, the stream and the archive show.

The document is a pure function of what the driver knows and of the totals of a moment before, which the rates are
computed from. It consists of dicts, lists, texts, numbers and None, so that it can be sent, stored and compared. Times
are milliseconds since 1970, durations milliseconds, sizes bytes. Numbers of subtasks stand in columns, one list per
name, at the place of the subtask: a job may have a thousand subtasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.ids import VertexId
from penstock.core.job.events import JobState
from penstock.core.recovery.tenure import attempt_of
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Edge, Partitioning, Plan, Vertex
from penstock.runtime.facts import JobFacts
from penstock.settings import JobSettings
from penstock.web import states
from penstock.web.ids import job_id, operator_id, vertex_id
from penstock.web.past import Past, rates_of
from penstock.web.pictured_checkpoints import pictured_checkpoints, pictured_details
from penstock.web.pictured_failures import pictured_attempts, pictured_failures, pictured_rescales

Document = dict[str, Any]

FORMAT = 1
DEFAULTS: Document = msgspec.to_builtins(JobSettings())
TOTALS = ("rows_in", "rows_out", "bytes_in", "bytes_out", "queued_bytes", "waiting_bytes")
"""Running totals and sizes of each subtask."""
TIMES = ("busy_ms", "waiting_ms", "blocked_ms", "idle_ms")
"""What the time of each subtask has gone to."""


def picture(
    facts: JobFacts, *, name: str, settings: Mapping[str, Any], past: Past, runs: Mapping[str, str] | None = None
) -> Document:
    """The document of a job. `past` has the totals of a moment ago, and `runs` says what each operator runs."""
    view, plan = facts.view, facts.plan
    started = min(facts.entered.values(), default=facts.now)
    ended = facts.entered.get(view.state) if view.state.is_terminal else None
    how = facts.attempts[-1].how if facts.attempts else ""
    vertices = [] if plan is None else _vertices(facts, plan, past, runs or {})
    return {
        "format": FORMAT,
        "id": job_id(view.job),
        "job": str(view.job),
        "name": name,
        "now": facts.now,
        "state": view.state.value,
        "flink_state": states.job_state(view.state, how),
        "started": started,
        "ended": ended,
        "last_change": max(facts.entered.values(), default=facts.now),
        "timestamps": {state.value: when for state, when in facts.entered.items()},
        "attempt": attempt_of(view.epoch),
        "restarts": view.restarts,
        "restored_checkpoint": view.restored_checkpoint,
        "parallelism": 0 if plan is None else plan.parallelism,
        "max_parallelism": -1 if plan is None else plan.max_parallelism,
        "settings": dict(settings),
        "default_settings": DEFAULTS,
        "rows": {"in": view.rows_in, "read": view.rows_read, "out": view.rows_out},
        "rates": _job_rates(vertices),
        "watermark_ms": None if view.watermark_us is None else view.watermark_us // 1_000,
        "dropped": {
            "late": view.late_dropped,
            "timeless": view.timeless_dropped,
            "beyond_time": view.beyond_time_dropped,
            "lines_skipped": view.lines_skipped,
        },
        "vertices": vertices,
        "edges": [] if plan is None else [_edge(plan, edge) for edge in plan.edges],
        "checkpoints": pictured_checkpoints(view.checkpoints, facts.checkpoints),
        "checkpoint_details": {str(c.checkpoint): pictured_details(c) for c in facts.checkpoints},
        "at_risk": _at_risk(facts),
        "failures": pictured_failures(facts),
        "attempts": pictured_attempts(facts),
        "rescales": pictured_rescales(facts),
        "slots": _slots(facts),
        "stuck": [
            {
                "slot": stuck.slot,
                "stuck_ms": stuck.stuck_ms,
                "operator": stuck.operator,
                "subtask": stuck.subtask,
                "step_ms": stuck.step_ms,
                "stack": stuck.stack,
            }
            for stuck in view.stuck
        ],
    }


def _slots(facts: JobFacts) -> list[Document]:
    return [
        {
            "id": slot.name,
            "number": slot.number,
            "incarnation": slot.incarnation,
            "host": slot.host,
            "pid": slot.pid,
            "spare": slot.spare,
            "heard": slot.heard,
            "process": dict(slot.process),
        }
        for slot in facts.slots
    ]


# --- vertices ----------------------------------------------------------------------------


def _vertices(facts: JobFacts, plan: Plan, past: Past, runs: Mapping[str, str]) -> list[Document]:
    layers = _layers(plan)
    kinds = {name: label.kind for v in checkpoint_graph(plan).vertices for name, label in v.labels.items()}
    slots = {slot.number: slot for slot in facts.slots if not slot.spare}
    found = []
    for vertex in plan.vertices:
        columns = _columns(facts, vertex, past)
        columns["slot"] = [slots[i].name if i in slots else None for i in range(vertex.parallelism)]
        columns["host"] = [slots[i].host if i in slots else None for i in range(vertex.parallelism)]
        starts = [start for start in columns["started"] if start is not None]
        ends = columns["ended"]
        layer, row = layers[vertex.vertex]
        found.append(
            {
                "id": vertex_id(vertex.vertex),
                "key": str(vertex.vertex),
                "name": vertex.name.replace(" → ", " -> "),
                "is_source": vertex.is_source,
                "is_sink": not plan.outputs_of(vertex.vertex),
                "layer": layer,
                "row": row,
                "operators": [
                    {
                        "id": operator_id(each.operator),
                        "key": str(each.operator),
                        "name": each.name,
                        "kind": kinds.get(each.operator, ""),
                        "runs": runs.get(str(each.operator), ""),
                    }
                    for each in vertex.operators
                ],
                "parallelism": vertex.parallelism,
                "at_most": vertex.at_most,
                "max_parallelism": plan.max_parallelism,
                "status": states.worst(columns["status"]),
                "started": min(starts, default=None),
                "ended": max(ends) if ends and None not in ends else None,
                "totals": {name: _total(columns[name]) for name in (*TOTALS, *TIMES)},
                "rates": {name: _total(columns[f"{name}_per_s"]) for name in TOTALS[:4]},
                "shares": {name: _most(columns[name]) for name in ("busy", "waiting", "blocked", "idle")},
                "watermark_ms": min((w for w in columns["watermark_ms"] if w is not None), default=None),
                "subtasks": columns,
            }
        )
    return found


def _columns(facts: JobFacts, vertex: Vertex, past: Past) -> dict[str, list[Any]]:
    """The numbers of the subtasks of a vertex, by name, one per subtask."""
    tasks = [(task, facts.tasks.get(task), facts.view.tasks.get(str(task), {})) for task in vertex.tasks]
    rates = [rates_of(now, past.get(str(task))) for task, _, now in tasks]
    columns: dict[str, list[Any]] = {
        "status": [states.task_state(facts.view.state, seen) for _, seen, _ in tasks],
        "attempt": [0 if seen is None else seen.attempt for _, seen, _ in tasks],
        "deployed": [None if seen is None else seen.deployed for _, seen, _ in tasks],
        "started": [None if seen is None else seen.ran for _, seen, _ in tasks],
        "ended": [_ended(facts, None if seen is None else seen.ended) for _, seen, _ in tasks],
        "known": [bool(now) for _, _, now in tasks],
        "watermark_ms": [int(now["watermark_us"]) // 1_000 if "watermark_us" in now else None for _, _, now in tasks],
        "other": [
            {n: v for n, v in now.items() if n not in (*TOTALS, *TIMES, "batches_in", "watermark_us")}
            for _, _, now in tasks
        ],
    }
    for name in (*TOTALS, "batches_in"):
        columns[name] = [int(now.get(name, 0)) for _, _, now in tasks]
    for name in TIMES:
        columns[name] = [round(now.get(name, 0.0)) for _, _, now in tasks]
    for name in TOTALS[:4]:
        columns[f"{name}_per_s"] = [round(rate.per_s.get(name, 0.0), 1) for rate in rates]
    for name in ("busy", "waiting", "blocked", "idle"):
        columns[name] = [round(rate.shares.get(name, 0.0), 3) for rate in rates]
    return columns


def _ended(facts: JobFacts, ended: int | None) -> int | None:
    if ended is None and facts.view.state.is_terminal:
        return facts.entered.get(facts.view.state)
    return ended


def _total(values: list[Any]) -> float:
    total: float = sum(values)
    return round(total, 1) if isinstance(total, float) else total


def _most(values: list[float]) -> dict[str, float]:
    """Mean and maximum over the subtasks, and the subtask that has the maximum."""
    if not values:
        return {"mean": 0.0, "max": 0.0, "subtask": 0}
    most = max(values)
    return {"mean": round(sum(values) / len(values), 3), "max": most, "subtask": values.index(most)}


def _job_rates(vertices: list[Document]) -> dict[str, float]:
    return {
        "rows_in_per_s": round(sum(v["rates"]["rows_in"] for v in vertices if v["is_source"]), 1),
        "rows_out_per_s": round(sum(v["rates"]["rows_in"] for v in vertices if v["is_sink"]), 1),
    }


def _layers(plan: Plan) -> dict[VertexId, tuple[int, int]]:
    """Where each vertex stands in the graph: a vertex stands in a later layer than all vertices that send to it."""
    layers: dict[VertexId, int] = {}
    rows: dict[int, int] = {}
    found: dict[VertexId, tuple[int, int]] = {}
    for vertex in plan.vertices:
        layer = max((layers[edge.upstream] + 1 for edge in plan.inputs_of(vertex.vertex)), default=0)
        layers[vertex.vertex] = layer
        found[vertex.vertex] = (layer, rows.get(layer, 0))
        rows[layer] = rows.get(layer, 0) + 1
    return found


_STRATEGIES = {
    Partitioning.FORWARD: "FORWARD",
    Partitioning.HASH: "HASH",
    Partitioning.REBALANCE: "REBALANCE",
    Partitioning.BROADCAST: "BROADCAST",
    Partitioning.CUSTOM: "CUSTOM",
}


def _edge(plan: Plan, edge: Edge) -> Document:
    one = edge.partitioning is Partitioning.HASH and not edge.keys
    return {
        "number": edge.number,
        "from": vertex_id(edge.upstream),
        "to": vertex_id(edge.downstream),
        "input": edge.input_number,
        "how": "all to one" if one else edge.partitioning.value,
        "strategy": "GLOBAL" if one else _STRATEGIES[edge.partitioning],
        "keys": list(edge.keys),
        "side": None if edge.side is None else edge.side.name,
        "unaligned": plan.carries_unaligned_barriers(edge),
    }


# --- what a crash would cost -------------------------------------------------------------


def _at_risk(facts: JobFacts) -> Document:
    """What would be read again after a crash now: the records and the time since the newest completed checkpoint."""
    latest = facts.view.checkpoints.latest_completed
    if facts.view.state is not JobState.RUNNING:
        return {"records": None, "since_ms": None, "checkpoint": None if latest is None else latest.checkpoint}
    if latest is None:
        return {"records": facts.view.rows_read, "since_ms": None, "checkpoint": None}
    ran = max((a.ran for a in facts.attempts if a.ran is not None), default=None)
    known = next((c for c in facts.checkpoints if c.checkpoint == latest.checkpoint), None)
    records = None
    if known is not None and ran is not None:
        # A checkpoint of an earlier attempt is where this attempt began.
        before = sum(s.rows_in for v in known.vertices for s in v.subtasks) if known.triggered >= ran else 0
        records = max(0, facts.view.rows_in - before)
    return {"records": records, "since_ms": facts.now - latest.triggered, "checkpoint": latest.checkpoint}

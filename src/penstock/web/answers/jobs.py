"""Answers about jobs."""

from __future__ import annotations

from html import escape
from typing import Any

from penstock.web import states
from penstock.web.answers.asking import Asked, Document, Refused, duration, ms
from penstock.web.ids import public_id

LONG = 9_223_372_036_854_775_807


def jobs(asked: Asked) -> Document:
    """All jobs and their states."""
    return {"jobs": [{"id": job["id"], "status": job["flink_state"]} for job in asked.documents.values()]}


def overview(asked: Asked) -> Document:
    """All jobs in a line each."""
    return {"jobs": [overview_entry(job) for job in asked.documents.values()]}


def overview_entry(job: Document) -> Document:
    """One job in a line."""
    found = [status for vertex in job["vertices"] for status in vertex["subtasks"]["status"]]
    return {
        "jid": job["id"],
        "name": job["name"],
        "jobType": "STREAMING",
        "schedulerType": "Adaptive",
        "start-time": job["started"],
        "end-time": ms(job["ended"]),
        "duration": duration(job["started"], job["ended"], job["now"]),
        "state": job["flink_state"],
        "last-modification": job["last_change"],
        "pending-operators": 0,
        "tasks": {"total": len(found), **{state.lower(): found.count(state) for state in states.TASK_STATES}},
    }


def job(asked: Asked) -> Document:
    """One job, with its vertices and its plan."""
    found = asked.job
    statuses = [vertex["status"] for vertex in found["vertices"]]
    return {
        "jid": found["id"],
        "application-id": found["id"],
        "name": found["name"],
        "isStoppable": False,
        "state": found["flink_state"],
        "job-type": "STREAMING",
        "schedulerType": "Adaptive",
        "start-time": found["started"],
        "end-time": ms(found["ended"]),
        "duration": duration(found["started"], found["ended"], found["now"]),
        "maxParallelism": found["max_parallelism"],
        "now": found["now"],
        "timestamps": _stamps(found),
        "vertices": [_vertex(found, vertex) for vertex in found["vertices"]],
        "status-counts": {state: statuses.count(state) for state in states.TASK_STATES},
        "plan": _plan(found),
        "pending-operators": 0,
        "penstock-id": found["job"],
        "penstock-state": found["state"],
    }


_STAMPS = {
    "starting": "CREATED",
    "created": "CREATED",
    "deploying": "INITIALIZING",
    "running": "RUNNING",
    "failing": "FAILING",
    "restarting": "RESTARTING",
    "rescaling": "RESTARTING",
    "finished": "FINISHED",
    "cancelled": "CANCELED",
    "failed": "FAILED",
    "suspended": "SUSPENDED",
    "standby": "RECONCILING",
}


def _stamps(found: Document) -> dict[str, int]:
    """When the job entered each state; 0 for a state that the job has never been in."""
    stamps = dict.fromkeys(states.JOB_STATES, 0)
    for own, when in found["timestamps"].items():
        if (name := _STAMPS.get(own)) is not None:
            stamps[name] = max(stamps[name], when)
    if "ending" in found["timestamps"] and found["flink_state"] in ("CANCELLING", "CANCELED"):
        stamps["CANCELLING"] = found["timestamps"]["ending"]
    return stamps


def _vertex(found: Document, vertex: Document) -> Document:
    status = vertex["subtasks"]["status"]
    return {
        "id": vertex["id"],
        "slotSharingGroupId": public_id("slots", found["job"]),
        "name": vertex["name"],
        "maxParallelism": vertex["max_parallelism"],
        "parallelism": vertex["parallelism"],
        "status": vertex["status"],
        "start-time": ms(vertex["started"]),
        "end-time": ms(vertex["ended"]),
        "duration": duration(vertex["started"], vertex["ended"], found["now"]),
        "tasks": {state: status.count(state) for state in states.TASK_STATES},
        "metrics": io_metrics(vertex, range(vertex["parallelism"])),
    }


def io_metrics(vertex: Document, subtasks: Any) -> Document:
    """What some subtasks of a vertex have read and written. Only what goes from vertex to vertex counts: a source reads
    nothing, and a sink writes nothing."""
    columns = vertex["subtasks"]

    def total(name: str) -> int:
        return sum(columns[name][i] for i in subtasks)

    is_known = all(columns["known"][i] for i in subtasks)
    return {
        "read-bytes": 0 if vertex["is_source"] else total("bytes_in"),
        "read-bytes-complete": is_known,
        "write-bytes": total("bytes_out"),
        "write-bytes-complete": is_known,
        "read-records": 0 if vertex["is_source"] else total("rows_in"),
        "read-records-complete": is_known,
        "write-records": total("rows_out"),
        "write-records-complete": is_known,
        "accumulated-backpressured-time": total("blocked_ms"),
        "accumulated-idle-time": total("idle_ms"),
        # A task that waits for the loop of its slot is not idle: in Flink the loop would be the processor.
        "accumulated-busy-time": float(total("busy_ms") + total("waiting_ms")),
    }


def plan(asked: Asked) -> Document:
    """The plan of a job."""
    return {"plan": _plan(asked.job)}


def _plan(found: Document) -> Document:
    into: dict[str, list[Document]] = {}
    for edge in found["edges"]:
        place = into.setdefault(edge["to"], [])
        place.append(
            {
                "num": len(place),
                "id": edge["from"],
                "ship_strategy": edge["strategy"],
                "exchange": "pipelined_bounded",
            }
        )
    nodes = []
    for vertex in found["vertices"]:
        lines = "<br/>".join(f"{'+- ' if i else ''}{escape(o['name'])}" for i, o in enumerate(vertex["operators"]))
        node: Document = {
            "id": vertex["id"],
            "parallelism": vertex["parallelism"],
            "operator": "",
            "operator_strategy": "",
            "description": lines + "<br/>",
            "optimizer_properties": {},
        }
        if vertex["id"] in into:
            node["inputs"] = into[vertex["id"]]
        nodes.append(node)
    return {"jid": found["id"], "name": found["name"], "type": "STREAMING", "nodes": nodes}


def config(asked: Asked) -> Document:
    """The settings of a job."""
    found = asked.job
    flat = flat_settings(found["settings"])
    return {
        "jid": found["id"],
        "name": found["name"],
        "execution-config": {
            "restart-strategy": str(found["settings"].get("restart") or "none"),
            "job-parallelism": found["parallelism"],
            "object-reuse-mode": False,
            "user-config": flat,
        },
    }


def flat_settings(settings: Any, prefix: str = "") -> dict[str, str]:
    """Nested settings as one table of texts."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= flat_settings(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = "off" if value is None else str(value)
    return found


def manager_config(asked: Asked) -> list[Document]:
    """The settings of a job as a list."""
    return [{"key": key, "value": value} for key, value in flat_settings(asked.job["settings"]).items()]


def status(asked: Asked) -> Document:
    """The state of a job."""
    return {"status": asked.job["flink_state"]}


def exceptions(asked: Asked) -> Document:
    """The failures of a job, newest first."""
    found, most = asked.job, asked.limit("maxExceptions", 20)
    wanted = asked.query.get("failureLabelFilter", "")
    if wanted and ":" not in wanted:
        raise Refused(400, f'Cannot resolve query parameter (failureLabelFilter) from value "{wanted}".')
    entries = [_exception(found, failure) for failure in found["failures"]]
    if wanted:
        key, _, value = wanted.partition(":")
        entries = [entry for entry in entries if entry["failureLabels"].get(key) == value]
    newest = found["failures"][0] if found["failures"] else None
    return {
        "root-exception": None if newest is None else newest["traceback"] or newest["text"],
        "timestamp": None if newest is None else newest["when"],
        "all-exceptions": [],
        "truncated": len(entries) > most,
        "exceptionHistory": {"entries": entries[:most], "truncated": len(entries) > most},
    }


def _exception(found: Document, failure: Document) -> Document:
    text = failure["text"]
    head = text.split(":", 1)[0]
    subtask = failure["subtask"]
    task_name, endpoint, manager = None, "(unassigned)", "(unassigned)"
    if failure["operator"] is not None:
        task_name = failure["operator"]
        if subtask is not None:
            width = next(
                (
                    v["parallelism"]
                    for v in found["vertices"]
                    if failure["operator"] in [o["name"] for o in v["operators"]]
                ),
                found["parallelism"],
            )
            task_name = f"{task_name} ({subtask + 1}/{width}) - execution #{max(0, failure['attempt'] - 1)}"
            slot = next((s for s in found["slots"] if s["number"] == subtask and not s["spare"]), None)
            if slot is not None and slot["host"] is not None:
                endpoint, manager = f"{slot['host']}:{slot['pid'] or 0}", slot["id"]
    return {
        "exceptionName": head if head and " " not in head else ("Exception" if failure["user_code"] else "Failure"),
        "stacktrace": failure["traceback"] or text,
        "timestamp": failure["when"],
        "failureLabels": {"type": "user" if failure["user_code"] else "system"},
        "taskName": task_name,
        "endpoint": endpoint,
        "taskManagerId": manager,
        "concurrentExceptions": [],
    }


_OUTCOMES = {"FINISHED": "SUCCEEDED", "FAILED": "FAILED", "CANCELED": "CANCELED"}


def execution_result(asked: Asked) -> Document:
    """How a job has ended."""
    found = asked.job
    if found["flink_state"] not in states.ENDED:
        return {"status": {"id": "IN_PROGRESS"}}
    result: Document = {
        "id": found["id"],
        "name": found["name"],
        "application-status": _OUTCOMES.get(found["flink_state"], "UNKNOWN"),
        "accumulator-results": {},
        "net-runtime": duration(found["started"], found["ended"], found["now"]),
        "application-id": found["id"],
        "start-time": found["started"],
        "end-time": ms(found["ended"]),
    }
    if found["flink_state"] == "FAILED":
        text = found["failures"][0]["traceback"] or found["failures"][0]["text"] if found["failures"] else "unknown"
        result["failure-cause"] = {"class": "penstock.JobFailed", "stack-trace": text}
    return {"status": {"id": "COMPLETED"}, "job-execution-result": result}


def accumulators(asked: Asked) -> Document:
    """Accumulators of Flink's: what a job has dropped."""
    dropped = asked.job["dropped"]
    return {
        "job-accumulators": [],
        "user-task-accumulators": [
            {"name": name, "type": "LongCounter", "value": str(value)} for name, value in dropped.items()
        ],
        "serialized-user-task-accumulators": {},
    }


def manager_environment(asked: Asked) -> Document:
    """The process of the driver."""
    _ = asked.path.get("jobid") and asked.job
    return dict(asked.about["environment"])

"""Answers about metrics: names, values, and values over several subtasks, jobs or slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.web import states
from penstock.web.answers.asking import Asked, Document, Refused
from penstock.web.answers.vertices import NO_WATERMARK

Values = dict[str, float]
MOST_NAMES = 1_000


def _listed(asked: Asked, values: dict[str, Any]) -> list[Document]:
    """The names of metrics; or, for the names that are asked for, their values. Unknown names are left out."""
    wanted = asked.query.get("get")
    if wanted is None:
        return [{"id": name} for name in values]
    names = dict.fromkeys(wanted.split(",")[:MOST_NAMES])
    return [{"id": name, "value": _text(values[name])} for name in names if name in values]


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# --- values ------------------------------------------------------------------------------


def _of_job(job: Document) -> dict[str, Any]:
    counts, latest = job["checkpoints"]["counts"], job["checkpoints"]["latest_completed"]
    restored = job["checkpoints"]["latest_restored"]
    is_running = job["flink_state"] == "RUNNING"
    running = job["now"] - job["timestamps"].get("running", job["now"]) if is_running else 0
    restarting = 0 if is_running or job["ended"] is not None else job["now"] - job["last_change"]
    return {
        "uptime": running,
        "downtime": restarting,
        "runningTime": running,
        "restartingTime": restarting if job["restarts"] else 0,
        "numRestarts": job["restarts"],
        "fullRestarts": job["restarts"],
        "totalNumberOfCheckpoints": counts["total"],
        "numberOfInProgressCheckpoints": counts["in_progress"],
        "numberOfCompletedCheckpoints": counts["completed"],
        "numberOfFailedCheckpoints": counts["failed"],
        "lastCheckpointDuration": -1 if latest is None else latest["duration_ms"],
        "lastCheckpointSize": -1 if latest is None else latest["checkpointed_bytes"],
        "lastCheckpointFullSize": -1 if latest is None else latest["state_bytes"],
        "lastCheckpointExternalPath": "n/a" if latest is None else latest["path"],
        "lastCheckpointRestoreTimestamp": -1 if restored is None else restored["restored"],
        "lastCompletedCheckpointId": -1 if latest is None else latest["checkpoint"],
    }


def _of_subtask(vertex: Document, i: int) -> dict[str, Any]:
    columns = vertex["subtasks"]
    watermark = columns["watermark_ms"][i]
    found: dict[str, Any] = {
        "numRecordsIn": 0 if vertex["is_source"] else columns["rows_in"][i],
        "numRecordsOut": columns["rows_out"][i],
        "numBytesIn": columns["bytes_in"][i],
        "numBytesOut": columns["bytes_out"][i],
        "numRecordsInPerSecond": 0.0 if vertex["is_source"] else columns["rows_in_per_s"][i],
        "numRecordsOutPerSecond": columns["rows_out_per_s"][i],
        "numBytesInPerSecond": columns["bytes_in_per_s"][i],
        "numBytesOutPerSecond": columns["bytes_out_per_s"][i],
        "busyTimeMsPerSecond": round(1_000 * (columns["busy"][i] + columns["waiting"][i])),
        "backPressuredTimeMsPerSecond": round(1_000 * columns["blocked"][i]),
        "idleTimeMsPerSecond": round(1_000 * columns["idle"][i]),
        "accumulateBusyTimeMs": columns["busy_ms"][i] + columns["waiting_ms"][i],
        "accumulateBackPressuredTimeMs": columns["blocked_ms"][i],
        "accumulateIdleTimeMs": columns["idle_ms"][i],
        "currentInputWatermark": NO_WATERMARK if watermark is None else watermark,
        "penstock.queuedBytes": columns["queued_bytes"][i],
        "penstock.waitingBytes": columns["waiting_bytes"][i],
    }
    head = vertex["operators"][0]["name"].replace(" ", "_")
    if vertex["is_source"]:
        # Flink's source operators tell what they read under their own name.
        found[f"Source__{head}.numRecordsIn"] = columns["rows_in"][i]
        found[f"Source__{head}.numRecordsInPerSecond"] = columns["rows_in_per_s"][i]
    found |= {f"penstock.{name}": value for name, value in columns["other"][i].items()}
    return found


def _of_slot(slot: Document) -> dict[str, Any]:
    process = slot["process"]
    rss = process.get("rss_bytes", 0)
    return {
        "Status.JVM.Memory.Heap.Used": rss,
        "Status.JVM.Memory.Heap.Committed": rss,
        "Status.JVM.Memory.Heap.Max": max(rss, process.get("peak_rss_bytes", 0)),
        "Status.JVM.CPU.Time": round(1e9 * process.get("cpu_s", 0)),
        "Status.JVM.Threads.Count": process.get("threads", 0),
    }


def _of_driver(asked: Asked) -> dict[str, Any]:
    live = [job for job in asked.documents.values() if job["flink_state"] not in states.ENDED]
    slots = [slot for job in live for slot in job["slots"]]
    return {
        **_of_slot({"process": asked.about["process"]}),
        "taskSlotsTotal": len(slots),
        "taskSlotsAvailable": sum(slot["spare"] for slot in slots),
        "numRegisteredTaskManagers": len(slots),
        "numRunningJobs": len(live),
    }


# --- answers -----------------------------------------------------------------------------


def job_metrics(asked: Asked) -> list[Document]:
    """The metrics of a job."""
    return _listed(asked, _of_job(asked.job))


def driver_metrics(asked: Asked) -> list[Document]:
    """The metrics of the driver."""
    return _listed(asked, _of_driver(asked))


def slot_metrics(asked: Asked) -> list[Document]:
    """The metrics of a slot."""
    return _listed(asked, _of_slot(slot_of(asked)[1]))


def slot_of(asked: Asked) -> tuple[Document, Document]:
    """The slot that the path names, with its job."""
    wanted = asked.path["taskmanagerid"]
    for job in asked.documents.values():
        for slot in job["slots"]:
            if slot_id(job, slot) == wanted or slot["id"] == wanted:
                return job, slot
    raise Refused(404, f"no slot has the id {wanted}")


def slot_id(job: Document, slot: Document) -> str:
    """The id of a slot among the slots of all jobs."""
    return f"{job['job']}-{slot['id']}".replace("/", "-")


def vertex_metrics(asked: Asked) -> list[Document]:
    """The metrics of all subtasks of a vertex."""
    found = asked.vertex
    wanted = asked.query.get("get")
    values: dict[str, Any] = {}
    for i in range(found["parallelism"]):
        of_subtask = _of_subtask(found, i)
        values |= {f"{i}.{name}": value for name, value in of_subtask.items()}
        if wanted is None and len(values) > 50_000:
            break
    return _listed(asked, values)


def operator_metrics(asked: Asked) -> list[Document]:
    """The metrics of operators on the driver: none."""
    _ = asked.vertex
    return []


def subtask_metrics(asked: Asked) -> list[Document]:
    """The metrics of one subtask."""
    return _listed(asked, _of_subtask(asked.vertex, asked.subtask))


def all_jobs(asked: Asked) -> list[Document]:
    """Metrics over several jobs."""
    wanted = asked.query.get("jobs")
    chosen = list(asked.documents) if not wanted else wanted.split(",")[:MOST_NAMES]
    unknown = [job for job in chosen if job not in asked.documents]
    if unknown:
        raise Refused(404 if all(len(job) == 32 for job in unknown) else 400, f"Job {unknown[0]} not found")
    return _aggregated(asked, [_of_job(asked.documents[job]) for job in chosen])


def all_slots(asked: Asked) -> list[Document]:
    """Metrics over several slots."""
    wanted = asked.query.get("taskmanagers")
    slots = {slot_id(job, slot): slot for job in asked.documents.values() for slot in job["slots"]}
    chosen = list(slots) if not wanted else [name for name in wanted.split(",") if name in slots]
    return _aggregated(asked, [_of_slot(slots[name]) for name in chosen])


def all_subtasks(asked: Asked) -> list[Document]:
    """Metrics over several subtasks of a vertex."""
    found = asked.vertex
    chosen = _subtasks(asked.query.get("subtasks"), found["parallelism"])
    return _aggregated(asked, [_of_subtask(found, i) for i in chosen])


def _subtasks(wanted: str | None, parallelism: int) -> Sequence[int]:
    if not wanted:
        return range(parallelism)
    chosen: dict[int, None] = {}
    for part in wanted.split(",")[:MOST_NAMES]:
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
            raise Refused(400, f'Cannot resolve query parameter (subtasks) from value "{wanted}".')
        if len(first) > 9 or len(last) > 9:
            raise Refused(400, f'Cannot resolve query parameter (subtasks) from value "{wanted}".')
        for i in range(int(first), min(int(last), parallelism - 1) + 1):
            chosen[i] = None
    return list(chosen)


def _skew(values: list[float]) -> float:
    """The mean deviation from the mean, in percent of the mean; 0 is even, and 100 is the most."""
    mean = sum(values) / len(values)
    if mean == 0:
        return 0.0
    return min(100.0, 100.0 * sum(abs(value - mean) for value in values) / len(values) / abs(mean))


_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "min": lambda values: float(min(values)),
    "max": lambda values: float(max(values)),
    "avg": lambda values: sum(values) / len(values),
    "sum": lambda values: float(sum(values)),
    "skew": _skew,
}


def _aggregated(asked: Asked, of_each: list[dict[str, Any]]) -> list[Document]:
    """The names of metrics; or, for the names that are asked for, their values over all that were chosen."""
    wanted, kinds = asked.query.get("get"), list(_AGGREGATES)
    if asked.query.get("agg"):
        kinds = [kind.lower() for kind in asked.query["agg"].split(",")]
        if any(kind not in _AGGREGATES for kind in kinds):
            raise Refused(400, f'Cannot resolve query parameter (agg) from value "{asked.query["agg"]}".')
    known: dict[str, list[float]] = {}
    for values in of_each:
        for name, value in values.items():
            if isinstance(value, int | float):
                known.setdefault(name, []).append(value)
    if not wanted:
        return [{"id": name} for name in known]
    names = dict.fromkeys(wanted.split(",")[:MOST_NAMES])
    return [{"id": n, **{kind: _AGGREGATES[kind](known[n]) for kind in kinds}} for n in names if n in known]

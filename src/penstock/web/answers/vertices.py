"""Answers about vertices and their subtasks."""

from __future__ import annotations

from typing import Any

from penstock.web import states
from penstock.web.answers.asking import Asked, Document, Refused, duration, ms, spread_of
from penstock.web.answers.jobs import io_metrics
from penstock.web.ids import public_id

_IO = (
    "read-bytes",
    "write-bytes",
    "read-records",
    "write-records",
    "accumulated-backpressured-time",
    "accumulated-idle-time",
    "accumulated-busy-time",
)
UNASSIGNED = "(unassigned)"


def vertex(asked: Asked) -> Document:
    """One vertex with its subtasks."""
    job, found = asked.job, asked.vertex
    subtasks = [_subtask(job, found, i) for i in range(found["parallelism"])]
    return {
        "id": found["id"],
        "name": found["name"],
        "parallelism": found["parallelism"],
        "maxParallelism": found["max_parallelism"],
        "now": job["now"],
        "subtasks": subtasks,
        "aggregated": _aggregated(subtasks),
    }


def _aggregated(subtasks: list[Document]) -> Document:
    durations: dict[str, list[float]] = {state: [] for state in states.TASK_STATES}
    for subtask in subtasks:
        for state, took in subtask["status-duration"].items():
            if took >= 0:
                durations[state].append(took)
    return {
        "metrics": {name: spread_of([subtask["metrics"][name] for subtask in subtasks]) for name in _IO},
        "status-duration": {state: spread_of(took) for state, took in durations.items() if took},
    }


def _endpoint(found: Document, i: int) -> tuple[str, str]:
    columns = found["subtasks"]
    if columns["slot"][i] is None or columns["host"][i] is None:
        return UNASSIGNED, UNASSIGNED
    return f"{columns['host'][i]}:0", columns["slot"][i]


def _subtask(job: Document, found: Document, i: int) -> Document:
    columns, now = found["subtasks"], job["now"]
    deployed, ran, ended = columns["deployed"][i], columns["started"][i], columns["ended"][i]
    endpoint, manager = _endpoint(found, i)
    took: dict[str, int] = {}
    if deployed is not None:
        took["INITIALIZING"] = duration(deployed, ran if ran is not None else ended, now)
    if ran is not None:
        took["RUNNING"] = duration(ran, ended, now)
    start = ms(ran if ran is not None else deployed)
    return {
        "subtask": i,
        "status": columns["status"][i],
        "attempt": columns["attempt"][i],
        "endpoint": endpoint,
        "start-time": start,
        "start_time": start,
        "end-time": ms(ended),
        "duration": duration(None if start < 0 else start, ended, now),
        "metrics": io_metrics(found, [i]),
        "taskmanager-id": manager,
        "status-duration": took,
    }


def subtask(asked: Asked) -> Document:
    """One subtask."""
    return _subtask(asked.job, asked.vertex, asked.subtask)


def _check_attempt(asked: Asked) -> None:
    wanted, present = asked.whole("attempt"), asked.vertex["subtasks"]["attempt"][asked.subtask]
    if wanted != present:
        raise Refused(404, f"attempt {wanted} of subtask {asked.subtask} is not remembered; the last is {present}")


def attempt(asked: Asked) -> Document:
    """One attempt of a subtask."""
    _check_attempt(asked)
    return subtask(asked)


def attempt_accumulators(asked: Asked) -> Document:
    """The counters of one attempt of a subtask."""
    _check_attempt(asked)
    number = asked.whole("attempt")
    return {
        "subtask": asked.subtask,
        "attempt": number,
        "id": public_id("execution", asked.vertex["id"], str(asked.subtask), str(number)),
        "user-accumulators": _accumulators(asked.vertex, [asked.subtask]),
    }


def times(asked: Asked) -> Document:
    """When each subtask entered each state."""
    job, found = asked.job, asked.vertex
    columns = found["subtasks"]
    subtasks = []
    for i in range(found["parallelism"]):
        stamps = dict.fromkeys(states.TASK_STATES, 0)
        deployed, ran, ended = columns["deployed"][i], columns["started"][i], columns["ended"][i]
        stamps["CREATED"] = stamps["SCHEDULED"] = stamps["DEPLOYING"] = stamps["INITIALIZING"] = deployed or 0
        stamps["RUNNING"] = ran or 0
        if ended is not None and columns["status"][i] in stamps:
            stamps[columns["status"][i]] = ended
        subtasks.append(
            {
                "subtask": i,
                "endpoint": _endpoint(found, i)[0],
                "duration": duration(deployed, ended, job["now"]),
                "timestamps": stamps,
            }
        )
    return {"id": found["id"], "name": found["name"], "now": job["now"], "subtasks": subtasks}


def taskmanagers(asked: Asked) -> Document:
    """The subtasks of a vertex by the slot that runs them."""
    job, found = asked.job, asked.vertex
    grouped: dict[str, list[int]] = {}
    for i in range(found["parallelism"]):
        grouped.setdefault(_endpoint(found, i)[1], []).append(i)
    managers = []
    for manager, members in grouped.items():
        subtasks = [_subtask(job, found, i) for i in members]
        status = [found["subtasks"]["status"][i] for i in members]
        starts = [each["start-time"] for each in subtasks if each["start-time"] >= 0]
        ends = [each["end-time"] for each in subtasks]
        start = min(starts, default=None)
        end = max(ends) if ends and min(ends) >= 0 else None
        managers.append(
            {
                "endpoint": subtasks[0]["endpoint"],
                "taskmanager-id": manager,
                "status": states.worst(status),
                "start-time": ms(start),
                "end-time": ms(end),
                "duration": duration(start, end, job["now"]),
                "metrics": io_metrics(found, members),
                "status-counts": {state: status.count(state) for state in states.TASK_STATES},
                "aggregated": _aggregated(subtasks),
            }
        )
    return {"id": found["id"], "name": found["name"], "now": job["now"], "taskmanagers": managers}


def _level(ratio: float) -> str:
    return "ok" if ratio <= 0.1 else "low" if ratio <= 0.5 else "high"


def backpressure(asked: Asked) -> Document:
    """What part of its time each subtask is blocked, idle and busy."""
    job, columns = asked.job, asked.vertex["subtasks"]
    subtasks = []
    for i, blocked in enumerate(columns["blocked"]):
        level = _level(blocked)
        idle = columns["idle"][i]
        subtasks.append(
            {
                "subtask": i,
                "attempt-number": columns["attempt"][i],
                "backpressureLevel": level,
                "backpressure-level": level,
                "ratio": blocked,
                "idleRatio": idle,
                "busyRatio": round(columns["busy"][i] + columns["waiting"][i], 3),
            }
        )
    worst = _level(max(columns["blocked"], default=0.0))
    return {
        "status": "ok",
        "backpressureLevel": worst,
        "backpressure-level": worst,
        "end-timestamp": job["now"],
        "subtasks": subtasks,
    }


NO_WATERMARK = -(2**63)


def watermarks(asked: Asked) -> list[Document]:
    """The watermark of each subtask; none of a source."""
    found = asked.vertex
    if found["is_source"]:
        return []
    return [
        {"id": f"{i}.currentInputWatermark", "value": str(NO_WATERMARK if time is None else time)}
        for i, time in enumerate(found["subtasks"]["watermark_ms"])
    ]


def _accumulators(found: Document, members: Any) -> list[Document]:
    totals: dict[str, float] = {}
    for i in members:
        for name, value in found["subtasks"]["other"][i].items():
            totals[name] = totals.get(name, 0) + value
    return [{"name": name, "type": "LongCounter", "value": str(int(value))} for name, value in totals.items()]


def accumulators(asked: Asked) -> Document:
    """The counters of a vertex."""
    found = asked.vertex
    return {"id": found["id"], "user-accumulators": _accumulators(found, range(found["parallelism"]))}


def subtask_accumulators(asked: Asked) -> Document:
    """The counters of each subtask of a vertex."""
    found = asked.vertex
    return {
        "id": found["id"],
        "parallelism": found["parallelism"],
        "subtasks": [
            {
                "subtask": i,
                "attempt": found["subtasks"]["attempt"][i],
                "endpoint": _endpoint(found, i)[0],
                "user-accumulators": _accumulators(found, [i]),
            }
            for i in range(found["parallelism"])
        ],
    }


def flamegraph(asked: Asked) -> Document:
    """Flame graphs are switched off."""
    _ = asked.vertex
    kind = asked.query.get("type", "FULL")
    if kind not in ("FULL", "ON_CPU", "OFF_CPU"):
        raise Refused(400, f'Cannot resolve query parameter (type) from value "{kind}".')
    return {"endTimestamp": -2}

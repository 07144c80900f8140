"""The answers of Flink's monitoring API about one job, with a source and a window of two subtasks each."""

from __future__ import annotations

from typing import Any

JOB = "a" * 32
SOURCE, WINDOW = "b" * 32, "c" * 32
NOW = 1_700_000_000_000
REQUEST = "d" * 32

CHECKPOINT: dict[str, Any] = {
    "className": "completed",
    "id": 12,
    "status": "COMPLETED",
    "is_savepoint": False,
    "savepointFormat": None,
    "trigger_timestamp": NOW,
    "latest_ack_timestamp": NOW + 2_100,
    "checkpointed_size": 1_000,
    "state_size": 5_000,
    "end_to_end_duration": 2_100,
    "alignment_buffered": 0,
    "processed_data": 0,
    "persisted_data": 0,
    "num_subtasks": 4,
    "num_acknowledged_subtasks": 4,
    "checkpoint_type": "CHECKPOINT",
    "tasks": {SOURCE: {}, WINDOW: {}},
    "external_path": "/checkpoints/chk-12",
    "discarded": False,
}
CHECKPOINTS = {
    "counts": {"restored": 1, "total": 13, "in_progress": 0, "completed": 12, "failed": 1},
    "latest": {"completed": CHECKPOINT, "savepoint": None, "failed": None, "restored": None},
    "history": [CHECKPOINT],
}
DETAILS = {
    "jid": JOB,
    "name": "counts",
    "state": "RUNNING",
    "maxParallelism": 128,
    "vertices": [
        {"id": SOURCE, "name": "Source: clicks", "parallelism": 2, "metrics": {"write-records": 70, "read-records": 0}},
        {"id": WINDOW, "name": "window", "parallelism": 2, "metrics": {"write-records": 0, "read-records": 60}},
    ],
    "plan": {
        "nodes": [
            {"id": SOURCE},
            {"id": WINDOW, "inputs": [{"num": 0, "id": SOURCE, "ship_strategy": "HASH"}]},
        ]
    },
}
FAILURE = {
    "exceptionName": "ValueError",
    "stacktrace": "ValueError: no\n  at x",
    "timestamp": NOW,
    "taskName": "window (1/2)",
}


def _subtask(index: int, delay: int, alignment: int = 0) -> dict[str, Any]:
    return {
        "className": "completed",
        "index": index,
        "status": "completed",
        "ack_timestamp": NOW + delay + alignment + 10,
        "end_to_end_duration": delay + alignment + 10,
        "checkpointed_size": 250,
        "state_size": 1_250,
        "checkpoint": {"sync": 1, "async": 9},
        "alignment": {"buffered": 0, "processed": 0, "persisted": 0, "duration": alignment},
        "start_delay": delay,
        "unaligned_checkpoint": False,
        "aborted": False,
    }


def _of_vertex(vertex: str) -> dict[str, Any]:
    subtasks = [_subtask(0, 2), _subtask(1, 3)] if vertex == SOURCE else [_subtask(0, 10, 1_990), _subtask(1, 15)]
    return {"id": vertex, "status": "COMPLETED", "end_to_end_duration": 2_000, "subtasks": subtasks}


def _vertex(vertex: str) -> dict[str, Any]:
    rows = (30, 40)
    name = "write-records" if vertex == SOURCE else "read-records"
    numbers = {"read-records": 0, "write-records": 0, "accumulated-busy-time": "NaN", "accumulated-idle-time": 5}
    return {"subtasks": [{"subtask": n, "metrics": {**numbers, name: rows[n]}} for n in range(2)]}


def answer(method: str, path: str) -> tuple[int, Any]:
    """The status and the body of an answer."""
    path = path.partition("?")[0]
    job = f"/jobs/{JOB}"
    done = {"status": {"id": "COMPLETED"}}
    cause = {"failure-cause": {"class": "RescaleFailed", "stack-trace": "there are only 4 cores\n"}}
    known: dict[tuple[str, str], Any] = {
        ("GET", "/jobs/overview"): {"jobs": [{"jid": JOB, "name": "counts", "state": "RUNNING", "end-time": -1}]},
        ("GET", job): DETAILS,
        ("GET", f"{job}/checkpoints"): CHECKPOINTS,
        ("GET", f"{job}/checkpoints/details/12"): CHECKPOINT,
        ("GET", f"{job}/exceptions"): {"exceptionHistory": {"entries": [FAILURE], "truncated": False}},
        ("GET", "/taskmanagers"): {"taskmanagers": [{"id": "slot-0.1.0"}]},
        ("GET", "/taskmanagers/slot-0.1.0/log"): "a line\nanother\n",
        ("GET", f"{job}/checkpoints/{REQUEST}"): {**done, "operation": {"checkpointId": 13}},
        ("GET", f"{job}/savepoints/{REQUEST}"): {**done, "operation": {"location": "/save/savepoint-1"}},
        ("GET", f"{job}/rescaling/{REQUEST}"): {**done, "operation": cause},
        ("PATCH", job): {},
    }
    known |= {("GET", f"{job}/vertices/{v}"): _vertex(v) for v in (SOURCE, WINDOW)}
    known |= {("GET", f"{job}/checkpoints/details/12/subtasks/{v}"): _of_vertex(v) for v in (SOURCE, WINDOW)}
    known |= {("POST", f"{job}/{what}"): {"request-id": REQUEST} for what in ("checkpoints", "savepoints", "stop")}
    known[("PATCH", f"{job}/rescaling")] = {"request-id": REQUEST}
    if (method, path) not in known:
        return 404, {"errors": [f"nothing is at {path}"]}
    return (200 if method == "GET" else 202), known[(method, path)]

"""Answers about checkpoints."""

from __future__ import annotations

from typing import Any

from penstock.web.answers.asking import Asked, Document, Refused, ms, spread
from penstock.web.answers.jobs import LONG
from penstock.web.ids import is_id


def checkpoints(asked: Asked) -> Document:
    """All checkpoints of a job, without their vertices."""
    job = asked.job
    found = job["checkpoints"]
    summary, counts, now = found["summary"], found["counts"], job["now"]
    count = counts["completed"]
    return {
        "counts": {name: counts[name] for name in ("restored", "total", "in_progress", "completed", "failed")},
        "summary": {
            "checkpointed_size": spread(summary["checkpointed_bytes"], count=count),
            "state_size": spread(summary["state_bytes"], count=count),
            "end_to_end_duration": spread(summary["duration_ms"], count=count),
            "alignment_buffered": spread(dict.fromkeys(summary["duration_ms"], 0), count=count),
            "processed_data": spread(summary["processed_bytes"], count=count),
            "persisted_data": spread(summary["persisted_bytes"], count=count),
        },
        "latest": {
            "completed": _checkpoint(found["latest_completed"], now),
            "savepoint": _checkpoint(found["latest_savepoint"], now),
            "failed": _checkpoint(found["latest_failed"], now),
            "restored": _restored(found["latest_restored"]),
        },
        "history": [_checkpoint(each, now) for each in found["history"]],
    }


def _restored(found: Document | None) -> Document | None:
    if found is None:
        return None
    return {
        "id": found["checkpoint"],
        "restore_timestamp": found["restored"],
        "is_savepoint": found["is_savepoint"],
        "external_path": found["path"],
    }


def _checkpoint(found: Document | None, now: int) -> Document | None:
    if found is None:
        return None
    status = found["status"]
    kind = "CHECKPOINT"
    if found["is_savepoint"]:
        kind = "SYNC_SAVEPOINT" if found["kind"] in ("SUSPEND", "TERMINATE") else "SAVEPOINT"
    elif found["unaligned"]:
        kind = "UNALIGNED_CHECKPOINT"
    answer: Document = {
        "className": status.lower(),
        "id": found["checkpoint"],
        "status": status,
        "is_savepoint": found["is_savepoint"],
        "savepointFormat": ("CANONICAL" if found["canonical"] else "NATIVE") if found["is_savepoint"] else None,
        "trigger_timestamp": found["triggered"],
        "checkpoint_type": kind,
        "tasks": {},
        **_sums(
            found,
            found["duration_ms"] if status == "COMPLETED" else max(0, (found["ended"] or now) - found["triggered"]),
        ),
    }
    if status == "COMPLETED":
        answer |= {"external_path": found["path"] or "", "discarded": found["discarded"]}
    elif status == "FAILED":
        answer |= {"failure_timestamp": ms(found["ended"]), "failure_message": found["failure_text"]}
    return answer


def _sums(found: Document, duration_ms: int) -> Document:
    return {
        "latest_ack_timestamp": ms(found["latest_ack"]),
        "checkpointed_size": found["checkpointed_bytes"],
        "state_size": found["state_bytes"],
        "end_to_end_duration": duration_ms,
        "alignment_buffered": 0,
        "processed_data": found["processed_bytes"],
        "persisted_data": found["persisted_bytes"],
        "num_subtasks": found["num_subtasks"],
        "num_acknowledged_subtasks": found["num_acknowledged"],
    }


def config(asked: Asked) -> Document:
    """The settings of the job's checkpoints."""
    settings = asked.job["settings"]
    given: dict[str, Any] = settings.get("checkpoint", {})
    interval = given.get("interval_ms")
    retention = str(given.get("retention", "keep"))
    return {
        "mode": "at_least_once" if "least" in str(given.get("mode", "")) else "exactly_once",
        "interval": LONG if interval is None else interval,
        "timeout": given.get("timeout_ms", 0),
        "min_pause": given.get("min_pause_ms", 0),
        "max_concurrent": given.get("max_concurrent", 1),
        "externalization": {"enabled": retention != "delete", "delete_on_cancellation": retention != "keep"},
        "state_backend": str(settings.get("state", {}).get("backend", "memory")),
        "checkpoint_storage": str(settings.get("penstock-checkpoint-directory") or "temporary folder"),
        "unaligned_checkpoints": bool(given.get("unaligned", False)),
        "tolerable_failed_checkpoints": given.get("tolerable_failures") or 0,
        "aligned_checkpoint_timeout": given.get("aligned_timeout_ms") or 0,
        "checkpoints_after_tasks_finish": bool(given.get("after_tasks_finish", True)),
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": LONG,
        "changelog_storage": "none",
    }


def details(asked: Asked) -> Document:
    """One checkpoint with its vertices."""
    job, found = asked.job, asked.checkpoint
    answer = _checkpoint(found, job["now"])
    assert answer is not None
    answer["tasks"] = {vertex["vertex"]: _task(vertex, found, job["now"]) for vertex in found["vertices"]}
    return answer


def _task(vertex: Document, found: Document, now: int) -> Document:
    duration_ms = vertex["duration_ms"]
    if vertex["status"] == "IN_PROGRESS":
        duration_ms = max(0, now - found["triggered"])
    return {
        "id": found["checkpoint"],
        "status": vertex["status"],
        **_sums(vertex, duration_ms),
    }


def subtasks(asked: Asked) -> Document:
    """The part of each subtask of one vertex in a checkpoint."""
    found, wanted = asked.checkpoint, asked.path["vertexid"]
    if not is_id(wanted):
        raise Refused(400, f'Cannot resolve path parameter (vertexid) from value "{wanted}".')
    vertex = next((v for v in found["vertices"] if v["vertex"] == wanted), None)
    if vertex is None:
        raise Refused(404, f"vertex {wanted} took no part in checkpoint {found['checkpoint']}")
    summary, columns = vertex["summary"], vertex["subtasks"]
    count = vertex["num_acknowledged"]

    def of(name: str) -> Document:
        return spread(summary[name], count=count)

    nothing = spread(dict.fromkeys(summary["sync_ms"], 0), count=count)
    return {
        **_task(vertex, found, asked.job["now"]),
        "summary": {
            "checkpointed_size": of("checkpointed_bytes"),
            "state_size": of("state_bytes"),
            "end_to_end_duration": of("durations_ms"),
            "checkpoint_duration": {"sync": of("sync_ms"), "async": of("async_ms")},
            "alignment": {
                "buffered": nothing,
                "processed": of("processed_bytes"),
                "persisted": of("persisted_bytes"),
                "duration": of("alignment_ms"),
            },
            "start_delay": of("start_delay_ms"),
        },
        "subtasks": [_subtask(columns, i) for i in range(len(columns["subtask"]))],
    }


def _subtask(columns: Document, i: int) -> Document:
    index, acknowledged = columns["subtask"][i], columns["acknowledged"][i]
    if acknowledged is None:
        return {"className": "pending", "index": index, "status": "pending_or_failed"}
    return {
        "className": "completed",
        "index": index,
        "status": "completed",
        "ack_timestamp": acknowledged,
        "end_to_end_duration": columns["duration_ms"][i],
        "checkpointed_size": columns["checkpointed_bytes"][i],
        "state_size": columns["state_bytes"][i],
        "checkpoint": {"sync": round(columns["sync_ms"][i]), "async": round(columns["async_ms"][i])},
        "alignment": {
            "buffered": 0,
            "processed": columns["processed_bytes"][i],
            "persisted": columns["persisted_bytes"][i],
            "duration": columns["alignment_ms"][i],
        },
        "start_delay": columns["start_delay_ms"][i],
        "unaligned_checkpoint": columns["unaligned"][i],
        "aborted": columns["aborted"][i],
    }

"""Documents of jobs, as the page of a driver makes them, with the parts that metrics are made of."""

from __future__ import annotations

from typing import Any

NOW = 1_763_000_000_000


def job_document(**changes: Any) -> dict[str, Any]:
    """A running job with a source and a window, of two subtasks each."""
    return {
        "id": "0" * 32,
        "job": "orders-0123abcd",
        "name": "orders",
        "now": NOW,
        "state": "running",
        "started": NOW - 90_000,
        "ended": None,
        "restarts": 3,
        "parallelism": 2,
        "rows": {"in": 70, "read": 100, "out": 40},
        "watermark_ms": NOW - 2_500,
        "dropped": {"late": 5, "timeless": 0, "beyond_time": 0, "lines_skipped": 1},
        "vertices": [vertex("bids", rows_in=[30, 40]), vertex("bids.window", rows_in=[7, 9])],
        "checkpoints": {
            "counts": {"restored": 1, "total": 9, "in_progress": 1, "completed": 7, "failed": 1},
            "latest_completed": {
                "checkpoint": 8,
                "triggered": NOW - 4_000,
                "duration_ms": 250,
                "checkpointed_bytes": 1_000,
                "state_bytes": 5_000,
                "persisted_bytes": 0,
            },
        },
        "at_risk": {"records": 12, "since_ms": 4_000, "checkpoint": 8},
        "slots": [{"id": "slot-0.1.0", "host": "here", "process": {"rss_bytes": 1e8, "cpu_s": 3.5}}],
        "stuck": [],
        **changes,
    }


def vertex(key: str, **columns: Any) -> dict[str, Any]:
    """A vertex of two subtasks."""
    numbers = ("rows_in", "rows_out", "bytes_in", "bytes_out", "queued_bytes", "waiting_bytes")
    times = ("busy_ms", "waiting_ms", "blocked_ms", "idle_ms")
    return {
        "key": key,
        "name": key,
        "parallelism": 2,
        "subtasks": {
            **{name: [0, 0] for name in numbers},
            **{name: [1_000, 2_000] for name in times},
            "watermark_ms": [NOW, None],
            "other": [{}, {}],
            **columns,
        },
    }

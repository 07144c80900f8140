"""The last day of a job in numbers: ten minutes by the second, and 24 hours by the minute.

A page that is opened after something has happened still shows it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

Document = dict[str, Any]

SECONDS_KEPT = 600
MINUTES_KEPT = 1_440
Point = dict[str, float | None]


def point_of(document: Document) -> Point:
    """The numbers of a job at one moment."""
    vertices, latest = document["vertices"], document["checkpoints"]["latest_completed"]
    watermark = document["watermark_ms"]
    found: Point = {
        "rows_in_per_s": document["rates"]["rows_in_per_s"],
        "rows_out_per_s": document["rates"]["rows_out_per_s"],
        "busy": max((v["shares"]["busy"]["max"] for v in vertices), default=0.0),
        "blocked": max((v["shares"]["blocked"]["max"] for v in vertices), default=0.0),
        "lag_ms": None if watermark is None else document["now"] - watermark,
        "state_bytes": None if latest is None else latest["state_bytes"],
        "checkpoint_ms": None if latest is None else latest["duration_ms"],
        "restarts": document["restarts"],
        "at_risk": document["at_risk"]["records"],
    }
    for vertex in vertices:
        found[f"{vertex['id']}.rows_in_per_s"] = vertex["rates"]["rows_in"]
        found[f"{vertex['id']}.busy"] = vertex["shares"]["busy"]["max"]
        found[f"{vertex['id']}.blocked"] = vertex["shares"]["blocked"]["max"]
    return found


class History:
    """The numbers of one job over time."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Point]] = deque(maxlen=SECONDS_KEPT)
        self._minutes: deque[tuple[int, Point]] = deque(maxlen=MINUTES_KEPT)
        self._minute: list[Point] = []
        """The points of the minute that is not over."""

    def add(self, when: int, point: Point) -> None:
        """Take the numbers of a moment in; called about once a second."""
        if self._seconds and when <= self._seconds[-1][0]:
            return
        if self._seconds and when // 60_000 != self._seconds[-1][0] // 60_000:
            self._minutes.append((self._seconds[-1][0] // 60_000 * 60_000, _mean(self._minute)))
            self._minute = []
        self._seconds.append((when, point))
        self._minute.append(point)

    def told(self) -> Document:
        """All numbers, in columns: one list of times, and one list per series."""
        return {"seconds": _columns(self._seconds), "minutes": _columns(self._minutes)}


def _mean(points: list[Point]) -> Point:
    """The mean of each series over the points that have it."""
    found: dict[str, list[float]] = {}
    for point in points:
        for name, value in point.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: round(sum(values) / len(values), 3) for name, values in found.items()}


def _columns(points: deque[tuple[int, Point]]) -> Document:
    names = dict.fromkeys(name for _, point in points for name in point)
    return {
        "times": [when for when, _ in points],
        "series": {name: [point.get(name) for _, point in points] for name in names},
    }

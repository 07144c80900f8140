"""What all answers share: refusals, the documents that are asked, spreads of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.web.ids import is_id

Document = dict[str, Any]

NOT_A_NUMBER = "NaN"
"""What stands for a number that does not exist: JSON has no such number."""


class Refused(Exception):
    """A request that is not answered, with the status and with what the asker is told."""

    def __init__(self, status: int, *texts: str) -> None:
        super().__init__(*texts)
        self.status = status
        self.texts = texts


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request: the documents of all jobs, and what the request says."""

    documents: Mapping[str, Document]
    """By the id of the job, the newest job first."""
    about: Mapping[str, Any]
    """The server: its version, the settings of the process, the numbers of the driver's process."""
    history: Callable[[str], Document] = lambda _job: {}
    """The numbers of a job over time, by the id of the job."""
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def job(self) -> Document:
        """The document of the job that the path names."""
        return self._found("jobid", self.documents, "Job")

    @property
    def vertex(self) -> Document:
        """The vertex that the path names."""
        return self._found("vertexid", {v["id"]: v for v in self.job["vertices"]}, "Job vertex")

    @property
    def subtask(self) -> int:
        """The subtask that the path names."""
        number, vertex = self.whole("subtaskindex"), self.vertex
        if number >= vertex["parallelism"]:
            raise Refused(404, f"vertex {vertex['name']} has no subtask {number}")
        return number

    @property
    def checkpoint(self) -> Document:
        """The checkpoint that the path names, with its subtasks."""
        number = self.whole("checkpointid")
        found = self.job["checkpoint_details"].get(str(number))
        if found is None:
            raise Refused(404, f"checkpoint {number} is not remembered")
        return dict(found)

    def whole(self, name: str) -> int:
        """A whole number of the path, from 0."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise Refused(400, f'Cannot resolve path parameter ({name}) from value "{text}".')
        return int(text)

    def limit(self, name: str, default: int) -> int:
        """A whole number of the query, from 0."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise Refused(400, f'Cannot resolve query parameter ({name}) from value "{text}".')
        return int(text)

    def _found(self, name: str, known: Mapping[str, Document], what: str) -> Document:
        given = self.path[name]
        if not is_id(given):
            raise Refused(400, f'Cannot resolve path parameter ({name}) from value "{given}".')
        if given not in known:
            raise Refused(404, f"{what} {given} not found")
        return known[given]


def ms(time: int | None) -> int:
    """A time, with -1 for a time that is not known or has not come."""
    return -1 if time is None else time


def duration(start: int | None, end: int | None, now: int) -> int:
    """How long something has taken; -1 if it has not begun."""
    return -1 if start is None else max(0, (now if end is None else end) - start)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of sorted values lies."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """How the numbers of subtasks are spread, as answers about vertices say it."""
    ordered = sorted(values) or [0]
    middle = {name: quantile(ordered, share) for name, share in (("median", 0.5), ("p25", 0.25), ("p75", 0.75))}
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "avg": int(sum(ordered) / len(ordered)),
        "sum": sum(ordered),
        **middle,
        "p95": quantile(ordered, 0.95),
    }


def spread(found: Mapping[str, float], *, count: int) -> Document:
    """A spread as answers about checkpoints say it. `count` is the number of values."""
    percentiles = ("p50", "p90", "p95", "p99", "p999")
    return {
        "min": round(found["min"]),
        "max": round(found["max"]),
        "avg": round(found["avg"]),
        **{name: float(found[name]) if count else NOT_A_NUMBER for name in percentiles},
    }

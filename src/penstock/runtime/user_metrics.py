"""The metrics that users' functions report, over all subtasks of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.api.metrics import BELOW, USER, VALUE


@dataclass(frozen=True, kw_only=True)
class UserMetric:
    """One metric of a step, over all its subtasks, in the running attempt."""

    kind: str
    """`counter`, `gauge` or `histogram`."""
    total: float
    """The sum over the subtasks: of the values of a counter or of a gauge, or of the number of values of a
    histogram."""
    by_subtask: dict[int, float]
    """What each subtask has reported."""
    sum: float = 0.0
    """Of a histogram: the sum of all values."""
    min: float = 0.0
    max: float = 0.0
    below: dict[float, float] = field(default_factory=dict)
    """Of a histogram: how many values were at most this large."""

    @property
    def mean(self) -> float:
        """The mean of the values of a histogram, or of what the subtasks have reported."""
        if self.kind == "histogram":
            return self.sum / self.total if self.total else 0.0
        return self.total / len(self.by_subtask) if self.by_subtask else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedPart:
    """One number of a metric of one subtask."""

    operator: str
    kind: str
    name: str
    part: str
    subtask: int
    value: float


def reported_parts(tasks: Mapping[str, Mapping[str, float]]) -> Iterator[ReportedPart]:
    """Every number of users' metrics among the totals of tasks, which are given by task id."""
    for task, totals in tasks.items():
        subtask = int(task.rpartition("[")[2].rstrip("]"))
        for key, value in totals.items():
            if key.startswith(f"{USER}/"):
                operator, kind, name, part = key[len(USER) + 1 :].rsplit("/", 3)
                yield ReportedPart(operator=operator, kind=kind, name=name, part=part, subtask=subtask, value=value)


def user_metrics(tasks: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, UserMetric]]:
    """The metrics by operator and name."""
    found: dict[tuple[str, str, str], dict[str, dict[int, float]]] = {}
    for each in reported_parts(tasks):
        parts = found.setdefault((each.operator, each.name, each.kind), {})
        parts.setdefault(each.part, {})[each.subtask] = each.value
    metrics: dict[str, dict[str, UserMetric]] = {}
    for (operator, name, kind), parts in sorted(found.items()):
        metrics.setdefault(operator, {})[name] = _metric(kind, parts)
    return metrics


def _metric(kind: str, parts: Mapping[str, dict[int, float]]) -> UserMetric:
    if kind != "histogram":
        values = parts[VALUE]
        return UserMetric(kind=kind, total=sum(values.values()), by_subtask=values)
    counts = parts["count"]
    # A subtask that has recorded no value has no least value.
    used = [subtask for subtask, count in counts.items() if count]
    return UserMetric(
        kind=kind,
        total=sum(counts.values()),
        by_subtask=counts,
        sum=sum(parts["sum"].values()),
        min=min((parts["min"][subtask] for subtask in used), default=0.0),
        max=max((parts["max"][subtask] for subtask in used), default=0.0),
        below={
            float(part.removeprefix(BELOW)): sum(values.values())
            for part, values in parts.items()
            if part.startswith(BELOW)
        },
    )

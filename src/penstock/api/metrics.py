"""The metrics of a user's function: counters, gauges and histograms of one subtask.

A metric is a few numbers in the process of its subtask. Slots report the numbers twice a second, with everything else
that they report about their tasks. The numbers begin at zero when the subtask begins, also after a restart: they are
for people who look at a job, and are no state.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeVar

from penstock.core.errors import UsageError

MOST_METRICS = 100
"""So many metrics may a function have. A metric per key would be reported for each key, twice a second."""
MOST_BUCKETS = 50
DEFAULT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
USER = "user"
"""Where the names of users' metrics begin among the totals of a task: `user/<operator>/<kind>/<name>/<part>`."""
VALUE = "value"
BELOW = "le-"
"""A part of a histogram: how many values were at most this large."""

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")


class Counter:
    """A number that only grows."""

    kind = "counter"

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, count: float = 1) -> None:
        """Add a number that is not negative."""
        if count < 0:
            raise UsageError(f"a counter cannot go down by {-count}", hint="use a gauge")
        self.value += count

    def parts(self) -> dict[str, float]:
        """The numbers of the metric, by name."""
        return {VALUE: self.value}


class Gauge:
    """A number that goes up and down."""

    kind = "gauge"

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Set the number."""
        self.value = float(value)

    def add(self, change: float) -> None:
        """Add to the number, or, with a negative `change`, take from it."""
        self.value += change

    def parts(self) -> dict[str, float]:
        """The numbers of the metric, by name."""
        return {VALUE: self.value}


class Histogram:
    """How large the recorded values are: their number, their sum, the least and the largest of them, and how many are
    at most as large as each bound."""

    kind = "histogram"

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0
        self._least = 0.0
        self._largest = 0.0

    def record(self, value: float) -> None:
        """Record a value."""
        if not any(self._counts):
            self._least = self._largest = value
        elif value < self._least:
            self._least = value
        elif value > self._largest:
            self._largest = value
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def parts(self) -> dict[str, float]:
        """The numbers of the metric, by name."""
        found: dict[str, float] = {"sum": self._sum, "min": self._least, "max": self._largest}
        below = 0
        for bound, count in zip(self.bounds, self._counts, strict=False):
            below += count
            found[f"{BELOW}{bound!r}"] = below
        found["count"] = below + self._counts[-1]
        return found


MetricT = TypeVar("MetricT", Counter, Gauge, Histogram)


class Metrics:
    """The metrics of one subtask of a function. A name stands for one metric: the second call with a name returns the
    same metric, so that a function may ask for a metric in each call or keep it in an attribute."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str) -> Counter:
        """A number that only grows: `context.metrics.counter("rejected").add()`."""
        found = self._metrics.get(name)
        return found if type(found) is Counter else self._made(name, found, Counter())

    def gauge(self, name: str) -> Gauge:
        """A number that goes up and down: `context.metrics.gauge("open").set(12)`."""
        found = self._metrics.get(name)
        return found if type(found) is Gauge else self._made(name, found, Gauge())

    def histogram(self, name: str, *, buckets: Sequence[float] = DEFAULT_BUCKETS) -> Histogram:
        """How large values are: `context.metrics.histogram("seconds").record(0.7)`. `buckets` are the bounds, in
        order, that values are compared with; the first call for a name decides."""
        found = self._metrics.get(name)
        if type(found) is Histogram:
            return found
        bounds = [float(bound) for bound in buckets]
        if not bounds or len(bounds) > MOST_BUCKETS or bounds != sorted(set(bounds)):
            raise UsageError(
                f"the buckets of histogram {name!r} are {list(buckets)}",
                hint=f"give from 1 to {MOST_BUCKETS} numbers, each larger than the one before",
            )
        return self._made(name, found, Histogram(bounds))

    def _made(self, name: str, found: Counter | Gauge | Histogram | None, metric: MetricT) -> MetricT:
        if found is not None:
            raise UsageError(f"metric {name!r} is a {found.kind}, and cannot be a {metric.kind}, too")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name for a metric", hint="use letters, digits and _, and begin with a letter"
            )
        if len(self._metrics) >= MOST_METRICS:
            raise UsageError(
                f"a function may have {MOST_METRICS} metrics, and {name!r} would be one more",
                hint="use a name for all keys alike: what belongs to a key is state",
            )
        self._metrics[name] = metric
        return metric

    def totals(self) -> dict[str, float]:
        """All numbers, by name, to be reported with the totals of the task."""
        return {
            f"{USER}/{self._operator}/{metric.kind}/{name}/{part}": value
            # A copy: the function may make metrics in another thread, where it is opened.
            for name, metric in list(self._metrics.items())
            for part, value in metric.parts().items()
        }

"""The metrics of a function: what they count, and what is refused."""

from __future__ import annotations

import pytest

from penstock.api.metrics import MOST_BUCKETS, MOST_METRICS, Metrics
from penstock.core.errors import UsageError
from penstock.runtime.user_metrics import user_metrics


@pytest.fixture
def metrics():
    return Metrics("score")


def test_a_name_stands_for_one_metric(metrics):
    metrics.counter("seen").add()
    metrics.counter("seen").add(2)
    metrics.gauge("open").set(5)
    metrics.gauge("open").add(-2)
    assert metrics.totals() == {"user/score/counter/seen/value": 3, "user/score/gauge/open/value": 3}


def test_a_histogram_counts_values_up_to_each_bound(metrics):
    for value in (0.5, 1, 1.5, 99):
        metrics.histogram("seconds", buckets=(1, 2)).record(value)
    parts = {name.rpartition("/")[2]: value for name, value in metrics.totals().items()}
    assert parts == {"sum": 102.0, "min": 0.5, "max": 99, "le-1.0": 2, "le-2.0": 3, "count": 4}


def test_the_largest_of_falling_values_is_the_first(metrics):
    for value in (-1, -5, -3):
        metrics.histogram("change").record(value)
    parts = metrics.histogram("change").parts()
    assert (parts["min"], parts["max"], parts["count"]) == (-5, -1, 3)


@pytest.mark.parametrize("name", ["", "a b", "1st", "a/b", "x" * 101, 7])
def test_a_name_that_no_system_of_metrics_takes_is_refused(metrics, name):
    with pytest.raises(UsageError, match="no name for a metric"):
        metrics.counter(name)


def test_what_a_counter_or_a_histogram_cannot_do_is_refused(metrics):
    with pytest.raises(UsageError, match="cannot go down"):
        metrics.counter("seen").add(-1)
    with pytest.raises(UsageError, match="is a counter, and cannot be a gauge"):
        metrics.gauge("seen")
    for buckets in ((), (2, 1), (1, 1), range(MOST_BUCKETS + 1)):
        with pytest.raises(UsageError, match="buckets"):
            metrics.histogram("seconds", buckets=buckets)


def test_a_metric_per_key_is_refused_before_there_are_many(metrics):
    for number in range(MOST_METRICS):
        metrics.counter(f"key_{number}").add()
    metrics.counter("key_7").add()
    with pytest.raises(UsageError, match="one more"):
        metrics.counter("another")


def test_the_metrics_of_all_subtasks_are_added_up():
    tasks = {}
    for subtask, values in enumerate([(1, 9), (), (4,)]):
        metrics = Metrics("a.b/c")
        metrics.counter("seen").add(10 + subtask)
        for value in values:
            metrics.histogram("size", buckets=(5,)).record(value)
        metrics.histogram("size", buckets=(5,))
        tasks[f"v[{subtask}]"] = {"rows_in": 7, **metrics.totals()}
    found = user_metrics(tasks)["a.b/c"]
    assert (found["seen"].kind, found["seen"].total, found["seen"].by_subtask) == ("counter", 33, {0: 10, 1: 11, 2: 12})
    size = found["size"]
    assert (size.total, size.sum, size.min, size.max, size.below) == (3, 14, 1, 9, {5.0: 2})
    assert size.mean == pytest.approx(14 / 3)
    assert user_metrics({"v[0]": {"rows_in": 1}}) == {}

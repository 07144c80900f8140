"""Aggregates over windows: two steps with an exchange between them, and columns that are known beforehand."""

from __future__ import annotations

import pytest

from penstock.api.aggregates import AggregateCall, count, max, mean, min, sum  # noqa: A004
from penstock.api.steps import Aggregate, CombineStep, LateRecords, WindowStep
from penstock.api.windows import TumblingWindow, tumbling
from penstock.core.errors import UsageError
from penstock.plan.graph import Partitioning


@pytest.fixture
def timed(bids):
    return bids.watermark("ts", delay="4s")


def columns(stream):
    return {field.name: str(field.type) for field in stream.schema}


def test_a_window_is_combined_before_the_exchange_and_merged_behind_it(program, timed, make_sink):
    result = timed.key_by("auction", "bidder").window(tumbling("10s")).aggregate(n=count(), top=max("price"))
    result.write(make_sink())
    before, behind = program.plan().vertices
    aggregates = (
        Aggregate(name="n", kind="count", column=None),
        Aggregate(name="top", kind="max", column="price"),
    )
    window = TumblingWindow(size_us=10_000_000)
    combine, merge = before.operators[-1].step, behind.operators[0].step
    assert combine == CombineStep(
        keys=("auction", "bidder"), time_column="ts", window=window, aggregates=aggregates, schema=combine.schema
    )
    late = LateRecords(time_column="ts", schema=timed.schema)
    assert merge == WindowStep(
        keys=("auction", "bidder"), window=window, aggregates=aggregates, schema=result.schema, late=late
    )
    (edge,) = program.plan().edges
    assert (edge.partitioning, edge.keys) == (Partitioning.HASH, ("auction", "bidder"))
    assert set(edge.keys) <= set(combine.schema.names)


def test_the_result_has_the_keys_the_window_and_the_aggregates(timed):
    result = timed.key_by("auction").window(tumbling("10s"))
    made = result.aggregate(n=count("price"), least=min("price"), all=sum("price"), usual=mean("price"))
    assert columns(made) == {
        "auction": "int64",
        "window_start": "timestamp[us, tz=UTC]",
        "window_end": "timestamp[us, tz=UTC]",
        "n": "int64",
        "least": "int64",
        "all": "int64",
        "usual": "double",
    }


def test_behind_a_rebalance_the_combine_step_is_dealt_out(program, timed, make_sink):
    timed.rebalance().key_by("auction").window(tumbling("10s")).aggregate(n=count()).write(make_sink())
    plan = program.plan()
    assert [edge.partitioning for edge in plan.edges] == [Partitioning.REBALANCE, Partitioning.HASH]
    assert [vertex.name for vertex in plan.vertices] == ["bids → watermark", "combine", "window → picky"]


def test_results_have_no_event_time_until_they_get_one(timed):
    first = timed.key_by("auction").window(tumbling("10s")).aggregate(n=count())
    with pytest.raises(UsageError) as caught:
        first.key_by("auction").window(tumbling("1 min"))
    assert "the event time in 'ts' ended with 'window' made at test_windowed_streams.py:" in caught.value.message
    assert caught.value.hint == 'add .watermark("window_start", delay="5s") before key_by'
    first.watermark("window_start").key_by("auction").window(tumbling("1 min")).aggregate(n=sum("n"))


@pytest.mark.parametrize(
    ("aggregates", "fact"),
    [
        ({}, "a window needs at least one aggregate"),
        ({"n": 5}, "aggregate: n is 5, which is no aggregate"),
        ({"n": count}, "which is no aggregate"),
        ({"top": max("prise")}, "column 'prise' does not exist"),
        ({"all": sum("ts")}, "has no sum"),
        ({"auction": count()}, "two columns named 'auction'"),
        ({"window_end": count()}, "two columns named 'window_end'"),
    ],
)
def test_wrong_aggregates_are_refused_and_leave_no_step_behind(program, timed, make_sink, aggregates, fact):
    with pytest.raises(UsageError) as caught:
        timed.key_by("auction").window(tumbling("10s")).aggregate(**aggregates)
    assert fact in caught.value.message
    timed.write(make_sink())
    assert [vertex.name for vertex in program.plan().vertices] == ["bids → watermark → picky"]


def test_a_window_must_be_one(timed):
    with pytest.raises(UsageError) as caught:
        timed.key_by("auction").window("10s")
    assert caught.value.message == "window takes a window, not '10s'"
    assert caught.value.hint == 'for example tumbling("10s")'


def test_tumbling_windows_are_exact():
    assert tumbling("1.5s") == TumblingWindow(size_us=1_500_000)
    assert tumbling("1d", offset="22h") == TumblingWindow(size_us=86_400_000_000, offset_us=79_200_000_000)


@pytest.mark.parametrize(
    ("use", "fact"),
    [
        (lambda: tumbling("0s"), "size is '0s'; a window must last at least 1 us"),
        (lambda: tumbling(10), "size is 10, which has no unit"),
        (lambda: tumbling("10s", offset="10s"), "offset '10s' is not shorter than the window of '10s'"),
        (lambda: max(5), "max takes the name of a column, not 5"),
        (lambda: sum(""), "sum takes the name of a column, not ''"),
    ],
)
def test_windows_and_aggregates_are_checked_when_they_are_made(use, fact):
    with pytest.raises(UsageError) as caught:
        use()
    assert fact in caught.value.message


def test_an_aggregate_shows_itself():
    assert [repr(count()), repr(count("a")), repr(mean("b"))] == ["count()", "count('a')", "mean('b')"]
    assert count() == AggregateCall("count", None)

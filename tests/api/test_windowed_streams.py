"""Aggregates over windows: two steps with an exchange between them, and columns that are known beforehand."""

from __future__ import annotations

import pytest

from penstock.api.aggregates import AggregateCall, count, max, mean, min, sum  # noqa: A004
from penstock.api.pane_windows import CumulativeWindow, SlidingWindow, cumulative, sliding
from penstock.api.steps import Aggregate, CombineStep, LateRecords, WindowStep
from penstock.api.windows import SessionWindow, TumblingWindow, session, tumbling
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


def combined(program):
    """The steps that combine, from the first to the last."""
    steps = [operator.step for vertex in program.plan().vertices for operator in vertex.operators]
    return [(step.time_column, step.time_offset_us) for step in steps if isinstance(step, CombineStep)]


def test_results_have_the_last_time_of_their_window_as_event_time(program, timed, make_sink):
    first = timed.key_by("auction").window(tumbling("10s")).aggregate(n=count())
    assert "event time in window_end -1 us" in repr(first)
    kept = first.where("n > 1").rename({"window_end": "until"}).drop("window_start")
    second = kept.key_by("auction").window(tumbling("1 min")).aggregate(all=sum("n"))
    second.watermark("window_end").key_by("auction").window(tumbling("1h")).aggregate(n=count()).write(make_sink())
    assert combined(program) == [("ts", 0), ("until", -1), ("window_end", 0)]


def test_results_without_their_end_have_no_event_time(timed):
    first = timed.key_by("auction").window(tumbling("10s")).aggregate(n=count())
    with pytest.raises(UsageError) as caught:
        first.drop("window_end").key_by("auction").window(tumbling("1 min"))
    assert "the event time in 'window_end' was lost in 'drop' made at test_windowed_streams.py:" in caught.value.message
    assert caught.value.hint == 'add .watermark("window_start", delay="5s") before key_by'


def test_united_results_have_event_time_unless_the_other_stream_has_its_time_elsewhere(program, timed, make_sink):
    by_auction = timed.key_by("auction")
    results = [by_auction.window(tumbling(size)).aggregate(n=count()).name(size) for size in ("10s", "20s")]
    united = results[0].union(results[1])
    united.key_by("auction").window(tumbling("1 min")).aggregate(n=sum("n")).write(make_sink())
    assert combined(program)[-1] == ("window_end", -1)
    with pytest.raises(UsageError, match="have event time in 'window_end' -1 us and in 'window_end'"):
        results[0].union(results[1].watermark("window_end")).window(tumbling("1 min"))


def test_windows_without_a_key_are_combined_and_go_to_one_subtask(program, timed, make_sink):
    made = timed.window(sliding("1 min", "10s")).aggregate(n=count())
    assert list(columns(made)) == ["window_start", "window_end", "n"]
    made.write(make_sink())
    (edge,) = program.plan().edges
    assert (edge.partitioning, edge.keys) == (Partitioning.HASH, ())
    assert "all to one ─►" in made.explain()
    assert repr(timed.window(tumbling("10s"))).startswith("<WindowedStream of 10 s of 'watermark'")


def test_windows_without_a_key_need_event_time(bids):
    with pytest.raises(UsageError) as caught:
        bids.window(tumbling("10s"))
    assert caught.value.hint == 'add .watermark("ts", delay="5s") before window'


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


def test_windows_are_exact():
    assert sliding("1 min", "1.5s", offset="1s") == SlidingWindow(
        size_us=60_000_000, slide_us=1_500_000, offset_us=1_000_000
    )
    assert cumulative("1d", "1h", offset="22h") == CumulativeWindow(
        size_us=86_400_000_000, step_us=3_600_000_000, offset_us=79_200_000_000
    )
    assert session("15 min") == SessionWindow(gap_us=900_000_000)
    assert tumbling("1.5s") == TumblingWindow(size_us=1_500_000)
    assert tumbling("1d", offset="22h") == TumblingWindow(size_us=86_400_000_000, offset_us=79_200_000_000)


@pytest.mark.parametrize(
    ("use", "fact"),
    [
        (lambda: tumbling("0s"), "size is '0s'; a window must last at least 1 us"),
        (lambda: tumbling(10), "size is 10, which has no unit"),
        (lambda: tumbling("10s", offset="10s"), "offset '10s' is not shorter than the window of '10s'"),
        (lambda: sliding("0s", "1s"), "size is '0s'; a window must last at least 1 us"),
        (lambda: sliding("10s", "0s"), "slide is '0s'; the time between two windows must last at least 1 us"),
        (lambda: sliding("10s", "11s"), "slide '11s' is longer than the window of '10s'"),
        (lambda: sliding("10s", "2s", offset="2s"), "offset '2s' is not shorter than the slide of '2s'"),
        (lambda: cumulative("10s", "0s"), "step is '0s'; the growth of a window must last at least 1 us"),
        (lambda: cumulative("10s", "3s"), "size '10s' is not a multiple of the step '3s'"),
        (lambda: cumulative("10s", "2s", offset="10s"), "offset '10s' is not shorter than the window of '10s'"),
        (lambda: session("0s"), "gap is '0s'; the gap between two sessions must last at least 1 us"),
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


def test_the_allowed_lateness_is_given_to_the_window(program, timed, make_sink):
    timed.key_by("auction").window(tumbling("10s"), allowed_lateness="1 min").aggregate(n=count()).write(make_sink())
    (merge,) = (o.step for v in program.plan().vertices for o in v.operators if isinstance(o.step, WindowStep))
    assert merge.lateness_us == 60_000_000


def test_an_allowed_lateness_must_be_a_duration(timed):
    with pytest.raises(UsageError, match="allowed_lateness is 'long'"):
        timed.window(tumbling("10s"), allowed_lateness="long")

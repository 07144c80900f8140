from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.connector import SplitProgress
from penstock.api.steps import WatermarkStep
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UserCodeError
from penstock.runtime.task.operators.watermark import MIN_WATERMARK

BEFORE_TIME = -(2**63)


def at(*times, kind=None):
    return pa.record_batch({"ts": pa.array(times, pa.int64()).cast(kind or pa.timestamp("us", "UTC"))})


@given(st.lists(st.lists(st.none() | st.integers(-1000, 1000), max_size=5), max_size=8), st.integers(0, 50))
def test_it_follows_the_latest_time_and_never_goes_back(rig, batches, delay):
    made = rig(WatermarkStep(column="ts", delay_us=delay, idle_after_ms=None))
    expected, best = [], None
    for times in batches:
        made.operator.process(at(*times))
        latest = max((t for t in times if t is not None), default=None)
        if latest is not None and (best is None or latest > best):
            best = latest
            expected.append((best - delay - 1, False))
    assert made.output.watermarks == expected
    assert len(made.output.rows) == sum(map(len, batches))


def test_records_go_before_the_watermark_they_cause(rig):
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=None))
    batch = at(5)
    made.operator.process(batch)
    assert made.output.items == [batch, (4, False)]


@pytest.mark.parametrize(("unit", "time_us"), [("s", 7_000_000), ("ms", 7_000), ("us", 7), ("ns", 0)])
def test_times_of_any_unit_count_in_microseconds(rig, unit, time_us):
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=None))
    made.operator.process(at(7, kind=pa.timestamp(unit)))
    assert made.output.watermarks == [(time_us - 1, False)]


def test_watermarks_from_upstream_are_ignored_except_the_end(rig):
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=None))
    made.operator.process(at(5))
    made.operator.watermark(1_000)
    made.operator.watermark(1_000, idle=True)
    assert made.output.watermarks == [(4, False)]
    made.operator.watermark(MAX_WATERMARK)
    made.operator.watermark(MAX_WATERMARK)
    made.operator.process(at(9_999))
    assert made.output.watermarks == [(4, False), (MAX_WATERMARK, False)]


def test_after_silence_it_is_idle_until_the_next_record(rig):
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=100), now=1_000)
    made.operator.process(at(5))
    assert made.operator.tick(1_099) == 1_100
    assert made.output.watermarks == [(4, False)]
    assert made.operator.tick(1_100) > 1_100
    assert made.operator.tick(1_200) > 1_200
    assert made.output.watermarks == [(4, False), (4, True)]
    made.time = 1_250
    made.operator.process(at(3))
    # Not a later time, but active again.
    assert made.output.watermarks == [(4, False), (4, True), (4, False)]
    assert made.operator.tick(1_260) == 1_350


def test_a_source_that_never_says_anything_becomes_idle_before_time_begins(rig):
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=100), now=0)
    made.operator.tick(100)
    assert made.output.watermarks == [(BEFORE_TIME, True)]


def test_an_empty_batch_is_no_record(rig):
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=100), now=0)
    made.time = 99
    made.operator.process(at())
    made.operator.tick(100)
    assert made.output.items == [(BEFORE_TIME, True)]


def test_without_a_limit_it_is_never_idle(rig):
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=None), now=0)
    assert made.operator.tick(10**9) is None
    assert made.output.items == []


# --- splits ----------------------------------------------------------------------------------------------------------


class Splits:
    """An operator behind a reader that says which split it has read."""

    def __init__(self, rig, splits, *, idle_after_ms=None):
        self.made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=idle_after_ms), now=0)
        self.made.operator.progress = lambda: SplitProgress(current=self.current, open=self.open, ready=self.ready)
        self.open, self.ready, self.current = list(splits), [], None

    def read(self, split, *times, ends=False):
        self.current = split
        if ends:
            self.open.remove(split)
        self.made.operator.process(at(*times))

    def tick(self, now):
        self.made.time = now
        return self.made.operator.tick(now)

    @property
    def told(self):
        told, self.made.output.items = self.made.output.watermarks, []
        return told


def test_the_split_that_is_furthest_behind_holds_event_time_back(rig):
    splits = Splits(rig, "ab")
    splits.read("a", 1_000)
    assert splits.told == []
    splits.read("b", 10)
    assert splits.told == [(9, False)]
    splits.read("a", 2_000)
    assert splits.told == []
    splits.read("b", 1_500)
    assert splits.told == [(1_499, False)]


def test_a_split_that_has_ended_does_not_hold_event_time_back(rig):
    splits = Splits(rig, "abc")
    splits.read("a", 1_000)
    splits.read("b", 10, ends=True)
    assert splits.told == []
    splits.read("c", 500)
    assert splits.told == [(499, False)]
    splits.read("c", 600, ends=True)
    assert splits.told == [(999, False)]
    # The last one: nothing follows, and what came has these times.
    splits.read("a", 1_200, ends=True)
    assert splits.told == [(1_199, False)]


def test_a_split_that_ended_without_a_word_is_found_out_by_the_next_tick(rig):
    splits = Splits(rig, "ab")
    splits.read("a", 1_000)
    splits.open.remove("b")
    assert splits.tick(1_000) is None
    assert splits.told == [(999, False)]


def test_a_silent_split_is_left_out_until_its_next_record(rig):
    splits = Splits(rig, "ab", idle_after_ms=100)
    assert splits.tick(10) == 100
    splits.made.time = 60
    splits.read("a", 1_000)
    assert splits.tick(99) == 100
    assert splits.told == []
    assert splits.tick(100) == 160
    assert splits.told == [(999, False)]
    splits.read("b", 5)
    splits.read("a", 3_000)
    assert splits.told == []
    splits.read("b", 2_000)
    assert splits.told == [(1_999, False)]


def test_the_output_is_idle_when_all_splits_are_and_goes_as_far_as_the_furthest_of_them(rig):
    splits = Splits(rig, "ab", idle_after_ms=100)
    splits.read("a", 1_000)
    splits.read("b", 10)
    assert splits.told == [(9, False)]
    splits.tick(100)
    assert splits.told == [(999, True)]
    splits.read("b", 20)
    assert splits.told == [(999, False)]


def test_a_split_that_the_reader_has_only_not_come_to_is_never_idle(rig):
    splits = Splits(rig, "ab", idle_after_ms=100)
    splits.ready = ["b"]
    splits.read("a", 1_000)
    for now in (100, 200, 1_000):
        splits.tick(now)
    assert splits.told == []
    splits.ready = []
    assert splits.tick(1_099) == 1_100
    splits.tick(1_100)
    assert splits.told == [(999, True)]


def test_a_reader_that_waits_for_further_splits_is_idle_until_there_are_some(rig):
    """Its last split has ended, and does not hold the event time of other subtasks back for ever."""
    splits = Splits(rig, "a", idle_after_ms=100)
    splits.read("a", 1_000, ends=True)
    assert splits.told == [(999, False)]
    assert splits.tick(99) == 100
    assert splits.told == []
    splits.tick(100)
    assert splits.told == [(999, True)]
    splits.open.append("b")
    splits.read("b", 3_000)
    assert splits.told == [(2_999, False)]


def test_a_reader_that_never_had_a_split_becomes_idle_before_time_begins(rig):
    splits = Splits(rig, "", idle_after_ms=100)
    splits.tick(100)
    assert splits.told == [(MIN_WATERMARK, True)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100), st.booleans()), max_size=40))
def test_the_watermark_is_always_below_what_any_open_split_may_still_have(rig, reads):
    splits = Splits(rig, range(4))
    best = {}
    told = BEFORE_TIME
    for split, step, ends in reads:
        if split not in splits.open:
            continue
        best[split] = best.get(split, 0) + step
        splits.read(split, best[split], ends=ends)
        told = max([told, *(time for time, _ in splits.told)])
        left = splits.open or [split]
        assert told == max(told, min(best.get(each, 0) - 1 if each in best else BEFORE_TIME for each in left))
        assert all(told <= best[each] - 1 if each in best else told == BEFORE_TIME for each in splits.open)


# --- a function of the program ------------------------------------------------------------------


def marked(function):
    return WatermarkStep(column="ts", delay_us=0, idle_after_ms=None, function=function)


def test_a_function_says_how_far_event_time_has_come_and_it_never_goes_back(rig):
    told = iter([None, 7, 5, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC), None])
    made = rig(marked(lambda _batch: next(told)))
    for _ in range(5):
        made.operator.process(at(100))
    assert made.output.watermarks == [(7, False), (1_000_000, False)]


def test_a_function_tells_for_each_split_and_the_split_furthest_behind_counts(rig):
    made = rig(marked(lambda batch: batch.column("ts")[0].value - 10))
    for split, time in (("a", 100), ("b", 60), ("a", 200), ("b", 90)):
        made.operator.progress = lambda current=split: SplitProgress(current=current, open=("a", "b"))
        made.operator.process(at(time))
    assert [time for time, _ in made.output.watermarks if time != BEFORE_TIME] == [50, 80]


@pytest.mark.parametrize("told", ["noon", True, 2**62, 1.5])
def test_what_is_no_time_is_an_error_of_the_function(rig, told):
    made = rig(marked(lambda _batch: told))
    with pytest.raises(UserCodeError, match="a watermark"):
        made.operator.process(at(1))


def test_an_error_of_the_function_names_the_step(rig):
    made = rig(marked(lambda batch: batch.column("gone")))
    with pytest.raises(UserCodeError, match="gone"):
        made.operator.process(at(1))


def test_a_held_split_is_silent_and_not_idle(rig):
    """The split has records, and is not read because it is too far ahead of its watermark group."""
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=100))
    progress = SplitProgress(current="ahead", open=("ahead", "behind"))
    made.operator.progress = lambda: progress
    made.operator.process(at(500))
    made.operator.progress = lambda: SplitProgress(current="behind", open=("ahead", "behind"))
    made.operator.process(at(5))
    made.operator.held = ("ahead", "behind")
    made.operator.tick(1_000_000)
    assert made.output.watermarks == [(4, False)]
    made.operator.held = ()
    made.operator.tick(1_000_050)
    made.operator.tick(1_000_100)
    assert made.output.watermarks == [(4, False), (499, True)]


def test_what_counts_for_a_watermark_group_is_the_split_that_is_furthest_behind(rig):
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=100))
    open_splits = ["one", "two", "three"]
    made.operator.progress = lambda: SplitProgress(current="one", open=open_splits)
    assert made.operator.split_times() == ({}, BEFORE_TIME)
    made.operator.process(at(500))
    assert made.operator.split_times() == ({"one": 499}, 499)
    made.operator.progress = lambda: SplitProgress(current="two", open=open_splits)
    made.operator.process(at(50))
    assert made.operator.split_times() == ({"one": 499, "two": 49}, 49)
    open_splits.remove("two")
    assert made.operator.split_times() == ({"one": 499}, 499)
    open_splits.clear()
    assert made.operator.split_times() == ({}, None)


def test_idle_splits_do_not_count_for_a_watermark_group(rig):
    made = rig(WatermarkStep(column="ts", delay_us=0, idle_after_ms=100))
    made.operator.process(at(500))
    made.operator.tick(10)
    made.operator.tick(1_000_000)
    assert made.operator.split_times() == ({}, None)

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.steps import WatermarkStep
from penstock.core.elements import MAX_WATERMARK

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

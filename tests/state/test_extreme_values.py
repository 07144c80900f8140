"""Values at the ends of their types, where Python ends before Arrow does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UsageError
from penstock.core.ids import Epoch, Instant, JobId, TaskId, VertexId
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.process import RunningContext
from penstock.runtime.task.operators.rows import rows_of
from penstock.runtime.task.operators.side_rows import SideRows
from penstock.runtime.task.operators.watermark import _latest
from penstock.sql.python_values import to_python
from penstock.state.keys import keys_of
from penstock.state.rocksdb.ordered import KeyCodec

LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
FIRST = datetime(1, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ["Asia/Tokyo", "America/New_York", "+14:00", "-12:00"]


def micros(time):
    return (time - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize("zone", [*ZONES, "UTC"])
@pytest.mark.parametrize("time", [LAST, FIRST])
def test_the_last_and_the_first_time_are_keys_in_every_zone(zone, time):
    kind = pa.timestamp("us", zone)
    column = pa.array([micros(time), None, 0]).cast(kind)
    found = to_python(column)
    assert [found[0], found[2]] == [time, EPOCH]
    assert found[1] is None
    codec = KeyCodec(pa.schema([pa.field("k", kind)]))
    for key in keys_of({"k": column}):
        assert codec.decode(codec.encode(key), 0)[0] == key
    assert pa.array(found, kind).equals(column)


@pytest.mark.parametrize("zone", [None, "UTC", *ZONES])
@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1, micros(LAST) + 1, micros(FIRST) - 1])
def test_a_time_that_python_does_not_have_is_refused_and_not_taken_for_null(zone, number):
    column = pa.array([0, number]).cast(pa.timestamp("us", zone))
    with pytest.raises(UsageError, match=str(number)):
        keys_of({"k": column})
    with pytest.raises(UsageError, match="column 'ts': a value of type timestamp"):
        rows_of(pa.record_batch({"n": pa.array([1, 2]), "ts": column}))


@pytest.mark.parametrize("days", [-(2**31), 2**31 - 1])
def test_a_date_that_python_does_not_have_is_refused(days):
    column = pa.array([days], pa.int32()).view(pa.date32())
    with pytest.raises(UsageError, match="the years 1 to 9999"):
        to_python(column)


def test_empty_and_null_strings_and_binaries_are_different_keys():
    for kind, empty in ((pa.string(), ""), (pa.binary(), b"")):
        codec = KeyCodec(pa.schema([pa.field("k", kind)]))
        keys = keys_of({"k": pa.array([empty, None], kind)})
        assert keys == [empty, None]
        assert codec.encode(empty) != codec.encode(None)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_time_beyond_all_microseconds_is_not_the_end_of_event_time(unit):
    assert _latest(pa.array([2**62]).cast(pa.timestamp(unit))) == MAX_WATERMARK - 1


def test_event_time_beyond_the_years_of_python_is_shown_as_the_last_or_the_first():
    context = OperatorContext(
        job=JobId("job"),
        epoch=Epoch(1),
        task=TaskId(VertexId("v"), 0),
        operator="o",
        name="o",
        parallelism=1,
        max_parallelism=1,
        key_groups=(0, 0),
        now=lambda: Instant(0),
        background=None,
        restored=(),
        fresh=True,
        reader=None,
        fail=lambda _: None,
    )
    running = RunningContext(context, SideRows({}))
    shown = []
    for time in (None, -(2**63), -(2**63) + 1, 0, 2**63 - 2, MAX_WATERMARK):
        running.watermark_us = time
        shown.append(running.watermark)
    assert shown == [None, None, FIRST, EPOCH, LAST, LAST]

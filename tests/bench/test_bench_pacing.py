"""A paced source hands out what is due, in large bites, and forgets nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.api.connector import End, Pause
from penstock.bench.pacing import PacedReads
from penstock.connectors import nexmark

START_MS = 1_700_000_000_000


def paced(rate, events=10_000):
    source = PacedReads(nexmark.bids(events=events, splits=1), rate=rate)
    return source.open(source.splits(1))


def test_it_is_the_inner_source_but_for_the_time_it_takes():
    inner = nexmark.bids(events=10_000, splits=3)
    source = PacedReads(inner, rate=5)
    assert (source.schema, source.name, source.splits(2)) == (inner.schema, inner.name, inner.splits(2))


def test_a_bite_is_paid_for_before_the_next():
    reader = paced(2_000)
    assert reader.poll(65_536, START_MS).num_rows == 100
    assert reader.poll(65_536, START_MS) == Pause(50)
    assert reader.poll(65_536, START_MS + 30) == Pause(20)
    assert reader.poll(65_536, START_MS + 50).num_rows == 100
    assert reader.poll(65_536, START_MS + 60) == Pause(40)


def test_after_a_delay_it_catches_up():
    reader = paced(2_000)
    reader.poll(65_536, START_MS)
    rows = 0
    while isinstance(polled := reader.poll(65_536, START_MS + 1_000), pa.RecordBatch):
        rows += polled.num_rows
    assert rows == 2_000


def test_no_bite_is_larger_than_asked_for():
    assert paced(2_000).poll(7, START_MS).num_rows == 7


@pytest.mark.parametrize("rate", [1, 10, 100_000_000])
def test_every_rate_gets_to_the_end(rate):
    reader = paced(rate, events=20)
    rows, now_ms = 0, START_MS
    while (polled := reader.poll(65_536, now_ms)) != End():
        if isinstance(polled, Pause):
            now_ms += polled.wait_ms
        else:
            rows += polled.num_rows
    assert rows == 20
    assert (now_ms - START_MS) >= (rows - 1) * 1_000 // rate


def test_a_snapshot_is_the_inner_one():
    reader = paced(2_000)
    reader.poll(65_536, START_MS)
    inner = nexmark.bids(events=10_000, splits=1)
    again = inner.open(reader.snapshot())
    expected = inner.open(inner.splits(1))
    expected.poll(100, START_MS)
    assert again.poll(50, START_MS).equals(expected.poll(50, START_MS))

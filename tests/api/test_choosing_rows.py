"""Streams of which only some records go on have the columns, and the event time, of the stream before."""

from __future__ import annotations

import pytest

from penstock.api.steps import FilterStep
from penstock.api.windows import tumbling
from penstock.core.errors import UsageError


@pytest.fixture
def timed(bids):
    return bids.watermark("ts")


def last_step(stream):
    state = stream._state
    return state.ledger.step(state.last_step).step


def test_filter_keeps_columns_and_event_time(timed):
    kept = timed.filter(bool, name="kept")
    assert kept.schema == timed.schema
    assert last_step(kept) == FilterStep(function=bool, schema=timed.schema)
    assert repr(kept.key_by("auction").window(tumbling("10s"))).startswith("<WindowedStream")
    assert "kept" in repr(kept)


@pytest.mark.parametrize("given", [None, "price > 100", 5])
def test_filter_takes_a_function(bids, given):
    with pytest.raises(UsageError, match="filter takes a function, not"):
        bids.filter(given)

"""Streams of which only some records go on have the columns, and the event time, of the stream before."""

from __future__ import annotations

import pytest

from penstock.api.steps import FilterStep, SampleStep
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


def test_sample_decides_by_all_columns_that_can_be_keys(program, make_source):
    mixed = program.read(make_source("mixed", "a bigint, xs array<int>, s string"))
    step = last_step(mixed.sample(0.5, seed=3))
    assert step == SampleStep(columns=("a", "s"), fraction=0.5, seed=3, schema=mixed.schema)
    assert last_step(mixed.sample(1, by="s")).columns == ("s",)
    assert last_step(mixed.sample(1, by=["s", "a"])).columns == ("s", "a")


def test_sample_keeps_event_time(timed):
    assert "event time in ts" in repr(timed.sample(0.5))


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (lambda s: s.sample(1.5), "fraction is 1.5; give a number from 0 to 1"),
        (lambda s: s.sample(-0.1), "fraction is -0.1"),
        (lambda s: s.sample(float("nan")), "fraction is nan"),
        (lambda s: s.sample(True), "fraction is True"),
        (lambda s: s.sample("half"), "fraction is 'half'"),
        (lambda s: s.sample(0.5, seed=0.5), "seed is 0.5; give a whole number"),
        (lambda s: s.sample(0.5, by="prise"), "prise"),
        (lambda s: s.sample(0.5, by=()), "at least one column"),
        (lambda s: s.select(a="array(price)").sample(0.5), "no column is of a type that can be hashed"),
        (lambda s: s.select(a="array(price)").sample(0.5, by="a"), "cannot be a key"),
    ],
)
def test_a_sample_that_cannot_be_is_refused(bids, sample, text):
    with pytest.raises(UsageError, match=text):
        sample(bids)

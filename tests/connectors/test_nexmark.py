from __future__ import annotations

import pickle
import random
from collections import Counter
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.connector import End, Pause
from penstock.connectors import nexmark
from penstock.connectors.stripes import Stripe
from penstock.core.errors import UsageError

BASE = datetime(2026, 1, 1, tzinfo=UTC)
BASE_US = int(BASE.timestamp()) * 1_000_000
MASK = 2**64 - 1


def spark_hash(value):
    """Spark's xxhash64 of a bigint: the standard XXH64 of its eight bytes, seed 42."""
    return xxhash.xxh64((value & MASK).to_bytes(8, "little"), seed=42).intdigest()


def bid(n, seed, events_per_second=10_000):
    """Bid n by the definition."""
    draw = spark_hash(n ^ (spark_hash(seed) >> 2))
    number, place = divmod(n, 46)
    newest = number * 3 + 2
    oldest = max(newest - 100, 0)
    cold_auction = oldest + ((draw >> 3 & 0xFFFF) * (newest - oldest + 11) >> 16)
    auction = newest // 100 * 100 if draw & 1 else cold_auction
    persons = number + 1
    active = min(persons, 1000)
    cold_bidder = persons - active + ((draw >> 32 & 0xFFFF) * active >> 16)
    bidder = number // 100 * 100 + 1 if draw >> 1 & 3 else cold_bidder
    octave = 100 << ((draw >> 19 & 0x1FFF) * 20 >> 13)
    price = octave + ((draw >> 48) * octave >> 16)
    event = number * 50 + 4 + place
    ts = BASE_US + event * 1_000_000 // events_per_second
    return 1000 + auction, 1000 + bidder, price, ts


def numbers(batch):
    """Rows of a batch, times in microseconds."""
    return list(zip(*(column.cast(pa.int64()).to_pylist() for column in batch.columns), strict=True))


def in_order(batches):
    """All rows read, by time: no two bids of one stream have the same."""
    return pa.Table.from_batches(batches, nexmark.SCHEMA).sort_by("ts").combine_chunks()


def generator(seed, events_per_second=10_000):
    return nexmark.BidGenerator(seed=seed, events_per_second=events_per_second, base_time=BASE)


@settings(deadline=None)
@given(
    st.integers(0, 2**40),
    st.integers(0, 200),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([1, 3, 7, 10_000, 999_983]),
)
def test_bid_n_is_what_the_definition_says(start, count, seed, events_per_second):
    batch = generator(seed, events_per_second).batch(start, start + count)
    expected = [bid(n, seed, events_per_second) for n in range(start, start + count)]
    assert numbers(batch) == expected
    assert batch.schema == nexmark.SCHEMA


def test_a_generator_can_be_asked_for_ranges_of_any_size_in_any_order():
    made = generator(5)
    whole = generator(5).batch(0, 3_000)
    for start, stop in [(0, 10), (2_000, 3_000), (45, 47), (46, 92), (7, 7), (0, 3_000)]:
        assert made.batch(start, stop) == whole.slice(start, stop - start)


def test_earlier_batches_stay_as_they_are():
    made = generator(5)
    first = made.batch(0, 500)
    rows = numbers(first)
    made.batch(500, 1_000)
    assert numbers(first) == rows


def test_the_stream_has_the_shape_of_the_benchmark():
    rows = numbers(generator(1).batch(460_000, 506_000))
    newest = [(460_000 + n) // 46 * 3 + 1002 for n in range(len(rows))]
    assert all(last - 100 <= auction <= last + 10 for last, (auction, _, _, _) in zip(newest, rows, strict=True))
    assert 0.49 < sum(auction % 100 == 0 for auction, _, _, _ in rows) / len(rows) < 0.52
    assert 0.74 < sum(bidder % 100 == 1 for _, bidder, _, _ in rows) / len(rows) < 0.77
    assert all(100 <= price < 104_857_600 for _, _, price, _ in rows)
    octaves = Counter(price.bit_length() for _, _, price, _ in rows)
    assert max(octaves.values()) < 1.2 * len(rows) / 20


def test_streams_of_different_seeds_differ():
    assert generator(1).batch(0, 100) != generator(2).batch(0, 100)


# --- splits ----------------------------------------------------------------------------------------------------------


def small_blocks(events, splits, block_rows):
    """The source's own splits, with blocks that a test can run through."""
    source = nexmark.bids(events=events, seed=3, base_time=BASE, splits=splits)
    made = [Stripe(i, splits, block_rows, i * block_rows, events) for i in range(splits) if i * block_rows < events]
    return source, [msgspec.msgpack.encode(split) for split in made]


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32))
def test_every_bid_is_read_once_whatever_is_polled_and_restored(events, splits, rounds, parallelism, seed):
    chance = random.Random(seed)
    source, parts = small_blocks(events, splits, 46 * rounds)
    readers, read = [source.open(parts[i::parallelism]) for i in range(parallelism)], []
    while readers:
        turn = chance.randrange(len(readers))
        if chance.random() < 0.1:
            readers[turn] = source.open(readers[turn].snapshot())
        polled = readers[turn].poll(chance.randint(1, 200), 0)
        if isinstance(polled, End):
            assert readers.pop(turn).snapshot() == []
        else:
            assert polled.num_rows > 0
            read.append(polled)
    assert in_order(read) == in_order([generator(3).batch(0, events)])


def test_a_reader_serves_the_split_that_is_furthest_behind():
    source, parts = small_blocks(46 * 12, 3, 46)
    reader, times = source.open([parts[2], parts[0], parts[1]]), []
    while not isinstance(polled := reader.poll(30, 0), End):
        times += polled.column("ts").to_pylist()
    assert times == sorted(times)
    assert len(times) == 46 * 12


def test_a_reader_goes_back_in_event_time_for_no_split_however_far_apart_they_were_restored():
    source, parts = small_blocks(46 * 40, 4, 46)
    ahead, behind = source.open(parts[:2]), source.open(parts[2:])
    for _ in range(13):
        ahead.poll(46, 0)
    reader, times = source.open([*ahead.snapshot(), *behind.snapshot()]), []
    # One event time for all of its splits is exact.
    assert reader.progress() is None
    while not isinstance(polled := reader.poll(30, 0), End):
        times += polled.column("ts").to_pylist()
    assert times == sorted(times)
    assert len(times) == 46 * (40 - 13)


def test_a_poll_never_goes_beyond_the_end_of_a_block():
    source = nexmark.bids(events=200_000)
    reader = source.open(source.splits(1))
    sizes = [reader.poll(60_000, 0).num_rows for _ in range(4)]
    assert sizes == [60_000, nexmark.BLOCK_ROWS - 60_000] * 2


def test_there_is_a_split_for_every_subtask_and_none_without_rows():
    source = nexmark.bids(events=10**7, splits=2)
    assert len(source.splits(1)) == 2
    assert len(source.splits(5)) == 5
    assert nexmark.bids(events=0).splits(4) == []
    assert len(nexmark.bids(events=nexmark.BLOCK_ROWS + 1).splits(1)) == 2


def test_positions_mean_the_same_under_another_rate():
    """1. A job with a rate stops in the middle. 2. It goes on without: every bid is still read once."""
    slow = nexmark.bids(events=1_000, seed=3, base_time=BASE, rate=100_000, splits=3)
    reader = slow.open(slow.splits(1))
    assert reader.poll(100, 0) == Pause(wait_ms=1)
    read = [reader.poll(100, 1_000) for _ in range(5)]
    fast = nexmark.bids(events=1_000, seed=3, base_time=BASE, splits=3).open(reader.snapshot())
    while not isinstance(polled := fast.poll(100, 0), End):
        read.append(polled)
    assert in_order(read) == in_order([generator(3).batch(0, 1_000)])


# --- rate ------------------------------------------------------------------------------------------------------------


def test_bids_are_withheld_until_they_are_due():
    source = nexmark.bids(events=1_000, rate=1_000)
    reader = source.open(source.splits(1))
    assert reader.poll(100, 5_000) == Pause(wait_ms=1)
    assert reader.poll(100, 5_000) == Pause(wait_ms=1)
    assert reader.poll(100, 5_010).num_rows == 10
    assert reader.poll(100, 5_010) == Pause(wait_ms=1)
    assert reader.poll(100, 5_040).num_rows == 30
    # The block ends after 46 bids, and the rest of what is due comes with the next poll.
    assert reader.poll(100, 5_060).num_rows == 6
    assert reader.poll(100, 5_060).num_rows == 14


def test_a_slow_rate_says_how_long_to_wait():
    source = nexmark.bids(events=1_000, rate=3)
    reader = source.open(source.splits(1))
    assert reader.poll(100, 0) == Pause(wait_ms=334)
    assert reader.poll(100, 300) == Pause(wait_ms=34)
    assert reader.poll(100, 333) == Pause(wait_ms=1)
    assert reader.poll(100, 334).num_rows == 1


def test_the_rate_is_that_of_all_readers_together():
    source = nexmark.bids(events=100_000, rate=10_000)
    parts = source.splits(2)
    readers = [source.open(parts[i::2]) for i in range(2)]
    rows = 0
    for now in range(0, 2_001, 5):
        for reader in readers:
            while isinstance(polled := reader.poll(1_000, now), pa.RecordBatch):
                rows += polled.num_rows
    assert rows == 20_000


# --- use -------------------------------------------------------------------------------------------------------------


def test_the_source_can_be_pickled():
    source = nexmark.bids(events=5, seed=9)
    assert pickle.loads(pickle.dumps(source)) == source


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"events": -1}, "events is -1"),
        ({"events": 2**41}, "events is"),
        ({"events_per_second": 0}, "events_per_second is 0"),
        ({"splits": 0}, "splits is 0"),
        ({"rate": 0}, "rate is 0"),
        ({"base_time": datetime(2026, 1, 1)}, "base_time has no time zone"),  # noqa: DTZ001
    ],
)
def test_arguments_are_checked_at_once(wrong, text):
    with pytest.raises(UsageError, match=text):
        nexmark.bids(**{"events": 1, **wrong})

"""Persons, auctions, and bids with texts."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from penstock.api.connector import End
from penstock.connectors import nexmark
from penstock.core.errors import UsageError

BASE = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = {
    "persons": nexmark.PersonGenerator,
    "auctions": nexmark.AuctionGenerator,
    "bids": lambda **given: nexmark.BidGenerator(columns=nexmark.WHOLE_SCHEMA.names, **given),
}
SQL = {
    "persons": nexmark.person_columns_sql,
    "auctions": nexmark.auction_columns_sql,
    "bids": lambda **given: nexmark.bid_columns_sql(columns=nexmark.WHOLE_SCHEMA.names, **given),
}


def generator(kind, *, seed=5, events_per_second=10_000):
    return KINDS[kind](seed=seed, events_per_second=events_per_second, base_time=BASE)


def all_bids(**given):
    return nexmark.bids(columns="all", **given)


SOURCES = {"persons": nexmark.persons, "auctions": nexmark.auctions, "bids": all_bids}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_depends_on_its_number_and_the_seed_alone(kind):
    made = generator(kind)
    whole = generator(kind).batch(0, 3_000)
    whole.validate(full=True)
    for start, stop in [(0, 10), (2_000, 3_000), (45, 47), (7, 7), (0, 3_000)]:
        assert made.batch(start, stop) == whole.slice(start, stop - start)
    assert generator(kind, seed=6).batch(0, 100) != whole.slice(0, 100)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_read_once_whatever_is_polled_and_restored(kind):
    chance = random.Random(kind)
    source = SOURCES[kind](events=40_000, seed=5, base_time=BASE, splits=3)
    parts = source.splits(2)
    readers, read = [source.open(parts[i::2]) for i in range(2)], []
    while readers:
        turn = chance.randrange(len(readers))
        if chance.random() < 0.2:
            readers[turn] = source.open(readers[turn].snapshot())
        polled = readers[turn].poll(chance.randint(1, 9_000), 0)
        if isinstance(polled, End):
            readers.pop(turn)
        else:
            read.append(polled)
    table = pa.Table.from_batches(read).sort_by("ts").combine_chunks()
    assert table.equals(pa.Table.from_batches([generator(kind).batch(0, 40_000)]))
    assert table.schema == source.schema


def test_the_events_of_a_round_follow_each_other():
    """1 person, 3 auctions, 46 bids; one millisecond of event time is ten events."""
    times = Counter()
    for kind, count in (("persons", 20), ("auctions", 60), ("bids", 920)):
        times.update(generator(kind).batch(0, count).column("ts").to_pylist())
    assert sorted(times) == [BASE + timedelta(microseconds=100 * event) for event in range(1_000)]
    assert set(times.values()) == {1}
    assert nexmark.shares(1_000) == {"persons": 20, "auctions": 60, "bids": 920}


@pytest.mark.parametrize("events", [0, 1, 2, 4, 5, 50, 51, 54, 55, 99, 1_234])
def test_shares_are_those_of_the_first_events(events):
    kinds = [("persons" if n % 50 == 0 else "auctions" if n % 50 < 4 else "bids") for n in range(events)]
    assert nexmark.shares(events) == {kind: kinds.count(kind) for kind in ("persons", "auctions", "bids")}


def test_the_hot_bidder_is_not_the_hot_seller():
    """Otherwise a join of bidders with sellers would have millions of rows for some thousand events."""
    bidders = Counter(generator("bids").batch(0, 46 * 100).column("bidder").to_pylist())
    sellers = Counter(generator("auctions").batch(0, 3 * 100).column("seller").to_pylist())
    [(bidder, bids)], [(seller, offers)] = bidders.most_common(1), sellers.most_common(1)
    assert (bids > 0.7 * 4_600, offers > 0.7 * 300) == (True, True)
    assert (bidder, seller) == (1001, 1000)


def test_auctions_have_the_shape_of_the_benchmark():
    rows = generator("auctions").batch(60_000, 90_000).to_pylist()
    newest = [(60_000 + n) // 3 + 1000 for n in range(len(rows))]
    assert all(last - 1_000 < row["seller"] <= last for last, row in zip(newest, rows, strict=True))
    assert 0.74 < sum(row["seller"] % 100 == 0 for row in rows) / len(rows) < 0.77
    categories = Counter(row["category"] for row in rows)
    assert sorted(categories) == [10, 11, 12, 13, 14]
    assert max(categories.values()) < 1.1 * len(rows) / 5
    lengths = [(row["expires"] - row["ts"]).total_seconds() for row in rows]
    assert min(lengths) > 0
    assert sum(lengths) / len(lengths) == pytest.approx(0.1666, rel=0.02)
    assert all(row["reserve"] >= row["initial_bid"] + 100 for row in rows)


@pytest.mark.parametrize(("kind", "size"), [("persons", 200), ("auctions", 500)])
def test_rows_have_the_average_size_of_the_benchmark(kind, size):
    batch = generator(kind).batch(0, 20_000)
    widths = [
        8 if not pa.types.is_string(column.type) else sum(map(len, column.to_pylist())) / len(column)
        for column in batch.columns
    ]
    assert sum(widths) == pytest.approx(size, rel=0.03)


def test_half_of_the_bids_come_by_large_channels_and_most_others_have_a_number_in_the_url():
    rows = generator("bids").batch(0, 20_000).to_pylist()
    large = [row for row in rows if not row["channel"].startswith("channel-")]
    other = [row for row in rows if row["channel"].startswith("channel-")]
    assert 0.48 < len(large) / len(rows) < 0.52
    assert not any("channel_id" in row["url"] for row in large)
    assert 0.88 < sum("&channel_id=" in row["url"] for row in other) / len(other) < 0.92
    assert {len(row["url"].split("/")) for row in rows} == {7}
    assert len({row["url"] for row in large}) == 4


def test_bids_may_have_any_of_their_columns():
    one = nexmark.bids(events=10, columns=("extra", "auction"))
    batch = one.open(one.splits(1)).poll(10, 0)
    whole = all_bids(events=10)
    assert batch == whole.open(whole.splits(1)).poll(10, 0).select(["extra", "auction"])
    with pytest.raises(UsageError, match="bids have the columns auction, bidder, price, channel"):
        nexmark.bids(events=10, columns=("auktion",))


@pytest.mark.parametrize(("events_per_second", "seed", "offset"), [(10_000, 7, 0), (999_983, -1, 2**34 - 9_000)])
def test_spark_sql_makes_the_same_rows(spark, events_per_second, seed, offset):
    for kind in KINDS:
        columns = SQL[kind](seed=seed, events_per_second=events_per_second, base_time=BASE)
        frame = spark.range(offset, offset + 8_000, numPartitions=1).withColumnRenamed("id", "n")
        made = generator(kind, seed=seed, events_per_second=events_per_second).batch(offset, offset + 8_000)
        by_sql = frame.selectExpr(*columns).toArrow().cast(made.schema).combine_chunks()
        assert by_sql.equals(pa.Table.from_batches([made])), kind


def test_the_queries_give_the_rows_of_the_sources(spark):
    for kind, query in (
        ("persons", nexmark.persons_sql(events=3_000, seed=3)),
        ("auctions", nexmark.auctions_sql(events=3_000, seed=3)),
        ("bids", nexmark.bids_sql(events=3_000, seed=3, columns="all")),
    ):
        source = SOURCES[kind](events=3_000, seed=3)
        rows = pa.Table.from_batches([source.open(source.splits(1)).poll(3_000, 0)])
        by_sql = spark.sql(query).toArrow().cast(source.schema).sort_by("ts").combine_chunks()
        assert by_sql.equals(rows), kind

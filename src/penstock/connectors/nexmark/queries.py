"""The queries of Nexmark. Each is a function that takes streams of persons, auctions and bids, and returns a stream.

The streams have event time: `env.read(ps.nexmark.bids(...)).watermark("ts", delay="4s")`. The constants are those of
the public runner of the benchmark. Columns are named in lower case, and its `dateTime` is `ts` here. The results of q5
have the bounds of their window as well.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from penstock.api.aggregates import count, count_distinct, mean
from penstock.api.aggregates import max as greatest
from penstock.api.aggregates import min as least
from penstock.api.aggregates import sum as total
from penstock.api.pane_windows import sliding
from penstock.api.streams.data_stream import Stream
from penstock.api.windows import session, tumbling

EUROS = (pl.col("price").cast(pl.Decimal(20, 0)) * pl.lit("0.908").cast(pl.Decimal(3, 3))).cast(pl.Decimal(23, 3))
DAY = pl.col("ts").dt.strftime("%Y-%m-%d")
MINUTE = pl.col("ts").dt.strftime("%H:%M")
CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
NEARBY = "state IN ('OR', 'ID', 'CA')"
LOW, MIDDLE, HIGH = "price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"


def side_input() -> pa.Table:
    """The table of q13: a value for each key from 0 to 9,999."""
    return pa.table({"key": range(10_000), "value": [f"value {key}" for key in range(10_000)]})


def q0(bids: Stream) -> Stream:
    """All bids, as they are: what it costs to move them."""
    return bids.select("auction", "bidder", "price", "ts", "extra")


def q1(bids: Stream) -> Stream:
    """All bids, with their prices in another currency."""
    return bids.select("auction", "bidder", "ts", "extra", price=EUROS)


def q2(bids: Stream) -> Stream:
    """The bids for every 123rd auction."""
    return bids.where("auction % 123 = 0").select("auction", "price")


def q3(persons: Stream, auctions: Stream) -> Stream:
    """The auctions of category 10 by sellers in Oregon, Idaho and California."""
    sellers = persons.where(NEARBY).select("name", "city", "state", seller="id")
    offers = auctions.where("category = 10").select("id", "seller")
    return offers.join(sellers, on="seller", ttl=None).select("name", "city", "state", "id")


def q4(auctions: Stream, bids: Stream) -> Stream:
    """The mean of the highest bids of all auctions of each category; changes with every higher bid."""
    offers = auctions.select("id", "category", "ts", "expires")
    highest = _in_time(offers, bids.select("auction", "price", "ts")).key_by("id", "category")
    finals = highest.aggregate(final=greatest("price"))
    return finals.key_by("category").aggregate(final=mean("final"))


def _in_time(auctions: Stream, bids: Stream) -> Stream:
    """Each auction with each bid that was made while the auction was open."""
    timed = bids.rename({"ts": "bid_ts"})
    return auctions.join(timed, on={"id": "auction"}, where="bid_ts BETWEEN ts AND expires", ttl=None)


def q5(bids: Stream) -> Stream:
    """Every two seconds: the auctions with the most bids in the last ten seconds."""
    counts = bids.key_by("auction").window(sliding("10s", "2s")).aggregate(num=count())
    most = counts.window(tumbling("2s")).aggregate(most=greatest("num")).drop("window_start")
    hottest = counts.join(most, on="window_end", within="0s", where="num >= most")
    return hottest.select("auction", "num", "window_start", "window_end")


def q7(bids: Stream) -> Stream:
    """The highest bids of every ten seconds."""
    highest = bids.window(tumbling("10s")).aggregate(highest=greatest("price")).rename({"window_start": "start"})
    same_time = "ts BETWEEN window_end - INTERVAL 10 SECONDS AND window_end"
    found = bids.join(highest, on={"price": "highest"}, within=("-1s", "10s"), where=same_time)
    return found.select("auction", "bidder", "price", "ts", "extra")


def q8(persons: Stream, auctions: Stream) -> Stream:
    """Of every ten seconds: the persons who came and opened an auction."""
    windows = tumbling("10s")
    new = persons.key_by("id", "name").window(windows).aggregate(times=count())
    sellers = auctions.key_by("seller").window(windows).aggregate(opened=count()).drop("window_start")
    both = new.join(sellers, on={"id": "seller", "window_end": "window_end"}, within="0s")
    return both.select("id", "name", starttime="window_start")


def q9(auctions: Stream, bids: Stream) -> Stream:
    """The winning bid of each auction: the highest bid, and of equal bids the first; changes with every higher bid."""
    made = _in_time(auctions, bids.select("auction", "bidder", "price", "ts", bid_extra="extra"))
    best = made.key_by("id").top(1, by=["price", "bid_ts"], descending=[True, False])
    return best.with_columns(auction="id")


def q10(bids: Stream) -> Stream:
    """All bids, for files in folders by day and minute: `ps.parquet(path, partition_by=("dt", "hm"))`."""
    return bids.select("auction", "bidder", "price", "ts", "extra", dt=DAY, hm=MINUTE)


def q11(bids: Stream) -> Stream:
    """How many bids each person makes in a session, which ends after ten seconds without a bid."""
    sessions = bids.key_by("bidder").window(session("10s")).aggregate(bid_count=count())
    return sessions.select("bidder", "bid_count", starttime="window_start", endtime="window_end")


def q12(bids: Stream) -> Stream:
    """How many bids each person makes in ten seconds by the clock; the results differ from run to run."""
    windows = bids.key_by("bidder").window(tumbling("10s", time="processing")).aggregate(bid_count=count())
    return windows.select("bidder", "bid_count", starttime="window_start", endtime="window_end")


def q13(bids: Stream) -> Stream:
    """All bids, each with a value from a table that does not change."""
    valued = bids.with_columns(key="auction % 10000").join(side_input(), on="key")
    return valued.select("auction", "bidder", "price", "ts", "value")


def q14(bids: Stream) -> Stream:
    """Bids of some prices, with the time of day, and with a count by a function of Python."""
    time_of_day = """CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'dayTime'
                          WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime' ELSE 'otherTime' END"""
    chosen = bids.select("auction", "bidder", "ts", "extra", price=EUROS, bid_time_type=time_of_day).where(
        (pl.col("price") > 1_000_000) & (pl.col("price") < 50_000_000)
    )
    return chosen.map_batches(_with_count_of_c)


def _with_count_of_c(bids: pl.DataFrame) -> pl.DataFrame:
    return bids.with_columns(c_counts=pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int64))


def q15(bids: Stream) -> Stream:
    """Per day: bids, bidders and auctions, in all and by three ranges of prices."""
    return (
        bids.with_columns(day=DAY)
        .key_by("day")
        .aggregate(
            total_bids=count(),
            rank1_bids=count(where=LOW),
            rank2_bids=count(where=MIDDLE),
            rank3_bids=count(where=HIGH),
            total_bidders=count_distinct("bidder"),
            rank1_bidders=count_distinct("bidder", where=LOW),
            rank2_bidders=count_distinct("bidder", where=MIDDLE),
            rank3_bidders=count_distinct("bidder", where=HIGH),
            total_auctions=count_distinct("auction"),
            rank1_auctions=count_distinct("auction", where=LOW),
            rank2_auctions=count_distinct("auction", where=MIDDLE),
            rank3_auctions=count_distinct("auction", where=HIGH),
        )
    )


def q16(bids: Stream) -> Stream:
    """Per channel and day: the same as q15, and the latest minute."""
    return (
        bids.with_columns(day=DAY, at=MINUTE)
        .key_by("channel", "day")
        .aggregate(
            minute=greatest("at"),
            total_bids=count(),
            rank1_bids=count(where=LOW),
            rank2_bids=count(where=MIDDLE),
            rank3_bids=count(where=HIGH),
            total_bidders=count_distinct("bidder"),
            rank1_bidders=count_distinct("bidder", where=LOW),
            rank2_bidders=count_distinct("bidder", where=MIDDLE),
            rank3_bidders=count_distinct("bidder", where=HIGH),
            total_auctions=count_distinct("auction"),
            rank1_auctions=count_distinct("auction", where=LOW),
            rank2_auctions=count_distinct("auction", where=MIDDLE),
            rank3_auctions=count_distinct("auction", where=HIGH),
        )
    )


def q17(bids: Stream) -> Stream:
    """Per auction and day: how many bids by range of price, and their least, greatest, mean and total price."""
    return (
        bids.with_columns(day=DAY)
        .key_by("auction", "day")
        .aggregate(
            total_bids=count(),
            rank1_bids=count(where=LOW),
            rank2_bids=count(where=MIDDLE),
            rank3_bids=count(where=HIGH),
            min_price=least("price"),
            max_price=greatest("price"),
            avg_price=mean("price"),
            sum_price=total("price"),
        )
    )


def q18(bids: Stream) -> Stream:
    """The last bid of each bidder for each auction."""
    return bids.deduplicate(["bidder", "auction"], keep="last")


def q19(bids: Stream) -> Stream:
    """The ten highest bids for each auction, with their places."""
    return bids.key_by("auction").top(10, by="price", rank="rank_number")


def q20(bids: Stream, auctions: Stream) -> Stream:
    """The bids for auctions of category 10, each with the auction."""
    offers = auctions.where("category = 10").rename({"ts": "auction_ts", "extra": "auction_extra"})
    made = bids.rename({"ts": "bid_ts", "extra": "bid_extra"})
    return made.join(offers, on={"auction": "id"}, ttl=None)


def q21(bids: Stream) -> Stream:
    """The number of the channel of each bid: that of a large channel by its name, others from the url."""
    large = pl.col("channel").str.to_lowercase().replace_strict(CHANNEL_IDS, default=None, return_dtype=pl.String)
    other = pl.col("url").str.extract("(?:&|^)channel_id=([^&]*)", 1)
    numbered = bids.select("auction", "bidder", "price", "channel", channel_id=pl.coalesce(large, other))
    return numbered.where("channel_id IS NOT NULL")


def q22(bids: Stream) -> Stream:
    """All bids, with the three folders in their urls."""
    folders = pl.col("url").str.split("/").list
    return bids.select(
        *("auction", "bidder", "price", "channel"),
        dir1=folders.get(3, null_on_oob=True),
        dir2=folders.get(4, null_on_oob=True),
        dir3=folders.get(5, null_on_oob=True),
    )


def q23(bids: Stream, persons: Stream, auctions: Stream) -> Stream:
    """The bids of persons who sell something themselves, each with the person and with each auction of the person."""
    made = bids.select("bidder", "price", "channel", "url", bid_extra="extra")
    bidders = persons.drop("ts").rename({"id": "bidder", "extra": "person_extra"})
    offers = auctions.drop("id").rename({"seller": "bidder", "ts": "auction_ts", "extra": "auction_extra"})
    both = made.join(bidders, on="bidder", ttl=None).join(offers, on="bidder", ttl=None)
    return both.with_columns(person_id="bidder", seller="bidder")

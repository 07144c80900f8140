"""The query of the demo and the benchmark, for Penstock and for Spark: hot auctions.

    bids -> where price > 1000 -> by auction and 10 s of event time: how many bids, and the highest price

Spark runs the same query text over a batch and over a stream, so that the reference and the competitor cannot drift
apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.api.connector import Sink, Source
from penstock.api.program import Program
from penstock.connectors import nexmark

CONDITION = "price > 1000"
WINDOW_S = 10
LATENESS_S = 4

KEYS = ("auction", "window_start")
VALUES = ("window_end", "n", "top")
OUTPUT_SCHEMA = "auction BIGINT, window_start TIMESTAMP, window_end TIMESTAMP, n BIGINT, top BIGINT"


@dataclass(frozen=True, kw_only=True)
class BidInput:
    """Which bids are read."""

    events: int
    seed: int = 1
    keys: int | None = None
    """The number of keys, each of which has about three bids in a window. None: the auctions are the keys."""

    @property
    def events_per_second(self) -> int:
        """How many events share a second of event time."""
        return 10_000 if self.keys is None else max(1, 3 * self.keys // WINDOW_S)

    @property
    def key(self) -> str:
        """The SQL text of the key."""
        return "auction" if self.keys is None else f"(auction * 1000003 + bidder * 7919 + price) % {self.keys}"

    def source(self) -> Source:
        """The bids as a source of Penstock."""
        return nexmark.bids(events=self.events, seed=self.seed, events_per_second=self.events_per_second)


def penstock_query(program: Program, source: Source, sink: Sink, *, key: str = "auction") -> None:
    """Add the query over `source` to a Penstock program."""
    import penstock as ps

    bids = program.read(source).watermark("ts", delay=f"{LATENESS_S}s").where(CONDITION)
    (
        (bids if key == "auction" else bids.with_columns(auction=key))
        .key_by("auction")
        .window(ps.tumbling(f"{WINDOW_S}s"))
        .aggregate(n=ps.count(), top=ps.max("price"))
        .write(sink)
    )


def batch_query(spark: Any, bids: BidInput) -> Any:
    """The query over all bids at once, as a DataFrame."""
    return _windowed(spark.sql(nexmark.bids_sql(events=bids.events, seed=bids.seed)))


def streaming_query(numbers: Any, bids: BidInput) -> Any:
    """The query over a streaming DataFrame of bid numbers `n`, as a streaming DataFrame."""
    rows = numbers.selectExpr(
        *nexmark.bid_columns_sql(seed=bids.seed, events_per_second=bids.events_per_second)
    ).selectExpr(f"{bids.key} AS auction", "price", "ts")
    return _windowed(rows.withWatermark("ts", f"{LATENESS_S} seconds"))


def _windowed(bids: Any) -> Any:
    from pyspark.sql import functions as sql

    window = sql.window("ts", f"{WINDOW_S} seconds").alias("window")
    counted = bids.where(CONDITION).groupBy("auction", window).agg(sql.expr("count(*) n"), sql.expr("max(price) top"))
    return counted.selectExpr("auction", "window.start AS window_start", "window.end AS window_end", "n", "top")

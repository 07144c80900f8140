"""The queries of `penstock bench operators`, for Penstock and for Structured Streaming.

windows, running    bids -> by auction and window: how many bids, and the highest price
interval-join       auctions with the bids of their first ten seconds
deduplicate         bids, but of the bids of a person for an auction within ten seconds the first only
static-join         bids with a value from a table of ten thousand rows
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock.bench.nexmark_queries import Events
from penstock.bench.nexmark_streaming import event_stream
from penstock.bench.window_query import LATENESS_S
from penstock.connectors import nexmark

if TYPE_CHECKING:
    from penstock.api.connector import Sink, Source
    from penstock.api.program import Program
    from penstock.api.windows import WindowType

SLIDING = "sliding"
SESSION = "session"
RUNNING = "running"
INTERVAL_JOIN = "interval-join"
DEDUPLICATE = "deduplicate"
STATIC_JOIN = "static-join"
EVENT_QUERIES = (INTERVAL_JOIN, DEDUPLICATE, STATIC_JOIN)
SIZE = "10 seconds"
SLIDE = "1 second"
GAP = "10 seconds"
AGGREGATES = "count(*) AS n", "max(price) AS top"
NEAR = "10 seconds"
"""How close bids are to an auction, or to each other."""
PERSON_AND_AUCTION = ["bidder", "auction"]
BID_COLUMNS = tuple(nexmark.SCHEMA.names)
RESULT = "auction", "window.start AS window_start", "window.end AS window_end", "n", "top"


def penstock_query(program: Program, source: Source, sink: Sink, *, kind: str) -> None:
    """Add the query to a Penstock program."""
    if kind == RUNNING:
        bids = program.read(source).key_by("auction")
        bids.aggregate(n=ps.count(), top=ps.max("price")).changes().write(sink)
        return
    window = ps.sliding(SIZE, SLIDE) if kind == SLIDING else ps.session(GAP)
    windowed_query(program, source, sink, key="auction", window=window)


def windowed_query(program: Program, source: Source, sink: Sink, *, key: str, window: WindowType) -> None:
    """Add the query with a key column and windows to a Penstock program."""
    bids = program.read(source).watermark("ts", delay=f"{LATENESS_S}s")
    bids.key_by(key).window(window).aggregate(n=ps.count(), top=ps.max("price")).write(sink)


def streaming_query(numbers: Any, *, kind: str, seed: int) -> Any:
    """The query over a streaming DataFrame of bid numbers `n`, as a streaming DataFrame."""
    from pyspark.sql import functions as sql

    rows = numbers.selectExpr(*nexmark.bid_columns_sql(seed=seed))
    aggregates = [sql.expr(aggregate) for aggregate in AGGREGATES]
    if kind == RUNNING:
        return rows.groupBy("auction").agg(*aggregates)
    window = sql.window("ts", SIZE, SLIDE) if kind == SLIDING else sql.session_window("ts", GAP)
    bids = rows.withWatermark("ts", f"{LATENESS_S} seconds")
    return bids.groupBy("auction", window.alias("window")).agg(*aggregates).selectExpr(*RESULT)


def events_read(kind: str, events: Events) -> dict[str, int]:
    """How many rows of which kind a query of events reads."""
    shares = nexmark.shares(events.events)
    kinds = ("bids", "auctions") if kind == INTERVAL_JOIN else ("bids",)
    return {each: shares[each] for each in kinds}


def penstock_event_query(program: Program, *given: Any, kind: str) -> None:
    """Add a query of events to a Penstock program. Given are the sources, in the order of `events_read`, and the
    sink."""
    *sources, sink = given
    delay = NEAR if kind == DEDUPLICATE else f"{LATENESS_S}s"
    bids, *others = (program.read(source).watermark("ts", delay=delay) for source in sources)
    if kind == DEDUPLICATE:
        bids.deduplicate(PERSON_AND_AUCTION, within=NEAR).write(sink)
    elif kind == STATIC_JOIN:
        bids.with_columns(key="auction % 10000").join(nexmark.side_input(), on="key").write(sink)
    else:
        offers, made = others[0].select("id", "category", "ts"), bids.rename({"ts": "bid_ts"})
        offers.join(made, on={"id": "auction"}, within=("0s", NEAR)).write(sink)


def streaming_event_query(spark: Any, *, kind: str, events: Events, parallelism: int) -> Any:
    """The query as a streaming DataFrame, whose micro-batches have so many events each."""
    from pyspark.sql import functions as sql

    delay = NEAR if kind == DEDUPLICATE else f"{LATENESS_S} seconds"
    bids, *others = (
        event_stream(spark, each, events, columns=BID_COLUMNS, parallelism=parallelism).withWatermark("ts", delay)
        for each in events_read(kind, events)
    )
    if kind == DEDUPLICATE:
        # Spark keeps a key for the delay of the watermark.
        return bids.dropDuplicatesWithinWatermark(PERSON_AND_AUCTION)
    if kind == STATIC_JOIN:
        table = spark.range(nexmark.side_input().num_rows).selectExpr("id AS key", "concat('value ', id) AS value")
        return bids.withColumn("key", sql.expr("auction % 10000")).join(table, on="key")
    offers, made = others[0].select("id", "category", "ts"), bids.withColumnRenamed("ts", "bid_ts")
    near = f"id = auction AND bid_ts BETWEEN ts AND ts + INTERVAL {NEAR}"
    return offers.join(made, on=sql.expr(near)).drop("auction")

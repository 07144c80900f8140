"""The queries of Nexmark for Structured Streaming.

Each query is SQL over the streaming views `persons`, `auctions` and `bids`, which have watermarks. Where Spark has no
streaming form of a query, the query is written as Spark's own documentation advises, if that gives the same rows: the
first row of a key is `max_by`, because `row_number` is refused on streams. What is left, Spark refuses, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.nexmark_queries import LATENESS, QUERIES, Events, Query
from penstock.bench.structured_streaming import ROWS_PER_BATCH
from penstock.connectors import nexmark

EVENTS_PER_ROUND = 50
APPEND, UPDATE = "append", "update"


@dataclass(frozen=True, kw_only=True)
class StreamingQuery:
    """One query."""

    sql: str
    mode: str = APPEND
    """The output mode."""


_IN_TIME = "auctions a JOIN bids b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires"
_HOT_WINDOW = "window(ts, '10 seconds', '2 seconds')"

STREAMING: Mapping[str, StreamingQuery] = {
    "q0": StreamingQuery(sql=QUERIES["q0"].sql),
    "q1": StreamingQuery(sql=QUERIES["q1"].sql),
    "q2": StreamingQuery(sql=QUERIES["q2"].sql),
    "q3": StreamingQuery(sql=QUERIES["q3"].sql),
    "q4": StreamingQuery(sql=QUERIES["q4"].sql, mode=UPDATE),
    "q5": StreamingQuery(
        sql=f"WITH counts AS (SELECT auction, count(*) AS num, {_HOT_WINDOW} AS hot FROM bids GROUP BY auction, "
        f"{_HOT_WINDOW}), most AS (SELECT max(num) AS most, window FROM (SELECT num, window_time(hot) AS ts "
        "FROM counts) GROUP BY window(ts, '2 seconds')) "
        "SELECT auction, num, hot.start AS window_start, hot.end AS window_end "
        "FROM counts JOIN most ON num = most AND hot.end = window.end"
    ),
    "q7": StreamingQuery(
        # The time of a window is a microsecond before its end.
        sql="SELECT auction, bidder, price, ts, extra FROM bids JOIN (SELECT highest, window_time(period) AS last FROM "
        "(SELECT max(price) AS highest, window AS period FROM bids GROUP BY window(ts, '10 seconds'))) "
        "ON price = highest AND ts BETWEEN last + INTERVAL 0.000001 SECOND - INTERVAL 10 SECONDS "
        "AND last + INTERVAL 0.000001 SECOND"
    ),
    "q8": StreamingQuery(
        sql="SELECT p.id, p.name, p.window.start AS starttime FROM "
        "(SELECT id, name, window FROM persons GROUP BY id, name, window(ts, '10 seconds')) p JOIN "
        "(SELECT seller, window FROM auctions GROUP BY seller, window(ts, '10 seconds')) a "
        "ON p.id = a.seller AND p.window = a.window"
    ),
    "q9": StreamingQuery(
        sql="SELECT id, best.* FROM (SELECT a.id, max_by(struct(a.* EXCEPT (id), b.auction, b.bidder, b.price, "
        "b.ts AS bid_ts, b.extra AS bid_extra), struct(b.price, -unix_micros(b.ts))) AS best "
        f"FROM {_IN_TIME} GROUP BY a.id)",
        mode=UPDATE,
    ),
    "q10": StreamingQuery(sql=QUERIES["q10"].sql),
    "q11": StreamingQuery(sql=QUERIES["q11"].sql),
    "q12": StreamingQuery(
        sql="SELECT bidder, count(*) AS bid_count, window.start AS starttime, window.end AS endtime "
        "FROM (SELECT bidder, current_timestamp() AS clock FROM bids) GROUP BY bidder, window(clock, '10 seconds')",
        mode=UPDATE,
    ),
    "q13": StreamingQuery(
        sql="SELECT auction, bidder, price, ts, value FROM bids JOIN side_input ON auction % 10000 = key"
    ),
    "q14": StreamingQuery(sql=QUERIES["q14"].sql),
    "q15": StreamingQuery(sql=QUERIES["q15"].sql, mode=UPDATE),
    "q16": StreamingQuery(sql=QUERIES["q16"].sql, mode=UPDATE),
    "q17": StreamingQuery(sql=QUERIES["q17"].sql, mode=UPDATE),
    "q18": StreamingQuery(
        sql="SELECT bidder, auction, last.* FROM (SELECT bidder, auction, "
        "max_by(struct(price, channel, url, ts, extra), ts) AS last FROM bids GROUP BY bidder, auction)",
        mode=UPDATE,
    ),
    "q19": StreamingQuery(
        sql="SELECT auction, best.*, place + 1 AS rank_number FROM "
        "(SELECT auction, posexplode(highest) AS (place, best) FROM (SELECT auction, "
        "max_by(struct(bidder, price, channel, url, ts, extra), price, 10) AS highest FROM bids GROUP BY auction))",
        mode=UPDATE,
    ),
    "q20": StreamingQuery(sql=QUERIES["q20"].sql),
    "q21": StreamingQuery(sql=QUERIES["q21"].sql),
    "q22": StreamingQuery(sql=QUERIES["q22"].sql),
    "q23": StreamingQuery(sql=QUERIES["q23"].sql),
}
"""The queries by name, as `QUERIES` has them."""


def streaming_frame(spark: Any, query: Query, events: Events, *, parallelism: int) -> Any:
    """The query as a streaming DataFrame, whose micro-batches have so many events each. Raises Spark's
    `AnalysisException` if Spark cannot analyse the query."""
    for kind in query.kinds:
        rows = event_stream(spark, kind, events, columns=query.columns, parallelism=parallelism)
        timed = rows.withWatermark("ts", LATENESS.replace("s", " seconds")) if "ts" in rows.columns else rows
        timed.createOrReplaceTempView(kind)
    spark.range(nexmark.side_input().num_rows).selectExpr(
        "id AS key", "concat('value ', id) AS value"
    ).createOrReplaceTempView("side_input")
    return spark.sql(STREAMING[query.name].sql)


def event_stream(spark: Any, kind: str, events: Events, *, columns: Sequence[str], parallelism: int) -> Any:
    """Persons, auctions or bids as a streaming DataFrame. Spark's own generator makes their numbers, and SQL the rows.
    A micro-batch has the rows of this kind among so many events, so the micro-batches of all kinds are of one time."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", nexmark.shares(events.events)[kind])
        .option("numPartitions", parallelism)
        .load()
        .selectExpr("value AS n")
    )
    return numbers.selectExpr(*events.columns_sql(kind, columns))


def whole_rounds(events: int) -> int:
    """About so many events, so that each micro-batch has persons, auctions and bids in their shares."""
    return max(events // EVENTS_PER_ROUND, 1) * EVENTS_PER_ROUND


def micro_batch_events(events: int) -> int:
    """How many of so many events a micro-batch has: at least four micro-batches, so that some are left when the warm-up
    is over."""
    return whole_rounds(min(events // 4, ROWS_PER_BATCH))

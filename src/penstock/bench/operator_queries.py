"""The queries of `penstock bench operators`, for Penstock and for Structured Streaming.

bids -> by auction and window: how many bids, and the highest price
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock.bench.window_query import LATENESS_S
from penstock.connectors import nexmark

if TYPE_CHECKING:
    from penstock.api.connector import Sink, Source
    from penstock.api.program import Program
    from penstock.api.windows import WindowType

SLIDING = "sliding"
SESSION = "session"
RUNNING = "running"
SIZE = "10 seconds"
SLIDE = "1 second"
GAP = "10 seconds"
AGGREGATES = "count(*) AS n", "max(price) AS top"
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

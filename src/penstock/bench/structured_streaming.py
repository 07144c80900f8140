"""The competitor: the same query by Spark Structured Streaming, with the settings that make it as fast as possible.

The source is Spark's own generator of numbers, which is Spark's cheapest source, and SQL computes the bids from the
numbers. State is in RocksDB with changelog checkpoints, the sink writes Parquet exactly once, and each micro-batch
starts as soon as the micro-batch before has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.bench.metering import Throughput
from penstock.bench.window_query import BidInput, streaming_query
from penstock.core.errors import HostError
from penstock.terminal.failures import uninterrupted

ROWS_PER_BATCH = 4_000_000
"""Rows of a micro-batch. Fewer rows are slower, because every micro-batch has a fixed cost. Measurements show that more
rows are not faster."""
POLL_S = 0.2

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # To count the rows of the state would cost a look-up for every write.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One micro-batch, as Spark reports it."""

    start_ms: float
    duration_ms: float
    rows: int


@dataclass(frozen=True, kw_only=True)
class StreamSize:
    """How many rows a query reads, and how many rows a micro-batch has."""

    rows: int
    rows_per_batch: int

    @classmethod
    def of(cls, rows: int, *, most_per_batch: int) -> StreamSize:
        """At least four micro-batches, so that some are left when the warm-up is over."""
        return cls(rows=rows, rows_per_batch=min(most_per_batch, max(1, rows // 4)))


def run_structured_streaming(
    spark: Any, bids: BidInput, *, parallelism: int, directory: Path, warmup_share: float
) -> Throughput:
    """Run the query until it has processed `bids.events` records. Returns its throughput after the warm-up. Raises
    `HostError` if the query fails, or is too short to be measured."""
    return run_streaming_query(
        spark,
        lambda numbers: streaming_query(numbers, bids),
        size=StreamSize.of(bids.events, most_per_batch=ROWS_PER_BATCH),
        parallelism=parallelism,
        directory=directory,
        warmup_share=warmup_share,
    )


def run_streaming_query(
    spark: Any,
    transform: Callable[[Any], Any],
    *,
    size: StreamSize,
    parallelism: int,
    directory: Path,
    warmup_share: float,
    updates: bool = False,
) -> Throughput:
    """Run the query that `transform` makes of a stream of numbers `n`, until the query has processed all of them. The
    query is in append mode and writes Parquet; with `updates` it is in update mode, and its rows go nowhere. Returns
    its throughput after the warm-up. Raises `HostError` if the query fails, or is too short to be measured."""
    with session_settings(spark, SETTINGS | {"spark.sql.shuffle.partitions": str(parallelism)}):
        numbers = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", size.rows_per_batch)
            .option("numPartitions", parallelism)
            .load()
            .selectExpr("value AS n")
        )
        writer = transform(numbers).writeStream
        if updates:
            writer = writer.format("noop").outputMode("update")
        else:
            writer = writer.format("parquet").outputMode("append").option("path", (directory / "out").as_uri())
        query = (
            writer.option("checkpointLocation", (directory / "checkpoints").as_uri())
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            batches = _follow(query, events=size.rows)
        except BaseException:
            # The first error is raised. An error from stopping the query would only hide it.
            with uninterrupted(), suppress(Exception):
                query.stop()
            raise
        query.stop()
    throughput = steady_throughput(batches, warmup_share=warmup_share)
    if throughput is None:
        raise HostError("the run of Structured Streaming was too short to be measured", hint="raise --events or --rows")
    return throughput


def steady_throughput(batches: Sequence[MicroBatch], *, warmup_share: float) -> Throughput | None:
    """The throughput over the micro-batches that begin after `warmup_share` of all records; None if there are too few
    micro-batches.

    Time is counted from the start of the first such micro-batch to the end of the last, with the pauses in between.
    """
    total = sum(batch.rows for batch in batches)
    read, steady = 0, []
    for batch in batches:
        if read >= total * warmup_share:
            steady.append(batch)
        read += batch.rows
    if not steady:
        return None
    seconds = (steady[-1].start_ms + steady[-1].duration_ms - steady[0].start_ms) / 1_000
    if seconds <= 0:
        return None
    return Throughput(rows=total, seconds=seconds, rows_per_second=sum(b.rows for b in steady) / seconds)


def _follow(query: Any, *, events: int) -> list[MicroBatch]:
    pause = threading.Event()
    while True:
        failure = query.exception()
        if failure is not None:
            raise HostError(f"Structured Streaming failed: {str(failure).splitlines()[0]}")
        batches = [_micro_batch(progress) for progress in query.recentProgress]
        batches = [batch for batch in batches if batch.rows]
        if sum(batch.rows for batch in batches) >= events:
            return batches
        pause.wait(POLL_S)


def _micro_batch(progress: Any) -> MicroBatch:
    started = datetime.fromisoformat(progress.timestamp)
    return MicroBatch(
        start_ms=started.timestamp() * 1_000,
        duration_ms=float(progress.durationMs["triggerExecution"]),
        rows=int(progress.numInputRows),
    )


@contextmanager
def session_settings(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Inside the block the session has these settings. When the block ends, the session gets its earlier settings
    back."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)

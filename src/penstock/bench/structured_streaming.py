"""The competitor: the same query by Spark Structured Streaming, with the settings that make it as fast as possible.

The source is Spark's own generator of numbers, which is Spark's cheapest source, and SQL computes the bids from the
numbers. State is in RocksDB with changelog checkpoints, the sink writes Parquet exactly once, and each micro-batch
starts as soon as the micro-batch before has ended.
"""

from __future__ import annotations

import threading
import time
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
    seconds: float | None = None
    """After this time the query is stopped, if two micro-batches have been processed by then; after three times this
    time in any case. None: however long it takes."""

    @classmethod
    def of(cls, rows: int, *, most_per_batch: int) -> StreamSize:
        """At least four micro-batches, so that some are left when the warm-up is over."""
        return cls(rows=rows, rows_per_batch=min(most_per_batch, max(1, rows // 4)))

    def is_enough(self, batches: int, seconds: float) -> bool:
        """Whether the query may be stopped that has processed so many micro-batches in this time."""
        if batches * self.rows_per_batch >= self.rows:
            return True
        return self.seconds is not None and seconds >= (self.seconds if batches >= 2 else 3 * self.seconds)


@dataclass(frozen=True, kw_only=True)
class StreamOutput:
    """What becomes of the rows of a query."""

    directory: Path
    """Where checkpoints go, and files."""
    mode: str = "append"
    is_kept: bool = True
    """Whether the rows are written as Parquet; otherwise they go nowhere."""
    partition_by: tuple[str, ...] = ()

    def started(self, frame: Any) -> Any:
        """The query, with micro-batches that follow each other without a pause."""
        writer = frame.writeStream.outputMode(self.mode).trigger(processingTime="0 seconds")
        writer = writer.option("checkpointLocation", (self.directory / "checkpoints").as_uri())
        if not self.is_kept:
            return writer.format("noop").start()
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        return writer.format("parquet").option("path", (self.directory / "out").as_uri()).start()


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

    def frame() -> Any:
        numbers = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", size.rows_per_batch)
            .option("numPartitions", parallelism)
            .load()
            .selectExpr("value AS n")
        )
        return transform(numbers)

    output = StreamOutput(directory=directory, mode="update" if updates else "append", is_kept=not updates)
    return run_stream(spark, frame, size=size, output=output, parallelism=parallelism, warmup_share=warmup_share)


def run_stream(
    spark: Any,
    frame: Callable[[], Any],
    *,
    size: StreamSize,
    output: StreamOutput,
    parallelism: int,
    warmup_share: float,
) -> Throughput:
    """Run the query that `frame` makes, until the query has processed as many rows as `size` says. Returns its
    throughput after the warm-up. Raises `HostError` if the query fails, or is too short to be measured."""
    with session_settings(spark, SETTINGS | {"spark.sql.shuffle.partitions": str(parallelism)}):
        query = output.started(frame())
        try:
            batches = _follow(query, size)
        except BaseException:
            # The first error is raised. An error from stopping the query would only hide it.
            with uninterrupted(), suppress(Exception):
                query.stop()
            raise
        query.stop()
    throughput = steady_throughput(batches, warmup_share=warmup_share)
    if throughput is None:
        hint = "raise --events or --rows" if size.seconds is None else "raise --seconds"
        raise HostError("the run of Structured Streaming was too short to be measured", hint=hint)
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
    return Throughput(
        rows=total,
        seconds=seconds,
        rows_per_second=sum(b.rows for b in steady) / seconds,
        started_ns=int(steady[0].start_ms * 1e6),
    )


def _follow(query: Any, size: StreamSize) -> list[MicroBatch]:
    pause = threading.Event()
    started = time.monotonic()
    while True:
        failure = query.exception()
        if failure is not None:
            raise HostError(f"Structured Streaming failed: {str(failure).splitlines()[0]}")
        # A micro-batch without rows only moves the watermark. All others have the same number of rows, which Spark
        # counts several times if a query reads a stream several times.
        done = [progress for progress in query.recentProgress if progress.numInputRows]
        if size.is_enough(len(done), time.monotonic() - started):
            return [_micro_batch(progress, size.rows_per_batch) for progress in done]
        pause.wait(POLL_S)


def _micro_batch(progress: Any, rows: int) -> MicroBatch:
    started = datetime.fromisoformat(progress.timestamp)
    return MicroBatch(
        start_ms=started.timestamp() * 1_000,
        duration_ms=float(progress.durationMs["triggerExecution"]),
        rows=rows,
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

"""The runs of `penstock bench processor`.

Spark's latency is measured with Spark's socket source, because Spark's rate source knows only whole seconds. A
micro-batch has all records that have come in when it begins. A record is seen when its micro-batch has been collected.
No output is written, so the latency of Spark does not include the time of a sink.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
import numpy as np

import penstock as ps
from penstock.bench.latency import (
    KEY_STRIDE,
    KEYS,
    Latency,
    LatencySink,
    PacedSource,
    latency_of,
    pairs_of,
    read_latency,
)
from penstock.bench.metering import MeteredSink, MeteredSource, read_throughput
from penstock.bench.processors import COUNTED, PASSED, CountRowsOfKey, PassRows
from penstock.bench.round_folders import round_folder
from penstock.bench.state_rows import INTERVAL, SPARK_SHARE, WARMUP_SHARE, check_protobuf, spark_rows_per_second
from penstock.bench.state_rows import KEYS as COUNTED_KEYS
from penstock.bench.structured_streaming import SETTINGS, session_settings
from penstock.bench.window_query import BidInput
from penstock.core.errors import HostError, UsageError
from penstock.settings import NoRestart
from penstock.terminal.failures import uninterrupted
from penstock.terminal.running import running_job
from penstock.terminal.session import SessionOptions, spark_session

_BEAT_S = 0.001
_FIRST_BATCH_S = 120.0
_LATENCY_WARMUP_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class ProcessorResult:
    """The result of all four runs."""

    rows_per_second: float
    spark_rows_per_second: float
    latency: Latency
    spark_latency: Latency


def measure(
    work: Path, *, rows: int, parallelism: int, cores: int, rate: int, seconds: float, screen: IO[str]
) -> ProcessorResult:
    """Do all four runs, on one Spark. Latency is measured at `rate` rows a second, for `seconds`."""
    check_protobuf()
    click.echo(f"starting Spark local[{cores}] ...", file=screen)
    with spark_session(SessionOptions(application="penstock bench", cores=cores, work=work)) as spark:
        with round_folder(work, "rows") as place:
            own_rows = _rows(spark, place, rows=rows, parallelism=parallelism)
        click.echo(f"penstock: {own_rows:,.0f} rows/s", file=screen)
        with round_folder(work, "spark-rows") as place:
            fewer = max(rows // SPARK_SHARE, 4)
            spark_rows = spark_rows_per_second(spark, place, rows=fewer, parallelism=parallelism)
        click.echo(f"transformWithState: {spark_rows:,.0f} rows/s", file=screen)
        with round_folder(work, "latency") as place:
            own = _measured(_latency(spark, place, rate=rate, seconds=seconds, parallelism=parallelism))
        click.echo(f"penstock: p50 {own.p50_ms:.1f} ms, p99 {own.p99_ms:.1f} ms", file=screen)
        with round_folder(work, "spark-latency") as place:
            theirs = _measured(_spark_latency(spark, place, rate=rate, seconds=seconds, parallelism=parallelism))
        click.echo(f"transformWithState: p50 {theirs.p50_ms:.0f} ms, p99 {theirs.p99_ms:.0f} ms", file=screen)
    return ProcessorResult(
        rows_per_second=own_rows, spark_rows_per_second=spark_rows, latency=own, spark_latency=theirs
    )


def _measured(found: Latency | None) -> Latency:
    if found is None:
        raise UsageError("no record was measured", hint="raise --latency-seconds")
    return found


def _environment(spark: Any, place: Path, parallelism: int) -> ps.Environment:
    return ps.Environment(
        spark,
        parallelism=parallelism,
        checkpointing=ps.Checkpointing(interval=INTERVAL, directory=place / "checkpoints"),
        restart=NoRestart(),
    )


def _rows(spark: Any, place: Path, *, rows: int, parallelism: int) -> float:
    environment = _environment(spark, place, parallelism)
    meters = str(place / "meters")
    (
        environment.read(MeteredSource(BidInput(events=rows).source(), meters))
        .select(f"auction % {COUNTED_KEYS} AS k")
        .key_by("k")
        .transform_with_state(CountRowsOfKey(), output_schema=COUNTED)
        .write(MeteredSink(ps.parquet(str(place / "out")), meters))
    )
    with running_job(environment, "bench") as job:
        job.wait()
    found = read_throughput(place / "meters", warmup_share=WARMUP_SHARE)
    if found is None:
        raise UsageError("the run was too short to be measured", hint="raise --rows")
    return found.rows_per_second


def _latency(spark: Any, place: Path, *, rate: int, seconds: float, parallelism: int) -> Latency | None:
    environment = _environment(spark, place, parallelism)
    (
        environment.read(PacedSource(rate=rate, seconds=seconds))
        .key_by("key")
        .transform_with_state(PassRows(), output_schema=PASSED)
        .write(LatencySink(str(place / "times")))
    )
    with running_job(environment, "latency") as job:
        job.wait()
    return read_latency(place / "times", warmup_s=seconds * _LATENCY_WARMUP_SHARE)


# --- Spark -----------------------------------------------------------------------------------------------------------


def _spark_latency(spark: Any, place: Path, *, rate: int, seconds: float, parallelism: int) -> Latency | None:
    seen: list[np.ndarray] = []

    def look(batch: Any, _: int) -> None:
        created = [row.created_us for row in batch.select("created_us").collect()]
        if created:
            seen.append(pairs_of(np.array(created, np.int64), time.time_ns() // 1_000))

    with (
        session_settings(spark, SETTINGS | {"spark.sql.shuffle.partitions": str(parallelism)}),
        PacedLines(rate) as lines,
    ):
        rows = (
            spark.readStream.format("socket")
            .option("host", "127.0.0.1")
            .option("port", lines.port)
            .load()
            .selectExpr(
                "CAST(split(value, ' ')[0] AS BIGINT) AS key", "CAST(split(value, ' ')[1] AS BIGINT) AS created_us"
            )
        )
        passed = rows.groupBy("key").transformWithState(PassRows(), PASSED, "append", "None")
        writer = passed.writeStream.foreachBatch(look).option("checkpointLocation", (place / "checkpoints").as_uri())
        with _stopped(writer.trigger(processingTime="0 seconds").start()) as query:
            _wait(query, lambda: bool(seen), _FIRST_BATCH_S)
            # The records of the first micro-batches do not count: they waited for Spark to start.
            seen.clear()
            begun = time.monotonic()
            _wait(query, lambda: time.monotonic() - begun >= seconds, seconds + _FIRST_BATCH_S)
    return latency_of(np.concatenate(seen), warmup_s=seconds * _LATENCY_WARMUP_SHARE) if seen else None


@contextmanager
def _stopped(query: Any) -> Iterator[Any]:
    try:
        yield query
    finally:
        with uninterrupted(), suppress(Exception):
            query.stop()


def _wait(query: Any, done: Any, timeout_s: float) -> None:
    pause, deadline = threading.Event(), time.monotonic() + timeout_s
    while not done():
        failure = query.exception()
        if failure is not None:
            raise HostError(f"Structured Streaming failed: {str(failure).splitlines()[0]}")
        if time.monotonic() > deadline:
            raise HostError(f"Structured Streaming has returned no rows for {timeout_s:.0f} s")
        pause.wait(0.05)


class PacedLines:
    """A server on loopback. It sends its first client a line `key created_us` for every record, when the record is
    due."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="penstock-paced-lines", daemon=True)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> PacedLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        start_us = time.time_ns() // 1_000
        sent = 0
        while not self._leaving.wait(_BEAT_S):
            due = (time.time_ns() // 1_000 - start_us) * self._rate // 1_000_000 + 1
            lines = (
                f"{number * KEY_STRIDE % KEYS} {start_us + number * 1_000_000 // self._rate}\n"
                for number in range(sent, due)
            )
            connection.sendall("".join(lines).encode())
            sent = due

"""Counting rows by key: by a Penstock job with one call of a function per row, and by transformWithState in the same
Spark.

Both read the same bids, key them by one of `KEYS` numbers, and write the counts as Parquet, exactly once. The Penstock
function keeps its state in memory, and returns a row for every row. Spark needs fewer calls: Spark calls its processor
once per key and micro-batch, with all rows of the key. The processor counts the rows and returns one row. Micro-batches
are so large that Spark is fast.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import click

import penstock as ps
from penstock.bench.metering import MeteredSink, MeteredSource, read_throughput
from penstock.bench.round_folders import round_folder
from penstock.bench.structured_streaming import StreamSize, run_streaming_query
from penstock.bench.window_query import BidInput
from penstock.connectors import nexmark
from penstock.core.errors import HostError, UsageError
from penstock.settings import NoRestart
from penstock.terminal.running import running_job
from penstock.terminal.session import SessionOptions, spark_session

KEYS = 10_000
SPARE_CORES = 2
SPARK_ROWS_PER_BATCH = 200_000
SPARK_SHARE = 5
"""Spark counts one of this many rows, because Spark is slower."""
WARMUP_SHARE = 0.25
INTERVAL = "1s"


class CountRows(ps.KeyedFunction):
    """Counts the rows of each key."""

    seen = ps.value_state("seen", "bigint", default=0)

    def on_row(self, row: dict[str, Any], context: Any) -> dict[str, Any]:  # noqa: ARG002
        """Returns the key, and how many rows of the key there have been."""
        count = self.seen.get() + 1
        self.seen.set(count)
        return {"k": context.key, "n": count}


def check_protobuf() -> None:
    """Raise `HostError` if Spark's own transformWithState cannot run."""
    if find_spec("google.protobuf") is None:
        raise HostError(
            "Spark's transformWithState needs protobuf, which is not installed",
            hint="pip install 'protobuf>=6.33.5,<7'",
        )


def measure_rows(work: Path, *, rows: int, parallelism: int, screen: IO[str]) -> tuple[float, float]:
    """Rows per second of Penstock and of Spark."""
    check_protobuf()
    cores = parallelism + SPARE_CORES
    click.echo(f"starting Spark local[{cores}] ...", file=screen)
    with spark_session(SessionOptions(application="penstock bench", cores=cores, work=work)) as spark:
        with round_folder(work, "penstock") as place:
            own = _penstock(spark, place, rows=rows, parallelism=parallelism)
        click.echo(f"penstock, one call per row: {own:,.0f} rows/s", file=screen)
        with round_folder(work, "spark-stream") as place:
            found = spark_rows_per_second(spark, place, rows=max(rows // SPARK_SHARE, 4), parallelism=parallelism)
        click.echo(f"transformWithState: {found:,.0f} rows/s", file=screen)
    return own, found


def _penstock(spark: Any, place: Path, *, rows: int, parallelism: int) -> float:
    environment = ps.Environment(
        spark,
        parallelism=parallelism,
        checkpointing=ps.Checkpointing(interval=INTERVAL, directory=place / "checkpoints"),
        restart=NoRestart(),
    )
    meters = str(place / "meters")
    (
        environment.read(MeteredSource(BidInput(events=rows).source(), meters))
        .select(f"auction % {KEYS} AS k")
        .key_by("k")
        .process(CountRows(), schema="k bigint, n bigint")
        .write(MeteredSink(ps.parquet(str(place / "out")), meters))
    )
    with running_job(environment, "bench") as job:
        job.wait()
    found = read_throughput(place / "meters", warmup_share=WARMUP_SHARE)
    if found is None:
        raise UsageError("the run was too short to be measured", hint="raise --rows")
    return found.rows_per_second


def spark_rows_per_second(spark: Any, place: Path, *, rows: int, parallelism: int) -> float:
    """Rows per second that Structured Streaming counts by key, with its own transformWithState."""
    from penstock.bench.processors import COUNTED, CountRowsOfKey

    def counted(numbers: Any) -> Any:
        bids = numbers.selectExpr(*nexmark.bid_columns_sql(seed=1)).selectExpr(f"auction % {KEYS} AS k")
        return bids.groupBy("k").transformWithState(
            statefulProcessor=CountRowsOfKey(),
            outputStructType=COUNTED,
            outputMode="append",
            timeMode="None",
        )

    return run_streaming_query(
        spark,
        counted,
        size=StreamSize.of(rows, most_per_batch=SPARK_ROWS_PER_BATCH),
        parallelism=parallelism,
        directory=place,
        warmup_share=WARMUP_SHARE,
    ).rows_per_second

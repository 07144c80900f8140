"""`penstock bench processor`: one `StatefulProcessor`, run by Penstock and by Spark's own transformWithState.

Both run on the same `local[N]`, one after the other. Two things are measured:

* Rows per second: bids are counted by key, as fast as possible. Penstock takes a checkpoint every second, Spark takes a
  checkpoint with each micro-batch.
* Latency: records that are due at a steady rate go through a processor that hands them on. The latency is the time from
  the moment at which a record is due until the record is seen behind the processor.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.terminal.failures import reported_failures

if TYPE_CHECKING:
    from penstock.bench.processor_runs import ProcessorResult

DEFAULT_ROWS = 4_000_000
LATENCY_RATE = 1_000
SPARE_CORES = 2


@dataclass(frozen=True, kw_only=True)
class ProcessorBenchOptions:
    """The options of the command line."""

    rows: int
    parallelism: int
    latency_seconds: float
    directory: Path | None
    as_json: bool


@click.command("processor")
@click.option(
    "--rows",
    type=click.IntRange(min=1_000),
    default=DEFAULT_ROWS,
    show_default=True,
    help="Rows that Penstock counts by key; Spark counts a fifth of them.",
)
@click.option("--parallelism", type=click.IntRange(min=1), default=2, show_default=True, help="Slots, and partitions.")
@click.option(
    "--latency-seconds",
    type=click.FloatRange(min=1),
    default=20.0,
    show_default=True,
    help=f"How long to measure latency, at {LATENCY_RATE:,} rows/s; the first quarter does not count.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to work. Default: a temporary directory. The files of the runs are removed in any case.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON to standard output, all else to standard error."
)
def processor(**values: Any) -> None:
    """A PySpark StatefulProcessor, unmodified, against Spark's own transformWithState."""
    with reported_failures():
        run_processor_bench(ProcessorBenchOptions(**values))


def run_processor_bench(options: ProcessorBenchOptions) -> None:
    """Run the benchmark."""
    # Imported here and not above, so that the other commands need not wait for the import of Spark.
    from penstock.bench import processor_runs
    from penstock.terminal.session import work_directory

    screen = sys.stderr if options.as_json else sys.stdout
    with work_directory(options.directory, keep=False, prefix="penstock-bench-") as work:
        result = processor_runs.measure(
            work,
            rows=options.rows,
            parallelism=options.parallelism,
            cores=options.parallelism + SPARE_CORES,
            rate=LATENCY_RATE,
            seconds=options.latency_seconds,
            screen=screen,
        )
    found = summary(result)
    click.echo(
        f"ratios to transformWithState: {found['rows_ratio']:.2f} times the rows, "
        f"{found['latency_p99_ratio']:.1f} times shorter at p99",
        file=screen,
    )
    if options.as_json:
        click.echo(json.dumps(found))


def summary(result: ProcessorResult) -> dict[str, float]:
    """The result as it is printed for programs."""
    return {
        "rows_ratio": round(result.rows_per_second / result.spark_rows_per_second, 3),
        "latency_p99_ratio": round(result.spark_latency.p99_ms / result.latency.p99_ms, 2),
        "rows_per_second": round(result.rows_per_second),
        "spark_rows_per_second": round(result.spark_rows_per_second),
        "latency_ms_p50": round(result.latency.p50_ms, 2),
        "latency_ms_p99": round(result.latency.p99_ms, 2),
        "spark_latency_ms_p50": round(result.spark_latency.p50_ms, 1),
        "spark_latency_ms_p99": round(result.spark_latency.p99_ms, 1),
    }

"""`penstock bench window`: the query of the demo, as fast as possible, against Structured Streaming in the same Spark.

Each round has three runs, one after the other: Penstock without checkpoints but the final checkpoint, Penstock with a
checkpoint every second, and Structured Streaming. So other programs on the machine disturb all three alike. A failure
ends the benchmark, because a run with a recovery would measure something else. The first part of every run is warm-up
and does not count. The result is the median of the rounds.

Latency is measured in a run of its own: records that are due at a steady rate go through a keyed exchange to a sink
that reads the clock, with a checkpoint every second.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from penstock.bench.round_folders import round_folder
from penstock.core.errors import UsageError
from penstock.settings import NoRestart
from penstock.terminal.failures import reported_failures

if TYPE_CHECKING:
    from penstock.api.checkpointing import Checkpointing
    from penstock.bench.latency import Latency

DEFAULT_EVENTS = 40_000_000
SPARE_CORES = 2
WARMUP_SHARE = 0.25
INTERVAL = "1s"
LATENCY_RATE = 10_000
LATENCY_WARMUP_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of the command line."""

    events: int
    parallelism: int
    rounds: int
    latency_seconds: float
    seed: int
    directory: Path | None
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class Round:
    """Events per second of one round."""

    penstock: float
    penstock_without_checkpoints: float
    spark: float


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All rounds, and the latency."""

    rounds: tuple[Round, ...]
    latency: Latency

    @property
    def penstock(self) -> float:
        """Events per second with checkpoints: the median."""
        return statistics.median(r.penstock for r in self.rounds)

    @property
    def spark(self) -> float:
        """Events per second of Structured Streaming: the median."""
        return statistics.median(r.spark for r in self.rounds)

    @property
    def without_checkpoints(self) -> float:
        """Events per second without checkpoints: the median."""
        return statistics.median(r.penstock_without_checkpoints for r in self.rounds)

    @property
    def checkpoint_cost(self) -> float:
        """The share of throughput that checkpoints cost: the median over the rounds. Each round compares two runs that
        followed each other. The share is negative if there was more noise than cost."""
        return statistics.median(1 - r.penstock / r.penstock_without_checkpoints for r in self.rounds)


@click.group("bench")
def bench() -> None:
    """Run benchmarks."""


@bench.command("window")
@click.option(
    "--events",
    type=click.IntRange(min=1_000),
    default=DEFAULT_EVENTS,
    show_default=True,
    help="Bids to read in each run.",
)
@click.option("--parallelism", type=click.IntRange(min=1), default=2, show_default=True, help="Slots, and partitions.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="How often to run all three.")
@click.option(
    "--latency-seconds",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    help=f"How long to measure latency, at {LATENCY_RATE:,} events/s.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Decides which bids are read.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to work. Default: a temporary directory. The files of the runs are removed in any case.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON to standard output, all else to standard error."
)
def window(**values: Any) -> None:
    """Count and maximum over 10 s windows by key, exactly once into Parquet, against Structured Streaming."""
    with reported_failures():
        run_bench(BenchOptions(**values))


def run_bench(options: BenchOptions) -> None:
    """Run the benchmark."""
    # Imported here and not above, so that the other commands need not wait for the import of the data plane.
    from penstock.terminal.session import SessionOptions, spark_session, work_directory

    screen = sys.stderr if options.as_json else sys.stdout
    cores = options.parallelism + SPARE_CORES
    with work_directory(options.directory, keep=False, prefix="penstock-bench-") as work:
        click.echo(f"starting Spark local[{cores}] ...", file=screen)
        with spark_session(SessionOptions(application="penstock bench", cores=cores, work=work)) as spark:
            runs = _Runs(spark, options, work, screen)
            rounds = tuple(runs.round(number) for number in range(1, options.rounds + 1))
            result = BenchResult(rounds=rounds, latency=runs.latency())
    _show(screen, options, result)
    if options.as_json:
        click.echo(json.dumps(summary(result)))


def summary(result: BenchResult) -> dict[str, float]:
    """The result as it is printed for programs."""
    return {
        "penstock_events_per_second": round(result.penstock),
        "spark_events_per_second": round(result.spark),
        "ratio_to_spark": round(result.penstock / result.spark, 3),
        "checkpoint_cost": round(result.checkpoint_cost, 4),
        "latency_ms_p50": round(result.latency.p50_ms, 2),
        "latency_ms_p99": round(result.latency.p99_ms, 2),
    }


class _Runs:
    """Runs that follow each other on one Spark. Each run has a folder of its own, which is removed after the run."""

    def __init__(self, spark: Any, options: BenchOptions, work: Path, screen: IO[str]) -> None:
        from penstock.bench.window_query import BidInput

        self._spark = spark
        self._options = options
        self._work = work
        self._screen = screen
        self._bids = BidInput(events=options.events, seed=options.seed)

    def round(self, number: int) -> Round:
        """Do the three runs of a round."""
        without = self._penstock("penstock, no checkpoints", number, interval=None)
        penstock = self._penstock("penstock, checkpoint every second", number, interval=INTERVAL)
        spark = self._structured_streaming("structured streaming", number)
        return Round(penstock=penstock, penstock_without_checkpoints=without, spark=spark)

    def latency(self) -> Latency:
        """Do the run that measures latency."""
        from penstock.bench.latency import LatencySink, PacedSource, latency_plan, read_latency
        from penstock.terminal.running import PlannedEnvironment, running_job

        seconds = self._options.latency_seconds
        with round_folder(self._work, "latency") as place:
            plan = latency_plan(
                PacedSource(rate=LATENCY_RATE, seconds=seconds),
                LatencySink(str(place / "times")),
                parallelism=self._options.parallelism,
            )
            checkpointing, restart = _checkpointing(place, INTERVAL), NoRestart()
            environment = PlannedEnvironment(self._spark, plan=plan, checkpointing=checkpointing, restart=restart)
            with running_job(environment, "latency") as job:
                job.wait()
            found = read_latency(place / "times", warmup_s=seconds * LATENCY_WARMUP_SHARE)
        if found is None:
            raise UsageError("no record was measured", hint="raise --latency-seconds")
        self._say("latency", 0, f"p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms over {found.records:,} records")
        return found

    def _penstock(self, name: str, number: int, *, interval: str | None) -> float:
        import penstock as ps
        from penstock.bench.metering import MeteredSink, MeteredSource, read_throughput
        from penstock.bench.window_query import penstock_query
        from penstock.terminal.running import running_job

        with round_folder(self._work, "penstock") as place:
            environment = ps.Environment(
                self._spark,
                parallelism=self._options.parallelism,
                checkpointing=_checkpointing(place, interval),
                restart=NoRestart(),
            )
            meters = str(place / "meters")
            source = MeteredSource(self._bids.source(), meters)
            penstock_query(environment, source, MeteredSink(ps.parquet(str(place / "out")), meters))
            with running_job(environment, "bench") as job:
                job.wait()
            found = read_throughput(place / "meters", warmup_share=WARMUP_SHARE)
        if found is None:
            raise UsageError("the run was too short to be measured", hint="raise --events")
        self._say(name, number, _rate_text(found.rows_per_second))
        return found.rows_per_second

    def _structured_streaming(self, name: str, number: int) -> float:
        from penstock.bench.structured_streaming import run_structured_streaming

        with round_folder(self._work, "spark-stream") as place:
            found = run_structured_streaming(
                self._spark,
                self._bids,
                parallelism=self._options.parallelism,
                directory=place,
                warmup_share=WARMUP_SHARE,
            )
        self._say(name, number, _rate_text(found.rows_per_second))
        return found.rows_per_second

    def _say(self, name: str, number: int, text: str) -> None:
        where = f"round {number} of {self._options.rounds}" if number else "last"
        click.echo(f"{where}: {name}: {text}", file=self._screen)


def _checkpointing(place: Path, interval: str | None) -> Checkpointing:
    from penstock.api.checkpointing import Checkpointing

    return Checkpointing(interval=interval, directory=place / "checkpoints")


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f} events/s"


def _show(screen: IO[str], options: BenchOptions, result: BenchResult) -> None:
    from rich.console import Console
    from rich.table import Table

    found = summary(result)
    table = Table(
        title=f"{options.events:,} bids, parallelism {options.parallelism}, median of {options.rounds} rounds"
    )
    table.add_column("")
    table.add_column("events/s", justify="right")
    table.add_row("penstock, checkpoint every second", f"{result.penstock:,.0f}")
    table.add_row("penstock, no checkpoints", f"{result.without_checkpoints:,.0f}")
    table.add_row("structured streaming", f"{result.spark:,.0f}")
    console = Console(file=screen)
    console.print(table)
    console.print(f"ratio to structured streaming: {found['ratio_to_spark']:.2f}")
    console.print(f"share of throughput lost to checkpoints: {found['checkpoint_cost']:.1%}")
    console.print(
        f"latency at {LATENCY_RATE:,} events/s: p50 {result.latency.p50_ms:.1f} ms, p99 {result.latency.p99_ms:.1f} ms"
    )

"""`penstock bench window`: the query of the demo, as fast as possible, against Structured Streaming in the same Spark.

Each round has three runs, one after the other: Penstock without checkpoints but the final checkpoint, Penstock with a
checkpoint every second, and Structured Streaming. Every other round the first two change places. So other programs on
the machine disturb all three alike. A failure ends the benchmark, because a run with a recovery would measure something
else. The first part of every run is warm-up and does not count. The rest lasts for some seconds: a short run that is
not counted says how many bids that takes. The result is the median of the rounds.

Other programs disturb the time that a run takes more than the processor time that it uses. So the cost of checkpoints
is given in both: as the share of throughput that is lost, and in processor seconds of the slots for a million bids.

Latency is measured in a run of its own: records that are due at a steady rate go through a keyed exchange to a sink
that reads the clock, with a checkpoint every second.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass, replace
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
    from penstock.bench.metering import Throughput

TRIAL_EVENTS = 40_000_000
"""The bids of the run that says how many bids the others need."""
STEADY_SECONDS = 15.0
SPARE_CORES = 2
WARMUP_SHARE = 0.25
INTERVAL = "1s"
LATENCY_RATE = 10_000
LATENCY_WARMUP_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of the command line."""

    events: int | None
    seconds: float
    keys: int | None
    parallelism: int
    rounds: int
    spark: bool
    latency_seconds: float
    seed: int
    directory: Path | None
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round."""

    penstock: Throughput
    without_checkpoints: Throughput
    spark: float | None
    """Events per second; None if Structured Streaming was left out."""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All rounds, and the latency."""

    rounds: tuple[Round, ...]
    latency: Latency | None

    @property
    def penstock(self) -> float:
        """Events per second with checkpoints: the median."""
        return statistics.median(r.penstock.rows_per_second for r in self.rounds)

    @property
    def spark(self) -> float | None:
        """Events per second of Structured Streaming: the median."""
        found = [r.spark for r in self.rounds if r.spark is not None]
        return statistics.median(found) if found else None

    @property
    def without_checkpoints(self) -> float:
        """Events per second without checkpoints: the median."""
        return statistics.median(r.without_checkpoints.rows_per_second for r in self.rounds)

    @property
    def checkpoint_cost(self) -> float:
        """The share of throughput that checkpoints cost: the median over the rounds. Each round compares two runs that
        followed each other. The share is negative if there was more noise than cost."""
        return statistics.median(
            1 - r.penstock.rows_per_second / r.without_checkpoints.rows_per_second for r in self.rounds
        )

    @property
    def cpu(self) -> float:
        """Processor seconds of the slots for a million events, with checkpoints: the median."""
        return statistics.median(r.penstock.cpu_seconds_per_million for r in self.rounds)

    @property
    def cpu_without_checkpoints(self) -> float:
        """Processor seconds of the slots for a million events, without checkpoints: the median."""
        return statistics.median(r.without_checkpoints.cpu_seconds_per_million for r in self.rounds)

    @property
    def checkpoint_cpu_cost(self) -> float:
        """By which share checkpoints raise the processor time: the median over the rounds."""
        return statistics.median(
            r.penstock.cpu_seconds_per_million / r.without_checkpoints.cpu_seconds_per_million - 1 for r in self.rounds
        )


@click.group("bench")
def bench() -> None:
    """Run benchmarks."""


@bench.command("window")
@click.option(
    "--events",
    type=click.IntRange(min=1_000),
    help="Bids to read in each run. Default: as many as take --seconds.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=STEADY_SECONDS,
    show_default=True,
    help="How long a run lasts after its warm-up, about.",
)
@click.option(
    "--keys",
    type=click.IntRange(min=1),
    help="Spread the bids over this many keys, all of which are open at the same time. Default: by auction.",
)
@click.option("--parallelism", type=click.IntRange(min=1), default=2, show_default=True, help="Slots, and partitions.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="How often to run all three.")
@click.option("--spark/--no-spark", default=True, help="Leave Structured Streaming and the latency out.")
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
            result = BenchResult(rounds=rounds, latency=runs.latency() if options.spark else None)
    _show(screen, options, result)
    if options.as_json:
        click.echo(json.dumps(summary(result)))


def summary(result: BenchResult) -> dict[str, float]:
    """The result as it is printed for programs."""
    found = {
        "penstock_events_per_second": round(result.penstock),
        "checkpoint_cost": round(result.checkpoint_cost, 4),
        "cpu_seconds_per_million": round(result.cpu, 4),
        "cpu_seconds_per_million_without_checkpoints": round(result.cpu_without_checkpoints, 4),
        "checkpoint_cpu_cost": round(result.checkpoint_cpu_cost, 4),
    }
    if result.spark is not None:
        found["spark_events_per_second"] = round(result.spark)
        found["ratio_to_spark"] = round(result.penstock / result.spark, 3)
    if result.latency is not None:
        found["latency_ms_p50"] = round(result.latency.p50_ms, 2)
        found["latency_ms_p99"] = round(result.latency.p99_ms, 2)
    return found


class _Runs:
    """Runs that follow each other on one Spark. Each run has a folder of its own, which is removed after the run."""

    def __init__(self, spark: Any, options: BenchOptions, work: Path, screen: IO[str]) -> None:
        from penstock.bench.window_query import BidInput

        self._spark = spark
        self._options = options
        self._work = work
        self._screen = screen
        self._bids = BidInput(events=options.events or TRIAL_EVENTS, seed=options.seed, keys=options.keys)
        if options.events is None:
            trial = self._penstock("trial", 0, interval=None)
            # A short run is slower than a long run. So the others are made longer than the short run tells.
            events = int(1.4 * trial.rows_per_second * options.seconds / (1 - WARMUP_SHARE))
            self._bids = replace(self._bids, events=events)

    def round(self, number: int) -> Round:
        """Do the runs of a round."""
        runs = [("penstock, no checkpoints", None), ("penstock, checkpoint every second", INTERVAL)]
        if number % 2 == 0:
            runs.reverse()
        found = {interval: self._penstock(name, number, interval=interval) for name, interval in runs}
        spark = self._structured_streaming("structured streaming", number) if self._options.spark else None
        return Round(penstock=found[INTERVAL], without_checkpoints=found[None], spark=spark)

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

    def _penstock(self, name: str, number: int, *, interval: str | None) -> Throughput:
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
            sink = MeteredSink(ps.parquet(str(place / "out")), meters)
            penstock_query(environment, source, sink, key=self._bids.key)
            with running_job(environment, "bench") as job:
                job.wait()
            found = read_throughput(place / "meters", warmup_share=WARMUP_SHARE)
        if found is None:
            raise UsageError("the run was too short to be measured", hint="raise --events")
        cpu = f"{found.cpu_seconds_per_million:.3f} CPU s per million"
        self._say(name, number, f"{_rate_text(found.rows_per_second)}, {cpu}, over {found.seconds:.1f} s")
        return found

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
        where = f"round {number} of {self._options.rounds}" if number else "alone"
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
    bids = max(each.penstock.rows for each in result.rounds)
    table = Table(title=f"{bids:,} bids, parallelism {options.parallelism}, median of {options.rounds} rounds")
    table.add_column("")
    table.add_column("events/s", justify="right")
    table.add_column("CPU s per million", justify="right")
    table.add_row("penstock, checkpoint every second", f"{result.penstock:,.0f}", f"{result.cpu:.3f}")
    without = f"{result.without_checkpoints:,.0f}", f"{result.cpu_without_checkpoints:.3f}"
    table.add_row("penstock, no checkpoints", *without)
    if result.spark is not None:
        table.add_row("structured streaming", f"{result.spark:,.0f}", "")
    console = Console(file=screen)
    console.print(table)
    if result.spark is not None:
        console.print(f"ratio to structured streaming: {found['ratio_to_spark']:.2f}")
    console.print(f"share of throughput lost to checkpoints: {found['checkpoint_cost']:.1%}")
    console.print(f"more processor time with checkpoints: {found['checkpoint_cpu_cost']:.1%}")
    if (latency := result.latency) is not None:
        console.print(f"latency at {LATENCY_RATE:,} events/s: p50 {latency.p50_ms:.1f} ms, p99 {latency.p99_ms:.1f} ms")

"""`penstock bench nexmark`: every query of Nexmark here and in Structured Streaming, on the same Spark.

The result of a query is its ratio: how many times the events per second of Structured Streaming Penstock reaches. The
result of all is the geometric mean of the ratios. Queries that Spark refuses are measured here, and told with Spark's
reason; they are not part of the mean.

Other programs disturb the time that a run takes more than the processor time that it uses. So the processor time of all
processes is told as well, that of the driver and of the JVM included.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from penstock.terminal.failures import reported_failures

if TYPE_CHECKING:
    from penstock.bench.nexmark_runs import Refusal, Speed

DEFAULT_EVENTS = 40_000_000
DEFAULT_SECONDS = 60.0
SPARE_CORES = 2


@dataclass(frozen=True, kw_only=True)
class NexmarkBenchOptions:
    """The options of the command line."""

    events: int
    seconds: float
    parallelism: int
    rounds: int
    only: tuple[str, ...]
    seed: int
    directory: Path | None
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All rounds of one query."""

    penstock: Sequence[Speed]
    spark: Sequence[Speed]
    refusal: Refusal | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the events per second of Spark: the median. Each round compares two runs that are close in
        time."""
        pairs = zip(self.penstock, self.spark, strict=True) if self.spark else ()
        found = [ours.events_per_second / theirs.events_per_second for ours, theirs in pairs]
        return statistics.median(found) if found else None

    @property
    def cpu_ratio(self) -> float | None:
        """How many times the processor time Spark needs for an event: the median."""
        pairs = zip(self.penstock, self.spark, strict=True) if self.spark else ()
        found = [theirs.cpu_seconds_per_million / ours.cpu_seconds_per_million for ours, theirs in pairs]
        return statistics.median(found) if found else None


@click.command("nexmark")
@click.option(
    "--events",
    type=click.IntRange(min=4_000),
    default=DEFAULT_EVENTS,
    show_default=True,
    help="Persons, auctions and bids together, in a run of Penstock. Queries that keep every event read a tenth of "
    "them. Spark reads a quarter of what Penstock reads.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=DEFAULT_SECONDS,
    show_default=True,
    help="How long a run reads at most, whatever --events is.",
)
@click.option("--parallelism", type=click.IntRange(min=1), default=2, show_default=True, help="Slots, and partitions.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="How often to run each query.")
@click.option("--only", multiple=True, metavar="QUERY", help="Run this query only. May be given several times.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Decides about the events.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to work. Default: a temporary directory. The files of the runs are removed in any case.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON to standard output, all else to standard error."
)
def nexmark_bench(**values: Any) -> None:
    """Every query of Nexmark, beside the same query in Structured Streaming."""
    with reported_failures():
        run_nexmark_bench(NexmarkBenchOptions(**values))


def run_nexmark_bench(options: NexmarkBenchOptions) -> None:
    """Run the benchmark."""
    # Imported here and not above, so that the other commands need not wait for the import of the data plane.
    from penstock.bench.nexmark_queries import QUERIES, query_of

    asked = {query_of(name).name for name in options.only}
    names = [name for name in QUERIES if not asked or name in asked]
    screen = sys.stderr if options.as_json else sys.stdout
    measured = _measured(options, names, screen)
    _show(screen, options, measured)
    if options.as_json:
        click.echo(json.dumps(summary(measured)))


def summary(measured: Mapping[str, Measured]) -> dict[str, Any]:
    """The result as it is printed for programs: the geometric means, then the queries. A mean is null if Spark runs
    none of the queries."""
    return {
        "geomean_ratio": _mean(each.ratio for each in measured.values()),
        "geomean_cpu_ratio": _mean(each.cpu_ratio for each in measured.values()),
        "queries": {name: _described(each) for name, each in measured.items()},
    }


def _mean(ratios: Any) -> float | None:
    found = [ratio for ratio in ratios if ratio is not None]
    return round(statistics.geometric_mean(found), 3) if found else None


def _described(each: Measured) -> dict[str, Any]:
    found: dict[str, Any] = _speeds("penstock", each.penstock)
    if each.refusal is not None:
        return found | {"spark_refuses": each.refusal.reason}
    assert each.ratio is not None
    assert each.cpu_ratio is not None
    found |= _speeds("spark", each.spark)
    return found | {"ratio": round(each.ratio, 3), "cpu_ratio": round(each.cpu_ratio, 3)}


def _speeds(who: str, speeds: Sequence[Speed]) -> dict[str, float]:
    return {
        f"{who}_events_per_second": round(statistics.median(each.events_per_second for each in speeds)),
        f"{who}_cpu_seconds_per_million": round(statistics.median(each.cpu_seconds_per_million for each in speeds), 4),
    }


def _measured(options: NexmarkBenchOptions, names: Sequence[str], screen: IO[str]) -> dict[str, Measured]:
    from penstock.bench.nexmark_queries import QUERIES
    from penstock.bench.nexmark_runs import RunOptions, Runs
    from penstock.terminal.session import SessionOptions, spark_session, work_directory

    cores = options.parallelism + SPARE_CORES
    with work_directory(options.directory, keep=False, prefix="penstock-bench-") as work:
        click.echo(f"starting Spark local[{cores}] ...", file=screen)
        with spark_session(SessionOptions(application="penstock bench", cores=cores, work=work)) as spark:
            given = RunOptions(
                events=options.events, seconds=options.seconds, parallelism=options.parallelism, seed=options.seed
            )
            runs = Runs(spark, given, work)
            return {name: _of_query(runs, QUERIES[name], options.rounds, screen) for name in names}


def _of_query(runs: Any, query: Any, rounds: int, screen: IO[str]) -> Measured:
    from penstock.bench.nexmark_runs import Refusal

    ours: list[Speed] = []
    theirs: list[Speed] = []
    refusal: Refusal | None = None
    for number in range(1, rounds + 1):
        ours.append(runs.penstock(query))
        click.echo(f"{query.name}: round {number} of {rounds}: penstock: {_text(ours[-1])}", file=screen)
        if refusal is not None:
            continue
        found = runs.spark(query)
        if isinstance(found, Refusal):
            refusal = found
            click.echo(f"{query.name}: Spark refuses: {found.reason}", file=screen)
        else:
            theirs.append(found)
            click.echo(f"{query.name}: round {number} of {rounds}: spark: {_text(found)}", file=screen)
    return Measured(penstock=ours, spark=theirs, refusal=refusal)


def _text(speed: Speed) -> str:
    return f"{speed.events_per_second:,.0f} events/s, {speed.cpu_seconds_per_million:.3f} CPU s per million"


def _show(screen: IO[str], options: NexmarkBenchOptions, measured: Mapping[str, Measured]) -> None:
    from rich.console import Console
    from rich.table import Table

    found = summary(measured)
    title = f"up to {options.events:,} events, parallelism {options.parallelism}, median of {options.rounds} rounds"
    table = Table(title=title)
    headings = ("events/s", "spark", "ratio", "CPU s per million", "spark", "ratio")
    for heading in ("", *headings):
        table.add_column(heading, justify="right" if heading else "left")
    for name, each in found["queries"].items():
        row = [f"{each['penstock_events_per_second']:,}", "", "", f"{each['penstock_cpu_seconds_per_million']:.3f}"]
        if "ratio" in each:
            row[1:3] = f"{each['spark_events_per_second']:,}", f"{each['ratio']:.2f}"
            row += [f"{each['spark_cpu_seconds_per_million']:.3f}", f"{each['cpu_ratio']:.2f}"]
        table.add_row(name, *row)
    console = Console(file=screen)
    console.print(table)
    for name, each in found["queries"].items():
        if "spark_refuses" in each:
            console.print(f"{name}: Spark refuses: {each['spark_refuses']}", markup=False)
    if found["geomean_ratio"] is not None:
        console.print(f"geometric mean of the ratios: {found['geomean_ratio']:.2f}")
        console.print(f"geometric mean of the ratios of processor time: {found['geomean_cpu_ratio']:.2f}")

"""`penstock bench operators`: how fast single operators are, each beside its competitor in one run.

    sliding, session   windows, against the same query in Structured Streaming on the same Spark
    running            aggregates without a window, against the same query in Structured Streaming in update mode
    interval-join, deduplicate, static-join
                       two streams by key and time, first records within a time, and a stream with a table,
                       against the same query in Structured Streaming
    string-keys        windows by a key of strings, against the same key as integers
    many-keys          windows with 10 million distinct keys, against 10,000
    rows               a row function that is a generator, against the same function with lists; and counting the
                       records of each key on one slot, against bytewax with one worker if there is a bytewax

Ratios say how many times the rows of the competitor Penstock reaches. Costs say how many times the time a row takes.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click

from penstock.terminal.failures import reported_failures

DEFAULT_EVENTS = 40_000_000
SPARE_CORES = 2
PARTS = (
    *("sliding", "session", "running", "interval-join", "deduplicate", "static-join"),
    *("string-keys", "many-keys", "rows"),
)

Rates = Mapping[str, Sequence[float]]
"""Rows per second in each round, by the name of the run."""


@dataclass(frozen=True, kw_only=True)
class OperatorBenchOptions:
    """The options of the command line."""

    events: int
    parallelism: int
    rounds: int
    only: tuple[str, ...]
    bytewax: Path | None
    seed: int
    directory: Path | None
    as_json: bool

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts to run, in their order."""
        return tuple(part for part in PARTS if not self.only or part in self.only)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What two runs of a part are compared for."""

    name: str
    part: str
    over: str
    under: str

    def value(self, rates: Rates) -> float:
        """The median over the rounds. Each round compares two runs that are close in time."""
        return statistics.median(a / b for a, b in zip(rates[self.over], rates[self.under], strict=True))


FIGURES = (
    Figure(name="sliding_ratio", part="sliding", over="penstock", under="spark"),
    Figure(name="session_ratio", part="session", over="penstock", under="spark"),
    Figure(name="running_ratio", part="running", over="penstock", under="spark"),
    Figure(name="interval_join_ratio", part="interval-join", over="penstock", under="spark"),
    Figure(name="deduplicate_ratio", part="deduplicate", over="penstock", under="spark"),
    Figure(name="static_join_ratio", part="static-join", over="penstock", under="spark"),
    Figure(name="string_key_cost", part="string-keys", over="integer", under="string"),
    Figure(name="many_keys_cost", part="many-keys", over="few", under="many"),
    Figure(name="generator_cost", part="rows", over="list", under="generator"),
    Figure(name="bytewax_ratio", part="rows", over="counting", under="bytewax"),
)


@click.command("operators")
@click.option(
    "--events",
    type=click.IntRange(min=1_000),
    default=DEFAULT_EVENTS,
    show_default=True,
    help="Bids to read in a run of windows. Spark reads a quarter of them, row functions a tenth.",
)
@click.option("--parallelism", type=click.IntRange(min=1), default=2, show_default=True, help="Slots, and partitions.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="How often to run each part.")
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Run this part only. May be given several times.")
@click.option(
    "--bytewax",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The Python of an environment that has bytewax, to count the records of each key beside it.",
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
def operators(**values: Any) -> None:
    """Windows, joins and row functions, each beside the same query elsewhere."""
    with reported_failures():
        run_operators_bench(OperatorBenchOptions(**values))


def run_operators_bench(options: OperatorBenchOptions) -> None:
    """Run the benchmark."""
    screen = sys.stderr if options.as_json else sys.stdout
    measured = _measured(options, screen)
    _show(screen, options, measured)
    if options.as_json:
        click.echo(json.dumps(summary(measured)))


def summary(measured: Mapping[str, Rates]) -> dict[str, float]:
    """The result as it is printed for programs: ratios and costs first, then the rows per second of every run."""
    found = {
        figure.name: round(figure.value(measured[figure.part]), 3)
        for figure in FIGURES
        if figure.part in measured and {figure.over, figure.under} <= measured[figure.part].keys()
    }
    for part, rates in measured.items():
        for name, values in rates.items():
            found[f"{part}_{name}_rows_per_second".replace("-", "_")] = round(statistics.median(values))
    return found


def _measured(options: OperatorBenchOptions, screen: IO[str]) -> dict[str, dict[str, list[float]]]:
    # Imported here and not above, so that the other commands need not wait for the import of Spark.
    from penstock.bench.operator_runs import RunOptions, Runs
    from penstock.terminal.session import SessionOptions, spark_session, work_directory

    cores = options.parallelism + SPARE_CORES
    measured: dict[str, dict[str, list[float]]] = {}
    with work_directory(options.directory, keep=False, prefix="penstock-bench-") as work:
        click.echo(f"starting Spark local[{cores}] ...", file=screen)
        with spark_session(SessionOptions(application="penstock bench", cores=cores, work=work)) as spark:
            given = RunOptions(
                events=options.events, parallelism=options.parallelism, seed=options.seed, bytewax=options.bytewax
            )
            runs = Runs(spark, given, work, screen)
            for part in options.parts:
                rates: dict[str, list[float]] = {}
                for number in range(1, options.rounds + 1):
                    click.echo(f"{part}: round {number} of {options.rounds}", file=screen)
                    for name, run in runs.of_part(part).items():
                        rates.setdefault(name, []).append(run())
                measured[part] = rates
    return measured


def _show(screen: IO[str], options: OperatorBenchOptions, measured: Mapping[str, Rates]) -> None:
    from rich.console import Console
    from rich.table import Table

    found = summary(measured)
    table = Table(
        title=f"{options.events:,} bids, parallelism {options.parallelism}, median of {options.rounds} rounds"
    )
    for heading in ("", "rows/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for part, rates in measured.items():
        for name, values in rates.items():
            table.add_row(f"{part}, {name}", f"{statistics.median(values):,.0f}")
    console = Console(file=screen)
    console.print(table)
    for figure in FIGURES:
        if figure.name in found:
            console.print(f"{figure.name}: {found[figure.name]:.2f}")

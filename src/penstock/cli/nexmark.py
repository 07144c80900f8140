"""`penstock nexmark q5`: a query of Nexmark on local Spark, and whether each of its rows is right.

With kills, workers are killed while the job runs, and then the job is rescaled. Checkpoints are unaligned.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from penstock.core.errors import SettingsError, UsageError
from penstock.settings import CheckpointSettings
from penstock.terminal.failures import EXIT_FAILED, reported_failures

if TYPE_CHECKING:
    from penstock.bench.comparison import Comparison
    from penstock.bench.nexmark_queries import Events, Query
    from penstock.bench.watched_jobs import JobRun
    from penstock.spark.environment import Environment

DEFAULT_EVENTS = 5_000_000
SPARE_CORES = 2
RESTART_DELAY = "100ms"
SPARE_RESTARTS = 3
RESCALE_STOPS = 3
"""A job needs as much time to be rescaled as for so many kills."""


@dataclass(frozen=True, kw_only=True)
class NexmarkOptions:
    """The options of the command line."""

    query: str
    events: int
    parallelism: int
    kills: int
    check: bool
    seed: int
    events_per_second: int
    interval: str
    directory: Path | None
    keep: bool
    as_json: bool
    quiet: bool


@click.command("nexmark")
@click.argument("query", required=False)
@click.option(
    "--events",
    type=click.IntRange(min=1),
    default=DEFAULT_EVENTS,
    show_default=True,
    help="Persons, auctions and bids together. A query reads the kinds that it needs.",
)
@click.option("--parallelism", type=click.IntRange(min=1), default=2, show_default=True, help="Slots of the job.")
@click.option(
    "--kills",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many worker processes to kill. Behind the kills the job is rescaled to one more slot. Few events are "
    "read slowly, so that there is time for the kills.",
)
@click.option("--check", is_flag=True, help="Compare the result, row for row, with that of Spark SQL.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Decides about the events.")
@click.option(
    "--events-per-second",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="How many events share a second of event time.",
)
@click.option("--interval", default="1s", show_default=True, help="How often a checkpoint is taken.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where output, checkpoints and log go, and stay. Default: a temporary directory that is removed at the end.",
)
@click.option("--keep", is_flag=True, help="Keep the temporary directory, and say where it is.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON to standard output, all else to standard error."
)
@click.option("--quiet", is_flag=True, help="Show the result only.")
def nexmark(query: str | None, **values: Any) -> None:
    """Run a query of Nexmark, the benchmark of an online auction. Without QUERY: list the queries.

    With --check, the last line of standard output is JSON, and the exit code is 1 if a row is lost, duplicated or
    different.
    """
    with reported_failures():
        if query is None:
            list_queries(as_json=values["as_json"])
        else:
            sys.exit(run_nexmark(NexmarkOptions(query=query, **values)))


def list_queries(*, as_json: bool) -> None:
    """Print the queries, with a sentence each."""
    # Imported here and not above, so that the other commands need not wait for the import of the data plane.
    from penstock.bench.nexmark_queries import QUERIES

    if as_json:
        click.echo(json.dumps({name: query.sentence for name, query in QUERIES.items()}))
        return
    for name, query in QUERIES.items():
        click.echo(f"{name:<4} {query.sentence}")


def run_nexmark(options: NexmarkOptions) -> int:
    """Run a query. Returns the exit code."""
    from penstock.bench.nexmark_queries import Events, compare_with_spark, query_of
    from penstock.bench.watched_jobs import run_job
    from penstock.terminal.screen import make_display
    from penstock.terminal.session import SessionOptions, spark_session, work_directory

    query = query_of(options.query)
    options = replace(options, query=query.name)
    events = Events(events=options.events, seed=options.seed, events_per_second=options.events_per_second)
    screen = sys.stderr if options.as_json else sys.stdout
    rescale_to = options.parallelism + 1 if options.kills else None
    cores = (rescale_to or options.parallelism) + SPARE_CORES
    _checked_interval_ms(options)
    comparison = None
    with work_directory(options.directory, keep=options.keep, prefix="penstock-nexmark-") as work:
        _refuse_leftovers(work)
        _say(screen, f"{query.name}: {query.sentence}", options)
        _say(screen, f"starting Spark local[{cores}] ...", options)
        with spark_session(SessionOptions(application="penstock nexmark", cores=cores, work=work)) as spark:
            environment = _program(spark, options, query, events, work)
            with make_display(screen, title=f"penstock nexmark {query.name}", quiet=options.quiet) as display:
                run = run_job(
                    environment,
                    display,
                    name=query.name,
                    events=events.rows(query),
                    kills=options.kills,
                    rescale_to=rescale_to,
                )
            if options.check:
                _say(screen, "computing the same query with Spark SQL and comparing row for row ...", options)
                comparison = compare_with_spark(spark, query, events, work / "out")
    found = summary(options, events.rows(query), run, comparison)
    _report(screen, options, events.rows(query), run, found)
    if options.directory is not None or options.keep:
        _say(screen, f"output, checkpoints and log are in {work}", options)
    if options.as_json or options.check:
        click.echo(json.dumps(found))
    check_kills(options, run)
    return EXIT_FAILED if comparison is not None and not comparison.exactly_once else 0


def _program(spark: Any, options: NexmarkOptions, query: Query, events: Events, work: Path) -> Environment:
    import penstock as ps
    from penstock.bench.nexmark_queries import add_query
    from penstock.bench.watched_jobs import slowed

    environment = ps.Environment(
        spark,
        parallelism=options.parallelism,
        checkpointing=ps.Checkpointing(interval=options.interval, directory=work / "checkpoints", unaligned=True),
        restart=ps.fixed_delay(options.kills + SPARE_RESTARTS, RESTART_DELAY),
    )
    made = events.sources(query)
    # Behind the last kill the job is rescaled: slots come up, which takes longer than a kill.
    sources = slowed(
        [(source, source.events) for source in made.values()],
        stops=options.kills and options.kills + RESCALE_STOPS,
        interval_ms=_checked_interval_ms(options),
        parallelism=options.parallelism,
    )
    sink = ps.parquet(str(work / "out"), partition_by=query.partition_by)
    add_query(environment, query, dict(zip(made, sources, strict=True)), sink)
    return environment


def _checked_interval_ms(options: NexmarkOptions) -> int:
    from penstock.core.durations import duration_ms

    interval_ms = duration_ms(options.interval, argument="--interval")
    problems = CheckpointSettings(interval_ms=interval_ms).problems()
    if problems:
        raise SettingsError(problems)
    return interval_ms


def _refuse_leftovers(work: Path) -> None:
    if (work / "out").exists() or (work / "checkpoints").exists():
        raise UsageError(
            f"directory {str(work)!r} has the output of an earlier run",
            hint="remove the folders 'out' and 'checkpoints' in it, or choose another directory with --directory",
        )


def summary(options: NexmarkOptions, read: int, run: JobRun, comparison: Comparison | None) -> dict[str, Any]:
    """The result as it is printed for programs. `read` is how many of the events the query reads."""
    found: dict[str, Any] = {
        "query": options.query,
        "events": options.events,
        "events_per_second": round(read / run.seconds),
    }
    if comparison is not None:
        found["rows"] = comparison.rows
        found |= {"lost": comparison.lost, "duplicated": comparison.duplicated, "different": comparison.different}
    return found


def check_kills(options: NexmarkOptions, run: JobRun) -> None:
    """Raise `UsageError` if the job ended before all that was asked for had been done to it."""
    if options.kills and not (run.workers_killed == options.kills and run.rescaled):
        done = f"{run.workers_killed} of {options.kills} workers were killed"
        raise UsageError(
            f"the job ended too soon: {done}, and it was {'' if run.rescaled else 'not '}rescaled",
            hint="raise --events",
        )


def _report(screen: IO[str], options: NexmarkOptions, read: int, run: JobRun, found: dict[str, Any]) -> None:
    if options.as_json and options.quiet:
        return
    lines = [f"{read:,} events: {found['events_per_second']:,} events/s, {run.checkpoints_completed} checkpoints"]
    if options.kills:
        lines.append(
            f"workers killed: {run.workers_killed}, longest recovery {run.recovery_seconds:.1f} s; "
            f"rescaled: {'yes' if run.rescaled else 'NO'}"
        )
    if options.check:
        damage = f"lost {found['lost']}, duplicated {found['duplicated']}, different {found['different']}"
        lines.append(f"{found['rows']:,} rows compared: {damage}")
    for line in lines:
        click.echo(line, file=screen)


def _say(screen: IO[str], text: str, options: NexmarkOptions) -> None:
    if not options.quiet:
        click.echo(text, file=screen)

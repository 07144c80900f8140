"""`penstock demo`: exactly once, shown in half a minute. A job runs, its workers are killed, and the output has every
row exactly once.

Bids are counted by auction and window, exactly once, into Parquet. While the job runs, worker processes get SIGKILL. At
the end the output is compared, row for row, with the result of the same query by Spark SQL over the same bids.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from penstock.core.errors import HostError, SettingsError, UsageError
from penstock.settings import CheckpointSettings
from penstock.terminal.failures import EXIT_FAILED, reported_failures

if TYPE_CHECKING:
    from penstock.api.connector import Source
    from penstock.bench.comparison import Comparison
    from penstock.bench.torture_kafka import KafkaOutput
    from penstock.bench.watched_jobs import JobRun
    from penstock.bench.window_query import BidInput
    from penstock.spark.environment import Environment

DEFAULT_EVENTS = 30_000_000
SPARE_CORES = 2
RESTART_DELAY = "100ms"
SPARE_RESTARTS = 3
TOPIC = "hot-auctions"


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of the command line."""

    events: int
    parallelism: int
    kills: int
    seed: int
    interval: str
    kafka: bool
    directory: Path | None
    keep: bool
    as_json: bool
    quiet: bool
    ui: bool
    ui_port: int | None


@click.command("demo")
@click.option("--events", type=click.IntRange(min=1), default=DEFAULT_EVENTS, show_default=True, help="Bids to read.")
@click.option("--parallelism", type=click.IntRange(min=1), default=2, show_default=True, help="Slots of the job.")
@click.option(
    "--kills",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="How many worker processes to kill. Few events are read slowly, so that there is time for the kills.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Decides which bids are read.")
@click.option("--interval", default="1s", show_default=True, help="How often a checkpoint is taken.")
@click.option(
    "--kafka",
    is_flag=True,
    help="Write the output into a topic of a Kafka broker, which is started for the demo. Needs Maven and the extra "
    "'kafka'.",
)
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
@click.option("--ui", is_flag=True, help="Serve Spark's own page while the job runs.")
@click.option(
    "--ui-port",
    type=click.IntRange(1, 65_535),
    help="The port of Spark's page; implies --ui. Default: the first free port from 4040 on.",
)
def demo(**values: Any) -> None:
    """Run an exactly-once job on local Spark, kill its workers, and check every row of its output.

    Exits with 1 if a row is lost, duplicated or different.
    """
    values["ui"] = values["ui"] or values["ui_port"] is not None
    with reported_failures():
        sys.exit(run_demo(DemoOptions(**values)))


def run_demo(options: DemoOptions) -> int:
    """Run the demo. Returns the exit code."""
    # Imported here and not above, so that the other commands need not wait for the import of the data plane.
    from penstock.bench.watched_jobs import run_job
    from penstock.bench.window_query import BidInput
    from penstock.terminal.screen import make_display
    from penstock.terminal.session import SessionOptions, spark_session, work_directory

    screen = sys.stderr if options.as_json else sys.stdout
    cores = options.parallelism + SPARE_CORES
    interval_ms = _checked_interval_ms(options)
    bids = BidInput(events=options.events, seed=options.seed)
    with work_directory(options.directory, keep=options.keep, prefix="penstock-demo-") as work:
        _refuse_leftovers(work)
        session = SessionOptions(
            application="penstock demo", cores=cores, work=work, ui=options.ui, ui_port=options.ui_port
        )
        _say(screen, f"starting Spark local[{cores}] ...", options)
        with _output(options, work) as output, spark_session(session) as spark:
            if options.ui:
                _say(screen, f"Spark's page is {spark.sparkContext.uiWebUrl}", options)
            environment = _program(spark, options, _source(options, bids, interval_ms), work, output)
            with make_display(screen, title="penstock demo", quiet=options.quiet) as display:
                run = run_job(environment, display, name="demo", events=options.events, kills=options.kills)
            _say(screen, "computing the same query with Spark SQL and comparing row for row ...", options)
            if output is not None:
                _read_back(output, work / "out")
            comparison = compare_output(spark, bids, work / "out")
    _report(screen, options, run, comparison)
    if options.directory is not None or options.keep:
        _say(screen, f"output, checkpoints and log are in {work}", options)
    if options.as_json:
        click.echo(json.dumps(_summary(options, run, comparison)))
    return 0 if comparison.exactly_once else EXIT_FAILED


def compare_output(spark: Any, bids: BidInput, output: Path) -> Comparison:
    """Compare the output with the result of the same query by Spark SQL over the same bids."""
    from penstock.bench.comparison import compare
    from penstock.bench.window_query import KEYS, OUTPUT_SCHEMA, VALUES, batch_query

    # If the job wrote no row, the folder does not exist. And Spark cannot read an empty folder without a schema.
    output.mkdir(exist_ok=True)
    found = spark.read.schema(OUTPUT_SCHEMA).parquet(output.as_uri())
    return compare(batch_query(spark, bids), found, keys=KEYS, values=VALUES)


def _checked_interval_ms(options: DemoOptions) -> int:
    from penstock.core.durations import duration_ms

    interval_ms = duration_ms(options.interval, argument="--interval")
    problems = CheckpointSettings(interval_ms=interval_ms).problems()
    if problems:
        raise SettingsError(problems)
    return interval_ms


def _source(options: DemoOptions, bids: BidInput, interval_ms: int) -> Source:
    """The bids. If there are so few bids that the job would end before all kills are done, they are read more
    slowly."""
    from penstock.bench.watched_jobs import slowed

    (source,) = slowed(
        [(bids.source(), options.events)], stops=options.kills, interval_ms=interval_ms, parallelism=options.parallelism
    )
    return source


@contextmanager
def _output(options: DemoOptions, work: Path) -> Iterator[KafkaOutput | None]:
    """The topic that the output goes to; None if the output goes to files."""
    if not options.kafka:
        yield None
        return
    from penstock.bench.kafka_broker import KafkaBroker, missing
    from penstock.bench.torture_kafka import KafkaOutput

    if (reason := missing()) is not None:
        raise HostError(f"no Kafka broker can be started: {reason}")
    with KafkaBroker(work / "broker") as broker:
        output = KafkaOutput(broker.bootstrap, "demo", key="auction")
        output.make_topics(broker, TOPIC)
        yield output


def _read_back(output: KafkaOutput, folder: Path) -> None:
    """What a reader of committed records sees, as a file for the comparison."""
    import pyarrow.parquet as pq

    from penstock.bench.window_query import OUTPUT_SCHEMA
    from penstock.sql.schemas import as_schema

    folder.mkdir()
    pq.write_table(output.read(TOPIC, as_schema(OUTPUT_SCHEMA, argument="schema")), folder / "topic.parquet")


def _program(spark: Any, options: DemoOptions, source: Source, work: Path, output: KafkaOutput | None) -> Environment:
    import penstock as ps
    from penstock.bench.window_query import penstock_query

    environment = ps.Environment(
        spark,
        parallelism=options.parallelism,
        checkpointing=ps.Checkpointing(interval=options.interval, directory=work / "checkpoints"),
        restart=ps.fixed_delay(options.kills + SPARE_RESTARTS, RESTART_DELAY),
    )
    sink = ps.parquet(str(work / "out")) if output is None else output.sink(TOPIC)
    penstock_query(environment, source, sink)
    return environment


def _refuse_leftovers(work: Path) -> None:
    if (work / "out").exists() or (work / "checkpoints").exists():
        raise UsageError(
            f"directory {str(work)!r} has the output of an earlier run",
            hint="remove the folders 'out' and 'checkpoints' in it, or choose another directory with --directory",
        )


def _summary(options: DemoOptions, run: JobRun, comparison: Comparison) -> dict[str, Any]:
    return {
        "events": options.events,
        "events_per_second": round(options.events / run.seconds),
        "checkpoints_completed": run.checkpoints_completed,
        "checkpoints_failed": run.checkpoints_failed,
        "workers_killed": run.workers_killed,
        "recovery_seconds": round(run.recovery_seconds, 3),
        "lost": comparison.lost,
        "duplicated": comparison.duplicated,
        "different": comparison.different,
        "exactly_once": comparison.exactly_once,
    }


def _report(screen: IO[str], options: DemoOptions, run: JobRun, comparison: Comparison) -> None:
    if options.as_json and options.quiet:
        return
    damage = f"lost {comparison.lost}, duplicated {comparison.duplicated}, different {comparison.different}"
    lines = (
        f"{options.events:,} events in {run.seconds:.1f} s: {options.events / run.seconds:,.0f} events/s",
        f"checkpoints: {run.checkpoints_completed} completed, {run.checkpoints_failed} failed",
        f"workers killed: {run.workers_killed}, longest recovery {run.recovery_seconds:.1f} s",
        f"{comparison.rows:,} rows compared: {damage}",
        f"exactly once: {'yes' if comparison.exactly_once else 'NO'}",
    )
    for line in lines:
        click.echo(line, file=screen)


def _say(screen: IO[str], text: str, options: DemoOptions) -> None:
    if not options.quiet:
        click.echo(text, file=screen)

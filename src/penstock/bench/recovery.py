"""`penstock bench recovery`: how long a recovery takes, against Structured Streaming in the same Spark.

The time from a failure to the first result that is committed after the failure is measured for four kinds of recovery:

* A user's function raises, and the job restarts with the same slots.
* A worker is killed, and Spark starts another worker.
* A worker is killed, and a spare slot takes the place of the lost slot.
* A user's function raises in a Structured Streaming query. The query is started again from its checkpoint as soon as it
  has ended.

The records, the function and the keys of the state are the same for all four. Penstock takes a checkpoint every tenth
of a second. Structured Streaming commits as often as it can.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from penstock.core.errors import HostError
from penstock.settings import FixedDelay
from penstock.terminal.failures import reported_failures, uninterrupted

if TYPE_CHECKING:
    from penstock.spark.job import Job

PARALLELISM = 2
CORES = PARALLELISM + 2
INTERVAL = "100ms"
LOOK_S = 0.01
PATIENCE_S = 120.0
BATCHES_BEFORE = 3

FoundT = TypeVar("FoundT")


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions:
    """The options of the command line."""

    rounds: int
    directory: Path | None
    warm: bool
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class Recoveries:
    """Seconds from each failure to the first result that was committed after the failure."""

    in_place: list[float] = field(default_factory=list)
    replacement: list[float] = field(default_factory=list)
    spare: list[float] = field(default_factory=list)
    spark_restart: list[float] = field(default_factory=list)


@click.command("recovery")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often to measure each kind of recovery.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to work. Default: a temporary directory, removed at the end.",
)
@click.option("--warm", is_flag=True, help="Let Spark start its workers from Penstock's warm daemon.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON to standard output, all else to standard error."
)
def recovery(**values: Any) -> None:
    """Time from a failure to the first result after the failure, against a restarted Structured Streaming query."""
    with reported_failures():
        run_recovery(RecoveryOptions(**values))


def run_recovery(options: RecoveryOptions) -> None:
    """Run the benchmark."""
    # Imported here and not above, so that the other commands need not wait for the import of the data plane.
    from penstock.spark.warm_daemon import WARM_SETTINGS
    from penstock.terminal.session import SessionOptions, spark_session, work_directory

    screen = sys.stderr if options.as_json else sys.stdout
    settings = WARM_SETTINGS if options.warm else {}
    with work_directory(options.directory, keep=False, prefix="penstock-bench-") as work:
        click.echo(f"starting Spark local[{CORES}] ...", file=screen)
        session = SessionOptions(application="penstock bench", cores=CORES, work=work, settings=settings)
        with spark_session(session) as spark:
            found = _Runs(spark, options.rounds, work, screen).all()
    for name, seconds in summary(found).items():
        click.echo(f"{name}: {seconds:.3f}", file=screen)
    if options.as_json:
        click.echo(json.dumps(summary(found)))


def summary(found: Recoveries) -> dict[str, float]:
    """The medians, as they are printed for programs."""
    return {
        "in_place_seconds": round(statistics.median(found.in_place), 3),
        "replacement_seconds": round(statistics.median(found.replacement), 3),
        "spare_seconds": round(statistics.median(found.spare), 3),
        "spark_restart_seconds": round(statistics.median(found.spark_restart), 3),
    }


class _Runs:
    def __init__(self, spark: Any, rounds: int, work: Path, screen: IO[str]) -> None:
        self._spark = spark
        self._rounds = rounds
        self._work = work
        self._screen = screen
        self._found = Recoveries()

    def all(self) -> Recoveries:
        """Measure every kind of recovery, in all rounds."""
        self._penstock("plain", spares=0)
        self._penstock("spare", spares=1)
        self._structured_streaming()
        return self._found

    def _penstock(self, name: str, *, spares: int) -> None:
        import penstock as ps
        from penstock.bench.recovery_job import Fuse, NotingSink, recovery_program
        from penstock.terminal.running import running_job

        place = self._work / name
        place.mkdir()
        environment = ps.Environment(
            self._spark,
            parallelism=PARALLELISM,
            spare_slots=spares,
            checkpointing=ps.Checkpointing(interval=INTERVAL, directory=place / "checkpoints"),
            restart=FixedDelay(attempts=1_000_000, delay_ms=0),
        )
        fuse, sink = Fuse(str(place / "fuse")), NotingSink(str(place / "notes"))
        recovery_program(environment, fuse, sink)
        with running_job(environment, name) as job:
            for number in range(self._rounds):
                if not spares:
                    self._note("in place", self._found.in_place, _fail(job, sink, _blow(fuse), spares))
                into, what = (self._found.spare, "spare slot") if spares else (self._found.replacement, "replacement")
                self._note(what, into, _fail(job, sink, _kill(job, number % PARALLELISM), spares))

    def _structured_streaming(self) -> None:
        from penstock.bench.recovery_job import Fuse, start_query
        from penstock.bench.structured_streaming import SETTINGS, session_settings

        place = self._work / "spark-stream"
        place.mkdir()
        fuse, checkpoint = Fuse(str(place / "fuse")), place / "checkpoint"
        with session_settings(self._spark, SETTINGS | {"spark.sql.shuffle.partitions": str(PARALLELISM)}):
            query = start_query(self._spark, fuse, checkpoint)
            try:
                for _ in range(self._rounds):
                    query = self._restart(query, fuse, checkpoint)
            finally:
                with uninterrupted(), suppress(Exception):
                    query.stop()

    def _restart(self, query: Any, fuse: Any, checkpoint: Path) -> Any:
        """Let a query fail after a few micro-batches, and start it again. Returns the started query."""
        from penstock.bench.recovery_job import committed_batches, start_query

        # The first micro-batches of a query take longer than later micro-batches. So the query fails only after a few.
        well = max(committed_batches(checkpoint), default=-1) + BATCHES_BEFORE
        _wait_for(lambda: committed_batches(checkpoint).get(well))
        failed_ns = _blow(fuse)()
        _wait_for(lambda: None if query.isActive else True)
        before = max(committed_batches(checkpoint))
        query = start_query(self._spark, fuse, checkpoint)
        committed_ns = _wait_for(lambda: committed_batches(checkpoint).get(before + 1))
        self._note("structured streaming", self._found.spark_restart, (committed_ns - failed_ns) / 1e9)
        return query

    def _note(self, what: str, into: list[float], seconds: float) -> None:
        into.append(seconds)
        click.echo(f"round {len(into)} of {self._rounds}: {what}: {seconds:.3f} s", file=self._screen)


def _fail(job: Job, sink: Any, fail: Callable[[], int], spares: int) -> float:
    """Wait until the job runs and commits, and call `fail`. Returns the seconds from the failure until a later attempt
    has committed its first result."""
    epoch = _wait_for(lambda: _well_epoch(job, sink, spares))
    failed_ns = fail()
    committed_ns: int = _wait_for(lambda: sink.first_ns("committed", after_epoch=epoch))
    return (committed_ns - failed_ns) / 1e9


def _well_epoch(job: Job, sink: Any, spares: int) -> int | None:
    """The epoch of the attempt that runs and commits, if all spare slots are ready; otherwise None. Also None if the
    view is older than the notes of the sink: such a view shows the attempt before."""
    from penstock.core.job.events import JobState

    if job.is_over:
        job.wait()
    view = job.view()
    is_well = view.state is JobState.RUNNING and sink.newest_committed() == view.epoch
    return view.epoch if is_well and len(view.spares) == spares else None


def _blow(fuse: Any) -> Callable[[], int]:
    def fail() -> int:
        fuse.light()
        return int(_wait_for(fuse.blown_ns))

    return fail


def _kill(job: Job, number: int) -> Callable[[], int]:
    def fail() -> int:
        pid = job.view().slots[number].pid
        if pid is None:
            raise HostError(f"slot {number} has no process")
        now_ns = time.time_ns()
        os.kill(pid, signal.SIGKILL)
        return now_ns

    return fail


def _wait_for(look: Callable[[], FoundT | None]) -> FoundT:
    """Call `look` until it returns something other than None, and return that. Raises `HostError` if that takes too
    long."""
    pause = threading.Event()
    until = time.monotonic() + PATIENCE_S
    while (found := look()) is None:
        if time.monotonic() > until:
            raise HostError(f"the benchmark waited {PATIENCE_S:.0f} s for a failure or a result that did not come")
        pause.wait(LOOK_S)
    return found

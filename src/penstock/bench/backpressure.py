"""`penstock bench backpressure`: how long checkpoints take when all queues between tasks are full.

One pipeline runs three times. The first run has no slow step, and shows the rate of the sources. In the two other runs
the last step takes a twentieth of that rate; one run has aligned checkpoints, the other run has unaligned checkpoints.
Checkpoints are requested one after the other, each only when back-pressure has reached the sources. The medians count.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from penstock.core.errors import HostError, SnapshotFailed
from penstock.core.views import CheckpointStatus, CheckpointView
from penstock.settings import NoRestart
from penstock.terminal.failures import EXIT_FAILED, reported_failures

if TYPE_CHECKING:
    from penstock.runtime.views import JobView
    from penstock.spark.job import Job

SLOWDOWN = 20
"""The last step takes one of this many records that the sources could give."""
SPARE_CORES = 2
CALIBRATION_MS = 3_000
MODE_MS = 25_000
"""After this long no further checkpoint of a mode is requested."""
CHECKPOINT_TIMEOUT_S = 60.0
START_TIMEOUT_MS = 60_000
LOOK_EVERY_S = 0.05
MOST_FAILURES = 3
MEGABYTE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class BackpressureOptions:
    """The options of the command line."""

    checkpoints: int
    parallelism: int
    directory: Path | None
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The duration of one checkpoint, and the size of the in-flight data in it."""

    duration_ms: int
    persisted_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModeResult:
    """The checkpoints of one mode: aligned or unaligned."""

    checkpoints: tuple[Measured, ...]
    memory_bytes: tuple[int, ...] = ()
    """The memory of the largest worker: first when back-pressure had reached the sources, then after each
    checkpoint."""

    @property
    def median_ms(self) -> float | None:
        """None if no checkpoint was completed."""
        return statistics.median(c.duration_ms for c in self.checkpoints) if self.checkpoints else None

    @property
    def median_persisted_bytes(self) -> int | None:
        """None if no checkpoint was completed."""
        if not self.checkpoints:
            return None
        return round(statistics.median(c.persisted_bytes for c in self.checkpoints))


@dataclass(frozen=True, kw_only=True)
class BackpressureResult:
    """The result of all three runs."""

    source_rate: float
    """Records per second that the sources read without back-pressure."""
    aligned: ModeResult
    unaligned: ModeResult


@click.command("backpressure")
@click.option(
    "--checkpoints", type=click.IntRange(min=1), default=7, show_default=True, help="Checkpoints of each mode."
)
@click.option("--parallelism", type=click.IntRange(min=1), default=2, show_default=True, help="Slots of the job.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to work. Default: a temporary directory. The files of the runs are removed in any case.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON to standard output, all else to standard error."
)
def backpressure(**values: Any) -> None:
    """Aligned against unaligned checkpoints of a pipeline whose last step takes 1/20 of the sources' rate.

    Exits with 1 if no aligned or no unaligned checkpoint was completed.
    """
    with reported_failures():
        sys.exit(run_backpressure(BackpressureOptions(**values)))


def run_backpressure(options: BackpressureOptions) -> int:
    """Run the benchmark. Returns the exit code."""
    # Imported here and not above, so that the other commands need not wait for the import of the data plane.
    from penstock.terminal.session import SessionOptions, spark_session, work_directory

    screen = sys.stderr if options.as_json else sys.stdout
    cores = options.parallelism + SPARE_CORES
    with work_directory(options.directory, keep=False, prefix="penstock-bench-") as work:
        click.echo(f"starting Spark local[{cores}] ...", file=screen)
        with spark_session(SessionOptions(application="penstock bench", cores=cores, work=work)) as spark:
            result = _Runs(spark, options, work, screen).all()
    show(screen, options, result)
    found = summary(result)
    if options.as_json:
        click.echo(json.dumps(found))
    return EXIT_FAILED if None in found.values() else 0


def summary(result: BackpressureResult) -> dict[str, float | None]:
    """The result as it is printed for programs. A value is None if a mode completed no checkpoint."""
    aligned, unaligned = result.aligned.median_ms, result.unaligned.median_ms
    share = round(unaligned / aligned, 4) if aligned and unaligned is not None else None
    return {
        "aligned_ms": aligned,
        "unaligned_ms": unaligned,
        "unaligned_share": share,
        "persisted_bytes": result.unaligned.median_persisted_bytes,
    }


class _Runs:
    """Three runs, one after the other, on one Spark."""

    def __init__(self, spark: Any, options: BackpressureOptions, work: Path, screen: IO[str]) -> None:
        from penstock.spark.clock import WallClock

        self._spark = spark
        self._options = options
        self._work = work
        self._screen = screen
        self._clock = WallClock()
        self._pause = threading.Event()

    def all(self) -> BackpressureResult:
        """Calibrate, then measure both modes."""
        source_rate = self._source_rate()
        slowed = source_rate / SLOWDOWN
        self._say(f"the sources give {source_rate:,.0f} records/s; the last step is slowed down to {slowed:,.0f}/s")
        return BackpressureResult(
            source_rate=source_rate,
            aligned=self._mode("aligned", slowed, unaligned=False),
            unaligned=self._mode("unaligned", slowed, unaligned=True),
        )

    def _source_rate(self) -> float:
        from penstock.bench.pressure import SourceRate

        with self._job("calibration", rows_per_second=None, unaligned=False) as job:
            rate = SourceRate(over_ms=CALIBRATION_MS)
            for view, now_ms in self._looks(job, "the rate of the sources was not measured"):
                found = rate.look(view, now_ms)
                if found is not None:
                    return found
        raise HostError("the rate of the sources could not be measured: the job ended")

    def _mode(self, name: str, rows_per_second: float, *, unaligned: bool) -> ModeResult:
        found: list[Measured] = []
        memory: list[int] = []
        failures = 0
        with self._job(name, rows_per_second=rows_per_second, unaligned=unaligned) as job:
            self._wait_for_pressure(job)
            begun_ms = self._clock.now()
            memory.append(_largest_worker(job.view()))
            while len(found) < self._options.checkpoints and self._clock.now() < begun_ms + MODE_MS:
                try:
                    measured = self._checkpoint(job)
                except (SnapshotFailed, TimeoutError) as error:
                    self._say(f"{name}: {error}")
                    failures += 1
                    if failures == MOST_FAILURES:
                        break
                    continue
                found.append(measured)
                memory.append(_largest_worker(job.view()))
                saved = f", {measured.persisted_bytes:,} bytes in flight saved" if unaligned else ""
                self._say(f"{name}: checkpoint {len(found)} took {measured.duration_ms:,} ms{saved}")
                self._wait_for_pressure(job)
        return ModeResult(checkpoints=tuple(found), memory_bytes=tuple(memory))

    @contextmanager
    def _job(self, name: str, *, rows_per_second: float | None, unaligned: bool) -> Iterator[Job]:
        from penstock.api.checkpointing import Checkpointing
        from penstock.bench.pressure import pressure_plan
        from penstock.terminal.running import PlannedEnvironment, running_job

        plan = pressure_plan(parallelism=self._options.parallelism, rows_per_second=rows_per_second)
        place = self._work / "backpressure"
        checkpointing = Checkpointing(interval=None, directory=place, unaligned=unaligned)
        environment = PlannedEnvironment(self._spark, plan=plan, checkpointing=checkpointing, restart=NoRestart())
        try:
            with running_job(environment, name) as job:
                yield job
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _checkpoint(self, job: Job) -> Measured:
        number = job.checkpoint(timeout=CHECKPOINT_TIMEOUT_S)
        for view, _ in self._looks(job, f"checkpoint {number} is complete, but did not appear in the job's history"):
            found = _completed(view, number)
            if found is not None:
                return Measured(duration_ms=found.duration_ms, persisted_bytes=found.totals.persisted_bytes)
        raise HostError("the job ended before its checkpoint was measured")

    def _wait_for_pressure(self, job: Job) -> None:
        from penstock.bench.pressure import Pressure

        pressure = Pressure()
        for view, now_ms in self._looks(job, "back-pressure did not reach the sources"):
            if pressure.look(view, now_ms):
                return

    def _looks(self, job: Job, waited_for: str) -> Iterator[tuple[JobView, int]]:
        """Views of a running job, each with its time, until the caller has what it waits for. Raises the error of the
        job if the job fails, and `HostError` if the caller waits too long; `waited_for` begins the text of that
        error."""
        deadline_ms = self._clock.now() + START_TIMEOUT_MS
        while not job.is_over:
            now_ms = self._clock.now()
            if now_ms >= deadline_ms:
                raise HostError(
                    f"{waited_for} within {START_TIMEOUT_MS // 1_000} s",
                    hint="the machine may be too busy; end other programs, and run the benchmark again",
                )
            yield job.view(), now_ms
            self._pause.wait(LOOK_EVERY_S)
        job.wait()

    def _say(self, text: str) -> None:
        click.echo(text, file=self._screen)


def _completed(view: JobView, number: int) -> CheckpointView | None:
    return next(
        (
            found
            for found in view.checkpoints.history
            if found.checkpoint == number and found.status is CheckpointStatus.COMPLETED
        ),
        None,
    )


def _largest_worker(view: JobView) -> int:
    from penstock.bench.memory import resident_bytes

    sizes = (resident_bytes(slot.pid) for slot in view.slots if slot.pid is not None)
    return max((size for size in sizes if size is not None), default=0)


def show(screen: IO[str], options: BackpressureOptions, result: BackpressureResult) -> None:
    """Print the result for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"checkpoints under full back-pressure, parallelism {options.parallelism}, "
        f"the last step at 1/{SLOWDOWN} of {result.source_rate:,.0f} records/s"
    )
    for column in ("", "checkpoints", "median", "longest", "in flight saved", "largest worker, first → last"):
        table.add_column(column, justify="left" if not column else "right")
    for name, mode in (("aligned", result.aligned), ("unaligned", result.unaligned)):
        table.add_row(name, *_cells(mode))
    console = Console(file=screen)
    console.print(table)
    share = summary(result)["unaligned_share"]
    if share is not None:
        console.print(f"unaligned checkpoints take {share:.1%} of the time of aligned checkpoints")


def _cells(mode: ModeResult) -> tuple[str, ...]:
    memory = "-"
    if any(mode.memory_bytes):
        memory = f"{mode.memory_bytes[0] / MEGABYTE:,.0f} → {mode.memory_bytes[-1] / MEGABYTE:,.0f} MB"
    if mode.median_ms is None or mode.median_persisted_bytes is None:
        return ("0", "-", "-", "-", memory)
    return (
        str(len(mode.checkpoints)),
        f"{mode.median_ms:,.0f} ms",
        f"{max(c.duration_ms for c in mode.checkpoints):,} ms",
        f"{mode.median_persisted_bytes / MEGABYTE:,.1f} MB",
        memory,
    )

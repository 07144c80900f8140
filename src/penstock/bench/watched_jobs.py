"""Jobs that are watched from start to end: their progress is shown, and their workers are killed meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.kills import Kills
from penstock.bench.pacing import PacedReads
from penstock.core.errors import RescaleFailed
from penstock.core.job.events import JobState
from penstock.spark.clock import WallClock
from penstock.terminal.progress import Watch
from penstock.terminal.running import running_job

if TYPE_CHECKING:
    from penstock.api.connector import Source
    from penstock.runtime.views import JobView
    from penstock.spark.environment import Environment
    from penstock.spark.job import Job
    from penstock.terminal.screen import Display

LOOK_EVERY_S = 0.05
STOP_MARGIN_MS = 2_000
"""How much longer than the checkpoint interval a job must run for each kill: time to complete a checkpoint, to kill a
worker, and to have records left to read."""
FAST_EVENTS_PER_SECOND = 60_000_000
"""The speed of a fast machine. If the events would keep such a machine busy until all kills are done, they are read as
fast as possible; otherwise they are read more slowly."""


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """How the job went."""

    seconds: float
    """From the first records read to the end of the job."""
    checkpoints_completed: int
    checkpoints_failed: int
    workers_killed: int
    recovery_seconds: float
    """The longest recovery; 0 if no worker was killed."""
    rescaled: bool = False


def slowed(sources: Sequence[tuple[Source, int]], *, stops: int, interval_ms: int, parallelism: int) -> list[Source]:
    """Sources, given with the numbers of their records. If there are so few records that a job would end before it has
    been stopped so often, they are read more slowly, all sources to the end at about the same time."""
    seconds = (stops + 1) * (interval_ms + STOP_MARGIN_MS) / 1_000
    if not stops or sum(rows for _, rows in sources) >= seconds * FAST_EVENTS_PER_SECOND:
        return [source for source, _ in sources]
    return [PacedReads(source, rate=int(rows / seconds / parallelism) + 1) for source, rows in sources]


def run_job(
    environment: Environment, display: Display, *, name: str, events: int, kills: int, rescale_to: int | None = None
) -> JobRun:
    """Run the job to its end, and kill workers while it runs. When all kills are done and the job has recovered, the
    job is rescaled to `rescale_to` slots."""
    clock = WallClock()
    start_ms = clock.now()
    watch = Watch(events=events, start_ms=start_ms)
    killing = Kills(count=kills, events=events, kill=_kill)
    rescaled = False
    pause = threading.Event()
    with running_job(environment, name) as job:
        while not job.is_over:
            view, now_ms = job.view(), clock.now()
            progress, notes = watch.look(view, now_ms)
            display.update(progress)
            notes += killing.look(view, events_read=progress.events_read, now_ms=now_ms)
            if rescale_to is not None and not rescaled and _may_be_rescaled(view, killing, kills):
                rescaled, note = _rescaled(job, rescale_to)
                notes.append(note)
                rescale_to = rescale_to if rescaled else None
            for note in notes:
                display.note(note)
            pause.wait(LOOK_EVERY_S)
        view, end_ms = job.wait(), clock.now()
    display.update(watch.look(view, end_ms)[0])
    if killing.done < kills:
        display.note(f"the run ended before {kills} workers could be killed: raise --events")
    return JobRun(
        seconds=(end_ms - (watch.first_read_ms or start_ms)) / 1_000,
        checkpoints_completed=view.checkpoints.counts.completed,
        checkpoints_failed=view.checkpoints.counts.failed,
        workers_killed=killing.done,
        recovery_seconds=max(killing.recoveries_ms, default=0) / 1_000,
        rescaled=rescaled,
    )


def _may_be_rescaled(view: JobView, killing: Kills, kills: int) -> bool:
    return view.state is JobState.RUNNING and len(killing.recoveries_ms) == kills


def _rescaled(job: Job, parallelism: int) -> tuple[bool, str]:
    try:
        job.rescale(parallelism)
    except RescaleFailed as refused:
        return False, str(refused)
    return True, f"rescaled to {parallelism} slots"


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)

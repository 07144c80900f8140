"""At least once, aligned barriers that turn unaligned, and several checkpoints at once, each with a killed worker, on a
real Spark."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
from gated import EVERYTHING, ROWS, SPLITS, Gate, Numbers
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState

cloudpickle.register_pickle_by_value(sys.modules[__name__])

EARLY = 200
"""Rows of every split that flow before anything is slow."""
FREE = 100
"""Splits of the free pipeline have numbers from here on."""


class SlowWhile:
    """Rows as they are. While a file exists each row takes 5 ms: rows that wait for this step keep a barrier for half a
    minute, and between two slices of rows the loop of the slot has time for its other tasks."""

    def __init__(self, hold: Path) -> None:
        self._hold = hold

    def __call__(self, row):
        if self._hold.exists():
            time.sleep(0.005)
        return row


class Noting:
    """Rows as they are. Notes by files which splits of the free pipeline have come as far as a test waits for, and
    which splits of the slow pipeline have come to their ends."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def __call__(self, row):
        if row["row"] == (2 * EARLY if row["split"] >= FREE else ROWS) - 1:
            (self._notes / str(row["split"])).touch()
        return row


class Pipelines:
    """Two sources that meet: the rows of `slow` pass a step that can be slowed down, the rows of `free` do not."""

    def __init__(self, spark, folder: Path, **checkpointing) -> None:
        self._spark = spark
        self._folder = folder
        self.hold = folder / "hold"
        self.slow, self.free = Gate(folder / "slow"), Gate(folder / "free")
        env = ps.Environment(
            spark,
            parallelism=2,
            checkpointing=ps.Checkpointing(directory=folder / "checkpoints", **checkpointing),
            restart=ps.fixed_delay(attempts=3, delay="0s"),
        )
        self.notes = folder / "notes"
        self.notes.mkdir()
        schema = "split bigint, row bigint"
        slow = env.read(Numbers(self.slow, rows_at_once=1_000), name="slow").rebalance()
        slowed = slow.map(SlowWhile(self.hold), schema=schema, name="slowed").rebalance()
        free = env.read(Numbers(self.free), name="free").select(split=f"split + {FREE}", row="row").rebalance()
        both = slowed.union(free, name="both").map(Noting(self.notes), schema=schema, name="meet")
        both.write(ps.parquet(str(folder / "out")))
        self.job = env.start("modes")

    def open_to(self, rows: int) -> None:
        for gate in (self.slow, self.free):
            gate.open_to(rows)

    def met(self, view: ps.JobView) -> int:
        """How many rows have come to where the pipelines meet."""
        return sum(int(found["rows_in"]) for task, found in view.tasks.items() if task.startswith("both"))

    def noted(self) -> tuple[int, int]:
        """How many splits of the free pipeline have come far, and how many of the slow pipeline to their ends."""
        found = [int(note.name) >= FREE for note in self.notes.iterdir()]
        return sum(found), len(found) - sum(found)

    def read(self, view: ps.JobView, source: str) -> int:
        return sum(int(found["rows_in"]) for task, found in view.tasks.items() if task.startswith(source))

    def pile_up(self) -> None:
        """Rows wait before the slow step."""
        self.hold.touch()
        self.slow.open_to(ROWS)
        wait_until(self.job, lambda v: self.read(v, "slow[") == SPLITS * ROWS)

    def kill_a_worker(self) -> None:
        view = self.job.view()
        os.kill(view.slots[1].pid, signal.SIGKILL)
        wait_until(self.job, lambda v: v.state is JobState.RUNNING and v.epoch > view.epoch)

    def results(self) -> list[tuple[int, int]]:
        return sorted(map(tuple, self._spark.read.parquet(str(self._folder / "out")).collect()))

    def finish(self) -> None:
        self.open_to(ROWS)
        assert self.job.wait(120).state is JobState.FINISHED


EACH_ONCE = [*EVERYTHING, *((FREE + split, row) for split, row in EVERYTHING)]
"""The rows of both sources."""


@contextmanager
def requested(job: ps.Job) -> Iterator[None]:
    """A checkpoint is asked for when the block begins, and has completed when it has ended."""
    request = threading.Thread(target=job.checkpoint, kwargs={"timeout": 120}, name="request")
    request.start()
    try:
        yield
    finally:
        request.join()


def test_at_least_once_a_channel_with_a_barrier_goes_on_and_a_killed_worker_loses_nothing(spark, tmp_path):
    """1. Rows wait before the slow step, and a barrier behind them. 2. Free rows that follow the barrier come through
    although the checkpoint is under way. 3. The checkpoint completes, a worker is killed: every row is there."""
    pipelines = Pipelines(spark, tmp_path, interval=None, mode="at-least-once")
    job = pipelines.job
    pipelines.open_to(EARLY)
    wait_until(job, lambda v: pipelines.met(v) == 2 * SPLITS * EARLY)
    pipelines.pile_up()
    with requested(job):
        wait_until(job, lambda v: v.checkpoints.counts.in_progress == 1)
        pipelines.free.open_to(2 * EARLY)
        wait_until(job, lambda _: pipelines.noted()[0] == SPLITS)
        # The barrier of the slow pipeline is behind the ends of its splits.
        assert pipelines.noted()[1] < SPLITS
        pipelines.hold.unlink()
    pipelines.kill_a_worker()
    pipelines.finish()
    assert sorted(set(pipelines.results())) == EACH_ONCE


def test_a_barrier_that_waits_too_long_overtakes_and_what_was_overtaken_survives_a_killed_worker(spark, tmp_path):
    """1. A checkpoint that nothing holds up is aligned. 2. With rows before a slow step the next checkpoint turns
    unaligned, and completes while the rows wait. 3. A worker is killed: the checkpoint has the overtaken rows."""
    pipelines = Pipelines(spark, tmp_path, interval=None, unaligned=True, aligned_timeout="500ms")
    job = pipelines.job
    pipelines.open_to(EARLY)
    wait_until(job, lambda v: pipelines.met(v) == 2 * SPLITS * EARLY)
    job.checkpoint(timeout=120)
    pipelines.pile_up()
    job.checkpoint(timeout=120)
    view = wait_until(job, lambda v: v.checkpoints.counts.completed == 2)
    turned, aligned = view.checkpoints.history
    assert (aligned.totals.unaligned, aligned.totals.persisted_bytes) == (False, 0)
    assert turned.totals.unaligned
    assert turned.totals.persisted_bytes > 0
    pipelines.kill_a_worker()
    assert job.view().restored_checkpoint == turned.checkpoint
    pipelines.hold.unlink()
    pipelines.finish()
    assert pipelines.results() == EACH_ONCE


def test_several_checkpoints_are_under_way_when_a_worker_is_killed_and_each_row_counts_once(spark, tmp_path):
    """1. Barriers of two checkpoints wait behind rows, in the same channels. 2. A worker is killed: both are aborted.
    3. Once more two are under way: both complete, and so does the job."""
    pipelines = Pipelines(spark, tmp_path, interval="100ms", max_concurrent=2, tolerable_failures=None)
    job = pipelines.job
    pipelines.open_to(EARLY)
    wait_until(job, lambda v: pipelines.met(v) == 2 * SPLITS * EARLY and v.checkpoints.counts.completed > 1)
    pipelines.pile_up()
    wait_until(job, lambda v: v.checkpoints.counts.in_progress == 2)
    pipelines.kill_a_worker()
    both = wait_until(job, lambda v: v.checkpoints.counts.in_progress == 2).checkpoints
    under_way = {found.checkpoint for found in both.history[:2]}
    pipelines.hold.unlink()
    later = wait_until(job, lambda v: v.checkpoints.counts.completed >= both.counts.completed + 2).checkpoints
    failed = {found.checkpoint for found in later.history if found.failure is not None}
    assert not failed & under_way
    pipelines.finish()
    assert pipelines.results() == EACH_ONCE

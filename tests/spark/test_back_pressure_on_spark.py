"""A job whose end takes almost nothing: its workers hold what their queues may hold, and no more with time."""

from __future__ import annotations

import pytest
from waiting import wait_until

from penstock.api.checkpointing import Checkpointing
from penstock.bench.memory import resident_bytes
from penstock.bench.pressure import Pressure, pressure_plan
from penstock.settings import NoRestart
from penstock.spark.clock import WallClock
from penstock.terminal.running import PlannedEnvironment, running_job

pytestmark = pytest.mark.slow

FIRST, LATER = 6, 20
"""Checkpoints: of the first ones memory is used for the first time, all others use it again."""
MEGABYTE = 1_000_000


def test_the_memory_of_workers_is_bounded_and_flat_under_full_pressure(spark, tmp_path):
    """Every checkpoint saves what is in flight, about 8 MB of each worker: what stayed of them would be seen."""
    environment = PlannedEnvironment(
        spark,
        plan=pressure_plan(parallelism=2, rows_per_second=20_000),
        checkpointing=Checkpointing(interval=None, directory=tmp_path, unaligned=True),
        restart=NoRestart(),
    )
    pressure, clock = Pressure(), WallClock()
    with running_job(environment, "pressure") as job:
        wait_until(job, lambda view: pressure.look(view, clock.now()))
        pids = [slot.pid for slot in job.view().slots]
        empty = [resident_bytes(pid) for pid in pids]
        for _ in range(FIRST):
            job.checkpoint(timeout=120)
        before = [resident_bytes(pid) for pid in pids]
        for _ in range(LATER):
            job.checkpoint(timeout=120)
        after = [resident_bytes(pid) for pid in pids]
        view = wait_until(job, lambda view: view.checkpoints.counts.completed == FIRST + LATER)
    saved = [found.totals.persisted_bytes for found in view.checkpoints.history]
    assert min(saved) > 4 * MEGABYTE
    for first, early, late in zip(empty, before, after, strict=True):
        assert late - early < 40 * MEGABYTE
        assert late - first < 120 * MEGABYTE

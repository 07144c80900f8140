"""A worker is killed in a job of pipelines that nothing joins: what ran elsewhere goes on, on a real Spark."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import cloudpickle
import pytest
from gated import EVERYTHING, ROWS, SPLITS, Gate, Numbers
from waiting import wait_for_it, wait_until

import penstock as ps
from penstock.core.job.events import JobState

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Noted(Numbers):
    """Notes by which process it is opened. As long as the test says so, one that is opened waits."""

    def __init__(self, gate: Gate, notes: Path) -> None:
        super().__init__(gate)
        self._notes = notes
        notes.mkdir()

    def open(self, splits):
        (self._notes / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        while (self._notes / "hold").exists():
            time.sleep(0.01)
        return super().open(splits)

    def opened(self) -> Counter[int]:
        """How often by each process."""
        return Counter(int(file.name.split("-")[0]) for file in self._notes.iterdir() if "-" in file.name)


def shown(spark, folder: Path) -> list[tuple[int, int]]:
    return sorted(map(tuple, spark.read.parquet(str(folder)).collect()))


def test_with_a_killed_worker_only_what_is_joined_to_its_tasks_restarts(spark, tmp_path):
    """1. A worker is killed. 2. Its successor does not get further than to open its sources. 3. Meanwhile the slice in
    the other worker reads on: the same process, which was never opened again. 4. All run again, and end."""
    gate = Gate(tmp_path / "gate")
    alone, joined = Noted(gate, tmp_path / "alone"), Noted(gate, tmp_path / "joined")
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=ps.Checkpointing(interval="100ms", directory=tmp_path / "checkpoints"),
        restart=ps.fixed_delay(attempts=3, delay="0s"),
    )
    env.read(alone, name="alone").write(ps.parquet(str(tmp_path / "alone-out")))
    env.read(joined, name="joined").rebalance().write(ps.parquet(str(tmp_path / "joined-out")))
    job = env.start("regions")
    gate.open_to(200)
    counted = wait_until(job, lambda v: v.rows_read == 2 * SPLITS * 200).checkpoints.counts.completed
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= counted + 2)
    stays, dies = (slot.pid for slot in before.slots)
    (tmp_path / "alone" / "hold").touch()
    os.kill(dies, signal.SIGKILL)
    wait_for_it(lambda: len(alone.opened()) == 3, "another process opens the slice of the dead one")
    gate.open_to(400)
    meanwhile = wait_until(job, lambda v: v.tasks["alone[0]"]["rows_in"] == SPLITS // 2 * 400)
    assert (meanwhile.state, meanwhile.epoch) == (JobState.REPAIRING, 2)
    with pytest.raises(ps.SnapshotFailed, match="not running") as told:
        job.checkpoint()
    assert told.value.hint == 'ask when job.view().state.value is "running"'
    (tmp_path / "alone" / "hold").unlink()
    after = wait_until(job, lambda v: v.state is JobState.RUNNING)
    assert (after.epoch, after.restarts, after.slots[0].pid) == (2, 1, stays)
    comes = after.slots[1].pid
    assert alone.opened() == {stays: 1, dies: 1, comes: 1}
    assert joined.opened() == {stays: 2, dies: 1, comes: 1}
    wait_until(job, lambda v: v.checkpoints.counts.completed > meanwhile.checkpoints.counts.completed)
    gate.open_to(ROWS)
    ended = job.wait(120)
    assert (ended.state, ended.epoch) == (JobState.FINISHED, 2)
    assert shown(spark, tmp_path / "alone-out") == EVERYTHING
    assert shown(spark, tmp_path / "joined-out") == EVERYTHING

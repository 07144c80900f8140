"""Savepoints on a real Spark: stopped, moved, and started from again with another parallelism."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

import penstock as ps

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

EVENTS = 300_000


class GatedReader(ps.SourceReader):
    """Reads slowly, and holds its last split back, until a file exists."""

    def __init__(self, reader: ps.SourceReader, gate: Path) -> None:
        self._reader = reader
        self._gate = gate

    def poll(self, max_rows: int, now_ms: int):
        if not self._gate.exists() and (len(self._reader.snapshot()) <= 1 or now_ms % 4):
            return ps.Pause(1)
        return self._reader.poll(min(max_rows, 4_000), now_ms)

    def snapshot(self) -> list[bytes]:
        return self._reader.snapshot()


class GatedBids(ps.Source):
    """Bids that do not end before a file exists."""

    def __init__(self, gate: Path) -> None:
        self._inner = ps.nexmark.bids(events=EVENTS, seed=5)
        self._gate = gate

    @property
    def schema(self) -> pa.Schema:
        return self._inner.schema

    def splits(self, parallelism: int) -> list[bytes]:
        return self._inner.splits(parallelism)

    def open(self, splits: Sequence[bytes]) -> ps.SourceReader:
        return GatedReader(self._inner.open(splits), self._gate)


def hot_auctions(spark, tmp_path: Path, parallelism: int, **options) -> ps.Environment:
    checkpointing = ps.Checkpointing(interval="200ms", directory=tmp_path / "checkpoints", **options)
    env = ps.Environment(spark, parallelism=parallelism, checkpointing=checkpointing)
    (
        env.read(GatedBids(tmp_path / "gate"), name="bids")
        .watermark("ts", delay="4s")
        .key_by("auction")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count(), top=ps.max("price"))
        .write(ps.parquet(str(tmp_path / "out")))
    )
    return env


def test_a_job_that_was_stopped_goes_on_from_its_moved_savepoint_with_another_parallelism(spark, tmp_path):
    job = hot_auctions(spark, tmp_path, parallelism=2).start("first")
    while job.view().checkpoints.counts.completed < 2:
        assert not job.is_over, job.wait()
        time.sleep(0.02)
    saved = Path(job.stop(savepoint=tmp_path / "saved"))
    moved = tmp_path / "elsewhere" / "before-the-upgrade"
    moved.parent.mkdir()
    saved.rename(moved)

    env = hot_auctions(spark, tmp_path, parallelism=3)
    plan = env.restore_plan(moved)
    assert "2 -> 3" in str(plan)
    with pytest.raises(ps.UsageError, match="there is nothing at"):
        env.start("wrong", restore=saved)
    (tmp_path / "gate").touch()
    view = env.run("second", restore=ps.restore(moved, claim="claim"))
    assert view.restored_checkpoint == plan.checkpoint
    assert not moved.exists()

    assert committed(spark, tmp_path) == expected(spark)


def expected(spark) -> list[tuple]:
    spark.sql(ps.nexmark.bids_sql(events=EVENTS, seed=5)).createOrReplaceTempView("bids_to_restore")
    rows = spark.sql(
        "SELECT auction, window.start AS s, count(*) AS n, max(price) AS top FROM bids_to_restore "
        "GROUP BY auction, window(ts, '10 seconds')"
    ).collect()
    return sorted(tuple(row) for row in rows)


def committed(spark, tmp_path: Path) -> list[tuple]:
    frame = spark.read.parquet(str(tmp_path / "out")).select("auction", "window_start", "n", "top")
    return sorted(tuple(row) for row in frame.collect())


def test_a_running_job_is_rescaled_in_place_and_slots_that_stay_keep_their_processes(spark, tmp_path):
    job = hot_auctions(spark, tmp_path, parallelism=2, unaligned=True).start("rescaled")
    with pytest.raises(ps.UsageError, match="Spark has 4 cores"):
        job.rescale(5)
    while job.view().state is not ps.JobState.RUNNING:
        assert not job.is_over, job.wait()
        time.sleep(0.02)
    pids: list[int | None] = []
    for parallelism in (3, 1, 4):
        job.rescale(parallelism, timeout=60)
        while len(job.view().slots) != parallelism or any(slot.pid is None for slot in job.view().slots):
            time.sleep(0.02)
        pids.append(job.view().slots[0].pid)
    with pytest.raises(ps.RescaleFailed, match="has 4 slots already"):
        job.rescale(4)
    (tmp_path / "gate").touch()
    view = job.wait()
    assert view.restarts == 0
    assert len(set(pids)) == 1
    assert committed(spark, tmp_path) == expected(spark)
    with pytest.raises(ps.RescaleFailed, match="has ended"):
        job.rescale(2)

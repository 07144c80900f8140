"""Results that are handed to a function on the driver, on a real Spark."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.job.events import JobState
from penstock.storage.locations import open_store

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([("split", pa.int64()), ("row", pa.int64())])
SPLITS = 4
ROWS = 3_000


class Slow(ps.SourceReader):
    """Reads a few rows at a time, and its last ones only when a file exists."""

    def __init__(self, splits, gate: Path) -> None:
        self._splits = [tuple(int(part) for part in split.split(b":")) for split in splits]
        self._gate = gate

    def poll(self, max_rows, now_ms):
        if not self._splits:
            return ps.End()
        number, position = self._splits[0]
        if not self._gate.exists() and (now_ms % 4 or position > ROWS // 2):
            return ps.Pause(2)
        stop = min(position + 20, ROWS)
        self._splits[0] = (number, stop)
        if stop == ROWS:
            self._splits.pop(0)
        rows = range(position, stop)
        return pa.RecordBatch.from_arrays([pa.array([number] * len(rows)), pa.array(list(rows))], schema=SCHEMA)

    def snapshot(self):
        return [b"%d:%d" % split for split in self._splits]


class Numbers(ps.Source):
    schema = SCHEMA

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def splits(self, parallelism):
        return [b"%d:0" % number for number in range(SPLITS)]

    def open(self, splits):
        return Slow(splits, self._gate)


EVERYTHING = [(split, row) for split in range(SPLITS) for row in range(ROWS)]


class Table:
    """A folder per id, replaced as a whole: idempotent by the id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: list[int] = []
        self.raises_on: set[int] = set()

    def merge(self, frame, checkpoint: int) -> None:
        self.ids.append(checkpoint)
        frame.write.mode("overwrite").parquet(str(self.folder / f"checkpoint={checkpoint}"))
        if len(self.ids) in self.raises_on:
            raise ValueError("the catalog was busy")

    def rows(self, spark) -> list[tuple]:
        return sorted((row.split, row.row) for row in spark.read.parquet(str(self.folder)).collect())


def environment(spark, tmp_path: Path, **options) -> ps.Environment:
    checkpointing = ps.Checkpointing(interval="300ms", directory=str(tmp_path / "ckpt"))
    options = {"restart": ps.fixed_delay(attempts=5, delay="50ms"), **options}
    return ps.Environment(spark, parallelism=2, checkpointing=checkpointing, **options)


def wait_until(job: ps.Job, true) -> None:
    deadline = time.monotonic() + 120
    while not true(job.view()):
        assert job.view().state not in (JobState.FAILED, JobState.FINISHED), job.view().failures
        assert time.monotonic() < deadline, job.view()
        time.sleep(0.05)


def test_every_record_is_handed_over_once_by_id_whatever_dies(spark, tmp_path):
    """A worker is killed, and the function itself raises after it has written: both calls come again."""
    gate, table = tmp_path / "gate", Table(tmp_path / "table")
    table.raises_on = {2}
    env = environment(spark, tmp_path)
    env.read(Numbers(gate)).repartition("row").for_each_checkpoint(table.merge)
    job = env.start("handed-over")
    wait_until(job, lambda view: view.restarts == 1 and view.state is JobState.RUNNING and len(table.ids) >= 4)
    failure = job.view().failures[0]
    assert failure.user_code
    assert "the catalog was busy" in failure.text
    assert "in merge" in failure.traceback
    os.kill(job.view().slots[0].pid, signal.SIGKILL)
    wait_until(job, lambda view: view.restarts == 2 and view.state is JobState.RUNNING)
    gate.touch()
    job.wait(timeout=120)
    assert table.rows(spark) == EVERYTHING
    assert table.ids[1] == table.ids[2]
    assert table.ids == sorted(table.ids)
    assert open_store(str(tmp_path / "ckpt")).list_files("") == []


def test_a_function_that_raises_for_good_fails_the_job_and_its_records_stay_for_the_next(spark, tmp_path):
    gate, table = tmp_path / "gate", Table(tmp_path / "table")
    env = environment(spark, tmp_path, restart=ps.no_restart())
    env.read(Numbers(gate)).for_each_checkpoint(table.merge, name="merge")
    job = env.start("first")
    wait_until(job, lambda _: len(table.ids) >= 1)
    table.raises_on = set(range(1_000))
    savepoint = job.savepoint(tmp_path / "saved")
    with pytest.raises(ps.JobFailed, match=r"in 'merge' on the driver: ValueError: the catalog was busy") as raised:
        job.wait(timeout=60)
    assert "in merge" in str(raised.value)

    gate.touch()
    table.raises_on = set()
    again = environment(spark, tmp_path)
    again.read(Numbers(gate)).for_each_checkpoint(table.merge, name="merge")
    again.run("second", restore=savepoint)
    assert table.rows(spark) == EVERYTHING


def test_files_of_the_parquet_sink_can_be_followed_by_a_stream_while_the_job_runs(spark, tmp_path):
    gate, out = tmp_path / "gate", tmp_path / "out"
    env = environment(spark, tmp_path)
    env.read(Numbers(gate)).write(ps.parquet(out))
    job = env.start("followed")
    wait_until(job, lambda _: list(out.glob("part-*.parquet")))
    followed = spark.readStream.schema("split long, row long").parquet(str(out))
    query = followed.writeStream.format("memory").queryName("followed").start()
    try:
        query.processAllAvailable()
        early = spark.table("followed").count()
        assert 0 < early < len(EVERYTHING)
        gate.touch()
        job.wait(timeout=120)
        query.processAllAvailable()
        assert sorted((row.split, row.row) for row in spark.table("followed").collect()) == EVERYTHING
    finally:
        query.stop()

"""Rows of the program, made rows and files as sources, on a real Spark."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState

pytestmark = pytest.mark.slow

FILE_ROWS = 1000


def environment(spark, tmp_path: Path) -> ps.Environment:
    checkpointing = ps.Checkpointing(interval="200ms", directory=str(tmp_path / "ckpt"))
    return ps.Environment(
        spark, parallelism=2, checkpointing=checkpointing, restart=ps.fixed_delay(attempts=5, delay="50ms")
    )


def numbers_in(spark, out: Path) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(str(out)).select("n").collect())


def rows_in(out: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in out.glob("*.parquet"))


def put(folder: Path, number: int) -> None:
    """A file that is complete when it appears."""
    folder.mkdir(exist_ok=True)
    first = number * FILE_ROWS
    (folder / f"{number}.tmp").write_text("".join(f'{{"n": {n}}}\n' for n in range(first, first + FILE_ROWS)))
    (folder / f"{number}.tmp").rename(folder / f"{number}.json")


def test_rows_of_the_program_and_made_rows_come_out_once(spark, tmp_path):
    env = environment(spark, tmp_path)
    env.from_iterable([Row(n=n) for n in range(1000)]).write(ps.parquet(tmp_path / "list"), name="list")
    called = env.from_iterable(lambda: iter(range(50_000)), schema="n bigint", name="called")
    called.write(ps.parquet(tmp_path / "called"), name="called-out")
    made = ps.generate(lambda first, count: {"n": range(first, first + count)}, schema="n bigint", rows=100_000)
    env.read(made).write(ps.parquet(tmp_path / "made"), name="made")
    assert env.run("rows").state is JobState.FINISHED
    assert numbers_in(spark, tmp_path / "list") == list(range(1000))
    assert numbers_in(spark, tmp_path / "called") == list(range(50_000))
    assert numbers_in(spark, tmp_path / "made") == list(range(100_000))


def test_a_followed_folder_is_read_once_through_a_killed_worker_and_another_run(spark, tmp_path):
    """1. Files are read, and a worker is killed. 2. More files appear, and the job is stopped with drain. 3. The
    program is run again, and reads only what is new."""
    pids = tmp_path / "pids"
    pids.mkdir()

    def noting(batch):
        (pids / str(os.getpid())).touch()
        return batch

    def start() -> ps.Job:
        env = environment(spark, tmp_path)
        source = ps.files(tmp_path / "in", format="json", schema="n bigint", follow=True)
        env.read(source, name="numbers").map_batches(noting, schema="n bigint").write(ps.parquet(tmp_path / "out"))
        return env.start("followed")

    for number in range(3):
        put(tmp_path / "in", number)
    job = start()
    wait_until(job, lambda view: view.rows_read >= 3 * FILE_ROWS and view.checkpoints.counts.completed)
    os.kill(int(min(path.name for path in pids.iterdir())), signal.SIGKILL)
    wait_until(job, lambda view: view.restarts >= 1)
    for number in range(3, 6):
        put(tmp_path / "in", number)
    out = tmp_path / "out"
    wait_until(job, lambda _: rows_in(out) >= 6 * FILE_ROWS)
    job.stop(drain=True)
    assert numbers_in(spark, out) == list(range(6 * FILE_ROWS))
    put(tmp_path / "in", 6)
    job = start()
    wait_until(job, lambda _: rows_in(out) >= 7 * FILE_ROWS)
    job.cancel()
    job.finish()
    assert numbers_in(spark, out) == list(range(7 * FILE_ROWS))

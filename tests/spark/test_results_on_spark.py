"""Results that are handed to a function on the driver, on a real Spark."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from bid_jobs import files_of_jobs
from gated import EVERYTHING, ROWS, Gate, Numbers, all_rows
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState


class Table:
    """A folder per id, replaced as a whole: idempotent by the id. `calls` is what it was called with; before the call
    of a number returns, `then` runs what is there for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[int, list[tuple]]] = []
        self.then: dict[int, Callable[[], None]] = {}

    def merge(self, frame, checkpoint: int) -> None:
        frame.write.mode("overwrite").parquet(str(self.folder / f"checkpoint={checkpoint}"))
        self.calls.append((checkpoint, sorted((row.split, row.row) for row in frame.collect())))
        self.then.pop(len(self.calls), lambda: None)()

    def has(self, limit: int) -> bool:
        """Whether it was called with all rows of a gate that is open to `limit`."""
        return sorted({row for _, rows in self.calls for row in rows}) == all_rows(limit)

    def rows(self, spark) -> list[tuple]:
        return sorted((row.split, row.row) for row in spark.read.parquet(str(self.folder)).collect())


def raise_busy() -> None:
    raise ValueError("the catalog was busy")


def environment(spark, tmp_path: Path, **options) -> ps.Environment:
    checkpointing = ps.Checkpointing(interval="300ms", directory=str(tmp_path / "ckpt"))
    options = {"restart": ps.fixed_delay(attempts=5, delay="50ms"), **options}
    return ps.Environment(spark, parallelism=2, checkpointing=checkpointing, **options)


def test_every_record_is_handed_over_once_by_id_whatever_dies(spark, tmp_path):
    """1. The function raises after it has written. 2. A worker is killed while the function runs, which raises when the
    job runs again. 3. Each call comes again, with the same id and the same rows; what a call of the attempt before
    raised is no failure of the next."""
    gate, table = Gate(tmp_path / "gate"), Table(tmp_path / "table")
    env = environment(spark, tmp_path)
    env.read(Numbers(gate)).repartition("row").for_each_checkpoint(table.merge)
    job = env.start("handed-over")

    def kill_a_worker() -> None:
        os.kill(job.view().slots[0].pid, signal.SIGKILL)
        wait_until(job, lambda view: view.restarts == 2 and view.state is JobState.RUNNING)
        raise_busy()

    table.then[1] = raise_busy
    gate.open_to(1_000)
    wait_until(job, lambda view: view.restarts == 1 and len(table.calls) > 1 and table.has(1_000))
    failure = job.view().failures[0]
    assert failure.user_code
    assert "the catalog was busy" in failure.text
    assert "in merge" in failure.traceback
    assert table.calls[0] == table.calls[1]

    interrupted = len(table.calls) + 1
    table.then[interrupted] = kill_a_worker
    gate.open_to(2_000)
    wait_until(job, lambda view: view.restarts == 2 and len(table.calls) > interrupted)
    assert table.calls[interrupted - 1] == table.calls[interrupted]
    gate.open_to(ROWS)
    assert job.wait(timeout=120).restarts == 2
    assert table.rows(spark) == EVERYTHING
    ids = [checkpoint for checkpoint, _ in table.calls]
    assert ids == sorted(ids)
    assert len(ids) == len(set(ids)) + 2
    assert files_of_jobs(tmp_path / "ckpt") == []


def test_a_function_that_raises_for_good_fails_the_job_and_its_records_stay_for_the_next(spark, tmp_path):
    """1. The function is called, and stays. 2. A savepoint is taken: the call is still owed. 3. The function raises,
    and the job fails. 4. A job that starts from the savepoint makes the call."""
    gate, table = Gate(tmp_path / "gate"), Table(tmp_path / "table")
    env = environment(spark, tmp_path, restart=ps.no_restart())
    env.read(Numbers(gate)).for_each_checkpoint(table.merge, name="merge")
    job = env.start("first")
    called, saved = threading.Event(), threading.Event()

    def stay() -> None:
        called.set()
        assert saved.wait(120)
        raise_busy()

    table.then[1] = stay
    gate.open_to(1_000)
    assert called.wait(120)
    savepoint = job.savepoint(tmp_path / "saved")
    saved.set()
    with pytest.raises(ps.JobFailed, match=r"in 'merge' on the driver: ValueError: the catalog was busy") as raised:
        job.wait(timeout=120)
    assert "in merge" in str(raised.value)

    gate.open_to(ROWS)
    again = environment(spark, tmp_path)
    again.read(Numbers(gate)).for_each_checkpoint(table.merge, name="merge")
    again.run("second", restore=savepoint)
    assert table.calls[0] == table.calls[1]
    assert table.rows(spark) == EVERYTHING


def test_a_job_that_starts_from_a_savepoint_makes_the_calls_that_the_first_job_did_not_come_to(spark, tmp_path):
    """1. A checkpoint, and its call. 2. A savepoint, for which there is no call. 3. The job is cancelled."""
    gate, tables = Gate(tmp_path / "gate"), [Table(tmp_path / "one"), Table(tmp_path / "two")]

    def environment_of(table: Table) -> ps.Environment:
        checkpointing = ps.Checkpointing(interval=None, directory=str(tmp_path / "ckpt"))
        env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing)
        numbers = env.read(Numbers(gate))
        numbers.for_each_checkpoint(table.merge, name="merge")
        numbers.write(ps.table("saved_results", path=str(tmp_path / "table")), name="table")
        return env

    job = environment_of(tables[0]).start("first")
    gate.open_to(1_000)
    wait_until(job, lambda v: v.rows_out == 2 * len(all_rows(1_000)))
    job.checkpoint()
    gate.open_to(2_000)
    wait_until(job, lambda v: v.rows_out == 2 * len(all_rows(2_000)))
    savepoint = job.savepoint(tmp_path / "saved")
    job.cancel()
    job.finish()
    assert tables[0].has(1_000)

    gate.open_to(ROWS)
    environment_of(tables[1]).run("second", restore=savepoint)
    assert sorted(row for table in tables for _, rows in table.calls for row in rows) == EVERYTHING
    assert sorted((row.split, row.row) for row in spark.table("saved_results").collect()) == EVERYTHING
    spark.sql("DROP TABLE saved_results")


def test_files_of_the_parquet_sink_can_be_followed_by_a_stream_while_the_job_runs(spark, tmp_path):
    gate, out = Gate(tmp_path / "gate"), tmp_path / "out"
    env = environment(spark, tmp_path)
    env.read(Numbers(gate)).write(ps.parquet(out))
    job = env.start("followed")
    gate.open_to(1_000)
    wait_until(job, lambda _: list(out.glob("part-*.parquet")))
    followed = spark.readStream.schema("split long, row long").parquet(str(out))
    query = followed.writeStream.format("memory").queryName("followed").start()
    try:
        query.processAllAvailable()
        early = spark.table("followed").count()
        assert 0 < early < len(EVERYTHING)
        gate.open_to(ROWS)
        job.wait(timeout=120)
        query.processAllAvailable()
        assert sorted((row.split, row.row) for row in spark.table("followed").collect()) == EVERYTHING
    finally:
        query.stop()
        spark.catalog.dropTempView("followed")

"""Jobs on a real Spark: slots are Spark tasks, workers are killed for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.storage.locations import open_store
from penstock.storage.metadata import decode_metadata
from penstock.storage.verification import Standing, verify_directory

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

EVENTS = 600_000


class GatedReader(ps.SourceReader):
    """Holds its last split back until a file exists, and reads slowly meanwhile."""

    def __init__(self, reader: ps.SourceReader, gate: Path) -> None:
        self._reader = reader
        self._gate = gate

    def poll(self, max_rows: int, now_ms: int):
        if not self._gate.exists():
            if len(self._reader.snapshot()) <= 1:
                return ps.Pause(5)
            if now_ms % 4:
                return ps.Pause(1)
        return self._reader.poll(min(max_rows, 4_000), now_ms)

    def snapshot(self) -> list[bytes]:
        return self._reader.snapshot()


class GatedBids(ps.Source):
    """Bids that do not end before a file exists: the test decides when they may."""

    def __init__(self, gate: Path) -> None:
        self._inner = ps.nexmark.bids(events=EVENTS, seed=3)
        self._gate = gate

    @property
    def schema(self) -> pa.Schema:
        return self._inner.schema

    def splits(self, parallelism: int) -> list[bytes]:
        return self._inner.splits(parallelism)

    def open(self, splits: Sequence[bytes]) -> ps.SourceReader:
        return GatedReader(self._inner.open(splits), self._gate)


def hot_auctions(env: ps.Environment, source: ps.Source, out: Path) -> None:
    (
        env.read(source)
        .watermark("ts", delay="4s")
        .where("price > 100")
        .key_by("auction")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count(), top=ps.max("price"))
        .write(ps.parquet(str(out)))
    )


def reference(spark) -> list[tuple]:
    spark.sql(ps.nexmark.bids_sql(events=EVENTS, seed=3)).createOrReplaceTempView("bids")
    rows = spark.sql(
        "SELECT auction, window.start AS s, count(*) AS n, max(price) AS top FROM bids WHERE price > 100 "
        "GROUP BY auction, window(ts, '10 seconds')"
    ).collect()
    return sorted(tuple(row) for row in rows)


def committed(spark, out: Path) -> list[tuple]:
    return sorted(
        tuple(r) for r in spark.read.parquet(str(out)).select("auction", "window_start", "n", "top").collect()
    )


def wait_for(job: ps.Job, condition) -> ps.JobView:
    """The first view for which the condition holds; fails if the job ends before."""
    while not condition(view := job.view()):
        if job.is_over:
            job.wait()
            raise AssertionError(f"the job ended before the test saw what it waited for: {view}")
        time.sleep(0.02)
    return view


def checkpointing(tmp_path: Path, interval: str = "200ms") -> ps.Checkpointing:
    return ps.Checkpointing(interval=interval, directory=tmp_path / "checkpoints")


def files_below(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def test_any_dataframe_goes_in_and_spark_reads_what_comes_out(spark, tmp_path):
    orders = spark.range(300_000).selectExpr(
        "concat('customer ', id % 50) AS customer",
        "CAST(id AS DOUBLE) / 4 AS amount",
        "timestamp_micros(1700000000000000 + id * 1000) AS ts",
    )
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(tmp_path))
    (
        env.from_dataframe(orders)
        .watermark("ts", delay="1 min")
        .where("amount > 10 AND customer LIKE '%1%'")
        .key_by("customer")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count(), total=ps.sum("amount"), largest=ps.max("amount"))
        .write(ps.parquet(str(tmp_path / "out")))
    )
    view = env.run("orders")
    assert view.state is JobState.FINISHED
    orders.createOrReplaceTempView("orders")
    want = spark.sql(
        "SELECT customer, window.start, window.end, count(*), sum(amount), max(amount) FROM orders "
        "WHERE amount > 10 AND customer LIKE '%1%' GROUP BY customer, window(ts, '10 seconds')"
    ).collect()
    got = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(map(tuple, got)) == sorted(map(tuple, want))
    assert files_below(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_worker_killed_with_sigkill_is_replaced_and_nothing_is_lost_or_repeated(spark, tmp_path, transport):
    gate = tmp_path / "gate"
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=checkpointing(tmp_path),
        restart=ps.fixed_delay(attempts=3, delay="0s"),
        network=ps.NetworkSettings(transport=transport),
    )
    hot_auctions(env, GatedBids(gate), tmp_path / "out")
    job = env.start("killed")
    before = wait_for(job, lambda v: v.checkpoints.counts.completed >= 2)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    after = wait_for(job, lambda v: v.state is JobState.RUNNING and v.epoch == 2)
    assert after.slots[0].pid == before.slots[0].pid
    assert after.slots[1].pid != before.slots[1].pid
    assert after.restored_checkpoint is not None
    gate.touch()
    assert job.wait(120).state is JobState.FINISHED
    assert committed(spark, tmp_path / "out") == reference(spark)
    assert files_below(tmp_path / "checkpoints") == []


def test_a_user_function_that_raises_fails_the_job_with_its_traceback_operator_and_subtask(spark, tmp_path):
    def divide(row):
        return {"x": 1 // (row["id"] - 7)}

    env = ps.Environment(
        spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=ps.fixed_delay(attempts=1, delay="0s")
    )
    frame = env.from_dataframe(spark.range(100))
    frame.map(divide, schema="x bigint", name="divide").write(ps.parquet(str(tmp_path / "out")))
    with pytest.raises(ps.JobFailed) as raised:
        env.run("broken")
    text = str(raised.value)
    assert "ZeroDivisionError" in text
    assert "'divide', subtask " in text
    assert "in divide" in text
    assert "after 1 restarts" in text


def test_a_cancelled_job_says_so_and_leaves_no_files(spark, tmp_path):
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(tmp_path))
    hot_auctions(env, GatedBids(tmp_path / "gate"), tmp_path / "out")
    job = env.start("cancelled")
    wait_for(job, lambda v: v.checkpoints.counts.completed >= 1)
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(60)
    assert files_below(tmp_path / "checkpoints") == []
    assert not (tmp_path / "out" / "_penstock").exists()


def test_of_a_cancelled_job_that_keeps_its_checkpoints_exactly_what_they_refer_to_is_left(spark, tmp_path):
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=ps.Checkpointing(interval="100ms", directory=tmp_path / "checkpoints", retain=2, keep="keep"),
        restart=ps.fixed_delay(attempts=3, delay="0s"),
    )
    hot_auctions(env, GatedBids(tmp_path / "gate"), tmp_path / "out")
    job = env.start("kept")
    folder = layout.job_folder(job.id)
    before = wait_for(job, lambda v: v.checkpoints.counts.completed >= 3)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    wait_for(job, lambda v: v.epoch == 2 and v.checkpoints.counts.completed >= before.checkpoints.counts.completed + 2)
    store = open_store(tmp_path / "checkpoints")
    # As if a slot had written it when nobody could hear of it any more.
    store.write(f"{layout.checkpoint_folder(folder, 1)}/late", b"")
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(60)
    report = verify_directory(store, temporary=store.list_temporary(""))
    assert report.is_fine
    assert report.leftovers == ()
    assert [snapshot.standing for snapshot in report.snapshots] == [Standing.KEPT, Standing.KEPT]
    referred = {f"{s.location}/_metadata" for s in report.snapshots}
    for snapshot in report.snapshots:
        metadata = decode_metadata("_metadata", store.read(f"{snapshot.location}/_metadata"))
        referred |= {file.path for file in metadata.files}
    counters = {path for path in store.list_files("") if path.startswith(f"{layout.counter_folder(folder)}/")}
    assert set(store.list_files("")) == referred | counters


def test_more_slots_than_cores_is_refused_with_the_numbers(spark, tmp_path):
    env = ps.Environment(spark, parallelism=64, checkpointing=checkpointing(tmp_path))
    hot_auctions(env, ps.nexmark.bids(events=10), tmp_path / "out")
    with pytest.raises(ps.UsageError, match=r"needs 64 slots, Spark \(local\[\d+\]\) has \d+ cores"):
        env.start("too-wide")


def test_a_streaming_dataframe_is_refused_by_from_dataframe(spark):
    env = ps.Environment(spark, parallelism=1)
    with pytest.raises(ps.UsageError, match="batch DataFrame"):
        env.from_dataframe(spark.readStream.format("rate").load())


def test_something_that_is_no_session_is_refused():
    with pytest.raises(ps.UsageError, match="not a SparkSession"):
        ps.Environment("local[2]")


@pytest.mark.slow
def test_ctrl_c_cancels_the_job_and_leaves_no_process_behind(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import penstock as ps
            from pyspark.sql import SparkSession

            spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
            env = ps.Environment(spark, parallelism=2, checkpointing=ps.Checkpointing(
                interval="200ms", directory={str(tmp_path / "checkpoints")!r}))
            env.read(ps.nexmark.bids(events=10**9, rate=50_000)).write(ps.parquet({str(tmp_path / "out")!r}))
            job = env.start("endless")
            while not job.view().checkpoints.counts.completed:
                pass
            print("running", *(slot.pid for slot in job.view().slots), flush=True)
            try:
                job.wait()
            except KeyboardInterrupt:
                job.cancel()
                job.finish()
                print("cancelled", flush=True)
                spark.stop()
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline().split()
    assert first[0] == "running"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert "cancelled" in out
    assert process.returncode == 0
    for pid in map(int, first[1:]):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert files_below(tmp_path / "checkpoints") == []

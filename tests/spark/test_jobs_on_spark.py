"""Jobs on a real Spark: slots are Spark tasks, workers are killed for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from bid_jobs import GatedBids, checkpointing, committed, files_below, files_of_jobs, hot_auctions, reference
from waiting import wait_for_it, wait_until

import penstock as ps
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.storage.locations import open_store
from penstock.storage.metadata import decode_metadata
from penstock.storage.verification import Standing, verify_directory


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
    assert files_of_jobs(tmp_path / "checkpoints") == []


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
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 2)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    after = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch == 2)
    assert after.slots[0].pid == before.slots[0].pid
    assert after.slots[1].pid != before.slots[1].pid
    assert after.restored_checkpoint is not None
    gate.touch()
    assert job.wait(120).state is JobState.FINISHED
    assert committed(spark, tmp_path / "out") == reference(spark)
    assert files_of_jobs(tmp_path / "checkpoints") == []


@pytest.mark.parametrize(
    ("restart", "told"),
    [(ps.fixed_delay(attempts=1, delay="0s"), "after 1 restarts"), (None, "before the first checkpoint is not tried")],
    ids=["chosen", "default"],
)
def test_a_user_function_that_raises_fails_the_job_with_its_traceback_operator_and_subtask(
    spark, tmp_path, restart, told
):
    def divide(row):
        return {"x": 1 // (row["id"] - 7)}

    slow = ps.Checkpointing(interval="1h", directory=tmp_path / "checkpoints")
    env = ps.Environment(spark, parallelism=2, checkpointing=slow, restart=restart)
    frame = env.from_dataframe(spark.range(100))
    frame.map(divide, schema="x bigint", name="divide").write(ps.parquet(str(tmp_path / "out")))
    with pytest.raises(ps.JobFailed) as raised:
        env.run("broken")
    text = str(raised.value)
    assert "ZeroDivisionError" in text
    assert "'divide', subtask " in text
    assert "in divide" in text
    assert told in text
    assert f'File "{__file__}", line {divide.__code__.co_firstlineno + 1}' in text
    assert isinstance(raised.value.__cause__, ps.UserCodeError)


def test_a_cancelled_job_says_so_and_leaves_nothing_but_a_note_of_its_end(spark, tmp_path):
    chosen = ps.Checkpointing(interval="100ms", directory=tmp_path / "checkpoints", keep="delete")
    env = ps.Environment(spark, parallelism=2, checkpointing=chosen)
    hot_auctions(env, GatedBids(tmp_path / "gate"), tmp_path / "out")
    job = env.start("cancelled")
    wait_until(job, lambda v: v.checkpoints.counts.completed >= 1)
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)
    assert not list((tmp_path / "checkpoints").glob("*/chk-*"))
    assert not list((tmp_path / "checkpoints").glob("*/completed/*"))
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
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 3)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    wait_until(
        job, lambda v: v.epoch == 2 and v.checkpoints.counts.completed >= before.checkpoints.counts.completed + 2
    )
    store = open_store(tmp_path / "checkpoints")
    # As if a slot had written it when nobody could hear of it any more.
    store.write(f"{layout.checkpoint_folder(folder, 1)}/late", b"")
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)
    report = verify_directory(store, temporary=store.list_temporary(""))
    assert report.is_fine
    assert report.leftovers == ()
    assert [snapshot.standing for snapshot in report.snapshots] == [Standing.KEPT, Standing.KEPT]
    referred = {f"{s.location}/_metadata" for s in report.snapshots}
    for snapshot in report.snapshots:
        metadata = decode_metadata("_metadata", store.read(f"{snapshot.location}/_metadata"))
        referred |= {file.path for file in metadata.files}
    assert set(files_of_jobs(tmp_path / "checkpoints")) == referred


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


def test_all_arguments_of_the_wrong_kind_are_told_at_once(spark):
    with pytest.raises(ps.SettingsError) as raised:
        ps.Environment(
            spark, parallelism="2", spare_slots=True, checkpointing="dir", restart=3, slots={"spares": 1}, landing=5
        )
    assert [problem.split(";")[0] for problem in raised.value.problems] == [
        "parallelism is '2'",
        "spare_slots is True",
        "checkpointing is 'dir'",
        "restart is 3",
        "slots is {'spares': 1}",
        "landing is 5",
    ]


def test_a_function_that_cannot_travel_is_refused_by_its_step_before_anything_is_landed(spark, tmp_path):
    lock = threading.Lock()
    env = ps.Environment(spark, parallelism=1, checkpointing=checkpointing(tmp_path))
    rows = env.from_dataframe(spark.range(5))
    rows.map(lambda row: row | {"id": lock is None}, schema="id bigint", name="locked").write(
        ps.parquet(tmp_path / "out")
    )
    with pytest.raises(ps.UsageError, match=r"step 'locked' cannot be sent to the workers: .*lock"):
        env.start("stays")
    assert files_below(tmp_path) == []
    with pytest.raises(ps.UsageError, match="the name of the job is 5"):
        env.start(5)


@pytest.mark.slow
def test_ctrl_c_cancels_the_job_and_leaves_its_newest_checkpoint_and_no_process_behind(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import time
            import penstock as ps
            from pyspark.sql import SparkSession

            spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
            env = ps.Environment(spark, parallelism=2, checkpointing=ps.Checkpointing(
                interval="200ms", directory={str(tmp_path / "checkpoints")!r}))
            env.read(ps.nexmark.bids(events=10**9, rate=50_000)).write(ps.parquet({str(tmp_path / "out")!r}))
            job = env.start("endless")
            while not job.view().checkpoints.counts.completed:
                time.sleep(0.05)
            try:
                print("running", *(slot.pid for slot in job.view().slots), flush=True)
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
    # Spark's daemon ends them when it is told to, which nobody waits for.
    for pid in map(int, first[1:]):
        wait_for_it(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"worker {pid} is gone")
    kept = {path.split("/")[1] for path in files_of_jobs(tmp_path / "checkpoints")}
    assert len(kept) == 1, "the newest checkpoint is there to go on from, and nothing else"
    assert kept.pop().startswith("chk-")

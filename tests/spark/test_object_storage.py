"""A job on a real Spark whose checkpoints lie on an S3 server of this host."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest
from bid_jobs import GatedBids, files_of_jobs
from gated import EVERYTHING, ROWS, Gate, Numbers
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState
from penstock.core.recovery import roots
from penstock.storage.locations import open_store

EVENTS = 300_000


def count_bids(env: ps.Environment, source: ps.Source, out: Path) -> None:
    (
        env.read(source)
        .watermark("ts", delay="4s")
        .key_by("auction", "bidder")
        .window(ps.tumbling("1h"))
        .aggregate(n=ps.count(), top=ps.max("price"))
        .write(ps.parquet(str(out)))
    )


def test_a_job_with_its_checkpoints_on_s3_loses_the_server_and_a_worker_and_repeats_nothing(spark, s3, tmp_path):
    root = s3.uri(f"spark/{uuid.uuid4()}")
    store = open_store(root)
    gate = tmp_path / "gate"
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=ps.Checkpointing(interval="300ms", directory=root, tolerable_failures=None),
        restart=ps.fixed_delay(attempts=3, delay="0s"),
    )
    count_bids(env, GatedBids(gate, events=EVENTS, seed=5), tmp_path / "out")
    job = env.start("on-s3")
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 2 and v.rows_in >= EVENTS // 4)
    # Until a record is stored and others are not, there is always one.
    assert any("/completed/" in path for path in store.list_files(""))
    savepoint = job.savepoint(s3.uri(f"spark/{uuid.uuid4()}"), timeout=120)
    files = open_store(savepoint).list_files("")
    assert "_metadata" in files
    assert len(files) > 1, "slots wrote files of their own"
    own = job.savepoint(timeout=120)
    assert roots.shown(own).startswith(f"{roots.shown(root)}/savepoints/savepoint-")
    assert "_metadata" in open_store(own).list_files("")
    # The server goes away: checkpoints fail, and so do deletions. It comes back, and both go on.
    s3.stop()
    try:
        failed = wait_until(job, lambda v: v.checkpoints.counts.failed >= 1).checkpoints.counts
    finally:
        s3.start()
    wait_until(job, lambda v: v.checkpoints.counts.completed > failed.completed)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    after = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch == 2)
    assert after.restored_checkpoint is not None
    assert after.slots[1].pid != before.slots[1].pid
    gate.touch()
    assert job.wait(120).state is JobState.FINISHED
    got = spark.read.parquet(str(tmp_path / "out")).select("auction", "bidder", "window_start", "n", "top")
    spark.sql(ps.nexmark.bids_sql(events=EVENTS, seed=5)).createOrReplaceTempView("bids")
    want = spark.sql(
        "SELECT auction, bidder, window.start, count(*), max(price) FROM bids "
        "GROUP BY auction, bidder, window(ts, '1 hour')"
    )
    assert sorted(map(tuple, got.collect())) == sorted(map(tuple, want.collect()))
    left = files_of_jobs(root)
    assert left, "the savepoint belongs to the user"
    assert all(path.startswith("savepoints/") for path in left)


def numbers(spark, root: str, out: Path, gate: Gate) -> ps.Environment:
    checkpointing = ps.Checkpointing(interval="200ms", directory=root)
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing, restart=ps.no_restart())
    env.read(Numbers(gate), name="numbers").write(ps.parquet(out))
    return env


def shown(spark, out: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(out)).select("split", "row").collect()
    return sorted((row.split, row.row) for row in rows)


@pytest.mark.slow
def test_a_program_that_is_run_again_goes_on_and_is_refused_while_it_runs(spark, s3, tmp_path, caplog):
    root, out = s3.uri(f"spark/{uuid.uuid4()}"), tmp_path / "out"
    gate = Gate(tmp_path / "gate")
    gate.open_to(ROWS // 2)
    job = numbers(spark, root, out, gate).start("numbers")
    wait_until(job, lambda v: v.checkpoints.counts.completed >= 2)
    with pytest.raises(ps.UsageError, match="job 'numbers' is running already in s3://bucket/spark/"):
        numbers(spark, root, out, gate).start("numbers")
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)
    gate.open_to(ROWS)
    with caplog.at_level(logging.WARNING):
        view = numbers(spark, root, out, gate).run("numbers")
    assert view.restored_checkpoint is not None
    assert f"job 'numbers' goes on from checkpoint {view.restored_checkpoint} of " in caplog.text
    assert "starts over" not in caplog.text
    assert "endpoint_override" not in caplog.text
    assert shown(spark, out) == EVERYTHING
    assert files_of_jobs(root) == []
    numbers(spark, root, out, gate).run("numbers", fresh=True)
    assert shown(spark, out) == sorted(EVERYTHING * 2)


@pytest.mark.slow
def test_without_the_extra_a_program_that_is_run_again_starts_over_and_says_so(
    spark, s3, tmp_path, caplog, monkeypatch
):
    monkeypatch.setitem(sys.modules, "obstore", None)
    root, out = s3.uri(f"spark/{uuid.uuid4()}"), tmp_path / "out"
    gate = Gate(tmp_path / "gate")
    gate.open_to(ROWS)
    for times in (1, 2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            numbers(spark, root, out, gate).run("numbers")
        said = [record.message for record in caplog.records if "starts over" in record.message]
        assert len(said) == 1
        assert "the extra object-storage is not installed" in said[0]
        assert shown(spark, out) == sorted(EVERYTHING * times)


def test_a_dataframe_needs_a_mounted_folder_to_land_in(spark, s3, tmp_path):
    root = s3.uri(f"spark/{uuid.uuid4()}")
    checkpointing = ps.Checkpointing(interval="300ms", directory=root)
    with pytest.raises(ps.UsageError, match="cannot write DataFrames for the job to s3://bucket") as caught:
        ps.Environment(spark, parallelism=2, checkpointing=checkpointing).from_dataframe(spark.range(10))
    assert "landing=" in caught.value.hint
    with pytest.raises(ps.UsageError, match="file system of kind 's3'"):
        ps.Environment(spark, parallelism=2, checkpointing=checkpointing, landing=root)
    landing = tmp_path / "landing"
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing, landing=landing)
    env.from_dataframe(spark.range(1_000)).where("id % 2 = 0").write(ps.parquet(str(tmp_path / "out")))
    assert env.run("landed").state is JobState.FINISHED
    assert sorted(r.id for r in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(0, 1_000, 2))
    assert [path for path in landing.rglob("*") if path.is_file()] == []
    assert files_of_jobs(root) == []


def test_a_bucket_that_is_not_there_is_told_before_the_job_starts(spark, s3, tmp_path):
    root = s3.uri("x").replace("//bucket/", "//no-such-bucket/")
    env = ps.Environment(spark, parallelism=2, checkpointing=ps.Checkpointing(directory=root))
    count_bids(env, ps.nexmark.bids(events=10), tmp_path / "out")
    with pytest.raises(ps.StorageError, match="no-such-bucket"):
        env.start("nowhere")

"""Streaming DataFrames as sources, on a real Spark."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState
from penstock.storage.metadata import decode_metadata

BATCH_ROWS = 500


def feed(spark, folder: Path, batches: range) -> list[int]:
    """Files that a stream over the folder takes; what is in them."""
    for batch in batches:
        first = batch * BATCH_ROWS
        spark.range(first, first + BATCH_ROWS).coalesce(2).write.mode("append").parquet(str(folder))
    return list(range(batches.start * BATCH_ROWS, batches.stop * BATCH_ROWS))


def stream_of(spark, folder: Path):
    return (
        spark.readStream.schema("id long")
        .option("maxFilesPerTrigger", 2)
        .parquet(str(folder))
        .selectExpr("id", "timestamp_micros(id) AS at")
    )


def environment(spark, tmp_path: Path, **options) -> ps.Environment:
    checkpointing = ps.Checkpointing(interval="200ms", directory=str(tmp_path / "ckpt"))
    restart = ps.fixed_delay(attempts=5, delay="50ms")
    return ps.Environment(spark, parallelism=2, checkpointing=checkpointing, restart=restart, **options)


def rows_of(spark, out: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(out)).select("id").collect())


def test_what_is_available_now_is_read_once_and_the_job_ends(spark, tmp_path):
    expected = feed(spark, tmp_path / "in", range(3))
    env = environment(spark, tmp_path)
    env.from_stream(stream_of(spark, tmp_path / "in"), available_now=True).write(ps.parquet(tmp_path / "out"))
    view = env.run("available")
    assert view.state is JobState.FINISHED
    assert rows_of(spark, tmp_path / "out") == expected
    assert not spark.streams.active


def test_what_is_new_is_read_when_the_program_is_run_again_and_nothing_else(spark, tmp_path):
    """1. What is there is read, and the job ends. 2. It is run again without anything new. 3. There is more."""

    def run() -> None:
        env = environment(spark, tmp_path)
        env.from_stream(stream_of(spark, tmp_path / "in"), available_now=True).write(ps.parquet(tmp_path / "out"))
        assert env.run("available").state is JobState.FINISHED

    expected = feed(spark, tmp_path / "in", range(3))
    run()
    assert rows_of(spark, tmp_path / "out") == expected
    run()
    assert rows_of(spark, tmp_path / "out") == expected
    expected = sorted(expected + feed(spark, tmp_path / "in", range(3, 5)))
    run()
    assert rows_of(spark, tmp_path / "out") == expected


def test_a_killed_worker_costs_no_batch_and_repeats_none(spark, tmp_path):
    """1. A worker is killed while batches come in. 2. Where the driver goes on is in the checkpoint, beside what no
    reader had read: batches before it are not given out again, and those behind it are."""
    expected = feed(spark, tmp_path / "in", range(3))
    env = environment(spark, tmp_path)
    env.from_stream(stream_of(spark, tmp_path / "in"), trigger="100ms", name="ids").write(ps.parquet(tmp_path / "out"))
    job = env.start("killed")
    wait_until(job, lambda view: view.rows_read > 0 and view.checkpoints.counts.completed >= 2)
    (query,) = spark.streams.active
    os.kill(job.view().slots[1].pid, signal.SIGKILL)
    expected += feed(spark, tmp_path / "in", range(3, 6))
    wait_until(job, lambda view: view.restarts == 1 and view.state is JobState.RUNNING)
    assert job.view().restored_checkpoint is not None
    assert [again.id for again in spark.streams.active] == [query.id]
    wait_until(job, lambda _: (tmp_path / "out").exists() and rows_of_quietly(spark, tmp_path / "out") == expected)
    wait_until(job, lambda _: not list((tmp_path / "ckpt").glob("*/inputs/*/*/data/*/*/part-*")))
    savepoint = job.stop(savepoint=str(tmp_path / "saved"))
    assert rows_of(spark, tmp_path / "out") == expected
    metadata = decode_metadata("_metadata", (Path(savepoint) / "_metadata").read_bytes())
    assert list(metadata.coordinators) == ["ids"]
    assert not spark.streams.active


def test_each_row_of_a_rate_source_is_read_once_although_a_worker_is_killed(spark, tmp_path):
    """Its rows are numbered, and made by Spark when they are asked for: there is no file to read them from again."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", 500).load().selectExpr("value AS id", "timestamp")
    env = environment(spark, tmp_path)
    env.from_stream(rate, trigger="100ms").write(ps.parquet(tmp_path / "out"))
    job = env.start("rate")
    running = wait_until(job, lambda view: view.rows_read > 0 and view.checkpoints.counts.completed >= 2)
    os.kill(running.slots[1].pid, signal.SIGKILL)
    again = wait_until(job, lambda view: view.restarts == 1 and view.state is JobState.RUNNING)
    # More than were read before: some that were in flight, and some that were made since.
    least = range(running.rows_read + 500)
    wait_until(job, lambda _: set(least) <= set(rows_of_quietly(spark, tmp_path / "out")))
    job.stop(savepoint=str(tmp_path / "saved"))
    rows = rows_of(spark, tmp_path / "out")
    assert again.restored_checkpoint is not None
    assert len(rows) == len(set(rows))


def rows_of_quietly(spark, out: Path) -> list[int]:
    return rows_of(spark, out) if list(out.glob("part-*")) else []


def test_another_job_goes_on_from_a_savepoint_if_the_directory_outlives_the_first(spark, tmp_path):
    expected = feed(spark, tmp_path / "in", range(2))

    def program() -> ps.Environment:
        env = environment(spark, tmp_path)
        stream = env.from_stream(stream_of(spark, tmp_path / "in"), directory=tmp_path / "landed", trigger="50ms")
        stream.write(ps.parquet(tmp_path / "out"))
        return env

    job = program().start("first")
    wait_until(job, lambda _: rows_of_quietly(spark, tmp_path / "out") == expected)
    savepoint = job.stop(savepoint=str(tmp_path / "saved"))
    stray = tmp_path / "landed" / "batches" / f"{99:020d}"
    stray.write_bytes(b"\x90")
    with pytest.raises(ps.UsageError, match="has micro-batches of an earlier job"):
        program().start("afresh")
    stray.unlink()
    expected += feed(spark, tmp_path / "in", range(2, 4))
    again = program().start("second", restore=savepoint)
    wait_until(again, lambda _: rows_of_quietly(spark, tmp_path / "out") == expected)
    again.cancel()
    again.finish()
    assert rows_of(spark, tmp_path / "out") == expected


def test_without_a_directory_a_stream_cannot_be_taken_over(spark, tmp_path):
    feed(spark, tmp_path / "in", range(1))

    def program() -> ps.Environment:
        env = environment(spark, tmp_path)
        env.from_stream(stream_of(spark, tmp_path / "in"), trigger="50ms").write(ps.parquet(tmp_path / "out"))
        return env

    job = program().start("first")
    wait_until(job, lambda view: view.rows_read > 0)
    savepoint = job.stop(savepoint=str(tmp_path / "saved"))
    with pytest.raises(ps.UsageError, match="directory="):
        program().start("second", restore=savepoint)


def test_a_query_that_fails_ends_the_attempt_with_its_reason(spark, tmp_path):
    feed(spark, tmp_path / "in", range(1))
    env = ps.Environment(spark, parallelism=2, restart=ps.no_restart())
    broken = stream_of(spark, tmp_path / "in").selectExpr(
        "if(id < 10, id, cast(raise_error('too large') AS long)) AS id"
    )
    env.from_stream(broken).write(ps.parquet(tmp_path / "out"))
    with pytest.raises(ps.JobFailed, match="streaming query failed"):
        env.run("broken")


def test_a_batch_dataframe_is_no_stream(spark, tmp_path):
    with pytest.raises(ps.UsageError, match="from_dataframe"):
        environment(spark, tmp_path).from_stream(spark.range(3))


def test_a_stream_that_spark_cannot_append_to_is_refused_and_not_restarted_for_ever(spark, tmp_path):
    (tmp_path / "in").mkdir()
    counted = stream_of(spark, tmp_path / "in").groupBy("id").count()
    with pytest.raises(
        ps.UsageError, match=r"append mode: .*aggregations without watermark.*\n  hint: .*withWatermark"
    ):
        environment(spark, tmp_path).from_stream(counted)

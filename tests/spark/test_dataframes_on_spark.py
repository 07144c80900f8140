"""Batch DataFrames as sources, on a real Spark."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import cloudpickle
import pandas as pd
import pytest
from bid_jobs import files_of_jobs
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 40_000


def slow_until(gate: Path):
    """A function that takes its time over every row until a file exists."""

    def step(row):
        if row["id"] % 10 == 0 and not gate.exists():
            time.sleep(0.05)
        return row

    return step


def test_a_dataframe_of_any_sql_is_read_once_though_a_worker_dies_and_the_job_is_rescaled(spark, tmp_path):
    """What Spark computed is written down once: what chance decided in it is the same for all who read it again."""
    gate = tmp_path / "gate"
    names = spark.range(10).selectExpr("id AS kind", "concat('kind ', id) AS name")
    numbers = spark.range(ROWS).selectExpr("id", "id % 10 AS kind", "uuid() AS token")
    frame = numbers.join(names, "kind").where("kind != 3").select("id", "name", "token")
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=ps.Checkpointing(interval="200ms", directory=tmp_path / "ckpt"),
        restart=ps.fixed_delay(attempts=3, delay="50ms"),
    )
    read = env.from_dataframe(frame).map(slow_until(gate), schema="id bigint, name string, token string", name="slow")
    read.write(ps.parquet(tmp_path / "out"))
    job = env.start("frames")
    (landed,) = (tmp_path / "ckpt").glob("*/inputs/*/*")
    # Spark has written into the folder that was made for the owner alone, and has not put its own folder there.
    assert stat.S_IMODE(landed.stat().st_mode) == 0o700
    want = sorted(map(tuple, spark.read.parquet(str(landed)).collect()))
    before = wait_until(job, lambda v: v.rows_read and v.checkpoints.counts.completed >= 2)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    wait_until(job, lambda v: v.restarts == 1 and v.state is JobState.RUNNING and v.restored_checkpoint is not None)
    job.rescale(3, timeout=120)
    gate.touch()
    job.wait(120)
    assert len(want) == ROWS * 9 // 10
    assert sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect())) == want


def test_a_savepoint_of_a_stopped_job_has_its_dataframes(spark, tmp_path):
    """The job that was stopped leaves what it landed: what chance decided in a DataFrame cannot be made again."""
    gate = tmp_path / "gate"
    out = str(tmp_path / "out")
    frame = spark.range(4_000).selectExpr("id", "uuid() AS token")

    def started(name, parallelism, **restore):
        env = ps.Environment(
            spark,
            parallelism=parallelism,
            checkpointing=ps.Checkpointing(interval="200ms", directory=tmp_path / "ckpt"),
            restart=ps.no_restart(),
            source_batch_rows=100,
        )
        read = env.from_dataframe(frame, name="frame")
        read.map(slow_until(gate), schema="id bigint, token string", name="slow").write(ps.parquet(out), name="out")
        return env.start(name, **restore)

    job = started("first", 1)
    (landed,) = (tmp_path / "ckpt").glob("*/inputs/*/*")
    wait_until(job, lambda v: v.rows_read and v.checkpoints.counts.completed)
    saved = job.stop(savepoint=tmp_path / "saves", timeout=120)
    want = sorted(map(tuple, spark.read.parquet(str(landed)).collect()))
    assert 0 < spark.read.parquet(out).count() < len(want)
    assert {path.split("/")[1] for path in files_of_jobs(tmp_path / "ckpt")} == {"inputs"}
    gate.touch()
    started("second", 2, restore=saved).wait(120)
    assert sorted(map(tuple, spark.read.parquet(out).collect())) == want


def test_what_is_no_dataframe_or_has_types_that_streams_lack_is_refused_by_name(spark):
    env = ps.Environment(spark, parallelism=1)
    for method, given in (
        (env.from_dataframe, [1, 2]),
        (env.from_dataframe, pd.DataFrame()),
        (env.from_stream, "rate"),
    ):
        with pytest.raises(ps.UsageError, match=f"{method.__name__} takes a DataFrame of Spark"):
            method(given)
    for column, kind in (
        ("make_ym_interval(1, 2)", "interval year to month"),
        ("make_interval(1, 2)", "interval"),
        ("parse_json('1')", "variant"),
        ("array(named_struct('b', map('c', parse_json('1'))))", "array<struct<b:map<string,variant>>>"),
    ):
        with pytest.raises(ps.UsageError, match=f"column 'a' is of Spark's type {re.escape(kind)},"):
            env.from_dataframe(spark.sql(f"SELECT 1 AS x, {column} AS a"))


def test_what_keeps_a_dataframe_from_being_landed_is_told(spark, tmp_path):
    spark.range(10).write.parquet(str(tmp_path / "in"))
    frame = spark.read.parquet(str(tmp_path / "in"))
    shutil.rmtree(tmp_path / "in")
    env = ps.Environment(spark, parallelism=1)
    env.from_dataframe(frame).write(ps.parquet(tmp_path / "out"))
    with pytest.raises(ps.HostError, match=r"could not be written to .*FILE_NOT_EXIST"):
        env.start("gone")

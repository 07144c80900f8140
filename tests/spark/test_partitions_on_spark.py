"""Folders by the values of columns: those that Spark makes, and that Spark reads."""

from __future__ import annotations

import os
import signal
from datetime import date
from pathlib import Path

import pytest
from gated import EVERYTHING, ROWS, SPLITS, Gate, Numbers
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState

ODD = [
    "plain",
    "a b",
    "a/b",
    "a=b%2Fc",
    "100%",
    'it\'s "quoted"',
    "a:b?c*d#e\\f^[g]{h}",
    "tab\tline\n\x01\x7f",
    "süß 水",
    ".hidden",
    " ",
    "",
    None,
]


@pytest.fixture
def table(spark):
    """The name of a table that does not exist, and is gone afterwards."""
    name = "penstock_partitions"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def environment(spark, tmp_path: Path, interval: str = "200ms") -> ps.Environment:
    checkpointing = ps.Checkpointing(interval=interval, directory=tmp_path / "ckpt")
    return ps.Environment(
        spark, parallelism=2, checkpointing=checkpointing, restart=ps.fixed_delay(attempts=3, delay="0s")
    )


def folders(path: Path) -> set[str]:
    return {str(file.parent.relative_to(path)) for file in path.rglob("*.parquet")}


def rows(frame) -> list[tuple]:
    return sorted((tuple(row) for row in frame.select("n", "day", "ok", "text").collect()), key=str)


def test_folders_are_those_that_spark_makes_and_have_the_same_rows(spark, tmp_path):
    days = [None, date(2026, 1, 1), date(1582, 10, 15)]
    given = [(n, days[n % 3], [True, False, None][n % 2], text) for n, text in enumerate(ODD * 3)]
    frame = spark.createDataFrame(given, "n int, day date, ok boolean, text string")
    by = ["day", "ok", "text"]
    frame.write.partitionBy(*by).parquet(str(tmp_path / "theirs"))
    env = environment(spark, tmp_path)
    env.from_dataframe(frame).write(ps.parquet(tmp_path / "ours", partition_by=by))
    env.run("folders")
    assert folders(tmp_path / "ours") == folders(tmp_path / "theirs")
    ours, theirs = (rows(spark.read.schema(frame.schema).parquet(str(tmp_path / who))) for who in ("ours", "theirs"))
    assert ours == theirs
    assert len(ours) == len(given)


def test_a_partitioned_table_shows_each_row_once_and_may_have_been_there(spark, tmp_path, table):
    """1. The table is made, and a worker is killed behind a commit. 2. Another job adds to it, and to what Spark itself
    inserted, in partitions old and new."""
    gate = Gate(tmp_path / "gate")
    env = environment(spark, tmp_path, "1h")
    env.read(Numbers(gate)).write(ps.table(table, path=tmp_path / "it's", partition_by="split"))
    job = env.start("table")
    gate.open_to(1_000)
    wait_until(job, lambda view: view.rows_read == SPLITS * 1_000)
    job.checkpoint()
    wait_until(job, lambda _: spark.table(table).count() == SPLITS * 1_000)
    os.kill(job.view().slots[1].pid, signal.SIGKILL)
    wait_until(job, lambda view: view.restarts == 1 and view.state is JobState.RUNNING)
    gate.open_to(ROWS)
    job.wait(timeout=120)
    assert found(spark, table) == EVERYTHING
    assert folders(tmp_path / "it's") == {f"split={split}" for split in range(SPLITS)}

    spark.sql(f"INSERT INTO {table} PARTITION (split = 70) VALUES (1)")
    env = environment(spark, tmp_path)
    more = [(0, -1), (70, 2), (71, 3)]
    env.from_dataframe(spark.createDataFrame(more, "split long, row long")).write(ps.table(table))
    env.run("more")
    assert found(spark, table) == sorted([*EVERYTHING, (70, 1), *more])
    partitions = {row.partition for row in spark.sql(f"SHOW PARTITIONS {table}").collect()}
    assert partitions == {f"split={split}" for split in [*range(SPLITS), 70, 71]}


def found(spark, table: str) -> list[tuple]:
    return sorted(tuple(row) for row in spark.table(table).select("split", "row").collect())

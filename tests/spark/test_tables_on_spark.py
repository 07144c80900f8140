"""Results in a Parquet table of Spark's, which Spark reads while the job runs."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gated import EVERYTHING, ROWS, SPLITS, Gate, Numbers, all_rows
from waiting import PATIENCE_S

import penstock as ps
from penstock.core.job.events import JobState


@pytest.fixture
def table(spark):
    """The name of a table that does not exist, and is gone afterwards."""
    name = "penstock_results"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


class Reader:
    """Reads the table and its folder again and again, and holds them to showing committed rows only: none twice, none
    that a checkpoint could not have yet, and none that goes away again."""

    def __init__(self, spark, table: str, folder: Path) -> None:
        self._spark = spark
        self._table = table
        self._folder = folder
        self._before: dict[str, set[tuple]] = {"table": set(), "folder": set()}
        self.allowed = 0

    def read(self) -> list[tuple]:
        self._look("folder", self._spark.read.schema("split long, row long").parquet(str(self._folder)))
        return self._look("table", self._spark.table(self._table))

    def _look(self, what: str, frame) -> list[tuple]:
        rows = sorted((row.split, row.row) for row in frame.collect())
        assert len(rows) == len(set(rows)), f"the {what} has rows twice"
        assert self._before[what] <= set(rows), f"rows went away from the {what}"
        assert set(rows) <= set(all_rows(self.allowed)), f"the {what} has rows of no checkpoint"
        self._before[what] = set(rows)
        return rows

    def wait_until(self, job: ps.Job, true) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true(self.read(), job.view()):
            assert job.view().state not in (JobState.FAILED, JobState.FINISHED), job.view().failures
            assert time.monotonic() < deadline, job.view()


class Follower:
    """A streaming query that has been there from the beginning on, and what it has seen."""

    def __init__(self, spark, name: str, frame) -> None:
        self._spark = spark
        self._name = f"{name}_followed"
        self._query = frame.writeStream.format("memory").queryName(self._name).start()

    def rows(self) -> list[tuple]:
        """All that can be seen by now."""
        self._query.processAllAvailable()
        return sorted((row.split, row.row) for row in self._spark.table(self._name).collect())

    def close(self) -> None:
        self._query.stop()
        self._spark.catalog.dropTempView(self._name)


def test_a_table_and_its_folder_show_each_committed_row_once_while_workers_die(spark, tmp_path, table):
    """1. Nothing shows before the checkpoint. 2. A worker hangs, and is killed, in a checkpoint for which the other one
    has its files prepared: they do not show, and their rows come once. 3. Streaming queries over the folder, and over
    the table by its name, see what is committed at any time, and have each row once in the end."""
    gate, folder = Gate(tmp_path / "gate"), tmp_path / "files"
    env = ps.Environment(
        spark,
        parallelism=2,
        # With this pause no periodic checkpoint begins during the test. Without the pause, a periodic checkpoint would
        # begin right after a restart.
        checkpointing=ps.Checkpointing(interval="1h", min_pause="1h", directory=tmp_path / "ckpt"),
        restart=ps.fixed_delay(attempts=3, delay="50ms"),
        # On a busy machine a worker that hangs is killed here, and not given up before.
        slots=ps.SlotSettings(heartbeat_timeout_ms=600_000),
    )
    env.read(Numbers(gate)).write(ps.table(table, path=folder))
    job = env.start("table")
    reader = Reader(spark, table, folder)
    followers = [
        Follower(spark, "folder", spark.readStream.schema("split long, row long").parquet(str(folder))),
        Follower(spark, "table", spark.readStream.table(table)),
    ]
    try:
        gate.open_to(1_000)
        reader.wait_until(job, lambda _, view: view.rows_read == SPLITS * 1_000)
        reader.allowed = 1_000
        job.checkpoint()
        reader.wait_until(job, lambda rows, _: rows == all_rows(1_000))
        assert [follower.rows() for follower in followers] == [all_rows(1_000)] * 2

        gate.open_to(2_000)
        reader.wait_until(job, lambda _, view: view.rows_read == SPLITS * 2_000)
        gate.stall.touch()
        reader.wait_until(job, lambda *_: gate.stalled.exists())
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(job.checkpoint)
            reader.wait_until(job, lambda *_: list(folder.glob("*/*/*.parquet")))
            reader.read()
            assert [follower.rows() for follower in followers] == [all_rows(1_000)] * 2
            os.kill(job.view().slots[1].pid, signal.SIGKILL)
            gate.stall.unlink()
            assert isinstance(asked.exception(timeout=120), ps.SnapshotFailed)
        reader.wait_until(job, lambda _, view: view.restarts == 1 and view.state is JobState.RUNNING)

        reader.allowed = ROWS
        job.checkpoint()
        gate.open_to(ROWS)
        job.wait(timeout=120)
        assert reader.read() == EVERYTHING
        assert [follower.rows() for follower in followers] == [EVERYTHING] * 2
    finally:
        for follower in followers:
            follower.close()
    assert {file.suffix for file in folder.iterdir()} == {".parquet"}


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        (
            "TABLE {} (split STRING, extra INT) USING parquet",
            r"split is string in the table and bigint in the stream; extra \(int\) is only in the table; row",
        ),
        ("TABLE {} (split BIGINT, row BIGINT) USING orc", "of format orc, and only parquet"),
        ("TABLE {} (split BIGINT, row BIGINT) USING parquet PARTITIONED BY (row)", "exists, and is partitioned by row"),
        ("TABLE {} (split BIGINT, row BIGINT) USING parquet", r"its files are in .*, not in .*elsewhere"),
    ],
    ids=["columns", "format", "partitions", "place"],
)
def test_a_table_that_cannot_be_written_is_refused_with_the_facts(spark, tmp_path, table, definition, says):
    spark.sql(f"CREATE {definition.format(table)}")
    gate = Gate(tmp_path / "gate")
    env = ps.Environment(spark, parallelism=2)
    place = tmp_path / "elsewhere" if "elsewhere" in says else None
    by = "split" if "partitioned" in says else ()
    env.read(Numbers(gate)).write(ps.table(table, path=place, partition_by=by))
    with pytest.raises(ps.UsageError, match=says):
        env.start("refused")


def test_a_view_is_no_table(spark, tmp_path):
    spark.range(3).createOrReplaceTempView("penstock_view")
    env = ps.Environment(spark, parallelism=2)
    env.read(Numbers(Gate(tmp_path / "gate"))).write(ps.table("penstock_view"))
    try:
        with pytest.raises(ps.UsageError, match="penstock_view is a view"):
            env.start("refused")
    finally:
        spark.catalog.dropTempView("penstock_view")


@pytest.fixture
def foreign(spark, tmp_path):
    """A catalog that is not Spark's own, with a table `APP.there` in it, as those of Delta and Iceberg are."""
    setting = "spark.sql.catalog.foreign"
    spark.sparkContext._jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    spark.conf.set(f"{setting}.url", "jdbc:derby:memory:foreign;create=true")
    spark.conf.set(f"{setting}.driver", "org.apache.derby.iapi.jdbc.AutoloadedDriver")
    spark.conf.set(setting, "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog")
    spark.sql("CREATE TABLE foreign.APP.there (split BIGINT, row BIGINT)")
    yield "foreign"
    spark.sql("DROP TABLE foreign.APP.there")
    spark.catalog.setCurrentCatalog("spark_catalog")
    for name in (setting, f"{setting}.url", f"{setting}.driver"):
        spark.conf.unset(name)


@pytest.mark.parametrize(
    ("name", "current", "says"),
    [
        ("foreign.APP.there", "spark_catalog", "table foreign.APP.there is not a table of files, and only parquet"),
        (
            "foreign.APP.fresh",
            "spark_catalog",
            "foreign.APP.fresh does not exist, and would be made in catalog",
        ),
        ("`foreign`.APP.fresh", "spark_catalog", "would be made in catalog foreign; Parquet tables are made in spark_"),
        ("APP.fresh", "foreign", "APP.fresh does not exist, and would be made in catalog foreign"),
    ],
)
def test_a_table_of_another_catalog_is_refused_and_none_is_made_there(spark, tmp_path, foreign, name, current, says):
    spark.catalog.setCurrentCatalog(current)
    env = ps.Environment(spark, parallelism=2)
    env.read(Numbers(Gate(tmp_path / "gate"))).write(ps.table(name))
    with pytest.raises(ps.UsageError, match=f"{says}.*\n  hint: stream.for_each_checkpoint"):
        env.start("refused")
    assert [row.tableName for row in spark.sql("SHOW TABLES IN foreign.APP").collect()] == ["there"]

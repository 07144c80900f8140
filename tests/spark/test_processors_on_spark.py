"""One StatefulProcessor by Structured Streaming and by Penstock, one of whose workers is killed: the same results."""

# Names and parameters are those of PySpark's class.
# ruff: noqa: N802, N803

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import cloudpickle
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import penstock as ps
from penstock.core.job.events import JobState

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 60_000
KEYS = 2_000
LOOK_EVERY = 100
OUT = "k string, what string, v bigint"


class Visits(StatefulProcessor):
    """Numbers the visits of a customer, and tells of pages that are new to them."""

    def init(self, handle):
        self.count = handle.getValueState("count", "n bigint")
        self.pages = handle.getMapState("pages", "page bigint", "times bigint")

    def handleInitialState(self, key, initialState, timerValues):
        self.count.update((initialState.n,))

    def handleInputRows(self, key, rows, timerValues):
        (count,) = self.count.get() or (0,)
        for row in rows:
            count += 1
            yield Row(k=key[0], what="visit", v=count)
            seen = self.pages.getValue((row.page,))
            if seen is None:
                yield Row(k=key[0], what="page", v=row.page)
            self.pages.updateValue((row.page,), ((seen.times if seen else 0) + 1,))
        self.count.update((count,))


class Deadly(Visits):
    """The same; its process dies once, after the first checkpoint has completed."""

    def __init__(self, checkpoints: Path, killed: Path) -> None:
        self._checkpoints = checkpoints
        self._killed = killed
        self._calls = 0

    def handleInputRows(self, key, rows, timerValues):
        self._calls += 1
        if self._calls % LOOK_EVERY == 0 and not self._killed.exists():
            if any(self._checkpoints.glob("*/completed/*")):
                self._killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.005)
        return super().handleInputRows(key, rows, timerValues)


@pytest.fixture(scope="module")
def visits(spark, tmp_path_factory):
    place = tmp_path_factory.mktemp("visits") / "rows"
    frame = spark.range(0, ROWS, 1, 6).selectExpr(f"concat('customer ', id % {KEYS}) AS k", "id * 7919 % 300 AS page")
    frame.write.parquet(str(place))
    return place


def initial_state(spark):
    return spark.createDataFrame([("customer 1", 1_000), ("customer 2", 2_000), ("nobody", 5)], "k string, n bigint")


def by_structured_streaming(spark, visits, place):
    stream = spark.readStream.schema("k string, page bigint").option("maxFilesPerTrigger", 2).parquet(str(visits))
    provider = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        query = (
            stream.groupBy("k")
            .transformWithState(Visits(), OUT, "append", "None", initial_state(spark).groupBy("k"))
            .writeStream.format("parquet")
            .option("path", str(place / "out"))
            .option("checkpointLocation", str(place / "checkpoints"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        spark.conf.unset(provider)
    return Counter(map(tuple, spark.read.parquet(str(place / "out")).collect()))


def test_a_processor_gives_what_structured_streaming_gives_although_a_worker_is_killed(spark, visits, tmp_path):
    checkpoints, killed = tmp_path / "checkpoints", tmp_path / "killed"
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=ps.Checkpointing(interval="100ms", directory=checkpoints),
        restart=ps.fixed_delay(attempts=3, delay="0s"),
        # Barriers must not wait behind all of the data.
        network=ps.NetworkSettings(channel_bytes=20_000, output_bytes=20_000, batch_bytes=5_000),
        source_batch_rows=500,
    )
    keyed = env.from_dataframe(spark.read.parquet(str(visits))).key_by("k")
    made = keyed.transform_with_state(
        Deadly(checkpoints, killed), output_schema=OUT, initial_state=initial_state(spark), name="visits"
    )
    made.write(ps.parquet(str(tmp_path / "out")))
    view = env.run("visits")
    assert view.state is JobState.FINISHED
    assert killed.exists()
    assert view.restored_checkpoint is not None
    found = Counter(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect()))
    assert sum(found.values()) > ROWS
    assert found == by_structured_streaming(spark, visits, tmp_path / "spark")


class Totals(StatefulProcessor):
    """Adds up pages in DataFrames."""

    def init(self, handle):
        self.total = handle.getValueState("total", "v bigint")

    def handleInputRows(self, key, rows, timerValues):
        import pandas as pd

        (total,) = self.total.get() or (0,)
        for frame in rows:
            assert list(frame.columns) == ["k", "page"]
            total += frame["page"].sum()
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "what": ["total"], "v": [total]})


def test_a_processor_of_dataframes_runs_too(spark, visits, tmp_path):
    env = ps.Environment(spark, parallelism=2)
    keyed = env.from_dataframe(spark.read.parquet(str(visits))).key_by("k")
    made = keyed.transform_with_state(Totals(), output_schema=OUT, kind="pandas", time_mode="ProcessingTime")
    made.write(ps.parquet(str(tmp_path / "out")))
    env.run("totals")
    found = spark.read.parquet(str(tmp_path / "out")).groupBy("k").max("v").collect()
    want = spark.read.parquet(str(visits)).groupBy("k").sum("page").collect()
    assert sorted(map(tuple, found)) == sorted(map(tuple, want))

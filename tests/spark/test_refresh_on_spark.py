"""Tables that a job reads anew while it runs, on a real Spark; and records in the order of Spark."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from waiting import wait_until

import penstock as ps
from penstock.core.errors import UsageError

pytestmark = pytest.mark.slow

VALUES = [None, float("nan"), -0.0, 0.0, 1.5, -7.0]
START = datetime(2026, 1, 1, tzinfo=UTC)


def write(spark: Any, path: Any, price: int) -> None:
    rows = [(item, price + item) for item in range(4)]
    spark.createDataFrame(rows, "item bigint, price bigint").write.mode("overwrite").parquet(str(path))


def joined(env: Any, table: Any, sink: Any, **words: Any) -> None:
    # Not a function of this module, which the slots cannot import.
    bids = ps.generate(
        lambda first, count: {"n": range(first, first + count), "item": [n % 5 for n in range(first, first + count)]},
        schema="n bigint, item bigint",
        rate=50,
    )
    stream = env.read(bids, name="bids")
    stream.join(table, on="item", how="left", name="priced", **words).write(sink)


@pytest.mark.parametrize("spread", ["copies", "by key"])
def test_records_meet_the_table_as_it_is_by_then(spark: Any, tmp_path: Any, caplog: Any, spread: Any):
    """1. The table has the first prices. 2. It is written anew: later records have the second prices. 3. It is broken:
    the second prices stay, and a warning says so. 4. It is written again: later records have the third prices.

    Spark does not replace the files of a table all at once: a version that is read meanwhile may lack rows."""
    items = tmp_path / "items"
    write(spark, items, 100)
    checkpointing = ps.Checkpointing(interval="500ms", directory=tmp_path / "checkpoints")
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing)
    sink = ps.collect()
    joined(env, spark.read.parquet(str(items)), sink, refresh="1s", spread=spread)

    def has(price: int) -> bool:
        return any(row["price"] == price for row in sink.rows)

    with caplog.at_level(logging.WARNING):
        job = env.start("refresh")
        try:
            wait_until(job, lambda _: has(103))
            write(spark, items, 200)
            wait_until(job, lambda _: has(203))
            (items / "part-broken.parquet").write_bytes(b"not a file of Parquet")
            wait_until(job, lambda _: "could not be read anew; its last version stays" in caplog.text)
            seen = len(sink.rows)
            wait_until(job, lambda _: len(sink.rows) > seen + 50)
            assert sink.rows[-1]["price"] in (None, 200, 201, 202, 203)
            write(spark, items, 300)
            wait_until(job, lambda _: has(303))
            landed = list((tmp_path / "checkpoints").glob("*/inputs/*/**/version-*"))
            # The newest two versions, and perhaps the version that comes next.
            assert 1 <= len(landed) <= 3
        finally:
            job.cancel()
            job.finish()
    numbers = [row["n"] for row in sink.rows]
    assert len(numbers) == len(set(numbers))
    for item in range(4):
        prices = [row["price"] for row in sink.rows if row["item"] == item and row["price"] is not None]
        assert set(prices) == {100 + item, 200 + item, 300 + item}
        if spread == "by key":
            # A single subtask has all records of an item, and never goes back to an earlier version.
            assert prices == sorted(prices)


def test_only_a_table_that_can_change_is_read_anew(spark: Any):
    env = ps.Environment(spark, parallelism=1)
    stream = env.from_dataframe(spark.range(3), name="ids")
    with pytest.raises(UsageError, match="a table in memory does not change"):
        stream.join(pa.table({"id": [1]}), on="id", refresh="1 h")
    with pytest.raises(UsageError, match="every second at most"):
        stream.join(spark.range(3), on="id", refresh="10ms")
    with pytest.raises(UsageError, match="refresh says how often a table is read anew"):
        stream.join(stream, on="id", ttl=None, refresh="1 h")


def test_records_leave_in_the_order_in_which_spark_orders_them(spark: Any, tmp_path: Any):
    rows = [
        (
            n,
            None if n % 11 == 0 else float("nan") if n % 7 == 0 else float(n % 5),
            START + timedelta(seconds=n * 37 % 90),
        )
        for n in range(400)
    ]
    frame = spark.createDataFrame(rows, "n bigint, x double, ts timestamp").repartition(5)
    env = ps.Environment(
        spark, parallelism=2, checkpointing=ps.Checkpointing(interval="1s", directory=tmp_path / "checkpoints")
    )
    sink = ps.collect()
    records = env.from_dataframe(frame, name="records").watermark("ts", delay="2 min")
    records.sort(["ts", "x"], descending=[False, True]).select("n").write(sink)
    env.run("sort")
    oracle = frame.orderBy("ts", frame["x"].desc(), "n").select("n").collect()
    assert [row["n"] for row in sink.rows] == [row["n"] for row in oracle]

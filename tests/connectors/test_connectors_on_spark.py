"""What Spark itself makes of the connectors."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock.api.connector import WriterContext
from penstock.connectors import nexmark
from penstock.connectors.parquet import parquet
from penstock.connectors.parquet_files import parquet_files


def bids(spark, count, *, offset=0, **arguments):
    """(rows by Spark SQL, rows by the generator) of `count` bids from `offset` on."""
    columns = nexmark.bid_columns_sql(**arguments)
    frame = spark.range(offset, offset + count, numPartitions=1).withColumnRenamed("id", "n")
    by_sql = frame.selectExpr(*columns).toArrow().cast(nexmark.SCHEMA).combine_chunks()
    made = nexmark.BidGenerator(
        seed=arguments["seed"],
        events_per_second=arguments.get("events_per_second", 10_000),
        base_time=arguments.get("base_time", nexmark.BASE_TIME),
    )
    return by_sql, pa.Table.from_batches([made.batch(offset, offset + count)])


def test_spark_sql_makes_the_same_bids_row_for_row(spark):
    by_sql, by_generator = bids(spark, 200_000, seed=7)
    assert by_sql.equals(by_generator)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1])
def test_they_agree_for_other_seeds_rates_and_places(spark, seed):
    base_time = datetime(1969, 12, 31, tzinfo=UTC)
    arguments = {"seed": seed, "events_per_second": 999_983, "base_time": base_time}
    by_sql, by_generator = bids(spark, 5_000, offset=2**40 - 10_000, **arguments)
    assert by_sql.equals(by_generator)


def test_the_query_gives_the_rows_of_the_source(spark):
    source = nexmark.bids(events=70_000, seed=3)
    reader = source.open(source.splits(1))
    rows = pa.Table.from_batches([reader.poll(100_000, 0), reader.poll(100_000, 0)])
    by_sql = spark.sql(nexmark.bids_sql(events=70_000, seed=3)).toArrow().cast(nexmark.SCHEMA)
    assert by_sql.sort_by("ts").combine_chunks().equals(rows.sort_by("ts").combine_chunks())


def test_spark_reads_committed_files_only_and_times_as_they_were(spark, tmp_path):
    moment = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "n": pa.array([1], pa.int64()),
            "ts": pa.array([moment], pa.timestamp("us", "UTC")),
            "local": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
        }
    )
    sink = parquet(tmp_path / "out")
    sink.start("job")
    writer = sink.writer(WriterContext(job="job", subtask=0, parallelism=1, epoch=1))
    writer.write(batch)
    sink.commit(writer.prepare(1)())
    writer.write(batch)
    writer.prepare(2)()
    frame = spark.read.parquet(sink.path)
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
        ("n", "bigint"),
        ("ts", "timestamp"),
        ("local", "timestamp_ntz"),
    ]
    assert frame.toArrow().to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_files_that_spark_wrote_can_be_read(spark, tmp_path, kind):
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    query = "SELECT id AS n, timestamp_micros(id) AS ts, string(id) AS text FROM range(1000)"
    spark.sql(query).repartition(3).write.parquet(str(tmp_path / "in"))
    schema = pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("text", pa.string())])
    source = parquet_files(tmp_path / "in", schema=schema)
    reader, rows = source.open(source.splits(1)), []
    while isinstance(polled := reader.poll(300, 0), pa.RecordBatch):
        rows.append(polled)
    table = pa.Table.from_batches(rows).sort_by("n")
    assert table.column("n").to_pylist() == list(range(1000))
    assert table.column("ts").cast(pa.int64()).to_pylist() == list(range(1000))
    assert table.column("text").to_pylist() == [str(n) for n in range(1000)]

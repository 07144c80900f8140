"""Running aggregates on Spark tasks, beside Structured Streaming in update mode."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f

import penstock as ps

pytestmark = pytest.mark.slow


def test_on_spark_tasks_the_rows_are_those_of_structured_streaming_in_update_mode(spark, tmp_path):
    rows = [{"user": f"user {n * n % 17}", "amount": n % 13} for n in range(600)]
    for number in range(3):
        part = spark.createDataFrame(rows[number * 200 : number * 200 + 200], "user string, amount bigint")
        part.coalesce(1).write.parquet(str(tmp_path / "in" / str(number)))
    theirs = {}

    def replace(batch, number):
        theirs.update({row["user"]: (row["n"], row["total"]) for row in batch.collect()})

    source = spark.readStream.schema("user string, amount bigint").option("maxFilesPerTrigger", 1)
    grouped = source.parquet(str(tmp_path / "in" / "*")).groupBy("user").agg(f.count("*"), f.sum("amount"))
    renamed = grouped.toDF("user", "n", "total")
    query = renamed.writeStream.outputMode("update").foreachBatch(replace).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "theirs")).start().awaitTermination()

    for backend in ("memory", "rocksdb"):
        checkpointing = ps.Checkpointing(interval="200ms", directory=tmp_path / backend)
        env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing, state_backend=backend)
        totals = env.from_iterable(rows).key_by("user").aggregate(n=ps.count(), total=ps.sum("amount"))
        handed = {}

        def hand_over(changes, checkpoint, handed=handed):
            handed.setdefault(checkpoint, [row.asDict() for row in changes.collect()])

        sink = ps.collect()
        totals.write(sink)
        totals.for_each_checkpoint(hand_over)
        env.run(f"totals-{backend}")
        assert {row["user"]: (row["n"], row["total"]) for row in sink.rows} == theirs
        changes = [row for checkpoint in sorted(handed) for row in handed[checkpoint]]
        key = lambda row: sorted(map(str, row.items()))  # noqa: E731
        assert sorted(map(key, changes)) == sorted(map(key, sink.changes))
    assert {row["user"]: (row["n"], row["total"]) for row in totals.collect()} == theirs
    assert {row["user"] for row in totals.collect(as_="spark").collect()} == set(theirs)

"""Windows that show updates, beside Structured Streaming in update mode: whoever follows the changes has the same
table, and the same records are too late.

What is the allowed lateness here is the delay of the watermark there. Both know no later event time, while they read a
part of the input, than that of the parts before. Structured Streaming has no session windows in update mode.
"""

from __future__ import annotations

import datetime
import random

import pytest
from pyspark.sql import functions as f

import penstock as ps
from penstock.testing import collect, pause, run, scripted

pytestmark = pytest.mark.slow

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SCHEMA = "k string, v bigint, ts timestamp"
LATENESS_S = 30
ONE_STATEFUL = "spark.sql.streaming.statefulOperator.allowMultiple"
# Never at the bound of a window, and never the lateness before one: Structured Streaming knows watermarks to the
# millisecond, and here they are known to the microsecond.
OFF = datetime.timedelta(milliseconds=7, microseconds=123)


def drawn(seed, parts=5, count=80):
    """Parts of the input. A part begins with records of the past, some of which are late for some of their windows, and
    then goes on in event time. So it does not matter when within a part event time goes on."""
    chance, moment, found = random.Random(seed), 100, []
    for _ in range(parts):
        seconds = [max(0, moment - chance.choice([0, 3, 8, 25, 31, 36, 41, 47, 90])) for _ in range(count // 2)]
        if not found:
            # Before the first part there is no event time, so none of its records is late.
            seconds.sort()
        for _ in range(count // 2):
            moment += chance.choice([0, 0, 0, 1, 2])
            seconds.append(moment)
        found.append(
            [
                {
                    "k": chance.choice(["a", "b", "", None]),
                    "v": chance.choice([None, 0, 1, -7, 2**40]),
                    "ts": BEGIN + datetime.timedelta(seconds=second) + OFF,
                }
                for second in seconds
            ]
        )
    return found


def theirs(spark, parts, folder, *window):
    for number, rows in enumerate(parts):
        frame = spark.createDataFrame([(row["k"], row["v"], row["ts"]) for row in rows], SCHEMA)
        frame.coalesce(1).write.parquet(str(folder / "in" / str(number)))
    table = {}

    def follow(batch, number):
        for key, start, end, *results in batch.collect():
            table[key, start, end] = tuple(results)

    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in" / "*"))
    timed = source.withWatermark("ts", f"{LATENESS_S} seconds")
    grouped = timed.groupBy("k", f.window("ts", *window).alias("w"))
    made = grouped.agg(f.count("*").alias("n"), f.sum("v").alias("total"), f.max("v").alias("top"))
    named = made.select("k", f.unix_micros("w.start"), f.unix_micros("w.end"), "n", "total", "top")
    query = named.writeStream.outputMode("update").foreachBatch(follow).trigger(availableNow=True)
    # Otherwise records are judged by the watermark of the batch before the last, for the sake of queries with several
    # stateful operators.
    spark.conf.set(ONE_STATEFUL, "false")
    try:
        query.option("checkpointLocation", str(folder / "theirs")).start().awaitTermination()
    finally:
        spark.conf.unset(ONE_STATEFUL)
    return table


def ours(parts, window, **how):
    script = [item for rows in parts for item in (*rows, pause(5_000))]

    def program(env):
        timed = env.read(scripted(script, schema=SCHEMA)).watermark("ts", delay="0s").key_by("k")
        windows = timed.window(window, allowed_lateness=f"{LATENESS_S}s")
        made = windows.aggregate(n=ps.count(), total=ps.sum("v"), top=ps.max("v")).updates(**how)
        made.changes().write(collect())

    table, counts = {}, {"update_before": 0, "insert": 0}
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    for row in run(program, seed=1, parallelism=2):
        bounds = ((row[name] - epoch) // datetime.timedelta(microseconds=1) for name in ("window_start", "window_end"))
        place, values = (row["k"], *bounds), (row["n"], row["total"], row["top"])
        kind = row["row_kind"]
        counts[kind] = counts.get(kind, 0) + 1
        if kind in ("update_before", "delete"):
            assert table.pop(place) == values
        else:
            assert place not in table
            table[place] = values
    assert all(counts.values())
    return table


@pytest.mark.parametrize(
    ("window", "theirs_window"),
    [(ps.tumbling("10s"), ("10 seconds",)), (ps.sliding("10s", "4s"), ("10 seconds", "4 seconds"))],
    ids=str,
)
def test_the_table_that_the_changes_make_is_that_of_structured_streaming(spark, tmp_path, window, theirs_window):
    parts = drawn(str(window))
    expected = theirs(spark, parts, tmp_path, *theirs_window)
    records = sum(n for n, *_ in expected.values())
    # Some records are late for some of their windows, and most records are not.
    most = sum(map(len, parts)) * (1 if len(theirs_window) == 1 else 2.5)
    assert 0.5 * most < records < 0.99 * most
    for how in ({}, {"every": "change"}, {"every": "1s"}, {"every": 3}):
        assert ours(parts, window, **how) == expected, how

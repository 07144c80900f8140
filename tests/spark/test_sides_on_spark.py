"""Side outputs on a real Spark: parts as Spark's CASE WHEN gives them, and a worker that is killed on the way."""

from __future__ import annotations

import os
import signal
import sys

import cloudpickle
import polars as pl
import pytest
from bid_jobs import GatedBids, checkpointing
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState

pytestmark = pytest.mark.slow

EVENTS = 100_000

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_a_record_is_in_the_part_that_case_when_says(spark, tmp_path):
    events = spark.range(5_000).selectExpr(
        "id",
        "CASE WHEN id % 5 = 0 THEN NULL WHEN id % 3 = 0 THEN 'ERROR' ELSE 'INFO' END AS level",
        "CASE WHEN id % 7 = 0 THEN NULL ELSE id % 2000 END AS ms",
    )
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(tmp_path))
    conditions = {"errors": "level = 'ERROR'", "slow": "ms > 1000", "known": "level IS NOT NULL AND ms IS NOT NULL"}
    parts = env.from_dataframe(events).split(**conditions)
    for name, part in parts.items():
        part.write(ps.parquet(str(tmp_path / name)), name=name)
    assert env.run("split").state is JobState.FINISHED
    cases = " ".join(f"WHEN {condition} THEN '{name}'" for name, condition in conditions.items())
    want = events.selectExpr("id", f"CASE {cases} ELSE 'rest' END AS part").collect()
    got = [(row.id, name) for name in parts for row in spark.read.parquet(str(tmp_path / name)).collect()]
    assert sorted(got) == sorted(map(tuple, want))
    assert {name for _, name in got} == {"errors", "slow", "known", "rest"}


class EveryTenth(ps.KeyedFunction):
    """Emits every tenth bid of an auction."""

    seen = ps.value_state("seen", "bigint", default=0)

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + 1)
        if self.seen.get() % 10 == 0:
            context.emit("tenth", {"auction": context.key, "seen": self.seen.get()})


def test_a_killed_worker_loses_and_repeats_nothing_in_side_outputs_and_late_records(spark, tmp_path):
    """Every seventh bid is a minute behind the others. A bid counts in its window, or is late."""
    gate = tmp_path / "gate"
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=checkpointing(tmp_path),
        restart=ps.fixed_delay(attempts=3, delay="0s"),
    )
    late_ts = pl.when(pl.col("price") % 7 == 0).then(pl.col("ts") - pl.duration(minutes=1)).otherwise(pl.col("ts"))
    parts = env.read(GatedBids(gate, events=EVENTS)).with_columns(ts=late_ts).split(dear="price > 5000")
    counts = parts.rest.watermark("ts").key_by("auction").window(ps.tumbling("10s")).aggregate(n=ps.count())
    tenth = parts.dear.key_by("auction").process(
        EveryTenth(), schema="auction bigint", sides={"tenth": "auction bigint, seen bigint"}
    )
    streams = {"counts": counts, "late": counts.late(), "dear": parts.dear, "tenth": tenth.side("tenth")}
    for name, stream in streams.items():
        stream.write(ps.parquet(str(tmp_path / name)), name=name)
    job = env.start("sides")
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 2)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch == 2)
    gate.touch()
    assert job.wait(240).state is JobState.FINISHED

    for name in streams:
        spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(f"got_{name}")
    spark.sql(ps.nexmark.bids_sql(events=EVENTS, seed=3)).createOrReplaceTempView("all_bids")
    spark.sql(
        "SELECT auction, price, CASE WHEN price % 7 = 0 THEN ts - INTERVAL 1 MINUTE ELSE ts END AS ts FROM all_bids"
    ).createOrReplaceTempView("bids")
    windows = spark.sql(
        "SELECT auction, start, sum(n) FROM (SELECT auction, window_start AS start, n FROM got_counts UNION ALL "
        "SELECT auction, window(ts, '10 seconds').start AS start, 1 AS n FROM got_late) GROUP BY auction, start"
    ).collect()
    want = spark.sql(
        "SELECT auction, w.start, count(*) FROM (SELECT auction, window(ts, '10 seconds') AS w FROM bids "
        "WHERE price <= 5000) GROUP BY auction, w.start"
    ).collect()
    assert sorted(map(tuple, windows)) == sorted(map(tuple, want))
    assert (
        spark.sql("SELECT count(*), count(DISTINCT auction, window_start) FROM got_counts").first()[:]
        == (spark.sql("SELECT count(*), count(*) FROM got_counts").first()[:])
    )
    assert spark.sql("SELECT count(*) FROM got_late").first()[0] > 0
    dear = "SELECT auction, price, ts, count(*) FROM {} GROUP BY auction, price, ts"
    assert sorted(map(tuple, spark.sql(dear.format("got_dear")).collect())) == sorted(
        map(tuple, spark.sql(dear.format("bids WHERE price > 5000")).collect())
    )
    counted = spark.sql("SELECT auction, count(*) FROM bids WHERE price > 5000 GROUP BY auction").collect()
    tens = [(auction, seen) for auction, count in map(tuple, counted) for seen in range(10, count + 1, 10)]
    assert sorted(map(tuple, spark.sql("SELECT auction, seen FROM got_tenth").collect())) == sorted(tens)

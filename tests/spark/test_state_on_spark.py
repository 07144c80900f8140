"""Functions with state on a real Spark, one of whose workers is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import cloudpickle
import pytest

import penstock as ps
from penstock.core.job.events import JobState

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 200_000
LOOK_EVERY = 500


class Total(ps.KeyedFunction):
    """Adds up amounts per customer and minute. Its process dies once, after the first checkpoint has completed."""

    minutes = ps.map_state("minutes", key="timestamp", value="bigint")
    orders = ps.value_state("orders", "bigint", default=0)

    def __init__(self, checkpoints: Path, killed: Path) -> None:
        self._checkpoints = checkpoints
        self._killed = killed
        self._calls = 0

    def on_row(self, row, context):
        self._calls += 1
        if self._calls % LOOK_EVERY == 0 and not self._killed.exists():
            # Not one that is still being written.
            if any(self._checkpoints.glob("*/completed/[0-9]*")):
                self._killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.02)
        self.orders.set(self.orders.get() + 1)
        minute = row["ts"].replace(second=0, microsecond=0)
        if minute not in self.minutes:
            context.timers.at_event_time(minute + timedelta(minutes=1))
        self.minutes[minute] = self.minutes.get(minute, 0) + row["amount"]

    def on_timer(self, timer, context):
        minute = timer.time - timedelta(minutes=1)
        yield {"customer": context.key, "minute": minute, "total": self.minutes[minute]}
        self.minutes.remove(minute)


@pytest.mark.parametrize(
    ("backend", "key"),
    [(ps.memory(), "string"), (ps.rocksdb(), "string"), (ps.rocksdb(), "decimal(38, 2)")],
    ids=["memory", "rocksdb", "rocksdb-decimal"],
)
def test_state_and_timers_outlive_a_worker_that_is_killed(spark, tmp_path, backend, key):
    orders = spark.range(ROWS).selectExpr(
        f"CAST(id % 50 AS {key}) AS customer",
        "id AS amount",
        "timestamp_micros(1700000000000000 + id * 10000) AS ts",
    )
    checkpoints, killed = tmp_path / "checkpoints", tmp_path / "killed"
    env = ps.Environment(
        spark,
        parallelism=2,
        # Barriers that wait behind all the data would make the first checkpoint the last.
        checkpointing=ps.Checkpointing(interval="100ms", directory=checkpoints, unaligned=True),
        restart=ps.fixed_delay(attempts=3, delay="0s"),
        state_backend=backend,
    )
    totals = env.from_dataframe(orders).watermark("ts", delay="1 min").key_by("customer")
    schema = f"customer {key}, minute timestamp, total bigint"
    totals.process(Total(checkpoints, killed), schema=schema).write(ps.parquet(str(tmp_path / "out")))
    view = env.run("totals")
    assert view.state is JobState.FINISHED
    assert killed.exists()
    assert view.restored_checkpoint is not None
    orders.createOrReplaceTempView("orders")
    want = spark.sql(
        "SELECT customer, date_trunc('minute', ts), sum(amount) FROM orders GROUP BY customer, date_trunc('minute', ts)"
    ).collect()
    got = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(map(tuple, got)) == sorted(map(tuple, want))

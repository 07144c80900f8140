"""The state of a running job, read while the job goes on and its checkpoints come and go."""

from __future__ import annotations

import sys
import time

import cloudpickle
import pytest

import penstock as ps

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CUSTOMERS = 20


class Count(ps.KeyedFunction):
    """Counts the orders of each customer, and keeps the sum of all numbers of orders that it has seen."""

    orders = ps.value_state("orders", "bigint", default=0)
    parts = ps.map_state("parts", key="string", value="bigint")

    def on_row(self, row, context):
        self.orders.set(self.orders.get() + 1)
        self.parts["twice"] = 2 * self.orders.get()


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_state_of_a_running_job_is_that_of_one_checkpoint(spark, tmp_path):
    checkpointing = ps.Checkpointing(interval="50ms", directory=tmp_path / "checkpoints")
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing)
    numbers = env.read(ps.nexmark.bids(events=100_000_000, rate=5_000))
    orders = numbers.select("auction % 20 AS customer", "price")
    orders.key_by("customer").process(Count(), schema="customer bigint", name="counted").write(
        ps.parquet(str(tmp_path / "out"))
    )
    job = env.start("live-state")
    try:
        with pytest.raises(ps.UsageError, match="has completed no checkpoint yet"):
            job.state("counted", "orders").get(1)
        wait_for(lambda: job.view().checkpoints.counts.completed >= 3 and job.view().rows_out > CUSTOMERS)
        before = job.view().checkpoints.counts.completed
        live = job.state("counted", "orders")
        rows = {row["customer"]: row["value"] for row in live.collect()}
        assert set(rows) <= set(range(CUSTOMERS))
        # Another checkpoint has completed since, and the one that was read is deleted: the rows are still there.
        wait_for(lambda: job.view().checkpoints.counts.completed >= before + 5)
        assert {row["customer"]: row["value"] for row in live.frame.collect()} == rows
        assert live.where("value > 0").count() == len(rows)
        # A key is read as of the newest checkpoint, and the two states of a key belong to one moment each.
        customer = max(rows, key=rows.get)
        newer = job.state("counted", "orders").get(customer)
        assert newer >= rows[customer]
        twice = job.state("counted", "parts").get(customer)["twice"]
        assert twice % 2 == 0
        assert twice >= 2 * newer
        assert job.state("counted", "orders").get(10**6, default=-1) == -1
        with pytest.raises(ps.UsageError, match="has no state 'order'"):
            job.state("counted", "order").get(1)
        # The job has gone on all the time, and nothing waits for a reader any more.
        after = job.view().checkpoints.counts.completed
        wait_for(lambda: job.view().checkpoints.counts.completed >= after + 5)
        folders = tmp_path / "checkpoints"
        wait_for(lambda: len(list(folders.glob("*/chk-*/_metadata"))) <= 3)
        assert job.view().restarts == 0
    finally:
        job.cancel()
        job.finish()
    # What is left of the job can still be read.
    assert job.state("counted", "orders").get(customer) >= newer


def test_in_a_held_checkpoint_no_file_is_deleted(spark, tmp_path):
    checkpointing = ps.Checkpointing(interval="50ms", directory=tmp_path / "checkpoints")
    env = ps.Environment(spark, parallelism=1, checkpointing=checkpointing, state_backend="rocksdb")
    numbers = env.read(ps.nexmark.bids(events=100_000_000, rate=5_000)).select("auction % 20 AS customer", "price")
    numbers.key_by("customer").process(Count(), schema="customer bigint", name="counted").write(
        ps.parquet(str(tmp_path / "out"))
    )
    job = env.start("held")
    try:
        wait_for(lambda: job.view().checkpoints.counts.completed >= 3 and job.view().rows_out > CUSTOMERS)
        with job._held_checkpoint() as held:
            before = ps.read_savepoint(spark, held.path).state("counted", "orders").collect()
            completed = job.view().checkpoints.counts.completed
            wait_for(lambda: job.view().checkpoints.counts.completed >= completed + 20)
            assert ps.read_savepoint(spark, held.path).state("counted", "orders").collect() == before
        wait_for(lambda: not (tmp_path / "checkpoints" / held.path).exists())
    finally:
        job.cancel()
        job.finish()

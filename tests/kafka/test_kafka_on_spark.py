"""Whole jobs on Spark between topics of a real broker."""

from __future__ import annotations

import collections
import json
import os
import signal
import threading
import time

import pytest
from kafka_topics import committed, fresh_topic, produce, values

import penstock as ps

pytestmark = pytest.mark.slow

KEYS, COUNT, PARTITIONS = 7, 4_000, 2
WITHIN_S = 180


def fill(broker, topic, first=0, count=COUNT):
    """Numbers, each partition with its share of the keys; times go up by 10 ms."""
    for partition in range(PARTITIONS):
        rows = (
            {"key": n % KEYS, "n": n, "ts": f"2026-01-01T00:{n // 6_000:02}:{n // 100 % 60:02}.{n % 100:02}0Z"}
            for n in range(first, first + count)
            if n % KEYS % PARTITIONS == partition
        )
        produce(broker, topic, (json.dumps(row).encode() for row in rows), partition=partition)


def environment(spark, folder, **options):
    return ps.Environment(
        spark,
        parallelism=2,
        checkpointing=ps.Checkpointing(interval="200ms", directory=str(folder)),
        restart=ps.fixed_delay(50, "200ms"),
        **options,
    )


def numbers(env, broker, topic, **options):
    schema = "key bigint, n bigint, ts timestamp"
    return env.read(ps.kafka(topic, bootstrap=broker.bootstrap, schema=schema, **options))


def wait_until(holds, job):
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, job.view()
        assert not job.is_over, job.view()
        time.sleep(0.1)


def completed(job):
    return job.view().checkpoints.counts.completed


def seen(broker, topic):
    """The numbers of each key, in the order in which a reader of committed records sees them."""
    found = collections.defaultdict(list)
    for value in values(broker, topic):
        row = json.loads(value)
        found[row["key"]].append(row["n"])
    return found


def test_every_record_goes_from_topic_to_topic_once_and_in_order_while_workers_and_the_broker_are_killed(
    spark, kafka_broker, tmp_path
):
    class Same(ps.KeyedFunction):
        def on_row(self, row, context):
            return {"key": row["key"], "n": row["n"]}

    source = fresh_topic(kafka_broker, partitions=PARTITIONS)
    target = fresh_topic(kafka_broker, partitions=3)
    fill(kafka_broker, source)
    env = environment(spark, tmp_path)
    rows = numbers(env, kafka_broker, source, group=source)
    rows.key_by("key").process(Same(), schema="key bigint, n bigint").write(
        ps.kafka_sink(target, bootstrap=kafka_broker.bootstrap, key="key")
    )
    job = env.start(source)
    try:
        for kill in range(4):
            before = completed(job)
            wait_until(lambda before=before: completed(job) > before, job)
            if kill == 2:
                kafka_broker.kill()
                threading.Event().wait(2)
                kafka_broker.start()
            else:
                os.kill(job.view().slots[kill % 2].pid, signal.SIGKILL)
            fill(kafka_broker, source, COUNT * (kill + 1))
        total = COUNT * 5
        wait_until(lambda: sum(map(len, seen(kafka_broker, target).values())) >= total, job)
    finally:
        job.stop(drain=True) if not job.is_over else None
    found = seen(kafka_broker, target)
    assert {key: sorted(own) for key, own in found.items()} == {
        key: list(range(key, total, KEYS)) for key in range(KEYS)
    }
    assert all(own == sorted(own) for own in found.values()), "out of order"


def test_windows_of_a_topic_with_a_stop_come_to_their_end_and_updates_become_upserts(spark, kafka_broker, tmp_path):
    source = fresh_topic(kafka_broker, partitions=PARTITIONS)
    fill(kafka_broker, source)
    windows, totals = fresh_topic(kafka_broker), fresh_topic(kafka_broker, config={"cleanup.policy": "compact"})
    env = environment(spark, tmp_path)
    rows = numbers(env, kafka_broker, source, stop="latest")
    by_key = rows.watermark("ts", delay="1s").key_by("key")
    counts = by_key.window(ps.tumbling("10s")).aggregate(n=ps.count())
    counts.write(ps.kafka_sink(windows, bootstrap=kafka_broker.bootstrap, key="key"))
    rows.key_by("key").aggregate(total=ps.count()).write(ps.kafka_sink(totals, bootstrap=kafka_broker.bootstrap))
    env.run(source)
    assert sum(json.loads(value)["n"] for value in values(kafka_broker, windows)) == COUNT
    newest = {message.key(): json.loads(message.value()) for message in committed(kafka_broker, totals)}
    assert {row["key"]: row["total"] for row in newest.values()} == {
        key: len(range(key, COUNT, KEYS)) for key in range(KEYS)
    }


def test_two_jobs_that_start_from_one_savepoint_write_what_it_promises_once(spark, kafka_broker, tmp_path):
    source, target = fresh_topic(kafka_broker, partitions=PARTITIONS), fresh_topic(kafka_broker)
    fill(kafka_broker, source)

    def program(folder):
        env = environment(spark, folder)
        sink = ps.kafka_sink(target, bootstrap=kafka_broker.bootstrap, key="key")
        numbers(env, kafka_broker, source, discover_every=None).write(sink)
        return env

    job = program(tmp_path / "first").start("first")
    wait_until(lambda: len(values(kafka_broker, target)) >= COUNT, job)
    fill(kafka_broker, source, COUNT)
    # Records that the job has not read before the savepoint would be read and written by each of the next jobs.
    wait_until(lambda: job.view().rows_read >= 2 * COUNT, job)
    savepoint = job.stop(savepoint=str(tmp_path / "savepoints"))
    for number in range(2):
        again = program(tmp_path / f"again-{number}").start(f"again-{number}", restore=savepoint)
        before = completed(again)
        wait_until(lambda before=before, again=again: completed(again) > before, again)
        again.cancel()
    assert sorted(json.loads(value)["n"] for value in values(kafka_broker, target)) == list(range(COUNT * 2))

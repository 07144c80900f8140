"""The source against a real broker: which records come, in which order, from which position, and what is refused."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions
from kafka_topics import fresh_topic, produce, transaction

import penstock as ps
from penstock.api.connector import End, Pause
from penstock.connectors.kafka.places import PartitionEnumerator, decoded_place
from penstock.core.errors import ExternalError, UsageError

pytestmark = pytest.mark.slow

WITHIN_S = 60.0
ONE = "n bigint"


def numbers(first, stop):
    return [json.dumps({"n": n}).encode() for n in range(first, stop)]


def source_of(broker, topics, **options):
    return ps.kafka(topics, bootstrap=broker.bootstrap, **({"schema": ONE, "stop": "latest"} | options))


def batches(reader, *, until=None, max_rows=1_000):
    """What a reader gives up to its end, or until there are `until` rows. The reader stays open."""
    found, rows, deadline = [], 0, time.monotonic() + WITHIN_S
    while until is None or rows < until:
        assert time.monotonic() < deadline, f"{rows} rows came"
        polled = reader.poll(max_rows, 0)
        if isinstance(polled, End):
            break
        if isinstance(polled, Pause):
            time.sleep(polled.wait_ms / 1_000)
            continue
        found.append(polled)
        rows += polled.num_rows
    return found


def rows(source, splits=None, **options):
    reader = source.open(source.splits(1) if splits is None else splits)
    try:
        return [row for batch in batches(reader, **options) for row in batch.to_pylist()]
    finally:
        reader.close()


def test_all_records_come_in_the_order_of_their_partition(kafka_broker):
    topic = fresh_topic(kafka_broker, partitions=3)
    for partition in range(3):
        produce(kafka_broker, topic, numbers(partition * 1_000, partition * 1_000 + 500), partition=partition)
    found = rows(source_of(kafka_broker, topic, metadata=["partition", "offset"]))
    assert len(found) == 1_500
    for partition in range(3):
        own = [row for row in found if row["partition"] == partition]
        assert [row["n"] for row in own] == list(range(partition * 1_000, partition * 1_000 + 500))
        assert [row["offset"] for row in own] == list(range(500))


def test_a_reader_goes_on_at_every_position_of_a_snapshot_at_another_parallelism(kafka_broker):
    topic = fresh_topic(kafka_broker, partitions=2)
    for partition in range(2):
        produce(kafka_broker, topic, numbers(partition * 100, partition * 100 + 7), partition=partition)
    source = source_of(kafka_broker, topic)
    for cut in range(1, 14):
        reader = source.open(source.splits(1))
        before = [row["n"] for batch in batches(reader, until=cut, max_rows=1) for row in batch.to_pylist()]
        splits = reader.snapshot()
        reader.close()
        after = [row["n"] for split in splits for row in rows(source, [split])]
        assert sorted(before + after) == [*range(7), *range(100, 107)]


def test_a_stop_is_reached_over_aborted_transactions_and_gaps(kafka_broker):
    topic = fresh_topic(kafka_broker)
    transaction(kafka_broker, topic, numbers(0, 5), name=f"a-{topic}", commits=True)
    transaction(kafka_broker, topic, numbers(5, 10), name=f"b-{topic}", commits=False)
    transaction(kafka_broker, topic, numbers(10, 15), name=f"c-{topic}", commits=True)
    transaction(kafka_broker, topic, numbers(15, 20), name=f"d-{topic}", commits=False)
    assert [row["n"] for row in rows(source_of(kafka_broker, topic))] == [*range(5), *range(10, 15)]
    uncommitted = source_of(kafka_broker, topic, isolation="read_uncommitted")
    assert [row["n"] for row in rows(uncommitted)] == list(range(20))


def test_starts_and_stops_by_offset_and_by_time(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, numbers(0, 10))
    time.sleep(0.05)
    moment = datetime.now(UTC)
    time.sleep(0.05)
    produce(kafka_broker, topic, numbers(10, 20))
    assert [row["n"] for row in rows(source_of(kafka_broker, topic, start={0: 15}))] == list(range(15, 20))
    assert [row["n"] for row in rows(source_of(kafka_broker, topic, start={(topic, 0): 3}, stop={0: 5}))] == [3, 4]
    assert [row["n"] for row in rows(source_of(kafka_broker, topic, start=moment))] == list(range(10, 20))
    assert [row["n"] for row in rows(source_of(kafka_broker, topic, stop=moment))] == list(range(10))
    assert rows(source_of(kafka_broker, topic, start="latest")) == []


def test_latest_is_resolved_once_so_nothing_is_missed_that_comes_before_the_first_checkpoint(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, numbers(0, 3))
    source = source_of(kafka_broker, topic, start="latest", stop=None)
    splits = source.splits(1)
    produce(kafka_broker, topic, numbers(3, 6))
    assert [row["n"] for row in rows(source, splits, until=3)] == [3, 4, 5]


def test_offsets_of_completed_checkpoints_are_committed_to_the_group_and_a_new_job_may_start_there(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, numbers(0, 10))
    source = source_of(kafka_broker, topic, group=topic, stop=None)
    reader = source.open(source.splits(1))
    batches(reader, until=4, max_rows=4)
    reader.snapshot_for(1)
    batches(reader, until=4, max_rows=4)
    reader.snapshot_for(2)
    reader.checkpoint_completed(1)
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": topic})
    deadline = time.monotonic() + WITHIN_S
    while (at := consumer.committed([TopicPartition(topic, 0)], timeout=10)[0].offset) < 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    consumer.close()
    reader.close()
    assert at == 4, "the newer snapshot has not completed"
    again = source_of(kafka_broker, topic, group=topic, start="group-offsets")
    assert [row["n"] for row in rows(again)] == list(range(4, 10))


def test_metadata_become_columns(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, [b"a", None], key=b"k")
    extra = {"topic": "t", "timestamp": "at", "key": "key", "headers": "headers"}
    found = rows(source_of(kafka_broker, topic, format="text", schema=None, metadata=extra))
    assert [(row["value"], row["t"], row["key"], row["headers"]) for row in found] == [
        ("a", topic, b"k", None),
        (None, topic, b"k", None),
    ]
    assert all(abs((row["at"] - datetime.now(UTC)).total_seconds()) < 600 for row in found)


BAD = [b'{"n": 1}', b"no json", b'{\n  "n": 2\r\n}', b"", None, b'{"n": "text"}', b'{"n": 3}', b"\xff\xfe"]


def test_bad_records_fail_the_job_with_their_place(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, BAD)
    with pytest.raises(UsageError, match=rf"topic '{topic}', partition 0, offset 1: the record cannot be read"):
        rows(source_of(kafka_broker, topic))


def test_bad_records_are_skipped_and_counted_or_kept(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, BAD)
    source = source_of(kafka_broker, topic, bad_rows="skip", metadata=["offset"])
    reader = source.open(source.splits(1))
    found = [row for batch in batches(reader) for row in batch.to_pylist()]
    reader.close()
    assert [(row["n"], row["offset"]) for row in found] == [(1, 0), (2, 2), (None, 4), (3, 6)]
    assert reader.metrics() == {"lines_skipped": 4}
    kept = rows(source_of(kafka_broker, topic, bad_rows="keep"))
    assert [(row["n"], row["bad_row"]) for row in kept] == [
        (1, None), (None, "no json"), (2, None), (None, ""), (None, None), (None, '{"n": "text"}'), (3, None),
        (None, "��"),
    ]  # fmt: skip


def test_deleted_records_are_an_error_that_says_what_is_there(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, numbers(0, 10))
    source = source_of(kafka_broker, topic, start={0: 2})
    splits = source.splits(1)
    admin = kafka_broker.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        future.result(30)
    with pytest.raises(ExternalError, match=rf"partition 0 of topic '{topic}' .* have the offsets from 6 to 9"):
        rows(source, splits)
    goes_on = source_of(kafka_broker, topic, start={0: 2}, on_missing="earliest")
    assert [row["n"] for row in rows(goes_on, splits)] == [6, 7, 8, 9]


def test_a_topic_that_was_made_anew_is_refused(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, numbers(0, 10))
    source = source_of(kafka_broker, topic)
    splits = source.splits(1)
    admin = kafka_broker.admin()
    for future in admin.delete_topics([topic]).values():
        future.result(30)
    deadline = time.monotonic() + WITHIN_S
    while topic in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kafka_broker.create_topic(topic)
    with pytest.raises(UsageError, match="was deleted and made anew"):
        rows(source, splits)


def test_partitions_that_are_added_and_topics_that_match_are_found_and_read_from_their_beginning(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, numbers(0, 3))
    source = source_of(kafka_broker, re.compile(f"{topic}.*"), start="latest", stop=None, discover_every="10ms")
    splits = source.splits(1)
    looks = PartitionEnumerator(
        source.reading.cluster, source.topics, list(map(decoded_place, splits)), every_ms=10, restored=False
    )
    first = looks.discover(None)
    assert not first.splits
    admin = kafka_broker.admin()
    for future in admin.create_partitions([NewPartitions(topic, 2)]).values():
        future.result(30)
    kafka_broker.create_topic(f"{topic}-more")
    produce(kafka_broker, topic, numbers(10, 12), partition=1)
    produce(kafka_broker, f"{topic}-more", numbers(20, 22))
    second = looks.discover(first.position)
    assert [(place.topic, place.partition, place.offset) for place in map(decoded_place, second.splits)] == [
        (topic, 1, 0),
        (f"{topic}-more", 0, 0),
    ]
    assert looks.discover(first.position) == second
    assert not looks.discover(second.position).splits
    reader = source.open(splits)
    reader.add_splits(second.splits)
    assert sorted(row["n"] for batch in batches(reader, until=4) for row in batch.to_pylist()) == [10, 11, 20, 21]
    reader.close()


def test_a_held_partition_gives_no_records_and_a_quiet_one_is_not_ready(kafka_broker):
    topic = fresh_topic(kafka_broker, partitions=2)
    produce(kafka_broker, topic, numbers(0, 5), partition=0)
    produce(kafka_broker, topic, numbers(10, 15), partition=1)
    source = source_of(kafka_broker, topic, stop=None, metadata=["partition"])
    reader = source.open(source.splits(1))
    reader.hold([(topic, 0)])
    first = [row for batch in batches(reader, until=5) for row in batch.to_pylist()]
    assert {row["partition"] for row in first} == {1}
    assert isinstance(reader.poll(100, 0), Pause)
    reader.hold([])
    assert len(pa.Table.from_batches(batches(reader, until=5))) == 5
    deadline = time.monotonic() + WITHIN_S
    while reader.progress().ready:
        assert time.monotonic() < deadline
        reader.poll(100, 0)
        time.sleep(0.01)
    assert sorted(reader.progress().open) == [(topic, 0), (topic, 1)]
    produce(kafka_broker, topic, numbers(15, 16), partition=1)
    assert [row["n"] for batch in batches(reader, until=1) for row in batch.to_pylist()] == [15]
    reader.close()


def test_readers_go_on_when_the_broker_was_killed_and_comes_back(kafka_broker):
    topic = fresh_topic(kafka_broker)
    produce(kafka_broker, topic, numbers(0, 5))
    source = source_of(kafka_broker, topic, stop=None)
    reader = source.open(source.splits(1))
    assert len(pa.Table.from_batches(batches(reader, until=5))) == 5
    kafka_broker.kill()
    assert isinstance(reader.poll(100, 0), Pause)
    kafka_broker.start()
    produce(kafka_broker, topic, numbers(5, 8))
    assert [row["n"] for batch in batches(reader, until=3) for row in batch.to_pylist()] == [5, 6, 7]
    reader.close()

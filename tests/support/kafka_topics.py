"""What tests do with topics of a real broker: fill them, and read them as a reader of committed records does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from penstock.bench.kafka_broker import KafkaBroker

READ_WITHIN_S = 60.0
_names = itertools.count(1)


def fresh_topic(broker: KafkaBroker, *, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    """A new topic with a name of its own."""
    name = f"topic-{next(_names)}-{time.monotonic_ns()}"
    broker.create_topic(name, partitions=partitions, config=config)
    return name


def produce(
    broker: KafkaBroker, topic: str, values: Iterable[bytes | None], *, partition: int = 0, key: bytes | None = None
) -> None:
    """Put records into a partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for value in values:
        while True:
            try:
                producer.produce(topic, value=value, key=key, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(READ_WITHIN_S) == 0


def transaction(
    broker: KafkaBroker, topic: str, values: Iterable[bytes], *, name: str, commits: bool, partition: int = 0
) -> None:
    """Put records into a partition in one transaction, which is committed or aborted."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(READ_WITHIN_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value=value, partition=partition)
    producer.flush(READ_WITHIN_S)
    if commits:
        producer.commit_transaction(READ_WITHIN_S)
    else:
        producer.abort_transaction(READ_WITHIN_S)


def committed(broker: KafkaBroker, topics: str | Sequence[str]) -> list[Any]:
    """All committed messages of topics, in the order of each partition."""
    names = [topics] if isinstance(topics, str) else list(topics)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    known = consumer.list_topics(timeout=READ_WITHIN_S).topics
    places = [TopicPartition(name, number, 0) for name in names for number in known[name].partitions]
    left = {(place.topic, place.partition) for place in places}
    consumer.assign(places)
    found = []
    deadline = time.monotonic() + READ_WITHIN_S
    while left:
        assert time.monotonic() < deadline, f"no end of {left}"
        for message in consumer.consume(1_000, timeout=0.2):
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard((message.topic(), message.partition()))
            else:
                raise AssertionError(message.error())
    consumer.close()
    return found


def values(broker: KafkaBroker, topics: str | Sequence[str]) -> list[bytes | None]:
    """The values of all committed messages."""
    return [message.value() for message in committed(broker, topics)]

"""The output of a job of torture or of the demo in Kafka: the sinks, and what a reader of committed records sees.

Records of a key are in one partition, so that a reader sees them in their order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.api.connector import Sink
from penstock.bench.kafka_broker import KafkaBroker
from penstock.connectors.kafka.decoding import JsonRecords
from penstock.connectors.kafka.sink import kafka_sink
from penstock.core.errors import ExternalError, Retry

PARTITIONS = 3
READ_WITHIN_S = 120.0


@dataclass(frozen=True)
class KafkaOutput:
    """The topics of one round."""

    bootstrap: str
    round: str
    key: str = "key"
    """The column that is the key of the records."""

    def make_topics(self, broker: KafkaBroker, *names: str) -> None:
        """Make the topics of these outputs."""
        for name in names:
            broker.create_topic(self._topic(name), partitions=PARTITIONS)

    def sink(self, name: str) -> Sink:
        """The sink of an output."""
        return kafka_sink(self._topic(name), bootstrap=self.bootstrap, key=self.key)

    def read(self, name: str, schema: pa.Schema) -> pa.Table:
        """All committed records of an output, partition by partition."""
        values = self._values(self._topic(name))
        rows = [JsonRecords(schema).decode(values)] if values else []
        return pa.Table.from_batches(rows, schema)

    def _topic(self, name: str) -> str:
        return f"{self.round}-{name}"

    def _values(self, topic: str) -> Sequence[bytes]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "judge",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        ended: dict[int, None] = {}
        values: list[bytes] = []
        deadline = time.monotonic() + READ_WITHIN_S
        while len(ended) < PARTITIONS:
            if time.monotonic() > deadline:
                raise ExternalError(f"topic {topic!r} could not be read to its end", retry=Retry.LATER)
            for message in consumer.consume(10_000, timeout=0.2):
                error: Any = message.error()
                if error is None:
                    values.append(message.value())
                elif error.name() == "_PARTITION_EOF":
                    ended[message.partition()] = None
        consumer.close()
        return values

"""A lane of a real cluster: a transactional producer, and a marker in the offsets of a group.

The marker is the offset that the group named like the lane has committed for partition 0 of the topic. It is written in
the transaction of the records, by `send_offsets_to_transaction`, and becomes visible with them. A `marker_topic` has
the markers as well, as records by lane, for savepoints that are older than the offsets that a cluster remembers.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.connectors.kafka.clock import Deadline
from penstock.connectors.kafka.connection import CONNECT_WITHIN_S, Connection, described, explained, known_topics, made
from penstock.connectors.kafka.replay import Lane, Prepared
from penstock.core.errors import ExternalError, Retry

COMMIT_WITHIN_S = 30.0
"""A step of a commit that has not ended after this time fails the attempt. The next attempt finds out whether the step
happened."""
CLOSE_WITHIN_S = 5.0
TRANSACTION_TIMEOUT_MS = 300_000
_TRY_S = 5.0
_SLICE_RECORDS = 20_000
_QUEUE_RECORDS = 400_000
_QUEUE_BYTES = 256 * 1024 * 1024
_DEFAULT_MEMORY_MS = 7 * 24 * 60 * 60 * 1_000
_MINUTE_MS = 60_000
_PAUSE_S = 0.1
_COMES_AND_GOES = (
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "_WAIT_COORD",
    "_TIMED_OUT",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
)
_FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING")


_Told = Callable[[Any, Any], None] | None


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where records go. Pickled into every slot."""

    cluster: Connection
    topic: str | None
    """The topic of all records; None: records name their topics."""
    marker_topic: str | None = None


PRODUCER: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "lz4",
    "linger.ms": 10,
    # The coordinator answers "concurrent" right after the previous commit: the default of 100 ms would be waited for.
    "retry.backoff.ms": 5,
    "queue.buffering.max.messages": 2 * _QUEUE_RECORDS,
    "queue.buffering.max.kbytes": 1_048_576,
    # The partition of a key is the one that Java's clients choose.
    "partitioner": "murmur2_random",
}


class KafkaLane(Lane):
    """A lane of a cluster."""

    def __init__(self, name: str, target: Target) -> None:
        self._name = name
        self._target = target
        self._producer: Any = None
        self._group: Any = None

    def open(self) -> None:
        """Fence whoever had the lane."""
        from confluent_kafka import KafkaException, Producer

        own = {
            **PRODUCER,
            "transactional.id": self._name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        producer = made(Producer, self._target.cluster.client(own))
        try:
            self._until(lambda: producer.init_transactions(_TRY_S), "a writer of Kafka could not begin")
        except KafkaException as error:
            raise self._explained(error) from error
        self._producer = producer

    def marker(self, piece: Prepared) -> int | None:
        """The offset of the group, or the newest record of the marker topic."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        own = {"group.id": self._name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = made(Consumer, self._target.cluster.client(own))
        try:
            found = self._committed(consumer, TopicPartition(piece.topic, 0))
            self._group = consumer.consumer_group_metadata()
            if found.offset >= 0:
                return int(found.offset)
        except KafkaException as error:
            raise self._explained(error) from error
        finally:
            consumer.close()
        return None if self._target.marker_topic is None else self._kept_marker(self._target.marker_topic)

    def _committed(self, consumer: Any, place: Any) -> Any:
        """The offset of the group. Who coordinates the group may just be changing."""
        from confluent_kafka import KafkaException

        deadline = Deadline(COMMIT_WITHIN_S)
        while True:
            try:
                return consumer.committed([place], timeout=CONNECT_WITHIN_S)[0]
            except KafkaException as error:
                if error.args[0].name() not in _COMES_AND_GOES or deadline.is_over:
                    raise
            time.sleep(_PAUSE_S)

    def _kept_marker(self, topic: str) -> int | None:
        markers = [msgspec.json.decode(message.value())["checkpoint"] for message in self._marker_records(topic)]
        return max(markers, default=None)

    def _marker_records(self, topic: str) -> Iterator[Any]:
        from confluent_kafka import Consumer, TopicPartition

        own = {"group.id": self._name, "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = made(Consumer, self._target.cluster.client({**own, "isolation.level": "read_committed"}))
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            deadline = Deadline(COMMIT_WITHIN_S)
            while not deadline.is_over:
                for message in consumer.consume(1_000, timeout=0.2):
                    if message.error() is not None:
                        if message.error().name() == "_PARTITION_EOF":
                            return
                        raise explained(message.error(), self._target.cluster, topic=topic)
                    if message.key() == self._name.encode():
                        yield message
            raise ExternalError(f"marker topic {topic!r} could not be read to its end", retry=Retry.LATER)
        finally:
            consumer.close()

    def topic_id(self, topic: str) -> str:
        """The id of a topic."""
        admin, _ = known_topics(self._target.cluster)
        return described(admin, self._target.cluster, [topic])[0].id

    def forgets_after_ms(self) -> int:
        """`offsets.retention.minutes` of the cluster; seven days if the user may not see it."""
        if self._target.marker_topic is not None:
            return 2**62
        return offsets_kept_ms(self._target.cluster)

    def begin(self) -> None:
        """Begin a transaction."""
        from confluent_kafka import KafkaException

        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._explained(error) from error

    def produce(self, records: pa.Table) -> None:
        """Write records."""
        produce(self._producer, self._target, records)

    def mark(self, piece: Prepared) -> None:
        """Write the marker."""
        from confluent_kafka import KafkaException, TopicPartition

        marker = TopicPartition(piece.topic, 0, piece.checkpoint, str(piece.records))
        try:
            if self._target.marker_topic is not None:
                text = msgspec.json.encode({"checkpoint": piece.checkpoint, "records": piece.records})
                self._producer.produce(self._target.marker_topic, key=self._name.encode(), value=text, partition=0)
            self._until(
                lambda: self._producer.send_offsets_to_transaction([marker], self._group, _TRY_S),
                "the marker could not be written",
            )
        except KafkaException as error:
            raise self._explained(error) from error

    def commit(self) -> None:
        """Commit the transaction."""
        from confluent_kafka import KafkaException

        try:
            self._until(lambda: self._producer.commit_transaction(_TRY_S), "a transaction could not be committed")
        except KafkaException as error:
            raise self._explained(error) from error

    def close(self) -> None:
        """Let go of the producer. An open transaction is aborted by whoever opens the lane next."""
        producer, self._producer, self._group = self._producer, None, None
        if producer is not None:
            _in_time(lambda: let_go(producer), CLOSE_WITHIN_S)

    def _until(self, call: Callable[[], None], what: str) -> None:
        """Call until the call succeeds: a call that timed out goes on, when it is made again, where it was."""
        from confluent_kafka import KafkaException

        deadline = Deadline(COMMIT_WITHIN_S)
        while True:
            try:
                if not _in_time(call, COMMIT_WITHIN_S):
                    raise self._late(what, "the client does not return")
            except KafkaException as error:
                reason = error.args[0]
                if not reason.retriable() or reason.fatal():
                    raise
                if deadline.is_over:
                    raise self._late(what, reason.str()) from error
            else:
                return

    def _late(self, what: str, why: str) -> ExternalError:
        return ExternalError(
            f"{what} within {COMMIT_WITHIN_S:.0f} s: {why}",
            hint=f"see that the brokers at {self._target.cluster.bootstrap} run",
            retry=Retry.LATER,
        )

    def _explained(self, error: Any) -> Exception:
        reason = error.args[0]
        if reason.name() in _FENCED:
            return ExternalError(
                f"another process has taken over {self._name}, which this process wrote with: {reason.str()}",
                hint="nothing is lost: the other process writes the records; if this repeats, two jobs were started "
                "from one savepoint at the same time",
                retry=Retry.LATER,
            )
        if reason.txn_requires_abort() or reason.fatal():
            return ExternalError(f"a transaction failed: {reason.str()} ({reason.name()})", retry=Retry.LATER)
        return explained(reason, self._target.cluster, topic=self._target.topic)


def _in_time(call: Callable[[], None], within_s: float) -> bool:
    """Make a call that may never return, whatever its time-out is: after a broker was away, librdkafka does not return
    from `send_offsets_to_transaction`. Returns whether the call has ended in time. A call that has not is left behind
    with its client, which can do no harm: whoever opens the lane next fences the client."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="penstock-kafka-call", daemon=True)
    thread.start()
    thread.join(within_s)
    if thread.is_alive():
        return False
    if errors:
        raise errors[0]
    return True


def let_go(producer: Any) -> None:
    """Close a producer, whatever waits in the producer. A producer that failed for good says so once more."""
    from confluent_kafka import KafkaException

    with contextlib.suppress(KafkaException):
        producer.purge()
        producer.close(0)


def produce(
    producer: Any, target: Target, records: pa.Table, *, told: Callable[[Any, Any], None] | None = None
) -> None:
    """Hand records to a producer, in their order. Blocks when much is on its way. Raises `ExternalError` for a record
    that the client refuses. `told` is called with the outcome of each record, in `poll` and `flush`. A transaction
    needs no `told`: its commit fails if a record failed."""
    queued = 0
    for batch in records.to_batches(max_chunksize=_SLICE_RECORDS):
        queued += batch.nbytes
        if len(producer) + batch.num_rows > _QUEUE_RECORDS or queued > _QUEUE_BYTES:
            queued = batch.nbytes
            if producer.flush(COMMIT_WITHIN_S):
                raise ExternalError("records were not taken by Kafka in time", retry=Retry.LATER)
        if "topic" in batch.schema.names or "headers" in batch.schema.names:
            _produce_each(producer, target, batch, told)
        else:
            _produce_together(producer, target, batch, told)
        producer.poll(0)


def _produce_together(producer: Any, target: Target, batch: pa.RecordBatch, told: _Told) -> None:
    names = [name for name in ("value", "key", "partition") if name in batch.schema.names]
    columns = [batch.column(name).to_pylist() for name in names]
    messages: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    listen = {} if told is None else {"on_delivery": told}
    if producer.produce_batch(target.topic, messages, **listen) != len(messages):
        reason = next(str(message["_error"]) for message in messages if "_error" in message)
        raise ExternalError(f"a record was refused for topic {target.topic!r}: {reason}")


def _produce_each(producer: Any, target: Target, batch: pa.RecordBatch, told: _Told) -> None:
    for row in batch.to_pylist():
        extra: dict[str, Any] = {} if row.get("partition") is None else {"partition": row["partition"]}
        if told is not None:
            extra["on_delivery"] = told
        headers = [(header["key"], header["value"]) for header in row.get("headers") or ()]
        producer.produce(
            row.get("topic") or target.topic, value=row["value"], key=row.get("key"), headers=headers or None, **extra
        )


def offsets_kept_ms(cluster: Connection) -> int:
    """For how long the cluster remembers offsets of a group that nobody uses."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    admin, _ = known_topics(cluster)
    try:
        broker = next(iter(admin.list_topics(timeout=CONNECT_WITHIN_S).brokers))
        asked = admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))])
        found = next(iter(asked.values())).result(CONNECT_WITHIN_S)
        return int(found["offsets.retention.minutes"].value) * _MINUTE_MS
    except (KafkaException, KeyError, TimeoutError):
        return _DEFAULT_MEMORY_MS

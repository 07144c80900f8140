"""The thread that fetches records of some partitions, and decodes them.

The thread has the only consumer of a reader, and all calls of the consumer are made on the thread: what the loop wants
done (more partitions, partitions to hold, offsets to commit) waits in a queue until the next fetch. One fetch waits for
a first record, and takes whatever else has come: no record waits for others. No Python runs for each record, but for
the calls of `Message`, which C makes one after another.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.fetching import Fetcher
from penstock.connectors.file_formats import Treatment
from penstock.connectors.kafka.connection import CONNECT_WITHIN_S, Connection, described, explained, known_topics, made
from penstock.connectors.kafka.decoding import Decoded, RecordFormat, decoded
from penstock.connectors.kafka.places import Place
from penstock.core.errors import ExternalError, UsageError

log = logging.getLogger(__name__)

MOST_RECORDS = 10_000
"""How many records one fetch takes at most."""
CHUNKS_AHEAD = 4
"""How many chunks of decoded records wait for the loop."""
WAIT_S = 0.05
"""How long a fetch waits for a first record. What the loop wants done waits as long at most."""
_SHOWN_BYTES = 80
_MS_TO_US = 1_000

Key = tuple[str, int]
"""A topic and a partition."""

METADATA: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "key": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
"""What a record has besides its value, by name."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the partitions of a source are read. Pickled into every slot."""

    cluster: Connection
    form: RecordFormat
    treatment: Treatment
    metadata: tuple[tuple[str, str], ...] = ()
    """What else of a record becomes a column, and the names of the columns."""
    on_missing: str = "fail"
    isolation: str = "read_committed"
    group: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the stream."""
        extra = [pa.field(name, METADATA[what]) for what, name in self.metadata]
        own = self.treatment.schema_with(self.form.schema)
        return pa.schema([*own, *extra])


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Decoded records of one partition, in their order."""

    key: Key
    rows: pa.RecordBatch | None
    """None: only the position has changed."""
    offsets: npt.NDArray[np.int64]
    """The offset of each row."""
    following: int
    """The offset that is to be read next, behind the chunk."""
    at_end: bool = False
    """Whether the partition had no more records behind the chunk."""
    bad: int = 0
    """How many records could not be read."""


class PartitionFetcher:
    """Fetches the records of partitions. `take` never blocks."""

    def __init__(self, reading: Reading, places: Sequence[Place]) -> None:
        self._reading = reading
        self._stops: dict[Key, int] = {}
        self._topics: dict[str, None] = {}
        self._paused: frozenset[Key] = frozenset()
        self._wanted: deque[Callable[[Any], None]] = deque()
        self._is_closed = False
        self._has_warned = False
        self.add(places)
        self._fetcher = Fetcher(self._chunks, name="kafka", ahead=CHUNKS_AHEAD)

    def take(self) -> Chunk | None:
        """The next chunk; None if none has come. Raises what went wrong on the thread."""
        has_ended = self._fetcher.has_ended
        found: Any = self._fetcher.take(1)
        if found:
            chunk: Chunk = found[0]
            return chunk
        if has_ended and self._fetcher.error is not None:
            raise self._fetcher.error
        return None

    def add(self, places: Sequence[Place]) -> None:
        """Fetch these partitions, too."""
        if places:
            self._wanted.append(lambda consumer: self._assign(consumer, places))

    def hold(self, keys: Collection[Key]) -> None:
        """Fetch nothing of these partitions, and of no others, until the next call."""
        held = frozenset(keys)
        self._wanted.append(lambda consumer: self._pause(consumer, held))

    def commit(self, positions: Sequence[Place]) -> None:
        """Tell the group how far the job has come, for people who look."""
        self._wanted.append(lambda consumer: self._commit(consumer, positions))

    def close(self) -> None:
        """Have the thread end."""
        self._is_closed = True
        self._fetcher.close()

    # --- on the thread -------------------------------------------------------------------------------------

    def _chunks(self) -> Iterator[Chunk]:
        from confluent_kafka import Consumer, KafkaException

        reading = self._reading
        # Few bytes wait in the client: what is fetched and not decoded is memory of this slot.
        own = {
            "group.id": reading.group or "penstock",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": reading.isolation,
            "queued.max.messages.kbytes": 32_768,
            "queued.min.messages": 1_000_000,
            "fetch.wait.max.ms": 100,
        }
        consumer = made(Consumer, reading.cluster.client(own))
        try:
            while not self._is_closed:
                while self._wanted:
                    self._wanted.popleft()(consumer)
                messages = consumer.consume(1, timeout=WAIT_S)
                if messages:
                    messages += consumer.consume(MOST_RECORDS - 1, timeout=0)
                    yield from self._sorted(consumer, messages)
        except KafkaException as error:
            raise explained(error.args[0], reading.cluster) from error
        finally:
            consumer.close()

    def _assign(self, consumer: Any, places: Sequence[Place]) -> None:
        from confluent_kafka import TopicPartition

        self._check_topics(places)
        self._topics |= {place.topic: None for place in places}
        self._stops |= {(place.topic, place.partition): place.stop for place in places if place.stop is not None}
        consumer.incremental_assign([TopicPartition(each.topic, each.partition, each.offset) for each in places])

    def _check_topics(self, places: Sequence[Place]) -> None:
        admin, _ = known_topics(self._reading.cluster)
        there = {t.name: t for t in described(admin, self._reading.cluster, sorted({each.topic for each in places}))}
        for place in places:
            if place.topic_id and there[place.topic].id and there[place.topic].id != place.topic_id:
                raise UsageError(
                    f"topic {place.topic!r} was deleted and made anew since the job began to read it, so offset "
                    f"{place.offset} of partition {place.partition} means another record now",
                    hint="start over with fresh=True, or give the step another name to read the new topic",
                )

    def _pause(self, consumer: Any, held: frozenset[Key]) -> None:
        from confluent_kafka import TopicPartition

        consumer.pause([TopicPartition(*key) for key in sorted(held - self._paused)])
        consumer.resume([TopicPartition(*key) for key in sorted(self._paused - held)])
        self._paused = held

    def _commit(self, consumer: Any, positions: Sequence[Place]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        offsets = [TopicPartition(each.topic, each.partition, each.offset) for each in positions]
        try:
            consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            # The offsets of the group are for people: the job goes on without them.
            log.warning("offsets could not be committed to group %s: %s", self._reading.group, error)

    def _sorted(self, consumer: Any, messages: list[Any]) -> Iterator[Chunk]:
        """The chunks of fetched messages, by partition."""
        from confluent_kafka import Message

        if any(map(Message.error, messages)):
            yield from self._with_errors(consumer, messages)
            return
        count = len(messages)
        partitions = np.fromiter(map(Message.partition, messages), np.int32, count)
        is_single = len(self._topics) == 1
        topics: list[Any] = list(self._topics) * count if is_single else list(map(Message.topic, messages))
        if partitions.min() == partitions.max() and (is_single or topics.count(topics[0]) == count):
            yield from self._chunk((topics[0], int(partitions[0])), messages)
            return
        numbers = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
        codes = np.fromiter(map(numbers.__getitem__, topics), np.int64, count) << 32 | partitions
        names = list(numbers)
        runs = np.flatnonzero(np.diff(codes)) + 1
        by_code: dict[int, list[Any]] = {}
        for begin, end in zip([0, *runs.tolist()], [*runs.tolist(), count], strict=True):
            by_code.setdefault(int(codes[begin]), []).extend(messages[begin:end])
        for code, own in by_code.items():
            yield from self._chunk((names[code >> 32], code & 0xFFFF_FFFF), own)

    def _with_errors(self, consumer: Any, messages: list[Any]) -> Iterator[Chunk]:
        """The same, if some messages are news of the client, which is rare."""
        begin = 0
        for number, message in enumerate(messages):
            error = message.error()
            if error is None:
                continue
            if begin < number:
                yield from self._sorted(consumer, messages[begin:number])
            begin = number + 1
            if error.name() == "_PARTITION_EOF":
                yield self._end_of((message.topic(), message.partition()), message.offset())
            elif error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
                yield from self._missing(consumer, message)
            elif error.name() not in ("_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_RESOLVE"):
                # While no broker answers, the client goes on asking by itself.
                raise explained(error, self._reading.cluster, topic=message.topic())
        if begin < len(messages):
            yield from self._sorted(consumer, messages[begin:])

    def _end_of(self, key: Key, offset: int) -> Chunk:
        return Chunk(key=key, rows=None, offsets=np.empty(0, np.int64), following=offset, at_end=True)

    def _missing(self, consumer: Any, message: Any) -> Iterator[Chunk]:
        """The wanted offset is not there, because the records were deleted, or the topic is another one."""
        from confluent_kafka import TopicPartition

        topic, partition = message.topic(), message.partition()
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CONNECT_WITHIN_S)
        there = f"the records there have the offsets from {low} to {high - 1}" if high > low else "there are no records"
        text = (
            f"partition {partition} of topic {topic!r} does not have the offset that is to be read next: {there} "
            f"({message.error().str()})"
        )
        if self._reading.on_missing == "fail":
            raise ExternalError(
                text,
                hint="the records were deleted before they were read: see the retention of the topic; on_missing="
                "'earliest' goes on with the first record that is there, and on_missing='latest' at the end",
            )
        log.warning("%s; on_missing is %r", text, self._reading.on_missing)
        offset = low if self._reading.on_missing == "earliest" else high
        # A partition with this error is not fetched any more, and cannot be sought: it is assigned anew.
        consumer.incremental_unassign([TopicPartition(topic, partition)])
        consumer.incremental_assign([TopicPartition(topic, partition, offset)])
        self._paused -= {(topic, partition)}
        yield Chunk(key=(topic, partition), rows=None, offsets=np.empty(0, np.int64), following=offset)

    def _chunk(self, key: Key, messages: list[Any]) -> Iterator[Chunk]:
        from confluent_kafka import Message

        offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
        stop = self._stops.get(key)
        following = int(offsets[-1]) + 1
        if stop is not None and following > stop:
            keep = int(np.searchsorted(offsets, stop))
            messages, offsets, following = messages[:keep], offsets[:keep], stop
            if not messages:
                yield Chunk(key=key, rows=None, offsets=offsets, following=following)
                return
        values = list(map(Message.value, messages))
        found = decoded(values, self._reading.form, self._reading.treatment)
        if found.bad:
            self._look_at_bad(key, offsets, values, found)
            if self._reading.treatment.kind == "skip":
                left_out = [each.position for each in found.bad]
                offsets = np.delete(offsets, left_out)
                gone = set(left_out)
                messages = [message for number, message in enumerate(messages) if number not in gone]
        rows = self._with_metadata(found.rows, key, messages, offsets)
        yield Chunk(key=key, rows=rows, offsets=offsets, following=following, bad=len(found.bad))

    def _look_at_bad(
        self, key: Key, offsets: npt.NDArray[np.int64], values: Sequence[bytes | None], found: Decoded
    ) -> None:
        first = found.bad[0]
        place = f"topic {key[0]!r}, partition {key[1]}, offset {offsets[first.position]}"
        kind = self._reading.treatment.kind
        if kind == "fail":
            raise UsageError(
                f"{place}: the record cannot be read: {first.reason}; the value is "
                f"{(values[first.position] or b'')[:_SHOWN_BYTES]!r}",
                hint="mend the schema; or give bad_rows='skip', or bad_rows='keep' to have such records as text",
            )
        if not self._has_warned:
            self._has_warned = True
            what = "skipped" if kind == "skip" else "kept as text"
            log.warning("records cannot be read, and are %s; the first of them: %s: %s", what, place, first.reason)

    def _with_metadata(
        self, rows: pa.RecordBatch, key: Key, messages: list[Any], offsets: npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        if not self._reading.metadata:
            return rows
        extra = [_column(what, key, messages, offsets) for what, _ in self._reading.metadata]
        return pa.RecordBatch.from_arrays([*rows.columns, *extra], schema=self._reading.schema)


def _column(what: str, key: Key, messages: list[Any], offsets: npt.NDArray[np.int64]) -> Any:
    from confluent_kafka import Message

    count, kind = len(messages), METADATA[what]
    match what:
        case "topic":
            return pa.array([key[0]] * count, kind)
        case "partition":
            return pa.array([key[1]] * count, kind)
        case "offset":
            return pa.array(offsets, kind)
        case "timestamp":
            times = np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), np.int64, count)
            return pa.array(times * _MS_TO_US, pa.int64(), mask=times < 0).cast(kind)
        case "key":
            return pa.array(list(map(Message.key, messages)), kind)
        case _:
            return pa.array([_headers(message.headers()) for message in messages], kind)


def _headers(found: list[tuple[str, bytes | None]] | None) -> list[dict[str, Any]] | None:
    return None if found is None else [{"key": name, "value": value} for name, value in found]

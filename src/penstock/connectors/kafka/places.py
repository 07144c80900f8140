"""Where a source begins and ends in each partition, and which partitions there are.

A start such as "latest" is made a number once, on the driver: a job that fails before its first checkpoint begins again
at the same numbers, and misses nothing that came in between.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from penstock.api.connector import Found, SplitEnumerator
from penstock.api.saved_pieces import decoded_piece
from penstock.connectors.kafka.connection import (
    CONNECT_WITHIN_S,
    Connection,
    TopicInfo,
    described,
    explained,
    known_topics,
    made,
)
from penstock.core.errors import UsageError

EARLIEST, LATEST, GROUP_OFFSETS = "earliest", "latest", "group-offsets"

Offsets = Mapping[int, int] | Mapping[tuple[str, int], int]
"""Offsets by partition; with several topics, by topic and partition."""

Boundary = str | datetime | Offsets

_MS = 1_000


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A partition, and the offset that is to be read next: the split of a Kafka source."""

    topic: str
    partition: int
    offset: int
    stop: int | None = None
    """Records from this offset on are not read. None: there is no end."""
    topic_id: str = ""
    """Another topic of the same name has another id."""


def encoded(place: Place) -> bytes:
    """A place as a split."""
    return msgspec.msgpack.encode(place)


def decoded_place(split: bytes) -> Place:
    """The place of a split. Raises `CorruptFile`."""
    return decoded_piece(split, Place, what="a partition of Kafka")


@dataclass(frozen=True, kw_only=True)
class Topics:
    """Which topics a source reads: names, or a pattern that whole names match."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def find(self, cluster: Connection) -> list[TopicInfo]:
        """The topics that there are. Raises `UsageError` if a named topic does not exist."""
        admin, known = known_topics(cluster)
        if self.pattern is None:
            return described(admin, cluster, self.names)
        matching = [name for name in known if re.fullmatch(self.pattern, name) and not name.startswith("__")]
        return described(admin, cluster, matching) if matching else []


@dataclass(frozen=True, kw_only=True)
class Range:
    """What is read of each partition."""

    start: Boundary = EARLIEST
    stop: Boundary | None = None
    group: str | None = None


def places_of(cluster: Connection, topics: Sequence[TopicInfo], read: Range) -> list[Place]:
    """Every partition with its first offset, and its last offset if the range has an end. Partitions of which nothing
    is to be read are left out."""
    if not topics:
        return []
    looked = _Offsets(cluster, topics, read.group)
    starts = looked.at(read.start, "start")
    stops = looked.at(read.stop, "stop") if read.stop is not None else {}
    ids = {topic.name: topic.id for topic in topics}
    found = [
        Place(topic, partition, offset, stops.get((topic, partition)), ids[topic])
        for (topic, partition), offset in starts.items()
    ]
    return [place for place in found if place.stop is None or place.offset < place.stop]


class _Offsets:
    """Asks a cluster for offsets."""

    def __init__(self, cluster: Connection, topics: Sequence[TopicInfo], group: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = topics
        self._partitions = [(topic.name, number) for topic in topics for number in range(topic.partitions)]

    def at(self, boundary: Boundary, argument: str) -> dict[tuple[str, int], int]:
        """The offset of a boundary in each partition."""
        from confluent_kafka import Consumer, KafkaException

        own = {"group.id": self._group or "penstock", "isolation.level": "read_committed"}
        consumer = made(Consumer, self._cluster.client(own))
        try:
            return self._at(consumer, boundary, argument)
        except KafkaException as error:
            raise explained(error.args[0], self._cluster) from error
        finally:
            consumer.close()

    def _at(self, consumer: Any, boundary: Boundary, argument: str) -> dict[tuple[str, int], int]:
        if isinstance(boundary, Mapping):
            return self._given(boundary, argument, consumer)
        if isinstance(boundary, datetime):
            return self._at_time(consumer, boundary)
        if boundary == GROUP_OFFSETS:
            return self._committed(consumer)
        return {each: self._ends(consumer, each)[boundary == LATEST] for each in self._partitions}

    def _ends(self, consumer: Any, place: tuple[str, int]) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=CONNECT_WITHIN_S)
        return int(low), int(high)

    def _at_time(self, consumer: Any, moment: datetime) -> dict[tuple[str, int], int]:
        from confluent_kafka import TopicPartition

        at_ms = round(moment.timestamp() * _MS)
        asked = [TopicPartition(*each, at_ms) for each in self._partitions]
        found = consumer.offsets_for_times(asked, timeout=CONNECT_WITHIN_S)
        places = {(each.topic, each.partition): int(each.offset) for each in found}
        # No record is that young: the answer is the end, as a number.
        return {key: at if at >= 0 else self._ends(consumer, key)[1] for key, at in places.items()}

    def _committed(self, consumer: Any) -> dict[tuple[str, int], int]:
        from confluent_kafka import TopicPartition

        found = consumer.committed([TopicPartition(*each) for each in self._partitions], timeout=CONNECT_WITHIN_S)
        places = {(each.topic, each.partition): int(each.offset) for each in found}
        return {key: at if at >= 0 else self._ends(consumer, key)[0] for key, at in places.items()}

    def _given(self, offsets: Mapping[Any, int], argument: str, consumer: Any) -> dict[tuple[str, int], int]:
        named = {key if isinstance(key, tuple) else (self._topics[0].name, key): at for key, at in offsets.items()}
        for key, at in named.items():
            if key not in self._partitions:
                raise UsageError(
                    f"{argument} names partition {key[1]} of topic {key[0]!r}, which there is not",
                    hint=f"there are {', '.join(f'{topic.name} 0-{topic.partitions - 1}' for topic in self._topics)}",
                )
            if not isinstance(at, int) or at < 0:
                raise UsageError(f"{argument} is {at!r} for partition {key[1]} of topic {key[0]!r}; give an offset")
        missing = [each for each in self._partitions if each not in named]
        # Partitions that are not named: all of the partition, whichever boundary this is.
        return named | {each: self._ends(consumer, each)[argument == "stop"] for each in missing}


class PartitionEnumerator(SplitEnumerator):
    """Finds partitions that were added, and topics that match a pattern, while the job runs. They are read from their
    earliest record on, since all their records came after the job began.

    The position is the list of the partitions that are known.
    """

    def __init__(
        self, cluster: Connection, topics: Topics, initial: Sequence[Place], *, every_ms: int, restored: bool
    ) -> None:
        """`initial` are the partitions that the source began with. `restored`: the splits are in a snapshot."""
        self._cluster = cluster
        self._topics = topics
        self._initial = {(place.topic, place.partition) for place in initial}
        self._every_ms = every_ms
        self._restored = restored
        self._answered: dict[bytes | None, Found] = {}

    def discover(self, position: bytes | None) -> Found:
        """The partitions that are not known yet."""
        if position in self._answered:
            # The attempt failed before a checkpoint had the splits: they are given out again, the same ones.
            return self._answered[position]
        topics = self._topics.find(self._cluster)
        there = {(topic.name, number) for topic in topics for number in range(topic.partitions)}
        known = self._initial if position is None else set(_known(position))
        if position is None and self._restored:
            # The snapshot was taken before the first look, so its splits are all partitions that there were.
            known = there
        added = sorted(there - known)
        if not added and position is not None:
            return Found(position=position, wait_ms=self._every_ms)
        places = [
            place for place in places_of(self._cluster, topics, Range()) if (place.topic, place.partition) in set(added)
        ]
        found = Found(
            position=msgspec.msgpack.encode(sorted(known | there)),
            splits=[encoded(place) for place in places],
            wait_ms=self._every_ms,
        )
        self._answered = {position: found} if places else {}
        return found


def _known(position: bytes) -> list[tuple[str, int]]:
    return decoded_piece(position, list[tuple[str, int]], what="the known partitions of Kafka")

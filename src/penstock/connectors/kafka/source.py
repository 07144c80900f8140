"""Kafka as a source: a partition is a split, and the next offset is its position.

No group assigns partitions: an assignment that changes by itself would fight the checkpoints. Offsets of a group are
written for people who look at the lag, and read only where a job begins for the first time, if the program says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, get_args

import pyarrow as pa

from penstock.api.connector import Site, Source, SourceReader, SplitEnumerator
from penstock.api.durations import Duration, duration_ms
from penstock.connectors.file_formats import BadRows, Treatment
from penstock.connectors.kafka.connection import Setting, connection
from penstock.connectors.kafka.decoding import JsonRecords, RawRecords, RecordFormat
from penstock.connectors.kafka.fetching import METADATA, Reading
from penstock.connectors.kafka.places import (
    EARLIEST,
    GROUP_OFFSETS,
    LATEST,
    Boundary,
    PartitionEnumerator,
    Place,
    Range,
    Topics,
    decoded_place,
    encoded,
    places_of,
)
from penstock.connectors.kafka.reader import KafkaReader
from penstock.core.errors import UsageError
from penstock.sql.schemas import SchemaLike, as_schema

KafkaFormat = Literal["json", "raw", "text"]
"""What `kafka` can read."""
OnMissing = Literal["fail", "earliest", "latest"]
Isolation = Literal["read_committed", "read_uncommitted"]

_RAW = pa.schema([pa.field("value", pa.binary())])
_TEXT = pa.schema([pa.field("value", pa.string())])


def kafka(  # noqa: PLR0913  # one keyword per question; all but two have defaults
    topics: str | Sequence[str] | re.Pattern[str],
    *,
    bootstrap: str | Sequence[str],
    format: KafkaFormat = "json",  # noqa: A002  # what everybody calls it
    schema: SchemaLike | None = None,
    metadata: Sequence[str] | Mapping[str, str] = (),
    start: Boundary = EARLIEST,
    stop: Boundary | None = None,
    discover_every: Duration | None = "1min",
    group: str | None = None,
    isolation: Isolation = "read_committed",
    on_missing: OnMissing = "fail",
    bad_rows: BadRows = "fail",
    bad_rows_column: str = "bad_row",
    config: Mapping[str, Setting] | None = None,
) -> KafkaSource:
    """Records of Kafka topics, each read exactly once into the state of the job, whatever fails meanwhile.

    Each partition is read by one subtask, in its order, and has an event time of its own. Positions are kept in the
    checkpoints. Needs `pip install 'penstock[kafka]'`.

    >>> import penstock as ps
    >>> clicks = ps.kafka("clicks", bootstrap="localhost:9092", schema="user string, at timestamp", metadata=["key"])
    >>> clicks.schema.names
    ['user', 'at', 'key']

    Args:
        topics: the name of a topic, a list of names, or a compiled pattern (`re.compile("orders-.*")`) that whole names
            match. Topics that match the pattern and are made later are found.
        bootstrap: the addresses of one or more brokers: "host:port".
        format: "json" (an object in each record), "raw" (the bytes, in a column `value`) or "text" (the same as UTF-8).
        schema: the columns. JSON needs a schema; fields that are no columns are left out.
        metadata: what else becomes a column: "topic", "partition", "offset", "timestamp", "key" (bytes) and "headers".
            A mapping gives the columns other names: `{"timestamp": "sent_at"}`.
        start: where a job begins that starts for the first time: "earliest"; "latest", which is resolved once, when the
            job starts; "group-offsets", and the earliest record where the group has no offset; a `datetime`; or
            offsets, `{partition: offset}` or `{(topic, partition): offset}`, and the earliest record of all other
            partitions. Partitions that are found later are read from their beginning.
        stop: where to stop: "latest", as it is when the job starts; a `datetime`; or offsets. Records before the stop
            are read, and the source comes to its end. None: the source never ends.
        discover_every: how often to look for partitions that were added, and for topics that match. None: never. A
            source with a `stop` never looks.
        group: the offsets of completed checkpoints are committed to this consumer group, for tools that show the lag.
            The job itself does not read them again, except for `start="group-offsets"`.
        isolation: "read_committed": records of transactions appear when the transaction is committed; one open
            transaction holds back everything behind it in its partition. "read_uncommitted": records appear at once.
        on_missing: what to do if the next offset is not there any more, because the records were deleted. "fail": the
            job fails, and says what is there. "earliest" and "latest" go on there, with a warning.
        bad_rows: what becomes of records that cannot be read. "fail": the job fails, with topic, partition, offset and
            reason. "skip": they are left out, and counted as `lines_skipped` of `job.view()`. "keep": the text of the
            record is in the column `bad_rows_column`, and all columns of the schema are null there.
        bad_rows_column: the name of that column.
        config: settings of librdkafka, such as "security.protocol". Passwords are given as `ps.secret("env:NAME")`.

    """
    columns, form = _form(format, schema)
    _check_choice("on_missing", on_missing, get_args(OnMissing))
    _check_choice("isolation", isolation, get_args(Isolation))
    _check_boundaries(start, stop, group)
    treatment = Treatment(kind=bad_rows, column=bad_rows_column)
    extra = _metadata(metadata, treatment.schema_with(columns))
    reading = Reading(
        cluster=connection(bootstrap, config),
        form=form,
        treatment=treatment,
        metadata=extra,
        on_missing=on_missing,
        isolation=isolation,
        group=group,
    )
    every_ms = None
    if discover_every is not None and stop is None:
        every_ms = max(1, duration_ms(discover_every, argument="discover_every"))
    return KafkaSource(
        topics=_topics(topics), reading=reading, read=Range(start=start, stop=stop, group=group), every_ms=every_ms
    )


@dataclass(frozen=True, kw_only=True)
class KafkaSource(Source):
    """The source that `kafka` makes. Neither splits nor the enumerator's position are pickled."""

    topics: Topics
    reading: Reading
    read: Range
    every_ms: int | None
    initial: tuple[Place, ...] | None = None
    """The partitions that the job begins with, when the source is prepared."""
    restored: bool = False
    """Whether the splits are in a snapshot."""

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "kafka"

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "kafka"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records, of bad records if they are kept, and of the metadata."""
        return self.reading.schema

    @property
    def is_unbounded(self) -> bool:
        """Whether the source has no stop."""
        return self.read.stop is None

    @property
    def discovers(self) -> bool:
        """Whether partitions are found while the job runs."""
        return self.every_ms is not None

    def prepared(self, site: Site) -> Source:
        """The same source, which knows the partitions that the job begins with. Raises `ExternalError` or `UsageError`
        if the cluster or a topic cannot be reached."""
        if site.has_ended:
            return self
        if site.splits is not None:
            return replace(self, initial=tuple(map(decoded_place, site.splits)))
        if not site.begins:
            self.topics.find(self.reading.cluster)
            return replace(self, initial=(), restored=True)
        return replace(self, initial=self._places())

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002  # a partition is read by one subtask
        """The partitions. Partitions of one topic come one after another, so that they are spread over subtasks."""
        places = self._places() if self.initial is None else self.initial
        return [encoded(place) for place in places]

    def _places(self) -> tuple[Place, ...]:
        topics = self.topics.find(self.reading.cluster)
        return tuple(places_of(self.reading.cluster, topics, self.read))

    def enumerator(self) -> SplitEnumerator:
        """What finds partitions while the job runs."""
        return PartitionEnumerator(
            self.reading.cluster,
            self.topics,
            self.initial or (),
            every_ms=self.every_ms or 0,
            restored=self.restored or self.initial is None,
        )

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader of these partitions. Raises `CorruptFile` for a split of another source."""
        return KafkaReader(self.reading, splits)


def _topics(given: str | Sequence[str] | re.Pattern[str]) -> Topics:
    if isinstance(given, re.Pattern):
        return Topics(pattern=given.pattern)
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or not all(isinstance(name, str) and name.strip() for name in names) or len(set(names)) < len(names):
        raise UsageError(
            f"topics is {given!r}", hint="give the name of a topic, a list of different names, or re.compile(...)"
        )
    return Topics(names=names)


def _form(form: str, schema: SchemaLike | None) -> tuple[pa.Schema, RecordFormat]:
    _check_choice("format", form, get_args(KafkaFormat))
    if form == "json":
        if schema is None:
            raise UsageError("ps.kafka needs a schema for JSON", hint="schema='user string, at timestamp'")
        columns = as_schema(schema, argument="schema")
        return columns, JsonRecords(columns)
    if schema is not None:
        raise UsageError(f"format is {form!r}, which has the column 'value', and a schema was given", hint="omit it")
    columns = _RAW if form == "raw" else _TEXT
    return columns, RawRecords(columns)


def _metadata(given: Sequence[str] | Mapping[str, str], schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    names = (given,) if isinstance(given, str) else given
    pairs = tuple(names.items()) if isinstance(names, Mapping) else tuple((name, name) for name in names)
    taken = list(schema.names)
    for what, name in pairs:
        _check_choice("metadata", what, tuple(METADATA))
        if name in taken:
            raise UsageError(
                f"there are two columns {name!r}: metadata {what!r} is to be one of them",
                hint=f"give the column another name: metadata={{{what!r}: 'kafka_{what}'}}",
            )
        taken.append(name)
    return pairs


def _check_boundaries(start: Boundary, stop: Boundary | None, group: str | None) -> None:
    if isinstance(start, str):
        _check_choice("start", start, (EARLIEST, LATEST, GROUP_OFFSETS))
    if isinstance(stop, str):
        _check_choice("stop", stop, (LATEST,))
    if start == GROUP_OFFSETS and group is None:
        raise UsageError("start='group-offsets' needs the name of the group", hint="give group=")
    for argument, moment in (("start", start), ("stop", stop)):
        if isinstance(moment, datetime) and moment.tzinfo is None:
            raise UsageError(f"{argument} is {moment!r}, which names no time zone", hint="give it tzinfo=datetime.UTC")


def _check_choice(argument: str, given: object, known: Sequence[str]) -> None:
    if given not in known:
        raise UsageError(f"{argument} is {given!r}", hint=f"choose one of {', '.join(map(repr, known))}")

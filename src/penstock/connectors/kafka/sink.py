"""Kafka as a sink."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import pyarrow as pa

from penstock.api.changelog import Changelog
from penstock.api.connector import Footprint, Sink, SinkWriter, Site, UnpreparedSink, WriterContext
from penstock.connectors.kafka.connection import Setting, connection, described, known_topics
from penstock.connectors.kafka.encoding import Encoding
from penstock.connectors.kafka.lanes import KafkaLane, Target
from penstock.connectors.kafka.replay import OnUnknown, commit_all, decoded_prepared
from penstock.connectors.kafka.writing import DirectWriter, ReplayWriter, Writing
from penstock.core.errors import UsageError

Delivery = Literal["exactly-once", "at-least-once"]
SinkFormat = Literal["json", "raw"]

_KEPT = re.compile(r"r(\d+)-p(\d+)-e(\d+)-\d+\.arrow")
_LARGEST_BYTES = 1_000_000
"""The client's own default of message.max.bytes."""


def kafka_sink(  # noqa: PLR0913  # one keyword per question; all but one have defaults
    topic: str | None = None,
    *,
    bootstrap: str | Sequence[str],
    delivery: Delivery = "exactly-once",
    format: SinkFormat = "json",  # noqa: A002  # what everybody calls it
    value: str | Sequence[str] = (),
    key: str | Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    topic_column: str | None = None,
    partition_column: str | None = None,
    transactional_id_prefix: str = "penstock",
    marker_topic: str | None = None,
    on_unknown: OnUnknown = "fail",
    config: Mapping[str, Setting] | None = None,
) -> KafkaSink:
    """Records for a Kafka topic.

    With "exactly-once" records are kept in the checkpoints, and are written in one short transaction when their
    checkpoint has completed. A reader with `isolation.level=read_committed` sees each record once, whatever fails, and
    however long the job was down; a record appears when its checkpoint has completed. Within a partition, records of
    one subtask keep their order. A reader may see the records of one subtask before those of another.

    A changelog is written as upserts: its key columns are the key, rows that are gone become tombstones (records
    without a value), and rows as they were before an update are left out. Make the topic with `cleanup.policy=compact`.

    >>> import penstock as ps
    >>> ps.kafka_sink("hot-auctions", bootstrap="localhost:9092", key="auction").name
    'kafka_sink'

    Args:
        topic: the topic, which must exist. None: `topic_column` names it.
        bootstrap: the addresses of one or more brokers: "host:port".
        delivery: "exactly-once", as above; or "at-least-once": records are written at once, and may be written again
            after a failure.
        format: "json" (an object in each record) or "raw" (the bytes or the text of one column).
        value: the columns of the value. Default: all columns.
        key: the columns of the key. The bytes of one column of bytes or text; a column of another type as JSON; several
            columns as a JSON object. Default: no key; for a changelog the columns that identify a row. Records of a key
            go to the partition that Java's clients choose.
        headers: names of headers, and the columns of bytes or text that they are taken from. Nulls are left out.
        topic_column: a column with the topic of each record; the topics must exist.
        partition_column: a column with the number of the partition of each record.
        transactional_id_prefix: how the transactional ids, and the groups of the markers, begin: what the user of a
            secured cluster needs rights for.
        marker_topic: a topic with one partition and `cleanup.policy=compact`, which remembers for good what was
            committed. Without it the cluster forgets after `offsets.retention.minutes`, usually 7 days: for who starts
            jobs from older savepoints.
        on_unknown: what to do if a job starts from a snapshot that is so old that the cluster may have forgotten
            whether its last records were written. "fail": say so. "produce": write them, perhaps again. "skip": do not
            write them.
        config: settings of librdkafka, such as "security.protocol". Passwords are given as `ps.secret("env:NAME")`.

    """
    for argument, given, known in (
        ("delivery", delivery, get_args(Delivery)),
        ("format", format, get_args(SinkFormat)),
        ("on_unknown", on_unknown, get_args(OnUnknown)),
    ):
        if given not in known:
            raise UsageError(f"{argument} is {given!r}", hint=f"choose one of {', '.join(map(repr, known))}")
    if (topic is None) == (topic_column is None):
        raise UsageError("kafka_sink needs either a topic or a topic_column", hint="kafka_sink('orders', ...)")
    largest = (config or {}).get("message.max.bytes", _LARGEST_BYTES)
    encoding = Encoding(
        format=format,
        value=_columns(value),
        key=_columns(key),
        topic=topic_column,
        partition=partition_column,
        headers=tuple((headers or {}).items()),
        largest_bytes=int(str(largest)),
    )
    target = Target(cluster=connection(bootstrap, config), topic=topic, marker_topic=marker_topic)
    return KafkaSink(
        target=target, encoding=encoding, delivery=delivery, prefix=transactional_id_prefix, on_unknown=on_unknown
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class KafkaSink(UnpreparedSink):
    """The sink that `kafka_sink` makes, before the job starts. Several sinks may write to one topic: their lanes have
    names of their own."""

    target: Target
    encoding: Encoding
    delivery: Delivery
    prefix: str
    on_unknown: OnUnknown

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "kafka_sink"

    @property
    def described(self) -> str:
        """What error texts call the sink."""
        return f"the sink into Kafka at {self.target.cluster.bootstrap}"

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if records of this schema cannot be written."""
        self.encoding.check(schema)

    def for_changes(self, changelog: Changelog) -> Sink:
        """A sink of upserts. Raises `UsageError` if nothing identifies a row, or if `key` is not what does."""
        if not changelog.keys:
            raise UsageError(
                f"kafka_sink writes the newest row of each key, and this stream is {changelog}",
                hint="write .changes(), which makes a record of each change; or key the stream by columns that "
                "identify a row",
            )
        key = self.encoding.key or changelog.keys
        if set(key) != set(changelog.keys):
            raise UsageError(
                f"key is {', '.join(key)}, and rows of this stream are identified by {', '.join(changelog.keys)}",
                hint="leave key out",
            )
        return replace(self, encoding=replace(self.encoding, key=tuple(key), is_changelog=True))

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:  # noqa: ARG002  # `check` has looked at the schema
        """The sink of a job. Raises `ExternalError` or `UsageError` if the cluster cannot be reached, or if a topic is
        not there or may not be written."""
        folder, topic_id = site.results(), ""
        run = f"{self.prefix}-{site.fresh_token()}{site.fresh_token()}"
        if not site.has_ended:
            topic_id = self._look(run)
        writing = Writing(
            target=self.target,
            encoding=self.encoding,
            files=site.kept_files(folder),
            run=run,
            topic_id=topic_id,
            on_unknown=self.on_unknown,
        )
        return TopicSink(writing=writing, folder=folder, delivery=self.delivery)

    def _look(self, run: str) -> str:
        """Have the cluster refuse now what it would refuse later. Returns the id of the topic."""
        names = [name for name in (self.target.topic, self.target.marker_topic) if name is not None]
        admin, _ = known_topics(self.target.cluster)
        found = described(admin, self.target.cluster, names, to_write=True) if names else []
        if self.delivery == "exactly-once":
            lane = KafkaLane(f"{run}-start", self.target)
            lane.open()
            lane.close()
        return next((topic.id for topic in found if topic.name == self.target.topic), "")


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicSink(Sink):
    """The sink of a job that runs. Nothing in it is pickled into snapshots."""

    writing: Writing = field(repr=False)
    folder: str
    delivery: Delivery

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "kafka_sink"

    @property
    def saved_as(self) -> str:
        """The form of the committables."""
        return "records for Kafka"

    @property
    def footprint(self) -> Footprint:
        """The folder of the records that are not in the cluster yet."""
        return Footprint(place=self.folder, in_landing=True)

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask."""
        if self.delivery == "at-least-once":
            return DirectWriter(self.writing)
        return ReplayWriter(self.writing, context)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Write what a snapshot promises and the cluster does not have."""
        commit_all(committables, replay_of=self.writing.replay, read=self.writing.read, done=self.writing.forget)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Remove the files that this subtask kept in earlier attempts. Nothing of earlier attempts is open in the
        cluster for longer than a commit takes, so there is nothing to remove there, and nothing stays after a
        rescale."""
        kept = {place for committable in keep for place in decoded_prepared(committable).places}
        for name, place in self.writing.files.places():
            found = _KEPT.fullmatch(name)
            if found is None or place in kept:
                continue
            subtask, parallelism, epoch = map(int, found.groups())
            if (subtask, parallelism) == (context.subtask, context.parallelism) and epoch < context.epoch:
                self.writing.files.delete(place)

    def end(self, job: str) -> None:
        """Remove the files of a job that will never go on."""
        self.writing.files.end(job)


def _columns(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)

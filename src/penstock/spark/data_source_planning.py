"""The part of a Python Data Source that runs on the driver: plans ranges of offsets, and is told which were read.

A range is planned once. The partitions of the range go to subtasks as splits, and the end of the range is the position
from which the next range is planned. Splits and position are in the checkpoint. So after a failure, a range that was
planned before the checkpoint is read from the very same partitions, and a later range is planned anew. Offsets travel
as JSON, like Spark's own: a reader gets an offset back as JSON has kept the offset.

One reader object plans for the whole job. Only a reader that has raised is stopped, and the next attempt makes another
reader.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from penstock.api.connector import Found, Source, SplitEnumerator
from penstock.api.saved_pieces import decoded_piece
from penstock.core.errors import UsageError
from penstock.spark.data_source_calls import GivenSource, calling, lacks, pickled
from penstock.spark.data_source_reading import DataSourceInput, DiscoveredInput, Split

UNREAD_PARTITIONS = 2
"""The next range is planned when subtasks have, on average, fewer partitions than this left to read."""

_BATCH_ROWS = 10_000
"""Rows that the driver read travel in Arrow batches of this size."""

_BATCH_HINT = 'give mode="batch" to read, once, the rows that the `reader` of the data source gives'

T = TypeVar("T")


class _Position(msgspec.Struct, frozen=True, array_like=True):
    offset: str
    """The offset up to which everything has been planned, as JSON."""
    ranges: int
    """How many ranges have been planned up to the offset."""


# --- batch -----------------------------------------------------------------------------------------------------------


def batch_input(given: GivenSource) -> Source:
    """The source over the rows that `reader` of the data source gives. Raises `UsageError` if the data source has no
    `reader`."""
    try:
        reader = given.make("reader")
    except PySparkNotImplementedError:
        raise lacks(
            given.name,
            "reader",
            hint='give mode="stream" or mode="available-now" to read the stream of the data source',
        ) from None
    if not isinstance(reader, DataSourceReader):
        raise _no_reader(given, "reader", reader, "DataSourceReader")
    return _BatchInput(given, reader)


class _BatchInput(DataSourceInput):
    """The source on the driver. Slots get only the part that reads partitions."""

    def __init__(self, given: GivenSource, reader: DataSourceReader) -> None:
        self._given = given
        self._batch_reader = reader
        what = f"the reader of data source {given.name!r}"
        super().__init__(given.name, given.struct, given.schema, pickled(reader, what=what))

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Any, ...]]:
        return DataSourceInput, (self._name, self._struct, self._schema, self._reader)

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002  # the data source decides
        """All partitions of the data source; a single partition without a value if the data source names none."""
        try:
            found = self._batch_reader.partitions()
        except NotImplementedError:
            found = []
        partitions = list(found) or [InputPartition(None)]
        return _splits(self._name, partitions, number=0, start="")


# --- streams ---------------------------------------------------------------------------------------------------------


def stream_input(given: GivenSource, *, available_now: bool, poll_ms: int) -> Source:
    """The source over the stream of a data source, read by `streamReader`, or else by `simpleStreamReader`. Raises
    `UsageError` if the data source has neither."""
    reader = _stream_reader(given)
    if isinstance(reader, SimpleDataSourceStreamReader):
        enumerator: type[_Enumerator] = _SimpleEnumerator
    else:
        enumerator = _StreamEnumerator
    return _StreamInput(
        given,
        reader,
        lambda: enumerator(given, available_now=available_now, poll_ms=poll_ms),
        ends=available_now,
    )


def _stream_reader(given: GivenSource) -> DataSourceStreamReader | SimpleDataSourceStreamReader:
    method = "streamReader"
    try:
        reader = given.make(method)
    except PySparkNotImplementedError:
        method = "simpleStreamReader"
        try:
            reader = given.make(method)
        except PySparkNotImplementedError:
            raise lacks(given.name, "streamReader and no simpleStreamReader", hint=_BATCH_HINT) from None
    expected = DataSourceStreamReader if method == "streamReader" else SimpleDataSourceStreamReader
    if not isinstance(reader, expected):
        raise _no_reader(given, method, reader, expected.__name__)
    return reader


class _StreamInput(DiscoveredInput):
    """The source on the driver. Slots get only the part that reads partitions."""

    def __init__(
        self, given: GivenSource, reader: Any, enumerator: Callable[[], SplitEnumerator], *, ends: bool
    ) -> None:
        what = f"the stream reader of data source {given.name!r}"
        super().__init__(given.name, given.struct, given.schema, pickled(reader, what=what))
        self._enumerator = enumerator
        self._ends = ends

    @property
    def is_unbounded(self) -> bool:
        """Whether the source goes on with data that comes later."""
        return not self._ends

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Any, ...]]:
        return DiscoveredInput, (self._name, self._struct, self._schema, self._reader)

    def enumerator(self) -> SplitEnumerator:
        """The enumerator, which plans ranges."""
        return self._enumerator()


class _Enumerator(SplitEnumerator):
    """Plans the ranges of a stream."""

    unread = UNREAD_PARTITIONS

    def __init__(self, given: GivenSource, *, available_now: bool, poll_ms: int) -> None:
        self._given = given
        self._available_now = available_now
        self._poll_ms = poll_ms
        self._reader: Any = None
        self._committed: str | None = None

    def start(self, position: bytes | None) -> None:  # noqa: ARG002  # `discover` gets the position, too
        """Make a reader, unless there is a reader that has not raised."""
        if self._reader is None:
            with calling(self._given.name, "streamReader"):
                self._reader = _stream_reader(self._given)
            if self._available_now and self._says_when_to_end:
                self._call("prepareForTriggerAvailableNow", self._reader.prepareForTriggerAvailableNow)

    def discover(self, position: bytes | None) -> Found:
        """Plan the next range, if the stream has more data behind `position`."""
        if position is None:
            initial = self._call("initialOffset", self._reader.initialOffset)
            at = _Position(self._json(initial, "initialOffset"), 0)
        else:
            at = decoded_piece(position, _Position, what="the offset of a Python Data Source")
        end, splits = self._plan(at)
        is_new = end != at.offset
        at = _Position(end, at.ranges + is_new)
        # With available-now: a reader that has `prepareForTriggerAvailableNow` is at its end when its offset does not
        # change any more. For any other reader, a single range has all the data.
        ended = self._available_now and not (is_new and self._says_when_to_end)
        wait_ms = 1 if is_new else self._poll_ms
        return Found(position=msgspec.msgpack.encode(at), splits=splits, ended=ended, wait_ms=wait_ms)

    def consumed(self, position: bytes | None, unread: Sequence[bytes]) -> None:
        """Tell the reader up to which offset everything has been read."""
        if position is None or self._reader is None:
            return
        left = [decoded_piece(split, Split, what="a split of a Python Data Source") for split in unread]
        first = min(left, key=lambda split: split.number, default=None)
        at = decoded_piece(position, _Position, what="the offset of a Python Data Source")
        offset, ranges = (at.offset, at.ranges) if first is None else (first.start, first.number)
        if ranges > 0 and offset != self._committed:
            self._call("commit", lambda: self._reader.commit(json.loads(offset)))
            self._committed = offset

    def close(self) -> None:
        """Stop the reader."""
        reader, self._reader = self._reader, None
        if reader is not None and hasattr(reader, "stop"):
            with calling(self._given.name, "stop"):
                reader.stop()

    @abstractmethod
    def _plan(self, at: _Position) -> tuple[str, list[bytes]]:
        """Plan the range that begins at `at`: the offset at its end, and its splits. If there is no more data, the
        offset is that of `at`, and there are no splits."""

    @property
    def _says_when_to_end(self) -> bool:
        return hasattr(self._reader, "prepareForTriggerAvailableNow")

    def _call(self, method: str, call: Callable[[], T]) -> T:
        """Call a method of the reader, if this driver has the job. A reader that has raised is closed and not used
        again."""
        self.hold.check()
        try:
            with calling(self._given.name, method):
                return call()
        except BaseException:
            # An error of `stop` would hide the first error, which says why the reader is broken.
            with contextlib.suppress(Exception):
                self.close()
            raise

    def _json(self, offset: Any, method: str) -> str:
        name = self._given.name
        if not isinstance(offset, dict):
            raise UsageError(
                f"{method} of data source {name!r} returned {offset!r} as an offset, which is no dict",
                hint="an offset is a dict of texts, numbers, booleans and dicts of these",
            )
        try:
            return json.dumps(offset)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{method} of data source {name!r} returned the offset {offset!r}, which cannot be written as JSON: "
                f"{error}",
                hint="an offset is a dict of texts, numbers, booleans and dicts of these",
            ) from error


class _StreamEnumerator(_Enumerator):
    """Plans the ranges of a `DataSourceStreamReader`."""

    def _plan(self, at: _Position) -> tuple[str, list[bytes]]:
        end = self._json(self._call("latestOffset", lambda: self._latest(json.loads(at.offset))), "latestOffset")
        if end == at.offset:
            return end, []
        reader = self._reader
        found = self._call("partitions", lambda: list(reader.partitions(json.loads(at.offset), json.loads(end))))
        return end, _splits(self._given.name, found, number=at.ranges, start=at.offset)

    def _latest(self, start: dict[str, Any]) -> Any:
        reader = self._reader
        if not inspect.signature(reader.latestOffset).parameters:
            # Before Spark 4.2 `latestOffset` has no parameters.
            return reader.latestOffset()
        if self._available_now and not self._says_when_to_end:
            from pyspark.sql.streaming.datasource import ReadAllAvailable

            return reader.latestOffset(start, ReadAllAvailable())
        return reader.latestOffset(start, reader.getDefaultReadLimit())


class _SimpleEnumerator(_Enumerator):
    """Plans the ranges of a `SimpleDataSourceStreamReader`, which reads the rows of a range when the range is
    planned."""

    def _plan(self, at: _Position) -> tuple[str, list[bytes]]:
        name, start = self._given.name, json.loads(at.offset)
        found = self._call("read", lambda: self._reader.read(start))
        if not isinstance(found, tuple) or len(found) != 2:
            raise UsageError(
                f"read of data source {name!r} returned {type(found).__name__}, and must return a pair",
                hint="read of a simple stream reader returns an iterator of rows, and the offset behind the last row",
            )
        end = self._json(found[1], "read")
        batches = self._call("read", lambda: self._batches(iter(found[0])))
        rows = sum(batch.num_rows for batch in batches)
        if end == at.offset:
            if rows:
                raise UsageError(
                    f"read of data source {name!r} gave {rows} rows behind {at.offset} and the same offset as their "
                    "end, so that the same rows would be read for ever",
                    hint="return the offset behind the last row",
                )
            return end, []
        if not rows:
            return end, []
        split = Split(number=at.ranges, index=0, start=at.offset, end=end, rows=_as_stream(batches))
        return end, [msgspec.msgpack.encode(split)]

    def _batches(self, rows: Iterator[Any]) -> list[pa.RecordBatch]:
        return list(records_to_arrow_batches(rows, _BATCH_ROWS, self._given.struct, self._given.source))


def _splits(name: str, partitions: Sequence[Any], *, number: int, start: str) -> list[bytes]:
    for partition in partitions:
        if not isinstance(partition, InputPartition):
            raise UsageError(
                f"partitions of data source {name!r} returned {partition!r}, which is no InputPartition",
                hint="partitions must return InputPartition objects",
            )
    what = f"a partition of data source {name!r}"
    return [
        msgspec.msgpack.encode(Split(number=number, index=i, start=start, partition=pickled(partition, what=what)))
        for i, partition in enumerate(partitions)
    ]


def _as_stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _no_reader(given: GivenSource, method: str, reader: Any, expected: str) -> UsageError:
    return UsageError(
        f"{method} of data source {given.name!r} returned {type(reader).__name__}",
        hint=f"{method} must return a {expected}",
    )

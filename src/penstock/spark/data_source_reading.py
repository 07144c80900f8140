"""The partitions of a Python Data Source as splits: how a subtask reads them.

A partition is read by `read` of the data source's reader, on a thread, since `read` may block. The loop takes the rows
that have come. The position in a partition is the number of rows that were handed on. After a failure the partition is
read again from its start, and as many rows are left out. This is right only if `read` gives the same rows in the same
order. So the last row that was handed on is compared, and a data source that gives another row is refused.

Rows that the driver has read already, with a simple stream reader, come with the split. These rows are no part of the
snapshot: if they are needed again, `readBetweenOffsets` gives them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from penstock.api.connector import End, Pause, Polled, Source, SourceReader, SplitProgress
from penstock.api.fetching import WAIT_MS, Fetcher, digest_of
from penstock.api.saved_pieces import decoded_piece
from penstock.core.errors import UsageError
from penstock.spark.data_source_calls import calling
from penstock.spark.task_context import as_own_task


class Split(msgspec.Struct, frozen=True, array_like=True):
    """A partition of a planned range of offsets."""

    number: int
    """The number of the range, in the order in which ranges were planned."""
    index: int
    """The number of the partition in its range."""
    start: str
    """The offset at which the range begins, as JSON."""
    partition: bytes = b""
    """The partition, pickled; empty if a simple stream reader is to read up to `end`."""
    end: str = ""
    """The offset at which the range ends, as JSON; empty unless a simple stream reader reads the range."""
    rows: bytes | None = None
    """All rows of the split, as an Arrow stream, if the driver has read them."""
    read: int = 0
    """How many rows have been handed on."""
    last: int | None = None
    """A digest of the last row that was handed on."""


class DataSourceInput(Source):
    """A Python Data Source in a slot, which reads partitions that the driver has planned."""

    def __init__(self, name: str, struct: StructType, schema: pa.Schema, reader: bytes) -> None:
        self._name = name
        self._struct = struct
        self._schema = schema
        self._reader = reader

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "a Python Data Source"

    @property
    def unpickles(self) -> bool:
        """Always: partitions are pickled."""
        return True

    @property
    def name(self) -> str:
        """The name that the data source gives itself."""
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read."""
        return self._schema

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002  # the splits of a stream are planned later
        """No splits: the driver plans splits while the job runs."""
        return []

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these partitions."""
        return _PartitionsReader(self._name, self._struct, self._schema, self._reader, splits)


class DiscoveredInput(DataSourceInput):
    """A Python Data Source whose ranges are planned while the job runs."""

    @property
    def discovers(self) -> bool:
        """Always."""
        return True


class _PartitionsReader(SourceReader):
    """Reads partitions one after another, in the order in which they were planned."""

    def __init__(
        self, name: str, struct: StructType, schema: pa.Schema, reader: bytes, splits: Sequence[bytes]
    ) -> None:
        self._name = name
        self._struct = struct
        self._schema = schema
        self._pickled = reader
        self._waiting = deque(decoded_piece(split, Split, what="a split of a Python Data Source") for split in splits)
        self._open: dict[Hashable, None] = dict.fromkeys(map(_name_of, self._waiting))
        self._current: Hashable = None
        self._turn: _OpenPartition | None = None
        self._ended = 0

    @property
    def splits_read(self) -> int:
        """How many partitions have ended."""
        return self._ended

    def poll(self, max_rows: int, now_ms: int) -> Polled:  # noqa: ARG002  # data sources have no clock
        """The rows of the current partition that have been read and not handed on."""
        while True:
            if self._turn is None:
                if not self._waiting:
                    return End()
                self._turn = _OpenPartition(self._name, self._struct, self._pickled, self._waiting.popleft())
            turn = self._turn
            is_over = turn.is_over
            batch = turn.take(max_rows)
            if batch is not None:
                self._current = _name_of(turn.split)
                return self._checked(batch)
            if not is_over:
                return Pause(WAIT_MS)
            turn.finish()
            del self._open[_name_of(turn.split)]
            self._turn = None
            self._ended += 1

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.schema.equals(self._schema):
            raise UsageError(
                f"read of data source {self._name!r} returned a batch with the columns "
                f"{_columns(batch.schema)}; the schema of the data source is {_columns(self._schema)}",
                hint="Arrow batches are not converted: their columns and types must be those of the schema",
            )
        return batch

    def snapshot(self) -> list[bytes]:
        """The partitions that are not read to their ends. The partition that is being read comes first."""
        begun = [] if self._turn is None else [self._turn.position()]
        waiting = (msgspec.structs.replace(split, rows=None) for split in self._waiting)
        return [msgspec.msgpack.encode(split) for split in (*begun, *waiting)]

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these partitions too."""
        added = [decoded_piece(split, Split, what="a split of a Python Data Source") for split in splits]
        self._waiting += added
        self._open.update(dict.fromkeys(map(_name_of, added)))

    def progress(self) -> SplitProgress:
        """Every partition has an event time of its own, and has rows to be read."""
        return SplitProgress(current=self._current, open=self._open.keys(), ready=self._open.keys())

    def close(self) -> None:
        """Stop reading."""
        if self._turn is not None:
            self._turn.close()
            self._turn = None


class _OpenPartition:
    """A partition that is being read."""

    def __init__(self, name: str, struct: StructType, reader: bytes, split: Split) -> None:
        self.split = split
        self._name = name
        self._struct = struct
        self._skip = split.read
        self._handed_on = split.read
        self._last: pa.RecordBatch | None = None
        self._method = "readBetweenOffsets" if split.end else "read"
        self._reader = reader
        self._fetcher = Fetcher(self._rows, name=name)

    @property
    def is_over(self) -> bool:
        """Whether `read` has ended: no more rows will come."""
        return self._fetcher.has_ended

    def take(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows; None if no rows have come."""
        while (batch := self._next(max_rows)) is not None:
            if self._skip:
                batch = self._behind_position(batch)
            if batch.num_rows:
                self._handed_on += batch.num_rows
                self._last = batch.slice(batch.num_rows - 1)
                return batch
        return None

    def position(self) -> Split:
        """The split with its position: where to go on after a failure."""
        last = self.split.last if self._last is None else digest_of(self._last)
        return msgspec.structs.replace(self.split, rows=None, read=self._handed_on, last=last)

    def finish(self) -> None:
        """Called when the partition has ended. Raises if `read` raised, or if `read` gave fewer rows than before the
        failure."""
        if self._fetcher.error is not None:
            with calling(self._name, self._method):
                raise self._fetcher.error
        if self._skip:
            raise self._differs(f"the partition now ends {self._skip} rows earlier")

    def close(self) -> None:
        """Stop reading."""
        self._fetcher.close()

    def _rows(self) -> Iterator[Any]:
        """The rows, for the thread of the fetcher: the code of the data source runs as in a Spark task of its own."""
        with as_own_task(partition=self.split.index):
            yield from self._found()

    def _found(self) -> Iterable[Any]:
        split = self.split
        if split.rows is not None:
            with pa.ipc.open_stream(split.rows) as stream:
                return list(stream)
        reader = cloudpickle.loads(self._reader)
        if split.end:
            found = reader.readBetweenOffsets(json.loads(split.start), json.loads(split.end))
        else:
            found = reader.read(cloudpickle.loads(split.partition))
        if not isinstance(found, Iterator):
            raise TypeError(f"{self._method} must return an iterator, and returned {type(found).__name__}")
        return found

    def _next(self, max_rows: int) -> pa.RecordBatch | None:
        found = self._fetcher.take(max_rows)
        if not isinstance(found, list):
            return found
        if not found:
            return None
        with calling(self._name, "read"):
            (batch,) = records_to_arrow_batches(iter(found), len(found), self._struct, _Named(self._name))  # type: ignore[arg-type]
        return batch

    def _behind_position(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows < self._skip:
            self._skip -= batch.num_rows
            return batch.slice(batch.num_rows)
        if digest_of(batch.slice(self._skip - 1, 1)) != self.split.last:
            raise self._differs("the last of these rows differs now")
        batch = batch.slice(self._skip)
        self._skip = 0
        return batch

    def _differs(self, how: str) -> UsageError:
        split = self.split
        what = f"between {split.start} and {split.end}" if split.end else f"for {cloudpickle.loads(split.partition)!r}"
        return UsageError(
            f"data source {self._name!r} did not give the same rows again {what}: {split.read} rows were handed on "
            f"before the failure, and {how}",
            hint="read must give the same rows in the same order whenever it is called for the same partition",
        )


class _Named:
    """Stands for a data source where only the name of the data source is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        """The name that the data source gives itself."""
        return self._name


def _name_of(split: Split) -> Hashable:
    return split.number, split.index


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)

"""A Python Data Source's stream writer as a sink.

In every subtask `write` is called once between two barriers, on a thread, with an iterator that ends at the barrier;
its commit message is made durable with the snapshot. On the driver the messages of one barrier are committed by one
call, when a checkpoint that names them is complete:

    message written ──► promised by a completed checkpoint ──► commit called ──► returned-<id> written ──► messages gone

So a commit that has returned is not called again, by no attempt and by no job that starts from a snapshot: its messages
are gone. One whose outcome nobody knows, because it raised or the driver died in it, is called again with the same id
and the same messages. What was prepared and is named by no completed checkpoint after a failure is aborted.

A driver that takes the job over finds the messages in the same folder, and does the same as after any other failure.
Whether this driver still has the job is looked at right before each commit and each abort, and before messages go.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.api.connector import Committer, Footprint, Sink, SinkWriter, Site, WriterContext
from penstock.core.errors import CorruptFile, InvariantError, StorageError, UsageError
from penstock.core.recovery.believing import is_straight
from penstock.spark.arrow_types import to_arrow_schema
from penstock.spark.data_source_calls import GivenSource, calling, lacks, pickled
from penstock.spark.foreach import remove_empty_parents
from penstock.spark.result_places import check_path
from penstock.spark.task_context import as_own_task
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.seals import PLAIN, StoreOptions

BYTES_AHEAD = 16 * 1024 * 1024
"""When so much waits for a `write` that is slower than the stream, the stream waits for it."""

PATIENCE_S = 1.0
"""For so long, before it takes one more batch: the slot must be heard of, however slow a sink is."""

_MESSAGE = re.compile(r"(\d+)-s(\d+)-p(\d+)-e(\d+)")

_CHANGED = "the snapshot was changed, or made to read or delete other files: do not use it"

log = logging.getLogger(__name__)


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a commit message lies."""

    root: str
    path: str


@dataclass(frozen=True, kw_only=True)
class DataSourceSink(Sink):
    """A data source of the user's as it is written into. `fitted` gives it a schema, `placed` a place for messages."""

    source: DataSource = field(compare=False)
    struct: StructType | None = field(default=None, compare=False)
    writer_object: bytes = field(default=b"", compare=False, repr=False)
    root: str | None = field(default=None, compare=False)
    folder: str = field(default="", compare=False)
    options: StoreOptions = field(default=PLAIN, compare=False)
    """How messages are kept."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataSourceSink):
            return NotImplemented
        return type(self.source) is type(other.source) and dict(self.source.options) == dict(other.source.options)

    def __hash__(self) -> int:
        return hash(type(self.source))

    @property
    def name(self) -> str:
        """What the data source calls itself."""
        return self.source.name()

    @property
    def unpickles(self) -> bool:
        """Commit messages are pickled."""
        return True

    def check(self, schema: pa.Schema) -> None:
        """Refuse what Spark has no type for."""
        try:
            to_arrow_schema(from_arrow_schema(schema))
        except Exception as error:
            raise UsageError(f"Spark has no rows with the columns {_columns(schema)}: {error}") from error

    def fitted(self, schema: pa.Schema) -> Sink:
        """Make the writer that goes to the slots. Raises `UsageError` if there is none."""
        given = GivenSource(source=self.source, struct=from_arrow_schema(schema))
        writer = _stream_writer(given)
        what = f"the stream writer of data source {given.name!r}"
        return replace(self, struct=given.struct, writer_object=pickled(writer, what=what))

    def placed(self, root: str, folder: str, options: StoreOptions = PLAIN) -> Sink:
        """With commit messages in this folder of a store."""
        return replace(self, root=root, folder=folder, options=options)

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:  # noqa: ARG002  # it is fitted already
        """With commit messages where they were, or in a folder of the job's."""
        return self.placed(site.landing, site.results(), site.options)

    @property
    def footprint(self) -> Footprint:
        """The folder of the commit messages."""
        return Footprint(place=self.folder, in_landing=True)

    def start(self, job: str) -> None:
        """Make sure that messages can be kept."""
        if self.root is None:
            raise UsageError(f"a data sink needs Spark, and job {job} has none", hint="use another sink here")

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask."""
        if self.root is None or self.struct is None:
            raise InvariantError(f"data sink {self.name} was opened before it had a place and a schema")
        return _Writer(self, self.struct, self.root, context)

    @property
    def commits_on_driver(self) -> bool:
        """Always."""
        return True

    def committer(self) -> Committer:
        """Commits and aborts."""
        if self.root is None or self.struct is None:
            raise InvariantError(f"data sink {self.name} is to commit before it had a place and a schema")
        return _Commits(GivenSource(source=self.source, struct=self.struct), self.root, self.folder, self.options)


def _stream_writer(given: GivenSource) -> DataSourceStreamWriter:
    try:
        writer = given.make("streamWriter", overwrite=False)
    except PySparkNotImplementedError:
        raise lacks(given.name, "streamWriter", hint=_writer_hint(given)) from None
    if not isinstance(writer, DataSourceStreamWriter):
        raise UsageError(
            f"streamWriter of data source {given.name!r} returned {type(writer).__name__}",
            hint="it must return a DataSourceStreamWriter or a DataSourceStreamArrowWriter",
        )
    return writer


def _writer_hint(given: GivenSource) -> str:
    if type(given.source).writer is DataSource.writer:
        return "give it a streamWriter(schema, overwrite) that returns a DataSourceStreamWriter"
    return (
        "its `writer` is for batches, and commits once; give it a streamWriter, or register it with Spark and write "
        f'the DataFrames of for_each_checkpoint by it: frame.write.format("{given.name}").mode("append").save()'
    )


# --- in the slots ----------------------------------------------------------------------------------------------------


class _Writer(SinkWriter):
    """One call of `write` between two barriers; none where there are no records."""

    def __init__(self, sink: DataSourceSink, struct: StructType, root: str, context: WriterContext) -> None:
        self._sink = sink
        self._struct = struct
        self._schema = to_arrow_schema(struct)
        self._store = open_store(root, options=sink.options)
        self._root = root
        self._context = context
        self._open: _WriteCall | None = None
        self._closed: _WriteCall | None = None
        """The one before: if it failed, so does the subtask."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand records to `write`. Waits only if it is slower than the stream for long."""
        self._check()
        if self._open is None:
            self._open = _WriteCall(self._sink, self._struct, self._context)
        if not batch.schema.equals(self._schema):
            batch = pa.RecordBatch.from_arrays(
                [column.cast(kind.type) for column, kind in zip(batch.columns, self._schema, strict=True)],
                schema=self._schema,
            )
        self._open.put(batch)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """End the call's iterator; the work keeps its message."""
        self._check()
        call, self._open = self._open, None
        if call is None:
            return list
        self._closed = call
        call.end()
        context = self._context
        name = f"{checkpoint:020d}-s{context.subtask}-p{context.parallelism}-e{context.epoch}"
        path = f"{self._sink.folder}/{name}"

        def work() -> list[bytes]:
            message = call.message()
            self._store.write(path, message)
            return [msgspec.msgpack.encode(_Place(self._root, path))]

        return work

    def close(self) -> None:
        """Break off the call that is open."""
        for call in (self._open, self._closed):
            if call is not None:
                call.abandon()
        self._open = None

    def _check(self) -> None:
        for call in (self._closed, self._open):
            if call is not None:
                call.check()


class _Abandoned(Exception):
    """What the iterator of a `write` raises whose records will be written again by another attempt."""


class _WriteCall:
    """One call of `write`, on a thread."""

    def __init__(self, sink: DataSourceSink, struct: StructType, context: WriterContext) -> None:
        self._name = sink.name
        self._struct = struct
        self._writer = sink.writer_object
        self._context = context
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._is_whole = False
        self._is_abandoned = False
        self._is_over = False
        self._message = b""
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"penstock-write-{self._name}", daemon=True)
        self._thread.start()

    def put(self, batch: pa.RecordBatch) -> None:
        """One more batch. What `write` does not ask for any more is let go, as it is in Spark."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < BYTES_AHEAD or self._is_over, timeout=PATIENCE_S)
            if not self._is_over:
                self._batches.append(batch)
                self._bytes += batch.nbytes
                self._changed.notify_all()
        self.check()

    def end(self) -> None:
        """Nothing will follow."""
        with self._changed:
            self._is_whole = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Have the iterator raise, so that `write` ends. If it is blocked elsewhere its process is not used again."""
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what `write` raised."""
        if self._error is not None:
            with calling(self._name, "write"):
                raise self._error

    def message(self) -> bytes:
        """Wait for what `write` returns."""
        self._thread.join()
        self.check()
        return self._message

    def _run(self) -> None:
        try:
            with as_own_task(partition=self._context.subtask, attempt=self._context.epoch - 1):
                self._message = self._written()
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever writes
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._batches.clear()
                self._changed.notify_all()

    def _written(self) -> bytes:
        # A fresh one for every call, as in Spark: nothing but the message is kept from one to the next.
        writer = cloudpickle.loads(self._writer)
        found = writer.write(self._arrow() if isinstance(writer, DataSourceStreamArrowWriter) else self._rows())
        if not isinstance(found, WriterCommitMessage):
            raise TypeError(f"write must return a WriterCommitMessage, and returned {type(found).__name__}")
        return pickled(found, what=f"the commit message of data source {self._name!r}")

    def _arrow(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._next()) is not None:
            yield batch

    def _rows(self) -> Iterator[Any]:
        for batch in self._arrow():
            yield from ArrowTableToRowsConversion.convert(pa.Table.from_batches([batch]), self._struct)

    def _next(self) -> pa.RecordBatch | None:
        with self._changed:
            while not self._batches and not self._is_whole and not self._is_abandoned:
                self._changed.wait()
            if self._is_abandoned:
                raise _Abandoned("the attempt of the job is over")
            if not self._batches:
                return None
            batch = self._batches.popleft()
            self._bytes -= batch.nbytes
            self._changed.notify_all()
            return batch


# --- on the driver ---------------------------------------------------------------------------------------------------


class _Commits(Committer):
    """Calls `commit` and `abort`, each on a writer of its own, as Spark does."""

    def __init__(self, given: GivenSource, root: str, folder: str, options: StoreOptions) -> None:
        self._given = given
        self._options = options
        self._root = root
        self._folder = folder

    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Commit the messages of a barrier, unless that has been done."""
        places = [msgspec.msgpack.decode(part, type=_Place) for part in committables]
        # They may be those of another job, that this one goes on from.
        folder = _folder_of(places)
        store = open_store(places[0].root, options=self._options)
        returned = f"{folder}/returned-{checkpoint}"
        known = set(store.list_files(folder))
        there = [place.path for place in places if place.path in known]
        if there and returned not in known:
            if len(there) < len(places):
                raise StorageError(
                    f"{len(places) - len(there)} of {len(places)} commit messages of checkpoint {checkpoint} are "
                    f"missing in {places[0].root}/{folder}",
                    hint="they were deleted by hand; restore from a newer snapshot",
                )
            messages = [cloudpickle.loads(store.read(path)) for path in there]
            with calling(self._given.name, "streamWriter"):
                writer = _stream_writer(self._given)
            self.hold.check()
            with calling(self._given.name, "commit"):
                writer.commit(messages, checkpoint)
            self.hold.check_unless_unknown()
            store.write(returned, b"")
        self.hold.check()
        for path in (*there, returned):
            store.delete(path)

    def abandon(self, checkpoint: int, promised: Sequence[bytes]) -> None:
        """Abort what no completed checkpoint names, one call per barrier."""
        store = open_store(self._root, options=self._options)
        kept = {msgspec.msgpack.decode(part, type=_Place).path for part in promised}
        groups: dict[int, list[str]] = {}
        for path in store.list_files(self._folder):
            named = _MESSAGE.fullmatch(path.rpartition("/")[2])
            if named is not None and path not in kept and int(named[1]) <= checkpoint:
                groups.setdefault(int(named[1]), []).append(path)
        for number, paths in groups.items():
            messages = [cloudpickle.loads(store.read(path)) for path in paths]
            self.hold.check()
            try:
                _stream_writer(self._given).abort(messages, number)
            except BaseException as error:  # noqa: BLE001  # nothing can be done about it, and the job goes on
                extra = {"data_source": self._given.name, "checkpoint": number, "error": repr(error)}
                text = (
                    "data source %r could not abort what was written up to checkpoint %d and will not be committed: %r"
                )
                log.warning(text, self._given.name, number, error, extra=extra)
            self.hold.check_unless_unknown()
            for path in paths:
                store.delete(path)

    def close(self, *, owes: bool) -> None:
        """Remove the folder, unless another job may have to go on with what is in it."""
        store = open_store(self._root, options=self._options)
        if owes or any(_MESSAGE.fullmatch(path.rpartition("/")[2]) for path in store.list_files(self._folder)):
            return
        store.delete_tree(self._folder)
        if isinstance(store, FileStore):
            remove_empty_parents(Path(store.location, self._folder))


def _folder_of(places: Sequence[_Place]) -> str:
    """The one folder that commit messages lie in. Raises `CorruptFile` if there is a place where none is kept."""
    first = places[0]
    for place in places:
        if check_path(place.path, lambda name: _MESSAGE.fullmatch(name) is not None) != _parent(first.path):
            raise CorruptFile(f"the snapshot has commit messages in {first.path!r} and {place.path!r}", hint=_CHANGED)
        if place.root != first.root or not is_straight(place.root):
            raise CorruptFile(f"the snapshot has commit messages in {place.root!r}", hint=_CHANGED)
    return _parent(first.path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)

"""A Python Data Source's stream writer as a sink.

In every subtask `write` is called once between two barriers, on a thread, with an iterator that ends at the second
barrier. The commit message that `write` returns is made durable with the snapshot. On the driver one call of `commit`
commits all messages of a barrier, when a checkpoint that names the messages is complete:

    message written ──► promised by a completed checkpoint ──► commit called ──► returned-<id> written ──► messages gone

So a `commit` that has returned is not called again, by no attempt and by no job that starts from a snapshot: its
messages are gone. A `commit` that has raised, or in which the driver died, is called again with the same id and the
same messages. After a failure, messages that no completed checkpoint names are aborted.

A driver that takes the job over finds the messages in the same folder, and does the same as after any other failure.
The hold is looked at right before each commit and each abort, and before messages are deleted.
"""

from __future__ import annotations

import logging
import re
import sys
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
from penstock.api.saved_pieces import decoded_piece
from penstock.core.errors import CorruptFile, InvariantError, StorageError, UsageError
from penstock.core.ids import JobId
from penstock.core.recovery import layout
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
"""When batches of this many bytes wait for a `write` that is slower than the stream, the stream waits for `write`."""

PATIENCE_S = 1.0
"""How long the stream waits before it hands over one more batch all the same. The slot's loop must not stand still for
longer, however slow a sink is."""

_MESSAGE = re.compile(r"(\d+)-s(\d+)-p(\d+)-e(\d+)")

_CHANGED = "the snapshot was changed, or made in order to read or delete other files: do not use this snapshot"

log = logging.getLogger(__name__)


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a commit message lies."""

    root: str
    path: str


@dataclass(frozen=True, kw_only=True)
class DataSourceSink(Sink):
    """A data source of the user as a sink. `fitted` gives the sink a schema, `placed` a place for commit messages."""

    source: DataSource = field(compare=False)
    struct: StructType | None = field(default=None, compare=False)
    writer_object: bytes = field(default=b"", compare=False, repr=False)
    root: str | None = field(default=None, compare=False)
    folder: str = field(default="", compare=False)
    options: StoreOptions = field(default=PLAIN, compare=False)
    """How commit messages are written and read."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataSourceSink):
            return NotImplemented
        return type(self.source) is type(other.source) and dict(self.source.options) == dict(other.source.options)

    def __hash__(self) -> int:
        return hash(type(self.source))

    @property
    def saved_as(self) -> str:
        """The form of the committables."""
        return "a sink of a Python Data Source"

    @property
    def name(self) -> str:
        """The name that the data source gives itself."""
        return self.source.name()

    @property
    def unpickles(self) -> bool:
        """Always: commit messages are pickled."""
        return True

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if Spark has no type for a column."""
        try:
            to_arrow_schema(from_arrow_schema(schema))
        except Exception as error:
            raise UsageError(f"Spark cannot have rows with the columns {_columns(schema)}: {error}") from error

    def fitted(self, schema: pa.Schema) -> Sink:
        """The same sink, with a schema and with the writer that is sent to the slots. Raises `UsageError` if the data
        source has no stream writer."""
        given = GivenSource(source=self.source, struct=from_arrow_schema(schema))
        writer = _stream_writer(given)
        what = f"the stream writer of data source {given.name!r}"
        return replace(self, struct=given.struct, writer_object=pickled(writer, what=what))

    def placed(self, root: str, folder: str, options: StoreOptions = PLAIN) -> Sink:
        """The same sink, with its commit messages in the folder `folder` of the store at `root`."""
        return replace(self, root=root, folder=folder, options=options)

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:  # noqa: ARG002  # `fitted` has set the schema
        """The same sink, with its commit messages in the folder on record, or in a folder of the job."""
        return self.placed(site.landing, site.results(), site.options)

    @property
    def footprint(self) -> Footprint:
        """The folder of the commit messages."""
        return Footprint(place=self.folder, in_landing=True)

    def start(self, job: str) -> None:
        """Raise `UsageError` if there is no place for commit messages."""
        if self.root is None:
            raise UsageError(
                f"a data sink needs Spark, and job {job} does not run on Spark", hint="use another sink in this job"
            )

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask."""
        if self.root is None or self.struct is None:
            raise InvariantError(f"data sink {self.name} was opened before the sink had a place and a schema")
        return _Writer(self, self.struct, self.root, context)

    @property
    def commits_on_driver(self) -> bool:
        """Always."""
        return True

    def end(self, job: str) -> None:
        """If `job` is an earlier job that will never go on: abort what that job prepared and did not commit. The
        committer does this for the job of the sink itself."""
        left = layout.results_of_job(layout.job_folder(JobId(job)))
        _, own, operator, *_ = self.folder.split("/")
        if self.root is not None and self.struct is not None and f"{layout.RESULTS}/{own}" != left:
            given = GivenSource(source=self.source, struct=self.struct)
            _Commits(given, self.root, f"{left}/{operator}", self.options).abandon(sys.maxsize, ())

    def committer(self) -> Committer:
        """The committer, which calls `commit` and `abort`."""
        if self.root is None or self.struct is None:
            raise InvariantError(f"data sink {self.name} is to commit before the sink had a place and a schema")
        return _Commits(GivenSource(source=self.source, struct=self.struct), self.root, self.folder, self.options)


def _stream_writer(given: GivenSource) -> DataSourceStreamWriter:
    try:
        writer = given.make("streamWriter", overwrite=False)
    except PySparkNotImplementedError:
        raise lacks(given.name, "streamWriter", hint=_writer_hint(given)) from None
    if not isinstance(writer, DataSourceStreamWriter):
        raise UsageError(
            f"streamWriter of data source {given.name!r} returned {type(writer).__name__}",
            hint="streamWriter must return a DataSourceStreamWriter or a DataSourceStreamArrowWriter",
        )
    return writer


def _writer_hint(given: GivenSource) -> str:
    if type(given.source).writer is DataSource.writer:
        return "give the class a method streamWriter(schema, overwrite) that returns a DataSourceStreamWriter"
    return (
        "the class has a `writer`, which is for batches and commits once; give the class a streamWriter, or register "
        "the class with Spark and write the DataFrames of for_each_checkpoint: "
        f'frame.write.format("{given.name}").mode("append").save()'
    )


# --- in the slots ----------------------------------------------------------------------------------------------------


class _Writer(SinkWriter):
    """Makes one call of `write` between two barriers, and no call if there are no records."""

    def __init__(self, sink: DataSourceSink, struct: StructType, root: str, context: WriterContext) -> None:
        self._sink = sink
        self._struct = struct
        self._schema = to_arrow_schema(struct)
        self._store = open_store(root, options=sink.options)
        self._root = root
        self._context = context
        self._open: _WriteCall | None = None
        self._closed: _WriteCall | None = None
        """The call of `write` before the open call: if that call has failed, the subtask fails."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand records to `write`. Blocks, for a bounded time, only if `write` is slower than the stream for long."""
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
        """End the iterator of the call. The returned work makes the commit message of the call durable."""
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
        """Break off the calls of `write` that have not ended."""
        for call in (self._open, self._closed):
            if call is not None:
                call.abandon()
        self._open = None

    def _check(self) -> None:
        for call in (self._closed, self._open):
            if call is not None:
                call.check()


class _Abandoned(Exception):
    """Raised by the iterator of a `write` whose records another attempt will write again."""


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
        """Hand over one more batch. If `write` has ended, the batch is dropped, as in Spark."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < BYTES_AHEAD or self._is_over, timeout=PATIENCE_S)
            if not self._is_over:
                self._batches.append(batch)
                self._bytes += batch.nbytes
                self._changed.notify_all()
        self.check()

    def end(self) -> None:
        """Have the iterator end behind the last batch."""
        with self._changed:
            self._is_whole = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Have the iterator raise, so that `write` ends. If `write` is blocked elsewhere, Spark does not use the
        process again."""
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what `write` raised."""
        if self._error is not None:
            with calling(self._name, "write"):
                raise self._error

    def message(self) -> bytes:
        """The pickled commit message. Blocks until `write` has returned, and raises what `write` raised."""
        self._thread.join()
        self.check()
        return self._message

    def _run(self) -> None:
        try:
            with as_own_task(partition=self._context.subtask, attempt=self._context.epoch - 1):
                self._message = self._written()
        except BaseException as error:  # noqa: BLE001  # `check` raises the error in the subtask
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._batches.clear()
                self._changed.notify_all()

    def _written(self) -> bytes:
        # Every call has a writer object of its own, as in Spark: an object that keeps something from one call to the
        # next would not work after a failure.
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
    """Calls `commit` and `abort`, each on a writer object of its own, as Spark does."""

    def __init__(self, given: GivenSource, root: str, folder: str, options: StoreOptions) -> None:
        self._given = given
        self._options = options
        self._root = root
        self._folder = folder

    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Commit the messages of a barrier, unless a `commit` with these messages has returned."""
        places = [decoded_piece(part, _Place, what="a commit message of a Python Data Source") for part in committables]
        # The messages may lie in the folder of another job, if this job was started from a snapshot of that job.
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
                    hint="the messages were deleted by hand; restore from a newer snapshot",
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
        """Abort the messages that no completed checkpoint names, with one call of `abort` per barrier. Messages whose
        `commit` has returned are not aborted."""
        store = open_store(self._root, options=self._options)
        kept = {decoded_piece(part, _Place, what="a commit message of a Python Data Source").path for part in promised}
        groups: dict[tuple[str, int], list[str]] = {}
        found = store.list_files(self._folder)
        for path in found:
            named = _MESSAGE.fullmatch(path.rpartition("/")[2])
            if named is not None and path not in kept and int(named[1]) <= checkpoint:
                groups.setdefault((_parent(path), int(named[1])), []).append(path)
        for (folder, number), paths in groups.items():
            if f"{folder}/returned-{number}" not in found:
                self._abort(number, [cloudpickle.loads(store.read(path)) for path in paths])
            for path in paths:
                store.delete(path)

    def _abort(self, number: int, messages: list[Any]) -> None:
        self.hold.check()
        try:
            _stream_writer(self._given).abort(messages, number)
        except BaseException as error:  # noqa: BLE001  # an abort is a courtesy: the job goes on without it
            extra = {"data_source": self._given.name, "checkpoint": number, "error": repr(error)}
            text = "data source %r could not abort the records up to checkpoint %d, which will not be committed: %r"
            log.warning(text, self._given.name, number, error, extra=extra)
        self.hold.check_unless_unknown()

    def close(self, *, owes: bool) -> None:
        """Remove the folder of the messages, unless another job may have to commit messages that are in the folder."""
        store = open_store(self._root, options=self._options)
        if owes or any(_MESSAGE.fullmatch(path.rpartition("/")[2]) for path in store.list_files(self._folder)):
            return
        store.delete_tree(self._folder)
        if isinstance(store, FileStore):
            remove_empty_parents(Path(store.location, self._folder))


def _folder_of(places: Sequence[_Place]) -> str:
    """The folder in which all these commit messages lie. Raises `CorruptFile` if they lie in several folders, or if a
    place is not one in which sinks keep commit messages."""
    first = places[0]
    for place in places:
        if check_path(place.path, lambda name: _MESSAGE.fullmatch(name) is not None) != _parent(first.path):
            raise CorruptFile(
                f"the snapshot has commit messages in two folders, {first.path!r} and {place.path!r}", hint=_CHANGED
            )
        if place.root != first.root or not is_straight(place.root):
            raise CorruptFile(
                f"the snapshot has commit messages in {place.root!r}, where no sink keeps messages", hint=_CHANGED
            )
    return _parent(first.path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)

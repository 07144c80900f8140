"""A sink that keeps committed rows in the memory of the driver.

Each subtask puts the rows of a transaction into the checkpoint itself. When the checkpoint is complete, the driver
finds the rows of all subtasks in the checkpoint's metadata, and keeps them. So nothing but the checkpoint has to be
shared between hosts, and rows become visible exactly once, with their checkpoint.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.arrow_bounds import NOT_ARROW, check_size, check_types, unpacked_bytes
from penstock.api.boundary import at_user_line
from penstock.api.changelog import Changelog
from penstock.api.connector import Committer, Sink, SinkWriter, Site, WriterContext
from penstock.api.table_of_changes import table_of_changes
from penstock.core.errors import CorruptFile, UsageError
from penstock.sql.python_values import table_rows

if TYPE_CHECKING:
    import polars as pl

LIMIT = 1_000_000
"""How many rows a sink keeps, unless the user says otherwise."""

_UNPACKED_BYTES, _UNPACKED_TIMES = 64 * 1024 * 1024, 255
"""Earlier versions wrote rows compressed. What a checkpoint has of such rows may have so many bytes, or so many times
its own bytes, when it is unpacked. More is refused, since it might be made to fill the memory of the driver."""

log = logging.getLogger(__name__)


def collect(*, limit: int = LIMIT) -> CollectSink:
    """A sink that keeps its rows in the memory of this process, where the program is written.

    `rows` has the rows of completed checkpoints, each once, while the job runs and after. They are the rows that this
    process has committed: a job that goes on from a checkpoint of an earlier run does not bring back the rows of that
    run. For tests, notebooks and small results; write large results to files. It works in `penstock.testing`, too.

    Of a changelog `rows` has the rows as they are after all changes, and `changes` has the changes themselves.

    >>> import penstock as ps
    >>> from penstock.testing import run, scripted
    >>> sink = ps.collect()
    >>> rows = run(lambda env: env.read(scripted([{"n": 1}, {"n": 2}], schema="n bigint")).where("n > 1").write(sink))
    >>> sink.rows
    [{'n': 2}]

    Args:
        limit: the job fails when there are more rows than this. Every change of a changelog counts as a row.

    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UsageError(f"limit is {limit!r}; give the number of rows to keep at most")
    return CollectSink(limit)


class _SlotPart(Sink):
    """The part of the sink that slots have: it puts rows into checkpoints."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    @property
    def saved_as(self) -> str:
        """The form of the committables."""
        return "a sink of rows in the driver"

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "collect"

    @property
    def commits_on_driver(self) -> bool:
        """Always: the rows are kept there."""
        return True

    def writer(self, context: WriterContext) -> SinkWriter:  # noqa: ARG002  # all subtasks do the same
        """A writer for one subtask."""
        return _RowWriter(self.limit)


@at_user_line
class CollectSink(_SlotPart):
    """The sink that `collect` makes. Slots get only the part that puts rows into checkpoints."""

    def __init__(self, limit: int = LIMIT) -> None:
        super().__init__(limit)
        self._kept = _Kept(limit)
        self._changelog: Changelog | None = None

    def __reduce__(self) -> tuple[Callable[..., Sink], tuple[Any, ...]]:
        return _SlotPart, (self.limit,)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The committed rows as dicts, in the order of their checkpoints. Rows of one checkpoint come subtask by
        subtask. Of a changelog: the rows after all committed changes."""
        return table_rows(self.to_arrow())

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The committed changes of a changelog as dicts, with their `row_kind`, in the order of their checkpoints. Of
        any other stream: its rows."""
        return table_rows(self._kept.table())

    def to_arrow(self) -> pa.Table:
        """The committed rows as an Arrow table. Of a changelog: the rows after all committed changes."""
        found = self._kept.table()
        return found if self._changelog is None else table_of_changes(found, self._changelog)

    def to_polars(self) -> pl.DataFrame:
        """The committed rows as a Polars DataFrame."""
        import polars as pl

        return pl.DataFrame(pl.from_arrow(self.to_arrow()))

    def to_pandas(self) -> Any:
        """The committed rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def __len__(self) -> int:
        """How many rows are committed."""
        return self.to_arrow().num_rows

    def __bool__(self) -> bool:
        """Always true: a sink without rows is a sink."""
        return True

    def __repr__(self) -> str:
        return f"<collect(limit={self.limit}), {self._kept.described()}>"

    # --- what a job asks -------------------------------------------------------------------------

    def for_changes(self, changelog: Changelog) -> Sink:
        """The same sink, which has the rows after all changes."""
        self._changelog = changelog
        return self

    def fitted(self, schema: pa.Schema) -> Sink:
        """The same sink, which knows the columns of its rows."""
        self._kept.schema = schema
        return self

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:  # noqa: ARG002  # `fitted` has the schema
        """The same sink. Says so if rows that an earlier run has committed will be missing."""
        if not site.begins and not self._kept.is_of(site.job):
            log.warning(
                "job %s goes on from a checkpoint: rows that were committed before are not in this process, and "
                "collect() will not have them (env.run(..., fresh=True) starts over)",
                site.job,
            )
        return self

    def start(self, job: str) -> None:
        """Let go of the rows of another job."""
        self._kept.begin(job)

    def committer(self) -> Committer:
        """The committer, which keeps rows."""
        return _Keeping(self._kept)


class _Kept:
    """The rows of one job, by the checkpoints that they were committed with. The job's threads and the user's threads
    use it."""

    def __init__(self, limit: int) -> None:
        self.schema: pa.Schema | None = None
        self._limit = limit
        self._lock = threading.Lock()
        self._job: str | None = None
        self._tables: dict[int, pa.Table] = {}

    def is_of(self, job: str) -> bool:
        """Whether the rows are of this job."""
        return self._job == job

    def begin(self, job: str) -> None:
        """A job starts. A job that goes on, in this process, keeps its rows: they will not be committed again."""
        with self._lock:
            if self._job != job:
                self._job, self._tables = job, {}

    def keep(self, checkpoint: int, found: pa.Table) -> None:
        """Keep the rows of a checkpoint; the same rows again if the commit is made again. Raises `UsageError` if there
        are too many rows."""
        with self._lock:
            tables = {**self._tables, checkpoint: found}
            if sum(table.num_rows for table in tables.values()) > self._limit:
                raise too_many_rows(self._limit)
            self._tables = tables

    def table(self) -> pa.Table:
        """All rows. Raises `UsageError` if no job was started."""
        with self._lock:
            job, schema = self._job, self.schema
            tables = [self._tables[checkpoint] for checkpoint in sorted(self._tables)]
        if job is None or schema is None:
            raise UsageError(
                "nothing has been run with this sink yet",
                hint="read its rows when the job has started; a job that had come to its end in an earlier run commits "
                "nothing, and starts over with env.run(..., fresh=True)",
            )
        return pa.concat_tables([schema.empty_table(), *tables])

    def described(self) -> str:
        """How many rows there are, in words."""
        with self._lock:
            count = sum(table.num_rows for table in self._tables.values())
            return "not run yet" if self._job is None else f"{count} rows"


class _Keeping(Committer):
    """Keeps the rows of all subtasks."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept

    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Keep the rows that the subtasks put into a checkpoint. The same call again changes nothing."""
        found = _decoded(committables, self._kept.schema)
        if found:
            self._kept.keep(checkpoint, pa.concat_tables(found))


class _RowWriter(SinkWriter):
    """Buffers the rows of the open transaction."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Buffer a batch. Raises `UsageError` if this transaction alone has too many rows: the driver would refuse it,
        and memory must not fill up until then."""
        self._rows += batch.num_rows
        if self._rows > self._limit:
            raise too_many_rows(self._limit)
        self._batches.append(batch)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:  # noqa: ARG002  # the checkpoint has the rows
        """Close the transaction. The returned work makes its rows a part of the checkpoint."""
        batches, self._batches, self._rows = self._batches, [], 0
        return lambda: [_encoded(batches)] if batches else []


def too_many_rows(limit: int) -> UsageError:
    """The error of a stream that has more rows than are to be kept."""
    return UsageError(
        f"collect keeps at most {limit:,} rows in the memory of the driver, and the stream has more",
        hint="write the stream to files, such as ps.parquet(...); or aggregate before; or raise the limit",
    )


def _encoded(batches: Sequence[pa.RecordBatch]) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue().to_pybytes()


def _decoded(committables: Sequence[bytes], schema: pa.Schema | None) -> list[pa.Table]:
    """The rows of the subtasks, one table for each. Raises `CorruptFile`, and `UsageError` if the rows are not of the
    schema."""
    try:
        buffers = [pa.py_buffer(committable) for committable in committables]
        sizes = [unpacked_bytes(buffer) for buffer in buffers]
        stored = sum(map(len, committables))
        if sum(sizes) > max(_UNPACKED_BYTES, _UNPACKED_TIMES * stored):
            raise ValueError(f"{stored} bytes of the snapshot would become {sum(sizes)} bytes in memory")
        return [_table(buffer, size, schema) for buffer, size in zip(buffers, sizes, strict=True)]
    except UsageError:
        raise
    except NOT_ARROW as error:
        raise CorruptFile(
            f"the rows that a snapshot has for collect cannot be read: {error}",
            hint="the snapshot was changed, or the step was another sink then: do not use this snapshot",
        ) from error


def _table(data: pa.Buffer, size: int, schema: pa.Schema | None) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        if schema is None:
            check_types(reader.schema)
        else:
            _check_schema(reader.schema, schema)
        table = reader.read_all()
    table.validate(full=True)
    check_size(table, size)
    return table if schema is None or table.schema.equals(schema) else table.cast(schema)


def _check_schema(found: pa.Schema, schema: pa.Schema) -> None:
    if found.names != schema.names or found.types != schema.types:
        raise UsageError(
            f"the snapshot has rows for collect with the columns {', '.join(found.names)}, and the stream has other "
            f"columns or types: {', '.join(schema.names)}",
            hint="start over with fresh=True, or let the program that took the snapshot finish first",
        )

"""A sink of Parquet files that appear when their checkpoint completes.

Records are buffered, and written off the loop to files below `_penstock/`, which Spark and other readers of a folder
pass over. A commit renames them into the folder itself: whoever reads it sees whole files of completed checkpoints, and
nothing else.

    <path>/_penstock/<job>/s<subtask>-p<parallelism>-e<epoch>-<number>.parquet      written, not visible
    <path>/part-<job>-<subtask>-<checkpoint>-<number>.parquet                       committed
    <path>/<column>=<value>/part-...                                                committed, with `partition_by`

The final name is chosen when the file is prepared, such that it does not exist, and travels in the checkpoint. So a
commit that is done again finds the first name gone and the final one there, and does nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.api.connector import Sink, SinkWriter, WriterContext
from penstock.connectors.partitions import by_partition, check_partitions
from penstock.core.errors import StorageError, UsageError

BUFFER_BYTES = 64 * 1024 * 1024
"""Records of one checkpoint beyond this are written as files of their own, before the checkpoint comes."""

_STAGING = "_penstock"
_STAGED = re.compile(r"s(\d+)-p(\d+)-e(\d+)-(\d+)(?:\.\d+)?\.parquet")


def parquet(path: str | Path, *, partition_by: str | Sequence[str] = ()) -> ParquetSink:
    """A folder of Parquet files on a file system that every slot can reach. It is made if it does not exist; what is
    there already stays.

    Args:
        path: of the folder.
        partition_by: columns of few values, for each of which the records go into a folder of their own,
            `column=value`, as Spark's `partitionBy` does. Every subtask writes a file for each of them that it has
            records of, with every checkpoint.

    """
    return ParquetSink(path=local_path(path), partition_by=as_columns(partition_by))


def as_columns(given: str | Sequence[str]) -> tuple[str, ...]:
    """The columns to partition by. Raises `UsageError` if one is there twice."""
    columns = (given,) if isinstance(given, str) else tuple(given)
    for column in columns:
        if not isinstance(column, str) or columns.count(column) > 1:
            raise UsageError(f"partition_by is {given!r}", hint="give names of columns, each once")
    return columns


def local_path(path: str | Path) -> str:
    """The absolute path of a local file or folder. Raises `UsageError` for an address of another file system."""
    text = str(path)
    if "://" in text:
        scheme, rest = text.split("://", 1)
        if scheme != "file":
            raise UsageError(f"path {text!r} is not a local path", hint="use a folder that every slot can reach")
        text = rest
    return str(Path(text).absolute())


class _Prepared(msgspec.Struct, frozen=True, array_like=True):
    """A file to be committed: both names are below the sink's folder."""

    staged: str
    final: str


@dataclass(frozen=True, kw_only=True)
class ParquetSink(Sink):
    """The sink that `parquet` makes."""

    path: str
    partition_by: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """What the step is called."""
        return "parquet"

    def check(self, schema: pa.Schema) -> None:
        """Refuse what Spark could not read back."""
        for column in schema:
            if isinstance(column.type, pa.TimestampType) and column.type.unit == "ns":
                raise UsageError(
                    f"column {column.name!r} of type {column.type} cannot be written for Spark to read",
                    hint="cast it to a timestamp of microseconds",
                )
            if pt.is_null(column.type):
                raise UsageError(f"column {column.name!r} has no type, only nulls", hint="cast it to what it should be")
        check_partitions(schema, self.partition_by)

    def start(self, job: str) -> None:
        """Make the folder, and make sure that it can be written."""
        folder = Path(self.path)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"output {self.path!r} is a file, a folder is needed")
        staging = self._staging(job)
        probe = staging / ".probe"
        try:
            staging.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UsageError(
                f"output {self.path!r} cannot be written: {error.strerror}",
                hint="choose another path, or give this user the right to write there",
            ) from error

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask."""
        return _ParquetWriter(Path(self.path), self._staging(context.job), context, self.partition_by)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Rename prepared files to their final names; those that have them already are done."""
        publish_files(Path(self.path), committables)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Remove files that earlier attempts of this subtask wrote and did not get to commit."""
        kept = {staged_file(part) for part in keep}
        for file in self.left_by_earlier(context):
            if str(file.relative_to(self.path)) not in kept:
                file.unlink(missing_ok=True)

    def left_by_earlier(self, context: WriterContext) -> list[Path]:
        """Files that earlier attempts of this subtask wrote; those that a checkpoint promises to commit included."""
        own = (context.subtask, context.parallelism)
        # At another parallelism the checkpoint's files were dealt out anew: one that this subtask of then wrote may be
        # another subtask's to commit, now.
        return [file for file, writer in staged_before(self._staging(context.job), context.epoch) if writer == own]

    def end(self, job: str) -> None:
        """Remove the folder of files that were not committed."""
        staging = self._staging(job)
        if not staging.is_dir():
            return
        for file in staging.iterdir():
            file.unlink(missing_ok=True)
        staging.rmdir()
        if not any(staging.parent.iterdir()):
            staging.parent.rmdir()

    def _staging(self, job: str) -> Path:
        return Path(self.path) / _STAGING / _file_name(job)


def staged_before(staging: Path, epoch: int) -> list[tuple[Path, tuple[int, int]]]:
    """Files in a staging folder that attempts before `epoch` wrote, each with the subtask that did, and of how many."""
    found: list[tuple[Path, tuple[int, int]]] = []
    for file in sorted(staging.glob("*.parquet")) if staging.is_dir() else []:
        named = _STAGED.fullmatch(file.name)
        if named is not None and int(named[3]) < epoch:
            found.append((file, (int(named[1]), int(named[2]))))
    return found


def staged_file(committable: bytes) -> str:
    """Where a prepared file lies, below the sink's folder."""
    return msgspec.msgpack.decode(committable, type=_Prepared).staged


def final_folder(committable: bytes) -> str:
    """The folder that a prepared file is for, below the sink's; `.` for that itself."""
    return str(Path(msgspec.msgpack.decode(committable, type=_Prepared).final).parent)


class _Chunk:
    """Records that go into one file, or into one for each partition."""

    def __init__(self, file: Path, batches: list[pa.RecordBatch], partition_by: tuple[str, ...]) -> None:
        self._file = file
        self._batches = batches
        self._partition_by = partition_by
        self.parts: list[tuple[Path, str]] = []
        """What was written: each file, and the folder that it is for."""
        self._written = False

    def write(self) -> None:
        """Make the files durable and let go of the records. Does nothing the second time; may be tried again if it
        raised."""
        if self._written:
            return
        table = pa.Table.from_batches(self._batches)
        self.parts = []
        if self._partition_by:
            for number, (folder, rows) in enumerate(by_partition(table, self._partition_by)):
                self._write(self._file.with_suffix(f".{number}.parquet"), rows, f"{folder}/")
        else:
            self._write(self._file, table, "")
        self._written = True
        self._batches = []

    def _write(self, file: Path, rows: pa.Table, folder: str) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as out:
                pq.write_table(rows, out)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise StorageError(f"{file} could not be written: {error}") from error
        self.parts.append((file, folder))


class _ParquetWriter(SinkWriter):
    """Buffers the open transaction; writes early what would take too much memory."""

    def __init__(self, folder: Path, staging: Path, context: WriterContext, partition_by: tuple[str, ...]) -> None:
        self._folder = folder
        self._staging = staging
        self._context = context
        self._partition_by = partition_by
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._chunks: list[_Chunk] = []
        self._files = 0
        self._thread: ThreadPoolExecutor | None = None
        self._early: Future[None] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Buffer a batch. Waits only if the buffer fills faster than the file system takes it."""
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= BUFFER_BYTES:
            chunk = self._cut()
            self._wait()
            if self._thread is None:
                self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-parquet")
            self._early = self._thread.submit(chunk.write)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the transaction; the work makes its files durable and chooses their final names."""
        if self._batches:
            self._cut()
        chunks, early = self._chunks, self._early
        self._chunks, self._early = [], None

        def work() -> list[bytes]:
            if early is not None:
                # Its error, if any, comes again when the file is tried again below.
                early.exception()
            for chunk in chunks:
                chunk.write()
            if chunks:
                _sync_folder(self._staging)
            return self._prepared(checkpoint, chunks)

        return work

    def close(self) -> None:
        """Abandon the open transaction; its files are removed by the next attempt, or when the job ends."""
        self._batches, self._chunks = [], []
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None

    def _cut(self) -> _Chunk:
        context = self._context
        name = f"s{context.subtask}-p{context.parallelism}-e{context.epoch}-{self._files}.parquet"
        chunk = _Chunk(self._staging / name, self._batches, self._partition_by)
        self._files += 1
        self._chunks.append(chunk)
        self._batches, self._bytes = [], 0
        return chunk

    def _wait(self) -> None:
        if self._early is not None:
            self._early.result()

    def _prepared(self, checkpoint: int, chunks: Sequence[_Chunk]) -> list[bytes]:
        job, subtask = _file_name(self._context.job), self._context.subtask
        found: list[bytes] = []
        number = 0
        for file, place in (part for chunk in chunks for part in chunk.parts):
            # A job that was restored from an older checkpoint counts the same checkpoints again: their files stay.
            while (self._folder / (final := f"{place}part-{job}-{subtask}-{checkpoint}-{number}.parquet")).exists():
                number += 1
            number += 1
            staged = str(file.relative_to(self._folder))
            found.append(msgspec.msgpack.encode(_Prepared(staged, final)))
        return found


def publish_files(folder: Path, committables: Sequence[bytes], before_each: Callable[[], None] = lambda: None) -> None:
    """Give prepared files their final names, durably; `before_each` may raise, and then no more of them get theirs."""
    touched: dict[Path, None] = {}
    for committable in committables:
        before_each()
        place = _publish(folder, msgspec.msgpack.decode(committable, type=_Prepared))
        touched |= dict.fromkeys(above for above in (place, *place.parents) if above.is_relative_to(folder))
    for place in touched or (folder,):
        _sync_folder(place)


def _publish(folder: Path, prepared: _Prepared) -> Path:
    """Give a prepared file its final name; the folder that it is in."""
    staged, final = folder / prepared.staged, folder / prepared.final
    if staged.exists() and final.exists():
        raise StorageError(
            f"{final} exists already, and {staged} is to take its name",
            hint="it was written by something else; move it out of the folder and restart the job",
        )
    try:
        if final.parent != folder:
            final.parent.mkdir(parents=True, exist_ok=True)
        staged.rename(final)
    except FileNotFoundError:
        if not final.exists():
            raise StorageError(
                f"results are missing: neither {staged} nor {final} exists",
                hint="they were deleted by hand, or the checkpoint was superseded; restore from a newer one",
            ) from None
    except OSError as error:
        raise StorageError(f"{staged} could not be renamed to {final}: {error.strerror}") from error
    return final.parent


def _sync_folder(folder: Path) -> None:
    """A new name is durable only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _file_name(job: str) -> str:
    """A job's name as part of a file's: what could be misread is replaced, and a checksum keeps names apart."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", job)
    if plain == job and not job.startswith("."):
        return job
    return f"{plain.lstrip('.')}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"

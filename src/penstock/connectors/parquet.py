"""A sink of Parquet files that appear when their checkpoint completes.

Records are buffered, and written off the loop to files below `_penstock/`. Spark and other readers of the folder ignore
`_penstock/`. A commit renames the files into the folder itself, so that readers see whole files of completed
checkpoints, and nothing else.

    <path>/_penstock/<job>/s<subtask>-p<parallelism>-e<epoch>-<number>.parquet      written, not visible
    <path>/part-<job>-<subtask>-<checkpoint>-<number>.parquet                       committed
    <path>/<column>=<value>/part-...                                                committed, with `partition_by`

The final name of a file is chosen when the file is prepared, such that no file has this name. The final name travels in
the checkpoint. So a commit that is done again finds the file under its final name, and does nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.api.connector import Footprint, Sink, SinkWriter, WriterContext
from penstock.connectors.partitions import by_partition, check_partitions
from penstock.core.errors import CorruptFile, StorageError, UsageError
from penstock.descents import create_file, make_folders, opened_folder, remove_tree, unlink

BUFFER_BYTES = 64 * 1024 * 1024
"""When the buffered records of a subtask have this many bytes, they are written to a file before the checkpoint
comes."""

_STAGING = "_penstock"
_STAGED = re.compile(r"s(\d+)-p(\d+)-e(\d+)-(\d+)(?:\.\d+)?\.parquet")


def parquet(path: str | Path, *, partition_by: str | Sequence[str] = ()) -> ParquetSink:
    """A folder of Parquet files on a file system that every slot can reach. The folder is made if it does not exist;
    files that are in the folder already stay.

    Args:
        path: the path of the folder.
        partition_by: columns with few different values. The records of each combination of values go into a folder of
            their own, `column=value`, as with Spark's `partitionBy`. With every checkpoint, each subtask writes a file
            for each combination of values that its records have.

    """
    return ParquetSink(path=local_path(path), partition_by=as_columns(partition_by))


def as_columns(given: str | Sequence[str]) -> tuple[str, ...]:
    """The columns to partition by. Raises `UsageError` if a column is given twice, or is no text."""
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
    """A file to be committed. Both names are relative to the folder that the sink had when the file was written."""

    staged: str
    final: str
    folder: str = ""
    """The folder that the sink had when the file was written. Empty in snapshots that do not record the folder: then
    the sink's present folder is meant."""


@dataclass(frozen=True, kw_only=True)
class ParquetSink(Sink):
    """The sink that `parquet` makes."""

    path: str
    partition_by: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "parquet"

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if Spark could not read a column back, or if the records cannot be partitioned."""
        for column in schema:
            if isinstance(column.type, pa.TimestampType) and column.type.unit == "ns":
                raise UsageError(
                    f"column {column.name!r} is of type {column.type}, which Spark cannot read from Parquet files",
                    hint="cast the column to a timestamp of microseconds",
                )
            if pt.is_null(column.type):
                raise UsageError(
                    f"column {column.name!r} has no type, only nulls", hint="cast the column to the type it should have"
                )
        check_partitions(schema, self.partition_by)

    @property
    def footprint(self) -> Footprint:
        """The folder that results are written to."""
        return Footprint(written=self.path)

    def start(self, job: str) -> None:
        """Make the folder. Raises `UsageError` if no file can be written there."""
        folder = Path(self.path)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"output {self.path!r} is a file, and a folder is needed")
        names = self._staging(job).relative_to(folder).parts
        try:
            folder.mkdir(parents=True, exist_ok=True)
            make_folders(folder, names)
            with opened_folder(folder, names) as staging:
                os.close(create_file(staging, ".probe"))
                unlink(staging, ".probe")
        except OSError as error:
            raise UsageError(
                f"output {self.path!r} cannot be written: {error.strerror}",
                hint="choose another path, or give this user the right to write there",
            ) from error

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask."""
        return _ParquetWriter(Path(self.path), self._staging(context.job), context, self.partition_by)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Rename prepared files to their final names. A file that has its final name already stays as it is."""
        publish_files(Path(self.path), committables)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Remove the files that this subtask wrote in earlier attempts, except for the files that are to be
        committed."""
        kept = {staged_file(part) for part in keep}
        for file in self.left_by_earlier(context):
            if str(file.relative_to(self.path)) not in kept:
                file.unlink(missing_ok=True)

    def left_by_earlier(self, context: WriterContext) -> list[Path]:
        """The files that this subtask wrote in earlier attempts and did not commit; files that a checkpoint promises to
        commit are included."""
        own = (context.subtask, context.parallelism)
        # A change of the parallelism deals the prepared files out anew. A file that a subtask with this number wrote at
        # another parallelism may be another subtask's to commit, and must stay.
        staged = staged_before(Path(self.path), self._staging(context.job), context.epoch)
        return [file for file, writer in staged if writer == own]

    def end(self, job: str) -> None:
        """Remove the folder of files that were not committed."""
        staging, folder = self._staging(job), Path(self.path)
        try:
            with opened_folder(folder, staging.relative_to(folder).parts[:-1]) as above:
                remove_tree(above, staging.name)
            with opened_folder(folder, ()) as inside, suppress(OSError):
                # The folder is not empty, and stays, if another job has files there.
                os.rmdir(_STAGING, dir_fd=inside)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise StorageError(f"{staging} could not be deleted: {error.strerror}") from error

    def _staging(self, job: str) -> Path:
        return Path(self.path) / _STAGING / _file_name(job)


def staged_before(folder: Path, staging: Path, epoch: int) -> list[tuple[Path, tuple[int, int]]]:
    """The files in a sink's staging folder that attempts before `epoch` wrote. Each file comes with the number of its
    subtask and the parallelism of that time. Empty if the staging folder is a link."""
    try:
        with opened_folder(folder, staging.relative_to(folder).parts) as inside, os.scandir(inside) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError:
        return []
    found = [(name, named) for name in names if (named := _STAGED.fullmatch(name)) is not None]
    return [(staging / name, (int(named[1]), int(named[2]))) for name, named in found if int(named[3]) < epoch]


def is_staged(name: str) -> bool:
    """Whether a file has a name of the kind that a sink gives to prepared files."""
    return _STAGED.fullmatch(name) is not None


def staged_file(committable: bytes) -> str:
    """Where a prepared file lies, below the sink's folder."""
    return msgspec.msgpack.decode(committable, type=_Prepared).staged


def final_folder(committable: bytes) -> str:
    """The folder that a prepared file gets its final name in, relative to the sink's folder; `.` is the sink's folder
    itself."""
    return str(Path(msgspec.msgpack.decode(committable, type=_Prepared).final).parent)


class _Chunk:
    """Records that go into one file, or into one file for each partition."""

    def __init__(self, folder: Path, file: Path, batches: list[pa.RecordBatch], partition_by: tuple[str, ...]) -> None:
        """`file` lies below `folder`, which is the sink's."""
        self._folder = folder
        self._file = file
        self._batches = batches
        self._partition_by = partition_by
        self.parts: list[tuple[Path, str]] = []
        """Each file that was written, and the folder that its final name is in."""
        self._written = False

    def write(self) -> None:
        """Write the files, durably, and let go of the records. A second call does nothing. A call that raised may be
        tried again."""
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
            names = file.parent.relative_to(self._folder).parts
            self._folder.mkdir(parents=True, exist_ok=True)
            make_folders(self._folder, names)
            with opened_folder(self._folder, names) as staging:
                descriptor = create_file(staging, file.name)
            with open(descriptor, "wb") as out:  # noqa: PTH123  # a descriptor has no path
                pq.write_table(rows, out)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise StorageError(f"{file} could not be written: {error}") from error
        self.parts.append((file, folder))


class _ParquetWriter(SinkWriter):
    """Buffers the records of the open transaction, and writes them early if they would take too much memory."""

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
        """Buffer a batch. A full buffer is written to a file on another thread. The call blocks only if a buffer is
        full while the file of the last full buffer is still being written."""
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= BUFFER_BYTES:
            chunk = self._cut()
            self._wait()
            if self._thread is None:
                self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-parquet")
            self._early = self._thread.submit(chunk.write)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the transaction. The returned work makes the files of the transaction durable and chooses their final
        names."""
        if self._batches:
            self._cut()
        chunks, early = self._chunks, self._early
        self._chunks, self._early = [], None

        def work() -> list[bytes]:
            if early is not None:
                # This waits, and ignores an error: a file that could not be written is tried again below.
                early.exception()
            for chunk in chunks:
                chunk.write()
            if chunks:
                _sync_folder(self._staging)
            return self._prepared(checkpoint, chunks)

        return work

    def close(self) -> None:
        """Abandon the open transaction. The files of the transaction are removed by the next attempt, or when the job
        ends."""
        self._batches, self._chunks = [], []
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None

    def _cut(self) -> _Chunk:
        context = self._context
        name = f"s{context.subtask}-p{context.parallelism}-e{context.epoch}-{self._files}.parquet"
        chunk = _Chunk(self._folder, self._staging / name, self._batches, self._partition_by)
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
            # A job that is restored from an older checkpoint counts the same checkpoint numbers again. Files that have
            # these numbers in their names must stay.
            while (self._folder / (final := f"{place}part-{job}-{subtask}-{checkpoint}-{number}.parquet")).exists():
                number += 1
            number += 1
            staged = str(file.relative_to(self._folder))
            found.append(msgspec.msgpack.encode(_Prepared(staged, final, str(self._folder))))
        return found


def publish_files(folder: Path, committables: Sequence[bytes], before_each: Callable[[], None] = lambda: None) -> None:
    """Give prepared files their final names, durably. `before_each` is called before each file; if `before_each`
    raises, the files that are left keep their first names. `folder` is the sink's present folder; a file that was
    prepared when the sink had another folder gets its final name in that other folder."""
    touched: dict[Path, None] = {}
    for committable in committables:
        before_each()
        prepared = msgspec.msgpack.decode(committable, type=_Prepared)
        root = _folder_of(prepared, folder)
        place = _publish(root, prepared)
        touched |= dict.fromkeys(above for above in (place, *place.parents) if above.is_relative_to(root))
    for place in touched or (folder,):
        _sync_folder(place)


def _folder_of(prepared: _Prepared, now: Path) -> Path:
    """The folder of the sink in which a prepared file lies, under its first or its final name. This is the folder that
    the sink had when the file was written; or the present folder, if results and prepared files were moved there.
    Raises `StorageError` if the file is in neither."""
    _check_names(prepared, now)
    places = dict.fromkeys((Path(prepared.folder or now), now))
    for place in places:
        if _is_there(place, prepared.staged, prepared) or _is_there(place, prepared.final, prepared):
            return place
    raise StorageError(
        f"results are missing: neither {prepared.staged} nor {prepared.final} is in {' or '.join(map(str, places))}",
        hint="the file was deleted or moved by hand, or a newer checkpoint has subsumed this checkpoint; put the file "
        "back, or restore from a newer checkpoint",
    )


def _check_names(prepared: _Prepared, now: Path) -> None:
    """Raise `CorruptFile` unless the first name of a prepared file is below the staging folder of a sink, and the final
    name is elsewhere in the folder of the same sink. The names come from a snapshot, and anybody may have written the
    snapshot."""
    folder = Path(prepared.folder or now)
    names = (prepared.staged, prepared.final)
    is_strange = any("\0" in name or part in ("", ".", "..") for name in names for part in name.split("/"))
    is_nowhere = not folder.is_absolute() or "\0" in prepared.folder
    is_staged = prepared.staged.startswith(f"{_STAGING}/") and not prepared.final.startswith(f"{_STAGING}/")
    if is_strange or not is_staged or (prepared.folder and is_nowhere):
        raise _crafted(prepared, folder)


def _is_there(folder: Path, name: str, prepared: _Prepared) -> bool:
    """Whether a file `name` is below the folder of a sink. Raises `CorruptFile` if a part of the name is a link, or if
    the name is not of a regular file."""
    *above, last = name.split("/")
    try:
        with opened_folder(folder, above) as inside:
            found = stat.S_ISREG(os.stat(last, dir_fd=inside, follow_symlinks=False).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _crafted(prepared, folder) from error
        raise StorageError(f"{folder / name} cannot be looked at: {error.strerror}") from error
    if not found:
        raise _crafted(prepared, folder)
    return True


def _crafted(prepared: _Prepared, folder: Path) -> CorruptFile:
    return CorruptFile(
        f"the snapshot says that {prepared.staged!r} in {folder} is to be renamed to {prepared.final!r}, and no sink "
        "has prepared such a file",
        hint="the snapshot was changed, or made in order to move other files: do not use this snapshot",
    )


def _publish(folder: Path, prepared: _Prepared) -> Path:
    """Give a prepared file its final name. Returns the folder of the final name. Both names are reached by descriptors
    of their folders: if somebody replaces a folder by a link meanwhile, the link is not followed."""
    staged, final = folder / prepared.staged, folder / prepared.final
    has_final = _is_there(folder, prepared.final, prepared)
    if has_final and _is_there(folder, prepared.staged, prepared):
        raise StorageError(
            f"{staged} cannot be renamed to {final}: a file of this name exists already",
            hint="another program wrote the existing file; move the existing file out of the folder and restart the "
            "job",
        )
    if has_final:
        return final.parent
    *staging, old = prepared.staged.split("/")
    *above, new = prepared.final.split("/")
    try:
        make_folders(folder, above)
        with opened_folder(folder, staging) as source, opened_folder(folder, above) as target:
            os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)
    except FileNotFoundError:
        if not _is_there(folder, prepared.final, prepared):
            raise StorageError(f"{staged} disappeared before it could be renamed to {final}") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _crafted(prepared, folder) from error
        raise StorageError(f"{staged} could not be renamed to {final}: {error.strerror}") from error
    return final.parent


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: to make a file durable does not make its name durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _file_name(job: str) -> str:
    """A job's id as a part of file names. Characters that could be misread in a path are replaced, and a checksum
    then keeps the names of different jobs apart."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", job)
    if plain == job and not job.startswith("."):
        return job
    return f"{plain.lstrip('.')}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"

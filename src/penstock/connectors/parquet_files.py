"""A source over Parquet files. A split is a run of row groups; the position of a split is the number of rows read.

A split names its file, so that the same rows are read again after a failure. A file whose size or number of rows has
changed since the job started is refused. A split that names a file outside the places of the source is refused, too:
anybody may have written the snapshot that the split comes from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.api.connector import HELD_MS, End, Pause, Polled, Source, SourceReader, SplitProgress
from penstock.api.saved_pieces import decoded_piece
from penstock.connectors.file_sink import local_path
from penstock.connectors.split_places import GivenPlaces, SplitPlaces, is_data_file
from penstock.core.errors import StorageError, UsageError

SPLIT_ROWS = 1_000_000
"""Row groups of a file are joined until a split has this many rows. Splits are smaller if otherwise some subtasks would
have no split."""
OPEN_SPLITS = 8
"""How many splits a reader has open at once. The reader reads the open splits in turns."""
_BUFFER_BYTES = 256 * 1024
"""The size of the buffer for a column that is being read. Without buffers, a whole row group of every open file would
be in memory."""

SPLIT_EVERYTHING = 1 << 62
"""More rows than any file has."""


def parquet_files(paths: str | Path | Sequence[str | Path], *, schema: pa.Schema | None = None) -> ParquetFiles:
    """Parquet files, or the files of a folder, on a file system that every slot can reach.

    All files must have the same columns. With `schema`, columns are taken by name and cast to the types of `schema`;
    without, the schema of the first file is used.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found = [Path(local_path(path)) for path in given]
    files = tuple(file for path in found for file in _files_of(path))
    if not files:
        raise UsageError(f"no Parquet files in {', '.join(map(str, given)) or 'an empty list'}")
    folders = tuple(str(path) for path in found if path.is_dir())
    places = GivenPlaces(files=tuple(str(path) for path in found if not path.is_dir()), folders=folders)
    return ParquetFiles(files=files, columns=schema or _schema_of(files[0]), places=places)


class _Split(msgspec.Struct, frozen=True, array_like=True):
    """Row groups `first_group` up to, not including, `stop_group` of a file. The first `position` rows of these row
    groups have been read."""

    file: str
    size: int
    """The size of the file in bytes. A file with another size is refused: the file has changed."""
    first_group: int
    stop_group: int
    rows: int
    position: int = 0


@dataclass(frozen=True, kw_only=True)
class ParquetFiles(Source):
    """The source that `parquet_files` makes."""

    files: tuple[str, ...]
    columns: pa.Schema
    places: SplitPlaces | None = None
    """The files that splits may name; None: only `files`."""

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "Parquet files"

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "parquet-files"

    @property
    def schema(self) -> pa.Schema:
        """The columns that every file must have."""
        return self.columns

    def splits(self, parallelism: int) -> list[bytes]:
        """Splits of consecutive row groups, small enough that every subtask has a split if there are enough row
        groups."""
        sizes = [_group_rows(file) for file in self.files]
        least = min(SPLIT_ROWS, max(1, sum(map(sum, sizes)) // (4 * parallelism)))
        found = [split for file, rows in zip(self.files, sizes, strict=True) for split in _splits_of(file, rows, least)]
        return [msgspec.msgpack.encode(split) for split in found]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits. Raises `CorruptFile` if a split names a file that the source cannot have."""
        return _SplitReader(self.columns, splits, self.places or GivenPlaces(files=self.files))


@dataclass(frozen=True, kw_only=True)
class FollowedFiles(ParquetFiles):
    """Files that are found while the job runs. This source only reads files; the enumerator of another source finds
    them."""

    files: tuple[str, ...] = ()

    @property
    def discovers(self) -> bool:
        """Always: there are no files to begin with."""
        return True

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits. The reader may be given more splits. Raises `CorruptFile` if a split names a file
        that the source cannot have."""
        return _FollowingReader(self.columns, splits, self.places or GivenPlaces(files=self.files))


def whole_file_splits(file: str | Path) -> list[bytes]:
    """A file as one split; no split if the file has no rows. Raises `StorageError`."""
    try:
        found = _splits_of(str(file), _group_rows(str(file)), SPLIT_EVERYTHING)
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{file} cannot be read: {error}") from error
    return [msgspec.msgpack.encode(split) for split in found]


def file_of_split(split: bytes) -> str:
    """The path of the file that a split is part of."""
    return decoded_piece(split, _Split, what="a split of Parquet files").file


class _SplitReader(SourceReader):
    """Has some splits open at a time and reads the open splits in turns, so that event time advances evenly. Splits are
    opened in the order given."""

    def __init__(self, schema: pa.Schema, splits: Sequence[bytes], places: SplitPlaces) -> None:
        self._schema = schema
        self._places = places
        self._begun: deque[_OpenSplit] = deque()
        """The open splits, in the order of their turns."""
        self._waiting = deque(split for split in self._decoded(splits) if split.position < split.rows)
        self._open = dict.fromkeys(map(_name_of, self._waiting))
        self._current: Hashable = None
        self._held: Collection[Hashable] = ()

    @property
    def holds_splits(self) -> bool:
        """Always."""
        return True

    def hold(self, splits: Collection[Hashable]) -> None:
        """Give no rows of these splits until the next call."""
        self._held = splits

    def poll(self, max_rows: int, now_ms: int) -> Polled:  # noqa: ARG002  # files are there at once
        """The next rows of the split whose turn it is."""
        while self._waiting and len(self._begun) < OPEN_SPLITS:
            self._begun.append(_OpenSplit(self._waiting.popleft(), self._schema))
        if not self._begun:
            return End()
        for _ in range(len(self._begun)):
            if _name_of(self._begun[0].split) not in self._held:
                break
            self._begun.rotate(-1)
        else:
            return Pause(HELD_MS)
        turn = self._begun[0]
        batch = turn.next_rows(max_rows)
        self._current = _name_of(turn.split)
        self._begun.popleft()
        if turn.split.position < turn.split.rows:
            self._begun.append(turn)
        else:
            turn.close()
            del self._open[self._current]
        return batch

    def snapshot(self) -> list[bytes]:
        """The splits with rows left, at their positions. Splits that have been begun come first."""
        return [msgspec.msgpack.encode(split) for split in (*(turn.split for turn in self._begun), *self._waiting)]

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these splits too."""
        added = self._decoded(splits)
        self._waiting += added
        self._open.update(dict.fromkeys(map(_name_of, added)))

    def _decoded(self, splits: Sequence[bytes]) -> list[_Split]:
        found = [decoded_piece(split, _Split, what="a split of Parquet files") for split in splits]
        for file in dict.fromkeys(split.file for split in found):
            self._places.check(file)
        return found

    def progress(self) -> SplitProgress:
        """The open splits, each with an event time of its own. Every open split is ready, because the rows of a split
        are in a file."""
        return SplitProgress(current=self._current, open=self._open.keys(), ready=self._open.keys())

    def close(self) -> None:
        """Close the files that are being read."""
        for turn in self._begun:
            turn.close()


class _FollowingReader(_SplitReader):
    """Reads splits of files that are found while the job runs."""

    @property
    def catching_up(self) -> bool:
        """Whether files have piled up: there are more splits than the reader has open at once."""
        return bool(self._waiting)


def _name_of(split: _Split) -> Hashable:
    return split.file, split.first_group


class _OpenSplit:
    """A split that is being read. Only the rows that are asked for are decoded, not the whole row group."""

    def __init__(self, split: _Split, schema: pa.Schema) -> None:
        self.split = split
        self._schema = schema
        self._file: pq.ParquetFile | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._left: pa.RecordBatch | None = None

    def next_rows(self, max_rows: int) -> pa.RecordBatch:
        """The next rows; moves the position behind these rows. Only called while there are rows left."""
        split = self.split
        if self._file is None:
            self._begin(split, max_rows)
        batch = self._left if self._left is not None else next(self._batches, None)
        if batch is None:
            raise _changed(split.file, f"the split ends after {split.position} of {split.rows} rows")
        self._left = batch.slice(max_rows) if batch.num_rows > max_rows else None
        found = with_schema(batch.slice(0, max_rows), self._schema, split.file)
        self.split = msgspec.structs.replace(split, position=split.position + found.num_rows)
        return found

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._batches, self._left = None, iter(()), None

    def _begin(self, split: _Split, max_rows: int) -> None:
        path = Path(split.file)
        try:
            size = path.stat().st_size
            self._file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us", buffer_size=_BUFFER_BYTES)
        except (OSError, pa.ArrowInvalid) as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        if size != split.size:
            raise _changed(split.file, f"the file has {size} bytes, and had {split.size} bytes")
        count, wanted = self._file.metadata.num_row_groups, (split.first_group, split.stop_group)
        if not 0 <= wanted[0] <= wanted[1] <= count:
            raise _changed(
                split.file, f"the file has {count} row groups, and the split names {wanted[0]} to {wanted[1]}"
            )
        groups = list(range(split.first_group, split.stop_group))
        skip = split.position
        # Row groups that end before the position are not decoded.
        while groups and skip >= (rows := self._file.metadata.row_group(groups[0]).num_rows):
            skip -= rows
            groups.pop(0)
        self._batches = self._file.iter_batches(
            batch_size=max_rows, row_groups=groups, columns=self._schema.names, use_threads=False
        )
        while skip > 0 and (batch := next(self._batches, None)) is not None:
            self._left = batch.slice(skip) if batch.num_rows > skip else None
            skip -= batch.num_rows


def _files_of(path: Path) -> list[str]:
    if not path.exists():
        raise UsageError(f"path {str(path)!r} does not exist")
    if path.is_file():
        return [str(path)]
    return sorted(str(file) for file in path.glob("*.parquet") if is_data_file(file.name))


def _schema_of(file: str) -> pa.Schema:
    try:
        with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened:
            return pa.schema([pa.field(field.name, field.type) for field in opened.schema_arrow])
    except (OSError, pa.ArrowInvalid) as error:
        raise UsageError(f"{file} is not a Parquet file that can be read: {error}") from error


def _group_rows(file: str) -> list[int]:
    metadata = pq.read_metadata(file)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _splits_of(file: str, group_rows: Sequence[int], least: int) -> list[_Split]:
    size = Path(file).stat().st_size
    found: list[_Split] = []
    first, rows = 0, 0
    for group, count in enumerate(group_rows):
        rows += count
        if rows >= least or group == len(group_rows) - 1:
            if rows:
                found.append(_Split(file, size, first, group + 1, rows))
            first, rows = group + 1, 0
    return found


def with_schema(batch: pa.RecordBatch, schema: pa.Schema, file: str) -> pa.RecordBatch:
    """The columns of a schema, taken by name and cast to its types. Raises `StorageError` if that cannot be."""
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise StorageError(f"{file} has no column {', '.join(missing)}; the file has {', '.join(batch.schema.names)}")
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    try:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StorageError(f"columns of {file} do not fit the source's schema: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _changed(file: str, how: str) -> StorageError:
    return StorageError(
        f"{file} has changed since the job started: {how}",
        hint="files of a source must stay as they are until the job ends",
    )

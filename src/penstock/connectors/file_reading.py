"""How a subtask reads files: one after another, in blocks, on a thread.

The thread reads and decodes a block of a file, and the loop hands on the rows of the blocks that have come. A position
is the place where a block begins and the number of rows that were handed on from there. A block of lines is cut at the
last line break within `BLOCK_BYTES`, so that the blocks behind a position are the same whenever they are read. Lines of
compressed files are counted by the bytes that are packed; after a failure such a file is unpacked from its start again.

A file whose size has changed is refused, when it is begun and again when it has been read to its end.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.api.connector import HELD_MS, End, Pause, Polled, SourceReader, SplitProgress
from penstock.api.fetching import WAIT_MS, Fetcher
from penstock.api.saved_pieces import decoded_piece
from penstock.connectors.file_formats import BadLine, LineFormat, Treatment, Unreadable, rows_of
from penstock.connectors.file_listing import FileSet
from penstock.connectors.parquet_files import with_schema
from penstock.core.errors import StorageError, StreamError, UsageError

log = logging.getLogger(__name__)

BLOCK_BYTES = 1024 * 1024
"""Lines are read in blocks of this size; a block with a longer line is larger."""
LONGEST_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is refused: most probably the file is not what it should be."""
BLOCKS_AHEAD = 2
FILES_AHEAD = 2
"""How many files a reader has open, the current file included: small files would wait for each other otherwise."""

PACKED = (".gz", ".bz2", ".zst", ".lz4")
"""Names of files that are unpacked end so."""

_BATCH_ROWS = 65_536
_BUFFER_BYTES = 256 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class FileSplit(msgspec.Struct, frozen=True, array_like=True):
    """A file, and how far it has been read."""

    name: str
    """Relative to the folder in which the source looks."""
    size: int
    """In bytes, when the file was found."""
    offset: int = 0
    """Where the block begins that is being read: bytes of lines, or the number of a row group."""
    line: int = 0
    """How many lines are before the block."""
    rows: int = 0
    """How many rows of the block have been handed on. Bad lines before the last of these rows count as rows, so that
    the position is the same whatever becomes of bad lines."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the files of a source are read."""

    files: FileSet
    form: LineFormat | None
    """None: Parquet."""
    columns: pa.Schema
    """The columns of the stream, the column for bad rows included."""
    treatment: Treatment


@dataclass(frozen=True, kw_only=True)
class _Block:
    rows: pa.RecordBatch
    start: FileSplit
    """The split as it is before the first row."""
    following: FileSplit
    """The split as it is behind the last row."""
    bad: Sequence[BadLine] = ()
    left_out: Sequence[int] = ()
    """For each bad line that is no row: how many rows and bad lines are before it."""
    handed_on: int = 0
    """How many rows before `rows` the block has had, which were handed on before a failure."""

    def behind(self, rows: int) -> FileSplit:
        """The split as it is when so many of the rows have been handed on."""
        position = self.handed_on + rows
        for before in self.left_out:
            position += before < position
        return msgspec.structs.replace(self.start, rows=self.start.rows + position)

    def without(self, position: int) -> _Block:
        """The block without its first rows and bad lines."""
        rows = position - sum(before < position for before in self.left_out)
        return replace(self, rows=self.rows.slice(rows), handed_on=rows)


class FilesReader(SourceReader):
    """Reads its files in the order given. Every file has an event time of its own."""

    def __init__(self, reading: Reading, splits: Sequence[bytes], *, follows: bool) -> None:
        self._reading = reading
        self._follows = follows
        found = [decoded_piece(split, FileSplit, what="a split of files") for split in splits]
        # The names come from a snapshot: they are looked at before any file is opened.
        for split in found:
            reading.files.path_of(split.name)
        self._waiting = deque(found)
        self._begun: deque[_OpenFile] = deque()
        self._current: Hashable = None
        self._ended = 0
        self._bad = 0
        self._held: Collection[Hashable] = ()

    @property
    def holds_splits(self) -> bool:
        """Always."""
        return True

    def hold(self, splits: Collection[Hashable]) -> None:
        """Give no rows of these files until the next call."""
        self._held = splits

    @property
    def catching_up(self) -> bool:
        """Whether files that were found while the job runs have piled up."""
        return self._follows and bool(self._waiting)

    @property
    def splits_read(self) -> int:
        """How many files have been read to their ends."""
        return self._ended

    def poll(self, max_rows: int, now_ms: int) -> Polled:  # noqa: ARG002  # files have no clock
        """The rows of the current file that have been decoded and not handed on."""
        while self._waiting and len(self._begun) < FILES_AHEAD:
            self._begun.append(_OpenFile(self._reading, self._waiting.popleft(), self._count_bad))
        if not self._begun:
            return End()
        for _ in range(len(self._begun)):
            if self._begun[0].split.name not in self._held:
                break
            self._begun.rotate(-1)
        else:
            return Pause(HELD_MS)
        turn = self._begun[0]
        batch = turn.take(max_rows)
        if batch is not None:
            self._current = turn.split.name
            return batch
        if turn.is_read:
            self._begun.popleft()
            self._ended += 1
            return Pause(0) if self._begun or self._waiting else End()
        return Pause(WAIT_MS)

    def metrics(self) -> dict[str, float]:
        """How many lines could not be read, and were skipped or kept as text."""
        name = "lines_skipped" if self._reading.treatment.kind == "skip" else "lines_kept_as_text"
        return {name: self._bad} if self._bad else {}

    def _count_bad(self, lines: int) -> None:
        self._bad += lines

    def snapshot(self) -> list[bytes]:
        """The files that are not read to their ends, at their positions."""
        return [msgspec.msgpack.encode(split) for split in self._left()]

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these files too."""
        self._waiting += [decoded_piece(split, FileSplit, what="a split of files") for split in splits]

    def progress(self) -> SplitProgress:
        """Every file has an event time of its own, and has rows to be read."""
        names = [split.name for split in self._left()]
        return SplitProgress(current=self._current, open=names, ready=names)

    def close(self) -> None:
        """Stop reading."""
        for turn in self._begun:
            turn.close()

    def _left(self) -> list[FileSplit]:
        return [*(turn.split for turn in self._begun if not turn.is_read), *self._waiting]


class _OpenFile:
    """A file that is being read."""

    def __init__(self, reading: Reading, split: FileSplit, count_bad: Callable[[int], None]) -> None:
        """`count_bad` is told of lines that could not be read."""
        self.split = split
        self._count_bad = count_bad
        self.is_read = False
        self._reading = reading
        self._block: _Block | None = None
        self._taken = 0
        self._bad: list[BadLine] = []
        self._bad_count = 0
        self._fetcher = Fetcher(lambda: _blocks(reading, split), name="files", ahead=BLOCKS_AHEAD)

    def take(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows; None if no rows have come, or the file has been read. Raises what the thread raised."""
        if self._block is None and not self._next_block():
            return None
        block = self._block
        if block is None:
            return None
        batch = block.rows.slice(self._taken, max_rows)
        self._taken += batch.num_rows
        if self._taken < block.rows.num_rows:
            self.split = block.behind(self._taken)
        else:
            self.split, self._block = block.following, None
        return batch if batch.num_rows else None

    def close(self) -> None:
        """Have the thread end at the next block."""
        self._fetcher.close()

    def _next_block(self) -> bool:
        has_ended = self._fetcher.has_ended
        found: Any = self._fetcher.take(1)
        if found:
            (self._block,) = found
            self._taken = 0
            self._bad = self._bad or list(self._block.bad[:1])
            self._bad_count += len(self._block.bad)
            self._count_bad(len(self._block.bad))
            return True
        if has_ended:
            self._finish()
        return False

    def _finish(self) -> None:
        error = self._fetcher.error
        if isinstance(error, OSError | pa.ArrowException) and not isinstance(error, StreamError):
            raise StorageError(f"{self._shown()} cannot be read: {error}") from error
        if error is not None:
            raise error
        self.is_read = True
        if self._bad:
            first = self._bad[0]
            log.warning(
                "lines of %s cannot be read, and %s: %d; the first of these lines is line %d: %s",
                self._shown(),
                "are skipped" if self._reading.treatment.kind == "skip" else "are kept as text",
                self._bad_count,
                first.number,
                first.reason,
            )

    def _shown(self) -> str:
        return self._reading.files.shown(self.split.name)


# --- on the thread ---------------------------------------------------------------------------------------------------


def _blocks(reading: Reading, split: FileSplit) -> Iterator[_Block]:
    """The blocks of a file from a position on. Raises `StorageError` if the file has changed."""
    system, path = reading.files.system(), reading.files.path_of(split.name)
    shown = reading.files.shown(split.name)
    _check_size(system, path, split, shown)
    found = _row_groups(reading, system, path, split) if reading.form is None else _lines(reading, system, path, split)
    passed = 0
    for block in found:
        # A restore begins with the block of the position, of which some rows have been handed on.
        here = min(split.rows - passed, block.rows.num_rows + len(block.left_out))
        passed += here
        yield block.without(here) if here else block
    if passed < split.rows:
        raise _changed(shown, f"rows are missing behind offset {split.offset}")
    _check_size(system, path, split, shown)


def _row_groups(reading: Reading, system: pafs.FileSystem, path: str, split: FileSplit) -> Iterator[_Block]:
    shown = reading.files.shown(split.name)
    try:
        with (
            system.open_input_file(path) as source,
            pq.ParquetFile(source, coerce_int96_timestamp_unit="us", buffer_size=_BUFFER_BYTES) as file,
        ):
            for group in range(split.offset, file.metadata.num_row_groups):
                rows, count = 0, file.metadata.row_group(group).num_rows
                for batch in file.iter_batches(
                    batch_size=_BATCH_ROWS, row_groups=[group], columns=reading.columns.names, use_threads=False
                ):
                    start = msgspec.structs.replace(split, offset=group, rows=rows)
                    rows += batch.num_rows
                    following = (group, rows) if rows < count else (group + 1, 0)
                    yield _Block(
                        rows=with_schema(batch, reading.columns, shown),
                        start=start,
                        following=msgspec.structs.replace(split, offset=following[0], rows=following[1]),
                    )
    except pa.ArrowInvalid as error:
        raise StorageError(f"{shown} is not a Parquet file that can be read: {error}") from error


def _lines(reading: Reading, system: pafs.FileSystem, path: str, split: FileSplit) -> Iterator[_Block]:
    shown = reading.files.shown(split.name)
    form = reading.form
    if form is None:
        raise TypeError("Parquet files have no lines")
    header = None
    if form.has_header:
        with _opened(system, path, 0) as source:
            header = next(_whole_lines(source, 1, shown, form), b"")
        if not header.strip():
            raise UsageError(f"{shown}, line 1: the first line must name the columns", hint="or give header=False")
        try:
            form = form.headed(header.removeprefix(_BYTE_ORDER_MARK))
        except Unreadable as error:
            raise UsageError(
                f"{shown}, line 1: {error}", hint="mend the file or the schema; or, without a header, give header=False"
            ) from error
    position = split
    if header is not None and position.offset == 0:
        position = msgspec.structs.replace(split, offset=len(header), line=header.count(b"\n"))
    with _opened(system, path, position.offset) as source:
        for lines in _whole_lines(source, BLOCK_BYTES, shown, form):
            text = lines.removeprefix(_BYTE_ORDER_MARK) if position.offset == 0 else lines
            # The last line of a file may come without a line break.
            rows, found = rows_of(text if text.endswith(b"\n") else text + b"\n", form, reading.treatment)
            bad = [replace(one, number=position.line + one.number) for one in found]
            if bad and reading.treatment.kind == "fail":
                raise _bad_line(bad[0], shown)
            following = msgspec.structs.replace(
                position, offset=position.offset + len(lines), line=position.line + lines.count(b"\n"), rows=0
            )
            start = msgspec.structs.replace(position, rows=0)
            left_out = [one.before for one in bad] if reading.treatment.kind == "skip" else []
            yield _Block(rows=rows, start=start, following=following, bad=bad, left_out=left_out)
            position = following


def _opened(system: pafs.FileSystem, path: str, offset: int) -> Any:
    """The file behind so many bytes of its lines."""
    if not path.endswith(PACKED):
        source = system.open_input_file(path)
        source.seek(offset)
        return source
    packed = system.open_input_stream(path, compression="detect")
    while offset > 0 and (skipped := packed.read(min(offset, BLOCK_BYTES))):
        offset -= len(skipped)
    return packed


def _whole_lines(source: Any, at_least: int, shown: str, form: LineFormat) -> Iterator[bytes]:
    """Blocks of whole lines, or of whole records if records have several lines. Where a block ends depends on nothing
    but where it begins."""
    left = b""
    while True:
        block = left
        while len(block) < at_least or not (cut := form.cut(block, at_least)):
            more = source.read(BLOCK_BYTES) if len(block) <= LONGEST_LINE_BYTES else b""
            block += more
            if more:
                continue
            if not block:
                return
            cut = form.cut_at_end(block)
            if cut > LONGEST_LINE_BYTES:
                raise UsageError(
                    f"{shown} has a line of more than {LONGEST_LINE_BYTES} bytes",
                    hint="the file is of another format, or lacks line breaks",
                )
            break
        left = block[cut:]
        yield block[:cut]


def _check_size(system: pafs.FileSystem, path: str, split: FileSplit, shown: str) -> None:
    info = system.get_file_info(path)
    if info.type is not pafs.FileType.File:
        raise StorageError(
            f"{shown} is gone, and has not been read to its end",
            hint="files of a source must stay until a checkpoint has completed after they were read",
        )
    if info.size != split.size:
        raise _changed(shown, f"the file has {info.size} bytes, and had {split.size} bytes when it was found")


def _changed(shown: str, how: str) -> StorageError:
    return StorageError(
        f"{shown} has changed while it was read: {how}",
        hint="write a file under another name, such as a name that ends with .tmp, and rename the complete file",
    )


def _bad_line(bad: BadLine, shown: str) -> UsageError:
    text = bad.text if len(bad.text) <= 80 else f"{bad.text[:80]}…"
    return UsageError(
        f"{shown}, line {bad.number} cannot be read: {bad.reason}; the line is {text!r}",
        hint="mend the file or the schema; or give bad_rows='skip', or bad_rows='keep' to have such lines as text"
        + ("; or, if quoted values have line breaks, multi_line=True" if bad.text.count('"') % 2 else ""),
    )

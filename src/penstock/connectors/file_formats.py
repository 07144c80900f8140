"""How lines of a file become rows: JSON lines, CSV and plain text, and what becomes of lines that cannot be read.

Lines are decoded in blocks. If a block cannot be decoded, the block is halved until the lines that are to blame are
found. So files without bad lines are read at full speed, and a bad line costs some more tries.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.types as pt

from penstock.core.errors import UsageError

BadRows = Literal["fail", "skip", "keep"]
"""What becomes of lines that cannot be read."""

TEXT_SCHEMA = pa.schema([pa.field("line", pa.string(), nullable=False)])
"""What the lines of text files become."""

_SHOWN_LETTERS = 200
_PLACES_IN_BLOCKS = re.compile(r" in row \d+$|Row #\d+: | - at `\$\[\d+\]`$")
"""What libraries say about the place of an error: rows are counted from the start of a block there."""
_LINES_WITH_TEXT = re.compile(rb"[^\r\n]+")
_LINES_WITH_MARKS = re.compile(rb"[^\n]*\S[^\n]*")


class Unreadable(ValueError):
    """A line, or a block of lines, is not what it should be. No user sees this error."""


_REFUSED = (Unreadable, pa.ArrowException, UnicodeDecodeError, msgspec.DecodeError)


class LineFormat(ABC):
    """How the lines of one file are read."""

    schema: pa.Schema
    """The columns of the rows."""
    has_header = False
    """Whether the first line of a file names the columns."""

    def headed(self, header: bytes) -> LineFormat:  # noqa: ARG002  # only CSV files have headers
        """The format for a file with this first line. Raises `Unreadable`."""
        return self

    def cut(self, block: bytes, at_least: int) -> int:
        """Where to cut a block that begins with a line: behind the last line that ends within `at_least` bytes, or
        behind the first line; 0 if no line ends in the block. The block has `at_least` bytes."""
        first = block.find(b"\n") + 1
        return block.rfind(b"\n", 0, max(at_least, first)) + 1 if first else 0

    def cut_at_end(self, block: bytes) -> int:
        """Where to cut the last bytes of a file."""
        return len(block)

    def pieces(self, lines: bytes) -> list[bytes]:
        """The lines of a block, each with its line break: what can be bad by itself."""
        # Lines end with a line feed, and with nothing else.
        return [line + b"\n" for line in lines.removesuffix(b"\n").split(b"\n")]

    @abstractmethod
    def decode(self, lines: bytes) -> pa.RecordBatch:
        """A row for each line; lines without text may be left out. Raises `Unreadable`, or what a library raises."""


class _Object(msgspec.Struct):
    """Any JSON object."""


def objects_in(lines: bytes) -> int:
    """How many JSON objects there are, one in a line; lines without text are passed by. Raises
    `msgspec.DecodeError`."""
    return len(msgspec.json.Decoder(_Object).decode_lines(lines))


@dataclass(frozen=True)
class JsonLines(LineFormat):
    """A JSON object in each line. Fields that are no columns are left out; columns that are no fields are null."""

    schema: pa.Schema

    def decode(self, lines: bytes) -> pa.RecordBatch:
        """A row for each line that has text."""
        lines.decode()
        # Arrow's reader takes objects that are spread over lines, and a line that is `null` ends the process: so each
        # line is known to be an object before Arrow reads the block.
        objects = objects_in(lines)
        if objects != len(_LINES_WITH_MARKS.findall(lines)):
            raise Unreadable("there must be one JSON object in each line")
        return self.parsed(lines, rows=objects) if objects else _empty(self.schema)

    def parsed(self, lines: bytes, *, rows: int) -> pa.RecordBatch:
        """A row for each line, of lines that are known to be one object each. The last line ends with a line feed, and
        `rows` is the number of lines, which is not 0."""
        fields = [field.with_type(_DAY_TIME) if pt.is_date(field.type) else field for field in self.schema]
        table = pajson.read_json(
            _readable(lines),
            read_options=pajson.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=pajson.ParseOptions(
                explicit_schema=pa.schema([field.with_nullable(nullable=True) for field in fields]),
                unexpected_field_behavior="ignore",
            ),
        )
        return _checked(table, self.schema, rows=rows)


_DAY_TIME = pa.timestamp("us")
"""Arrow's reader of JSON knows times and no dates."""


@dataclass(frozen=True)
class CsvLines(LineFormat):
    """Values between delimiters. Values have no line breaks."""

    schema: pa.Schema
    delimiter: str
    null_values: tuple[str, ...]
    has_header: bool
    columns: tuple[str, ...] = ()
    """The columns of the file, in their order; empty: the columns of `schema`."""

    def headed(self, header: bytes) -> LineFormat:
        """The format with the columns of the header. Raises `Unreadable` if a column of the schema is missing."""
        options = pacsv.ParseOptions(delimiter=self.delimiter)
        try:
            first = _readable(header.rstrip(b"\r\n") + b"\n")
            found = tuple(pacsv.read_csv(first, parse_options=options).schema.names)
        except pa.ArrowException as error:
            raise Unreadable(f"the first line does not name the columns: {error}") from error
        missing = [name for name in self.schema.names if name not in found]
        twice = [name for name in self.schema.names if found.count(name) > 1]
        if missing or twice:
            what = f"does not name {', '.join(missing)}" if missing else f"names {', '.join(twice)} twice"
            raise Unreadable(f"the first line {what}; the first line names {', '.join(found)}")
        return replace(self, columns=found)

    def decode(self, lines: bytes) -> pa.RecordBatch:
        """A row for each line that is not empty."""
        return self._decode(lines, has_breaks=False)

    def _decode(self, lines: bytes, *, has_breaks: bool, count: int | None = None) -> pa.RecordBatch:
        """The rows of lines, of which `count` have text. `has_breaks` says whether values have line breaks."""
        if count is None:
            count = len(_LINES_WITH_TEXT.findall(lines))
        if not count:
            return _empty(self.schema)
        table = pacsv.read_csv(
            _readable(lines),
            read_options=pacsv.ReadOptions(
                use_threads=False, block_size=len(lines) + 1, column_names=list(self.columns or self.schema.names)
            ),
            parse_options=pacsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=has_breaks),
            convert_options=pacsv.ConvertOptions(
                column_types={field.name: field.type for field in self.schema},
                include_columns=self.schema.names,
                null_values=list(self.null_values),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        if b'"' in lines and not has_breaks:
            _refuse_line_breaks(table)
        return _checked(table, self.schema, rows=count)


@dataclass(frozen=True)
class TextLines(LineFormat):
    """Each line is a row, empty lines too."""

    schema: pa.Schema = TEXT_SCHEMA

    def decode(self, lines: bytes) -> pa.RecordBatch:
        """A row for each line, without its line break."""
        text = lines.decode().removesuffix("\n")
        found: Any = pc.split_pattern(pa.array([text], pa.large_string()), "\n")
        column = pc.replace_substring_regex(found.flatten(), "\r$", "").cast(pa.string())
        return pa.RecordBatch.from_arrays([column], schema=self.schema)


def _readable(lines: bytes) -> Any:
    return pa.BufferReader(lines)


def _refuse_line_breaks(table: pa.Table) -> None:
    """A quotation mark that is not closed swallows the line break behind it."""
    for column in table.columns:
        if pt.is_string(column.type) and pc.any(pc.match_substring(column, "\n")).as_py():
            raise Unreadable("a quotation mark is not closed in its line")


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _checked(table: pa.Table, schema: pa.Schema, *, rows: int) -> pa.RecordBatch:
    """The table as one batch of the schema. Raises `Unreadable` if it does not fit."""
    if table.num_rows != rows:
        raise Unreadable("a value is spread over several lines")
    columns: list[Any] = []
    for field in schema:
        column: Any = table.column(field.name).combine_chunks()
        if pt.is_date(field.type) and not pt.is_date(column.type):
            days = column.cast(field.type)
            if not days.cast(column.type).equals(column):
                raise Unreadable(f"{field.name} has a time, and is of type {field.type}")
            column = days
        if column.null_count and not field.nullable:
            raise Unreadable(f"{field.name} has no value, and cannot be null")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- lines that cannot be read ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BadLine:
    """A line that could not be read."""

    number: int
    """Counted from 1; the first line, if values of the record have line breaks."""
    text: str
    reason: str
    before: int = 0
    """How many rows and bad lines are before it in the block."""


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """What becomes of lines that cannot be read."""

    kind: BadRows
    column: str
    """With `keep`: the column that gets the text of the line."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(BadRows):
            raise UsageError(
                f"bad_rows is {self.kind!r}; choose one of {', '.join(map(repr, get_args(BadRows)))}",
                hint="bad_rows='keep' puts such lines into the column that bad_rows_column names",
            )

    def schema_with(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the stream. Raises `UsageError` if the column for bad rows is there already."""
        if self.kind != "keep":
            return schema
        if self.column in schema.names:
            raise UsageError(
                f"the schema has a column {self.column!r}, which is to have the lines that cannot be read",
                hint="give bad_rows_column another name",
            )
        nullable = [field.with_nullable(nullable=True) for field in schema]
        return pa.schema([*nullable, pa.field(self.column, pa.string())])


def rows_of(lines: bytes, form: LineFormat, treatment: Treatment) -> tuple[pa.RecordBatch, list[BadLine]]:
    """The rows of a block of lines, in their order, and the lines that could not be read."""
    try:
        pieces: list[pa.RecordBatch | BadLine] = [form.decode(lines)]
    except _REFUSED:
        each = form.pieces(lines)
        numbers = list(accumulate((one.count(b"\n") for one in each), initial=1))
        pieces = list(_halved(each, form, numbers))
    bad: list[BadLine] = []
    before = 0
    for piece in pieces:
        if isinstance(piece, BadLine):
            bad.append(replace(piece, before=before))
        before += 1 if isinstance(piece, BadLine) else piece.num_rows
    schema = treatment.schema_with(form.schema)
    if treatment.kind == "keep":
        batches = [_kept(piece, schema) for piece in pieces]
    else:
        batches = [piece for piece in pieces if isinstance(piece, pa.RecordBatch)]
    joined = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return joined[0] if joined else _empty(schema), bad


def _halved(lines: Sequence[bytes], form: LineFormat, numbers: Sequence[int]) -> Iterator[pa.RecordBatch | BadLine]:
    try:
        rows = form.decode(b"".join(lines))
    except _REFUSED as error:
        if len(lines) == 1:
            text = lines[0].decode(errors="replace").rstrip("\r\n")
            yield BadLine(number=numbers[0], text=text, reason=_reason(error))
            return
    else:
        yield rows
        return
    middle = len(lines) // 2
    yield from _halved(lines[:middle], form, numbers[:middle])
    yield from _halved(lines[middle:], form, numbers[middle:])


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "the line is not UTF-8"
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return _PLACES_IN_BLOCKS.sub("", text)[:_SHOWN_LETTERS]


def _kept(piece: pa.RecordBatch | BadLine, schema: pa.Schema) -> pa.RecordBatch:
    if isinstance(piece, BadLine):
        nulls: list[Any] = [pa.nulls(1, field.type) for field in list(schema)[:-1]]
        return pa.RecordBatch.from_arrays([*nulls, pa.array([piece.text], pa.string())], schema=schema)
    return pa.RecordBatch.from_arrays([*piece.columns, pa.nulls(piece.num_rows, pa.string())], schema=schema)

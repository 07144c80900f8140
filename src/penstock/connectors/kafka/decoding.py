"""How the values of records become rows: raw bytes, text and JSON, and what becomes of records that cannot be read.

All values of a fetch are decoded at once. If that fails, the values are halved until the records that are to blame are
found. So a bad record costs some more tries, and records without bad ones among them are read at full speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.connectors.file_formats import JsonLines, Treatment, Unreadable, objects_in

_REFUSED = (Unreadable, pa.ArrowException, UnicodeDecodeError, msgspec.DecodeError)
_SHOWN_LETTERS = 200

Values = Sequence[bytes | None]
"""The values of records. A record without a value, a tombstone, has None."""


class RecordFormat(ABC):
    """How values become rows."""

    schema: pa.Schema
    """The columns of the rows."""

    @abstractmethod
    def decode(self, values: Values) -> pa.RecordBatch:
        """A row for each value. Raises `Unreadable`, or what a library raises."""


@dataclass(frozen=True)
class RawRecords(RecordFormat):
    """The bytes as they are, or as a text, in one column. A tombstone is null."""

    schema: pa.Schema

    def decode(self, values: Values) -> pa.RecordBatch:
        """The values as a column. A text must be UTF-8."""
        (field,) = self.schema
        return pa.RecordBatch.from_arrays([pa.array(values, pa.binary()).cast(field.type)], schema=self.schema)


@dataclass(frozen=True)
class JsonRecords(RecordFormat):
    """A JSON object in each value. Fields that are no columns are left out; columns that are no fields are null. All
    columns of a tombstone are null."""

    schema: pa.Schema

    def decode(self, values: Values) -> pa.RecordBatch:
        """The objects as rows: all at once, as lines."""
        try:
            lines = b"\n".join(values)  # type: ignore[arg-type]  # without a tombstone, which is the usual case
        except TypeError:
            values = [b"{}" if value is None else value for value in values]
            lines = b"\n".join(values)  # type: ignore[arg-type]
        if lines.count(b"\n") >= len(values) or b"\r" in lines:
            # A line break can stand between the parts of an object, and nowhere else: in a text it is escaped.
            lines = b"\n".join(value.replace(b"\n", b" ").replace(b"\r", b" ") for value in values)  # type: ignore[union-attr]
        lines.decode()
        # Arrow takes objects that are spread over lines, and a line that is `null` ends the process.
        if objects_in(lines) != len(values):
            raise Unreadable("the value is empty")
        return JsonLines(self.schema).parsed(lines + b"\n", rows=len(values))


@dataclass(frozen=True, kw_only=True)
class BadRecord:
    """A record that could not be read."""

    position: int
    """Its place among the values."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """The rows of some values."""

    rows: pa.RecordBatch
    bad: tuple[BadRecord, ...] = ()


def decoded(values: Values, form: RecordFormat, treatment: Treatment) -> Decoded:
    """The rows of values, in their order. With `keep` each bad record is a row, too; otherwise bad records are left
    out."""
    schema = treatment.schema_with(form.schema)
    pieces = list(_halved(values, 0, form))
    bad = tuple(piece for piece in pieces if isinstance(piece, BadRecord))
    if not bad and treatment.kind != "keep" and len(pieces) == 1 and isinstance(pieces[0], pa.RecordBatch):
        return Decoded(rows=pieces[0])
    batches: list[pa.RecordBatch] = []
    for piece in pieces:
        if isinstance(piece, BadRecord):
            if treatment.kind == "keep":
                batches.append(_kept(values[piece.position], schema))
        elif treatment.kind == "keep":
            nothing = pa.nulls(piece.num_rows, pa.string())
            batches.append(pa.RecordBatch.from_arrays([*piece.columns, nothing], schema=schema))
        else:
            batches.append(piece)
    joined = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return Decoded(rows=joined[0] if joined else pa.RecordBatch.from_pylist([], schema=schema), bad=bad)


def _halved(values: Values, first: int, form: RecordFormat) -> Iterator[pa.RecordBatch | BadRecord]:
    try:
        rows = form.decode(values)
        if rows.num_rows != len(values):
            raise Unreadable("the value is empty")  # the same treatment as what a library refuses
    except _REFUSED as error:
        if len(values) == 1:
            yield BadRecord(position=first, reason=_reason(error))
            return
    else:
        yield rows
        return
    middle = len(values) // 2
    yield from _halved(values[:middle], first, form)
    yield from _halved(values[middle:], first + middle, form)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "the value is not UTF-8"
    return (str(error).splitlines() or [type(error).__name__])[0][:_SHOWN_LETTERS]


def _kept(value: bytes | None, schema: pa.Schema) -> pa.RecordBatch:
    text = (value or b"").decode(errors="replace")
    nulls: list[Any] = [pa.nulls(1, field.type) for field in list(schema)[:-1]]
    return pa.RecordBatch.from_arrays([*nulls, pa.array([text], pa.string())], schema=schema)

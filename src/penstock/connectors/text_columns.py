"""Columns as texts that Spark reads back, and what the text formats, JSON and CSV, have in common."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import UsageError

Compression = Literal["gzip"]

ROWS_AT_ONCE = 65_536
"""How many rows of a file are made to text at a time: the text of a whole file would be in memory otherwise."""

_BEFORE_ZONE = "%Y-%m-%dT%H:%M:%S%.6f"


def check_compression(given: str | None) -> Compression | None:
    """The compression that was given. Raises `UsageError` if there is no such compression."""
    if given not in (None, "gzip"):
        raise UsageError(f"compression is {given!r}", hint='give compression="gzip", or none')
    return "gzip" if given == "gzip" else None


def ending_of(kind: str, compression: Compression | None) -> str:
    """How the names of files end: `.json`, or `.json.gz` for compressed files."""
    return f".{kind}.gz" if compression == "gzip" else f".{kind}"


@contextmanager
def compressed(out: IO[bytes], compression: Compression | None) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """What bytes of a file are written to. `out` stays open, so that `out` can be synced."""
    if compression is None:
        yield out
        return
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as stream:
        yield stream


def check_leaf(column: str, kind: pa.DataType, format_name: str) -> None:
    """Raise `UsageError` if values of a type that is not nested have no text that Spark reads back."""
    if isinstance(kind, pa.TimestampType) and kind.unit == "ns":
        raise UsageError(
            f"column {column!r} has type {kind}, and Spark reads no nanoseconds from {format_name} files",
            hint="cast the column to a timestamp of microseconds",
        )
    if pt.is_null(kind):
        raise UsageError(
            f"column {column!r} has a type without values, only nulls",
            hint="cast the column to the type it should have",
        )
    known = (pt.is_boolean, pt.is_integer, pt.is_float32, pt.is_float64, pt.is_decimal, pt.is_date32, is_text)
    if not (
        any(test(kind) for test in known) or pt.is_timestamp(kind) or pt.is_binary(kind) or pt.is_large_binary(kind)
    ):
        raise UsageError(
            f"column {column!r} has type {kind}, for which {format_name} files have no text that Spark reads back",
            hint='cast the column to another type, or make it a text: .with_columns(name="string(name)")',
        )


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are texts."""
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)


def without_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, in which no column is encoded by a dictionary."""
    for number, column in enumerate(rows.schema):
        if isinstance(column.type, pa.DictionaryType):
            values = rows.column(number).cast(column.type.value_type)
            rows = rows.set_column(number, column.name, values)
    return rows


def moment(column: pl.Expr, kind: pa.TimestampType[Any, Any]) -> pl.Expr:
    """A column of timestamps as texts of ISO 8601, to the microsecond. A timestamp with a time zone is written in
    UTC."""
    if kind.tz is None:
        return column.dt.strftime(_BEFORE_ZONE)
    return column.dt.convert_time_zone("UTC").dt.strftime(f"{_BEFORE_ZONE}Z")


def frame_of(rows: pa.RecordBatch) -> pl.DataFrame:
    """Rows as Polars has them."""
    return pl.DataFrame(pl.from_arrow(rows))

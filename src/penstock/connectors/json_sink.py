"""A sink of JSON files that appear when their checkpoint completes. `penstock.connectors.file_sink` tells how.

A file has one object per line, in UTF-8. `spark.read.json` with the schema of the stream gives the same rows back: a
timestamp is a text of ISO 8601, with microseconds and `Z`; bytes are base64; NaN and the infinities, which JSON does
not have, are the texts "NaN", "Infinity" and "-Infinity", as Spark writes them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.connectors.file_sink import FileSink, as_columns, local_path
from penstock.connectors.file_writing import FileFormat
from penstock.connectors.text_columns import (
    ROWS_AT_ONCE,
    Compression,
    check_compression,
    check_leaf,
    compressed,
    ending_of,
    frame_of,
    is_text,
    moment,
    without_dictionaries,
)
from penstock.core.errors import UsageError


def json(
    path: str | Path, *, partition_by: str | Sequence[str] = (), compression: Compression | None = None
) -> JsonSink:
    """A folder of JSON files, one object per line, on a file system that every slot can reach. Files appear when their
    checkpoint has completed, each record once. Files that are in the folder already stay.

    Read them back with `spark.read.schema(...).json(path)`. A timestamp is written as `2026-01-01T12:00:00.000000Z`.
    Bytes are written as base64. Keys of maps must be texts.

    >>> import penstock as ps
    >>> ps.json("clicks", partition_by="day", compression="gzip").format.ending
    '.json.gz'

    Args:
        path: the path of the folder.
        partition_by: columns with few different values. The records of each combination of values go into a folder of
            their own, `column=value`, as with Spark's `partitionBy`.
        compression: "gzip", or none.

    """
    return JsonSink(
        path=local_path(path), partition_by=as_columns(partition_by), compression=check_compression(compression)
    )


@dataclass(frozen=True, kw_only=True)
class JsonFormat(FileFormat):
    """JSON with one object per line, as Spark reads it."""

    compression: Compression | None = None

    @property
    def ending(self) -> str:
        """How the names of the files end."""
        return ending_of("json", self.compression)

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if Spark could not read a column back."""
        for column in schema:
            _check(column.name, column.type)

    def write(self, rows: pa.Table, out: IO[bytes]) -> None:
        """Write a whole file."""
        with compressed(out, self.compression) as stream:
            for batch in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
                stream.write(json_lines(batch))


@dataclass(frozen=True, kw_only=True, eq=False)
class JsonSink(FileSink):
    """The sink that `json` makes."""

    compression: Compression | None = None

    @property
    def format(self) -> FileFormat:
        """JSON files."""
        return JsonFormat(compression=self.compression)


def json_lines(rows: pa.RecordBatch) -> bytes:
    """Rows as JSON objects, one per line.

    >>> json_lines(pa.record_batch({"word": ["to", None], "n": [1, 2]})).decode().splitlines()
    ['{"word":"to","n":1}', '{"word":null,"n":2}']
    """
    plain = _with_texts(without_dictionaries(rows))
    is_columnar = all(_is_columnar(column.type) for column in plain.schema)
    if is_columnar and all(_is_finite(column) for column in plain.columns):
        return _by_columns(plain)
    return _by_rows(plain)


def _check(column: str, kind: pa.DataType) -> None:
    if isinstance(kind, pa.DictionaryType):
        check_leaf(column, kind.value_type, "JSON")
    elif isinstance(kind, pa.MapType):
        if not is_text(kind.key_type):
            raise UsageError(
                f"column {column!r} has maps with keys of type {kind.key_type}, and keys of JSON objects are texts",
                hint="cast the keys to texts",
            )
        _check(column, kind.item_type)
    elif pt.is_nested(kind):
        for number in range(kind.num_fields):
            _check(column, kind.field(number).type)
    else:
        check_leaf(column, kind, "JSON")


def _with_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with texts for timestamps and bytes. Timestamps and bytes in nested values stay."""
    made: list[pl.Expr] = []
    for column in rows.schema:
        if isinstance(column.type, pa.TimestampType):
            made.append(moment(pl.col(column.name), column.type))
        elif pt.is_binary(column.type) or pt.is_large_binary(column.type):
            made.append(pl.col(column.name).bin.encode("base64"))
    if not made:
        return rows
    names = [expr.meta.output_name() for expr in made]
    texts = frame_of(rows.select(names)).select(made)
    for name in names:
        rows = rows.set_column(rows.schema.get_field_index(name), name, texts[name].to_arrow())
    return rows


def _is_columnar(kind: pa.DataType) -> bool:
    """Whether Polars writes values of this type as Spark reads them."""
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return bool(fields) and all(_is_columnar(field.type) for field in fields)
    return pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_date32(kind) or is_text(kind)


def _is_finite(values: Any) -> bool:
    """Whether no value, however deep, is NaN or infinite."""
    kind = values.type
    if pt.is_floating(kind):
        return bool(pc.all(pc.is_finite(values), min_count=0).as_py())
    if pt.is_struct(kind):
        return all(_is_finite(part) for part in values.flatten())
    if isinstance(values, pa.MapArray):
        return _is_finite(values.items)
    if pt.is_nested(kind):
        return _is_finite(pc.list_flatten(values))
    return True


def _by_columns(rows: pa.RecordBatch) -> bytes:
    buffer = io.BytesIO()
    frame_of(rows).write_ndjson(buffer)
    return buffer.getvalue()


_encoder = msgspec.json.Encoder(decimal_format="number")


def _by_rows(rows: pa.RecordBatch) -> bytes:
    """For the types and values that Polars does not write as Spark reads them: decimals, maps, NaN, nested times."""
    try:
        given = rows.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError, KeyError) as error:
        raise UsageError(
            f"records cannot be written as JSON: {error}",
            hint="a nested time beyond the years 1 to 9999, or a map with a key twice, has no JSON; change the records",
        ) from error
    odd = [name for name, column in zip(rows.schema.names, rows.columns, strict=True) if not _is_finite(column)]
    for row in given if odd else ():
        for name in odd:
            row[name] = _spelled_out(row[name])
    return _encoder.encode_lines(given)


def _spelled_out(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _spelled_out(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_spelled_out(each) for each in value]
    return value

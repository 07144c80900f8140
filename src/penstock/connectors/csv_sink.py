"""A sink of CSV files that appear when their checkpoint completes. `penstock.connectors.file_sink` tells how.

The files are as Spark writes and reads CSV: a value with a delimiter, a quote, a backslash or a line break is in double
quotes, with a backslash before quotes and backslashes. An empty text is `""`, and a null is nothing at all. Spark's
reader takes both for a null, unless another text is given for nulls.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import polars as pl
import pyarrow as pa
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


def csv(
    path: str | Path,
    *,
    header: bool = True,
    delimiter: str = ",",
    null_value: str = "",
    partition_by: str | Sequence[str] = (),
    compression: Compression | None = None,
) -> CsvSink:
    """A folder of CSV files on a file system that every slot can reach. Files appear when their checkpoint has
    completed, each record once. Files that are in the folder already stay.

    Read them back with `spark.read.schema(...).csv(path, header=True)`; with `multiLine=True`, too, if texts have line
    breaks. Quotes in a text have a backslash before them, as Spark expects by default. A timestamp is written as
    `2026-01-01T12:00:00.000000Z`.

    >>> import penstock as ps
    >>> ps.csv("prices", delimiter=";").format.ending
    '.csv'

    Args:
        path: the path of the folder.
        header: whether the first line of each file has the names of the columns.
        delimiter: the character between two values.
        null_value: what is written for a null. Spark's reader is told by its option `nullValue`, and takes each text
            that is equal to `null_value` for a null: with the default, empty texts.
        partition_by: columns with few different values. The records of each combination of values go into a folder of
            their own, `column=value`, as with Spark's `partitionBy`.
        compression: "gzip", or none.

    """
    if not isinstance(delimiter, str) or not re.fullmatch(r'[^\w"\\\s.+-]|\t| ', delimiter, re.ASCII):
        raise UsageError(f"delimiter is {delimiter!r}", hint='give a character such as ",", ";", "|" or a tab')
    if not isinstance(null_value, str) or re.search(rf'["\\\r\n{re.escape(delimiter)}]', null_value):
        raise UsageError(
            f"null_value is {null_value!r}", hint="give a text without quotes, backslashes, delimiters and line breaks"
        )
    return CsvSink(
        path=local_path(path),
        header=header,
        delimiter=delimiter,
        null_value=null_value,
        partition_by=as_columns(partition_by),
        compression=check_compression(compression),
    )


@dataclass(frozen=True, kw_only=True)
class CsvFormat(FileFormat):
    """CSV, as Spark reads it."""

    header: bool = True
    delimiter: str = ","
    null_value: str = ""
    compression: Compression | None = None

    @property
    def ending(self) -> str:
        """How the names of the files end."""
        return ending_of("csv", self.compression)

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if Spark could not read a column back."""
        for column in schema:
            kind = column.type
            kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
            if pt.is_nested(kind):
                raise UsageError(
                    f"column {column.name!r} has type {kind}, and a value of a CSV file cannot hold other values",
                    hint='select the parts as columns, make the column a text, or write ps.json("...")',
                )
            if pt.is_binary(kind) or pt.is_large_binary(kind):
                raise UsageError(
                    f"column {column.name!r} has type {kind}, and CSV files hold texts only",
                    hint=f'make the column a text: .with_columns({column.name}="base64({column.name})")',
                )
            check_leaf(column.name, kind, "CSV")
        if len(schema.names) == 1 and not self.null_value and schema.field(0).nullable:
            raise UsageError(
                f"the CSV files would have a single column, {schema.names[0]!r}: a null would be an empty line, and "
                "readers skip empty lines",
                hint='say what a null is: ps.csv(..., null_value="NULL"); or write ps.json("...")',
            )

    def write(self, rows: pa.Table, out: IO[bytes]) -> None:
        """Write a whole file."""
        with compressed(out, self.compression) as stream:
            if self.header:
                names = pl.DataFrame({"name": rows.schema.names}).select(self._quoted(pl.col("name")))
                stream.write(f"{self.delimiter.join(names['name'])}\n".encode())
            for batch in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
                stream.write(self.lines(batch))

    def lines(self, rows: pa.RecordBatch) -> bytes:
        """Rows as lines, without a header.

        >>> CsvFormat().lines(pa.record_batch({"word": ["to, be", "", None], "n": [1, 2, 3]})).decode().splitlines()
        ['"to, be",1', '"",2', ',3']
        """
        plain = without_dictionaries(rows)
        made = [self._text(column) for column in plain.schema]
        buffer = io.BytesIO()
        frame_of(plain).select(made).write_csv(
            buffer, include_header=False, separator=self.delimiter, null_value=self.null_value, quote_style="never"
        )
        return buffer.getvalue()

    def _text(self, field: pa.Field[pa.DataType]) -> pl.Expr:
        column, kind = pl.col(field.name), field.type
        if isinstance(kind, pa.TimestampType):
            return moment(column, kind)
        if pt.is_floating(kind):
            text = column.cast(pl.String)
            # Spark reads these names of the infinities, and NaN as Polars writes NaN.
            return pl.when(column.is_infinite()).then(text.str.replace("inf", "Infinity")).otherwise(text)
        return self._quoted(column) if is_text(kind) else column

    def _quoted(self, column: pl.Expr) -> pl.Expr:
        is_special = column.str.contains(rf'["\\\r\n{re.escape(self.delimiter)}]') | (column == "")
        escaped = column.str.replace_all("\\", "\\\\", literal=True).str.replace_all('"', '\\"', literal=True)
        quoted = pl.concat_str(pl.lit('"'), escaped, pl.lit('"'))
        return pl.when(is_special).then(quoted).otherwise(column).alias(column.meta.output_name())


@dataclass(frozen=True, kw_only=True, eq=False)
class CsvSink(FileSink):
    """The sink that `csv` makes."""

    header: bool = True
    delimiter: str = ","
    null_value: str = ""
    compression: Compression | None = None

    @property
    def format(self) -> FileFormat:
        """CSV files."""
        return CsvFormat(
            header=self.header, delimiter=self.delimiter, null_value=self.null_value, compression=self.compression
        )

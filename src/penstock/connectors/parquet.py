"""A sink of Parquet files that appear when their checkpoint completes. `penstock.connectors.file_sink` tells how."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.connectors.file_sink import FileSink, as_columns, local_path
from penstock.connectors.file_writing import FileFormat
from penstock.core.errors import UsageError


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


class ParquetFormat(FileFormat):
    """Parquet, as Spark reads it."""

    @property
    def ending(self) -> str:
        """How the names of the files end."""
        return ".parquet"

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if Spark could not read a column back."""
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

    def write(self, rows: pa.Table, out: IO[bytes]) -> None:
        """Write a whole file."""
        pq.write_table(rows, out)


class ParquetSink(FileSink):
    """The sink that `parquet` makes."""

    @property
    def format(self) -> FileFormat:
        """Parquet files."""
        return ParquetFormat()

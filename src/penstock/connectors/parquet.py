"""A sink of Parquet files that appear when their checkpoint completes. `penstock.connectors.file_sink` tells how."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.connectors.file_sink import FileSink, as_columns, local_path
from penstock.connectors.file_writing import FileFormat
from penstock.core.errors import UsageError

_SAMPLE_ROWS = 4_096


def parquet(path: str | Path, *, partition_by: str | Sequence[str] = ()) -> ParquetSink:
    """A folder of Parquet files on a file system that every slot can reach. The folder is made if it does not exist;
    files that are in the folder already stay.

    >>> import tempfile
    >>> import polars as pl
    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env, folder):
    ...     bids = env.from_iterable([{"day": "mon", "price": 3}, {"day": "tue", "price": 8}])
    ...     bids.write(ps.parquet(folder, partition_by="day"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = run(lambda env: program(env, folder))
    ...     pl.read_parquet(f"{folder}/day=tue/*.parquet", hive_partitioning=True).to_dicts()
    [{'price': 8, 'day': 'tue'}]

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
        repeating: Any = repeating_columns(rows)
        pq.write_table(rows, out, use_dictionary=repeating)


def repeating_columns(rows: pa.Table) -> list[str] | bool:
    """The columns for which a dictionary is worth its processor time: columns whose values repeat in a sample of the
    rows. True, for all columns, if columns have parts: the parts have names of their own."""
    if any(pt.is_nested(column.type) for column in rows.schema):
        return True
    sample: Any = rows.take(np.arange(0, rows.num_rows, max(1, rows.num_rows // _SAMPLE_ROWS)))
    most = sample.num_rows // 2
    return [
        field.name for field, column in zip(rows.schema, sample.columns, strict=True) if len(column.unique()) <= most
    ]


class ParquetSink(FileSink):
    """The sink that `parquet` makes."""

    @property
    def format(self) -> FileFormat:
        """Parquet files."""
        return ParquetFormat()

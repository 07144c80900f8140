"""Batch DataFrames that streams are joined with: Spark writes the rows once, when the job starts, and slots read
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.static_tables import StaticTable
from penstock.core.errors import UsageError
from penstock.spark.dataframes import DataFrameSource


class LandedTable(StaticTable):
    """Parquet files in a folder."""

    def __init__(self, folder: str, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        """The columns of the DataFrame."""
        return self._schema

    def batches(self) -> Iterable[pa.RecordBatch]:
        """The rows of all files."""
        from pyarrow import dataset

        for batch in dataset.dataset(self._folder, format="parquet", schema=self._schema).to_batches():
            yield batch.cast(self._schema)


class StaticFrame(StaticTable):
    """A batch DataFrame, before the job starts."""

    def __init__(self, frame: Any) -> None:
        if frame.isStreaming:
            raise UsageError(
                "join takes a stream or a batch DataFrame, and got a streaming DataFrame",
                hint="make a stream of it: env.from_stream(df)",
            )
        self._source = DataFrameSource(frame)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the DataFrame."""
        return self._source.schema

    def landed(self, folder: Callable[[], Path]) -> StaticTable:
        """Have Spark write the rows."""
        place = folder()
        self._source.land(place)
        return LandedTable(str(place), self.schema)

    def batches(self) -> Iterable[pa.RecordBatch]:
        """There are none before the rows are landed."""
        raise AssertionError("the DataFrame has not been landed")

"""A batch DataFrame as a source: Spark writes it once as Parquet, the slots read the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.connector import Source, SourceReader
from penstock.connectors.splits import ParquetFiles, parquet_files
from penstock.core.errors import HostError, InvariantError, UsageError
from penstock.spark.arguments import check_frame, frame_schema
from penstock.spark.slots import short_reason

TIMESTAMP_CONF = "spark.sql.parquet.outputTimestampType"


class UnlandedFrame(Source):
    """A DataFrame of the user's, before the job starts: the source that is read is another, made when it is landed."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self._schema = frame_schema(frame)

    @property
    def schema(self) -> pa.Schema:
        """The DataFrame's columns, as Arrow types; times are UTC."""
        return self._schema

    def splits(self, parallelism: int) -> list[bytes]:
        """Never asked: the source that is made of it is."""
        raise InvariantError(f"{self.name} was asked for {parallelism} splits before it was landed")

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """Never asked: the source that is made of it is."""
        raise InvariantError(f"{self.name} was opened for {len(splits)} splits before it was landed")


class DataFrameSource(UnlandedFrame):
    """A batch DataFrame. `land` turns it into files."""

    def __init__(self, frame: Any) -> None:
        check_frame(frame, method="from_dataframe")
        if frame.isStreaming:
            raise UsageError(
                "from_dataframe takes a batch DataFrame, this one is streaming",
                hint="read it with spark.read instead of spark.readStream",
            )
        super().__init__(frame)

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return "dataframe"

    def land(self, folder: Path) -> Source:
        """Have Spark write the DataFrame into `folder`; the source over what it wrote."""
        try:
            with _microseconds(self._frame.sparkSession):
                self._frame.write.mode("overwrite").parquet(folder.as_uri())
        except Exception as error:
            raise HostError(f"the DataFrame could not be written to {folder}: {short_reason(str(error))}") from error
        return parquet_files(folder, schema=self._schema)

    def resumed(self) -> Source:
        """The source over what an earlier job wrote, of which the splits are in its snapshot."""
        return ParquetFiles(files=(), columns=self._schema)


@contextmanager
def _microseconds(session: Any) -> Iterator[None]:
    """Have Spark write timestamps as what they are; by default it writes an older, wider type."""
    before = session.conf.get(TIMESTAMP_CONF)
    session.conf.set(TIMESTAMP_CONF, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        session.conf.set(TIMESTAMP_CONF, before)

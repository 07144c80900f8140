"""A batch DataFrame as a source: Spark writes it once as Parquet, the slots read the files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.connector import Footprint, Site, Source, UnpreparedSource
from penstock.connectors.parquet_files import ParquetFiles, parquet_files
from penstock.core.errors import HostError, UsageError
from penstock.spark.arguments import check_frame, frame_schema
from penstock.spark.slots import short_reason
from penstock.storage.files import FileStore

TIMESTAMP_CONF = "spark.sql.parquet.outputTimestampType"


class UnlandedFrame(UnpreparedSource):
    """A DataFrame of the user's, before the job starts: the source that is read is over files that Spark writes."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self._schema = frame_schema(frame)

    @property
    def schema(self) -> pa.Schema:
        """The DataFrame's columns, as Arrow types; times are UTC."""
        return self._schema


class DataFrameSource(UnlandedFrame):
    """A batch DataFrame."""

    def __init__(self, frame: Any) -> None:
        check_frame(frame, method="from_dataframe")
        if frame.isStreaming:
            raise UsageError(
                "from_dataframe takes a batch DataFrame, this one is streaming",
                hint="use from_stream for it",
            )
        super().__init__(frame)

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return "dataframe"

    @property
    def footprint(self) -> Footprint:
        """Files of its rows."""
        return Footprint(in_landing=True)

    def prepared(self, site: Site) -> Source:
        """The source over files that Spark has written, unless an earlier job's are to be read: their splits are in its
        snapshot, or on record."""
        if site.begins and site.splits is None:
            return self.land(FileStore(site.landing).root / site.inputs())
        return ParquetFiles(files=(), columns=self._schema)

    def land(self, folder: Path) -> Source:
        """Have Spark write the DataFrame into `folder`; the source over what it wrote."""
        try:
            with _microseconds(self._frame.sparkSession):
                self._frame.write.mode("overwrite").parquet(folder.as_uri())
        except Exception as error:
            raise HostError(f"the DataFrame could not be written to {folder}: {short_reason(str(error))}") from error
        return parquet_files(folder, schema=self._schema)


@contextmanager
def _microseconds(session: Any) -> Iterator[None]:
    """Have Spark write timestamps as what they are; by default it writes an older, wider type."""
    before = session.conf.get(TIMESTAMP_CONF)
    session.conf.set(TIMESTAMP_CONF, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        session.conf.set(TIMESTAMP_CONF, before)

"""A batch DataFrame as a source: Spark writes the DataFrame once, as Parquet files, and the slots read the files."""

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
from penstock.spark.landed_places import LandedPlaces
from penstock.spark.slots import short_reason
from penstock.storage.files import FileStore

TIMESTAMP_CONF = "spark.sql.parquet.outputTimestampType"


class UnlandedFrame(UnpreparedSource):
    """A DataFrame of the user, before the job starts. When the job starts, Spark writes files of the DataFrame, and a
    source over these files takes the place of this source."""

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
                "from_dataframe takes a batch DataFrame, and got a streaming DataFrame",
                hint="use from_stream for a streaming DataFrame",
            )
        super().__init__(frame)

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "dataframe"

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "Parquet files"

    @property
    def footprint(self) -> Footprint:
        """Files in the landing folder, with the rows of the DataFrame."""
        return Footprint(in_landing=True)

    def prepared(self, site: Site) -> Source:
        """The source over the files of the DataFrame. If the job goes on from a snapshot, or from another driver, the
        DataFrame is not written again: the splits of the files are in the snapshot, or on record."""
        if site.begins and site.splits is None:
            return self.land(FileStore(site.landing).root / site.inputs())
        return ParquetFiles(files=(), columns=self._schema, places=LandedPlaces())

    def land(self, folder: Path) -> Source:
        """Have Spark write the DataFrame into `folder`, an empty folder. Returns the source over the files in
        `folder`."""
        try:
            with _microseconds(self._frame.sparkSession):
                # Not "overwrite", for which Spark would put a folder that all users can enter in place of `folder`.
                self._frame.write.mode("append").parquet(folder.as_uri())
        except Exception as error:
            raise HostError(f"the DataFrame could not be written to {folder}: {short_reason(str(error))}") from error
        return parquet_files(folder, schema=self._schema)


@contextmanager
def _microseconds(session: Any) -> Iterator[None]:
    """Have Spark write timestamps as timestamps of microseconds. By default Spark writes the older and wider type
    INT96."""
    before = session.conf.get(TIMESTAMP_CONF)
    session.conf.set(TIMESTAMP_CONF, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        session.conf.set(TIMESTAMP_CONF, before)

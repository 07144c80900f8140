"""Batch DataFrames that streams are joined with: Spark writes the rows when the job starts, or every so often, and
slots read them.

    <landing>/<job>/inputs/<operator>/part-….parquet               a DataFrame that is read once
    <landing>/<job>/inputs/<operator>/version-<number>-<time>/     a version of a DataFrame that is read anew
    <landing>/<job>/inputs/<operator>/writing-<token>/             a version that is being written

A version is written under another name, and becomes a version by a rename. So a version that a slot finds is whole. The
newest two versions are kept: a slot that has just found a version may still be reading it when the next version comes.
"""

from __future__ import annotations

import re
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.static_tables import RefreshedTable, StaticTable, TableVersion
from penstock.core.errors import UsageError
from penstock.spark.clock import WallClock, fresh_token
from penstock.spark.connect import is_connect
from penstock.spark.dataframes import DataFrameSource

_VERSION = re.compile(r"version-(\d+)-(\d+)")
_KEPT_VERSIONS = 2


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
        return _batches_in(Path(self._folder), self._schema)


class StaticFrame(StaticTable):
    """A batch DataFrame, before the job starts."""

    def __init__(self, frame: Any) -> None:
        if frame.isStreaming:
            raise UsageError(
                "join takes a stream or a batch DataFrame, and got a streaming DataFrame",
                hint="make a stream of it: env.from_stream(df)",
            )
        self._frame = frame
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

    def refreshed(self, every_ms: int) -> RefreshedTable:
        """The DataFrame, which the driver reads every so often."""
        if is_connect(self._frame.sparkSession):
            raise UsageError(
                "join: refresh needs a session of Spark in this process, and this is a session of Spark Connect, whose "
                "server may keep the files that it found for a DataFrame",
                hint="run the program as a driver of its own, or make a stream of the table: env.from_stream(...)",
            )
        return RefreshedFrame(self._frame, self._source, every_ms)

    def batches(self) -> Iterable[pa.RecordBatch]:
        """There are none before the rows are landed."""
        raise AssertionError("the DataFrame has not been landed")


class RefreshedFrame(RefreshedTable):
    """A batch DataFrame that is read anew every so often. What goes to the slots has no DataFrame."""

    def __init__(self, frame: Any, source: DataFrameSource, every_ms: int, folder: Path | None = None) -> None:
        self.every_ms = every_ms
        self._schema = source.schema
        self._folder = folder
        self._frame = frame
        self._source: DataFrameSource | None = source

    def __getstate__(self) -> dict[str, Any]:
        """For the slots: without the DataFrame."""
        return {**vars(self), "_frame": None, "_source": None}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the DataFrame."""
        return self._schema

    def landed(self, folder: Callable[[], Path]) -> StaticTable:
        """Have Spark write the first version."""
        if self._source is None:
            raise AssertionError("the DataFrame is on the driver")
        landed = RefreshedFrame(self._frame, self._source, self.every_ms, folder())
        landed.read_anew()
        return landed

    def read_anew(self) -> TableVersion:
        """Have Spark write a version, and delete versions that no slot is reading."""
        folder, source = self._landed_in, self._source
        if source is None:
            raise AssertionError("the DataFrame is on the driver")
        read_ms = int(WallClock().now())
        known = self._versions()
        version = TableVersion(known[-1].number + 1 if known else 1, read_ms)
        writing = folder / f"writing-{fresh_token()}"
        try:
            # Made before Spark would make the folder, so that the same users may enter as in the folder above.
            writing.mkdir()
            writing.chmod(stat.S_IMODE(folder.stat().st_mode))
            # Otherwise Spark reads the files again that it found when the DataFrame was made.
            self._frame._jdf.queryExecution().analyzed().refresh()  # noqa: SLF001  # the only way to list them again
            source.land(writing)
            writing.rename(self._folder_of(version))
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        for old in self._versions()[:-_KEPT_VERSIONS]:
            shutil.rmtree(self._folder_of(old), ignore_errors=True)
        return version

    def newest(self) -> TableVersion:
        """The newest version in the folder."""
        found = self._versions()
        if not found:
            raise FileNotFoundError(f"no version of the table in {self._landed_in}")
        return found[-1]

    def batches_of(self, version: TableVersion) -> Iterable[pa.RecordBatch]:
        """The rows of all files of a version."""
        return _batches_in(self._folder_of(version), self._schema)

    def _versions(self) -> list[TableVersion]:
        found = (_VERSION.fullmatch(path.name) for path in self._landed_in.iterdir())
        return sorted(TableVersion(int(match[1]), int(match[2])) for match in found if match is not None)

    def _folder_of(self, version: TableVersion) -> Path:
        return self._landed_in / f"version-{version.number}-{version.read_ms}"

    @property
    def _landed_in(self) -> Path:
        if self._folder is None:
            raise AssertionError("the DataFrame has not been landed")
        return self._folder


def _batches_in(folder: Path, schema: pa.Schema) -> Iterable[pa.RecordBatch]:
    from pyarrow import dataset

    for batch in dataset.dataset(str(folder), format="parquet", schema=schema).to_batches():
        yield batch.cast(schema)

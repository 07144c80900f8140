"""Tables that streams are joined with. A table does not change while a job runs, unless it is read anew every so
often."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.core.errors import UsageError


class StaticTable(ABC):
    """The rows of a table, all of them at once."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns."""

    def landed(self, folder: Callable[[], Path]) -> StaticTable:  # noqa: ARG002
        """The table that goes to the slots. Files that slots must read are written to the folder that `folder` makes.
        Called on the driver, before the job starts."""
        return self

    def refreshed(self, every_ms: int) -> RefreshedTable:
        """The table that is read anew every so often. Raises `UsageError`."""
        raise UsageError(
            f"join: refresh is {every_ms} ms, and a table in memory does not change",
            hint="give a batch DataFrame of Spark, which the driver can read anew; or leave refresh out",
        )

    @abstractmethod
    def batches(self) -> Iterable[pa.RecordBatch]:
        """All rows, in batches that have the columns of `schema`. Blocks. Called in slots."""


class TableVersion(NamedTuple):
    """A table as it was read at one time."""

    number: int
    """Later versions have greater numbers."""
    read_ms: int
    """When the driver began to read the table, in milliseconds since 1970."""


class RefreshedTable(StaticTable):
    """A table that the driver reads anew every so often. Slots look for the newest version."""

    every_ms: int
    """How long the driver waits until it reads the table again."""

    @abstractmethod
    def read_anew(self) -> TableVersion:
        """Read the table, and make its rows the newest version. Blocks. Called on the driver."""

    @abstractmethod
    def newest(self) -> TableVersion:
        """The newest version that can be read. Never an earlier version than an earlier call has returned, in any slot.
        Blocks. Called in slots."""

    @abstractmethod
    def batches_of(self, version: TableVersion) -> Iterable[pa.RecordBatch]:
        """All rows of a version. Blocks. Called in slots. Raises `FileNotFoundError` if newer versions have taken the
        place of the version."""

    def batches(self) -> Iterable[pa.RecordBatch]:
        """All rows of the newest version."""
        return self.batches_of(self.newest())


class GivenTable(StaticTable):
    """A table that is in memory, and goes to the slots with the job."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.replace_schema_metadata(None).combine_chunks()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._table.schema

    def batches(self) -> Iterable[pa.RecordBatch]:
        """The rows."""
        return self._table.to_batches()


TableHost = Callable[[Any], StaticTable | None]
"""Makes a table of a DataFrame of another system; None if the object is no such DataFrame. Raises `UsageError`."""


def static_table(given: Any, host: TableHost | None) -> StaticTable | None:
    """The table that a user gave; None if the object is no table. Raises `UsageError`."""
    if isinstance(given, pa.Table):
        return GivenTable(given)
    if isinstance(given, pa.RecordBatch):
        return GivenTable(pa.Table.from_batches([given]))
    polars: Any = sys.modules.get("polars")
    # Every slot imports this module, and a program that has a frame of Polars has imported Polars.
    if polars is not None and isinstance(given, polars.DataFrame):
        table = given.to_arrow()
        plain = [pa.field(f.name, pa.string() if pa.types.is_large_string(f.type) else f.type) for f in table.schema]
        return GivenTable(table.cast(pa.schema(plain)))
    if type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns"):
        return GivenTable(pa.Table.from_pandas(given, preserve_index=False))
    found = None if host is None else host(given)
    if found is None and hasattr(given, "isStreaming"):
        raise UsageError(
            "join with a DataFrame of Spark needs an Environment on Spark", hint="make a ps.Environment(spark)"
        )
    return found

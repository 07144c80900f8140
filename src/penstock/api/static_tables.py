"""Tables that streams are joined with, and that do not change while a job runs."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

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

    @abstractmethod
    def batches(self) -> Iterable[pa.RecordBatch]:
        """All rows, in batches that have the columns of `schema`. Blocks. Called in slots."""


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

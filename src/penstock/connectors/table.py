"""A table of Spark's catalog as a sink. When a job starts on Spark, this sink is replaced by a sink of Parquet files
that the driver commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from penstock.api.connector import Sink, Site, UnpreparedSink
from penstock.connectors.file_sink import as_columns, local_path
from penstock.connectors.parquet import ParquetSink
from penstock.core.errors import UsageError


def table(name: str, *, path: str | Path | None = None, partition_by: str | Sequence[str] = ()) -> TableSink:
    """A Parquet table of Spark's catalog. `spark.table(name)` can read the table while the job runs: the table has each
    row of the completed checkpoints once, and no other rows from the job.

    >>> import penstock as ps
    >>> sink = ps.table("shop.bids", partition_by="day")  # for stream.write(sink)
    >>> sink.described
    'table shop.bids'

    Args:
        name: the name of the table as Spark SQL spells it, with the database if need be. A table that does not exist is
            made when the job starts, with the columns of the stream. A table that exists must be a Parquet table with
            exactly the columns of the stream.
        path: if the table is made: the folder of its files, which every slot must be able to reach. Default: the folder
            in which Spark keeps the tables that it manages.
        partition_by: if the table is made: the columns by whose values the table is partitioned; see
            `penstock.parquet`. A table that exists keeps its own partitions.

    """
    if not name.strip():
        raise UsageError("ps.table needs the name of a table, and the name that was given is empty")
    if "/" in name and "`" not in name:
        raise UsageError(
            f"table name {name!r} looks like a path", hint="write ps.parquet(path), or ps.table(name, path=path)"
        )
    place = None if path is None else local_path(path)
    return TableSink(table=name.strip(), path=place, partition_by=as_columns(partition_by))


@dataclass(frozen=True, kw_only=True)
class TableSink(UnpreparedSink):
    """The sink that `table` makes, before the job starts."""

    table: str
    path: str | None = None
    partition_by: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "table"

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if Spark could not read a column back from Parquet."""
        ParquetSink(path="", partition_by=self.partition_by).check(schema)

    @property
    def described(self) -> str:
        """The table's name, for messages."""
        return f"table {self.table}"

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:
        """The sink into the table. The table is made if the table does not exist. If the job has ended and the table
        does not exist any more, no table is made, and this sink is returned."""
        return site.table(self.table, path=self.path, partition_by=self.partition_by, schema=schema) or self

"""A table of Spark's catalog as a sink. Where Spark is, it becomes a sink of Parquet files that the driver commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from penstock.api.connector import Sink, Site, UnpreparedSink
from penstock.connectors.parquet import ParquetSink, as_columns, local_path
from penstock.core.errors import UsageError


def table(name: str, *, path: str | Path | None = None, partition_by: str | Sequence[str] = ()) -> TableSink:
    """A Parquet table of Spark's catalog, for `spark.table(name)` to read while the job runs: it has the rows of
    completed checkpoints, each once, and no others.

    Args:
        name: as Spark SQL spells it, with its database if need be. It is made when the job starts, with the columns of
            the stream, if it does not exist; if it does, it must be a Parquet table that has exactly those columns.
        path: where its files are, if it is made: a folder that every slot can reach. Default: where Spark keeps the
            tables that it manages.
        partition_by: columns by whose values the table is partitioned, if it is made; see `penstock.parquet`. One that
            exists is written with the partitions that it has.

    """
    if not name.strip():
        raise UsageError("a table needs a name")
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
        """What the step is called unless the user names it."""
        return "table"

    def check(self, schema: pa.Schema) -> None:
        """Refuse what Spark could not read back from Parquet."""
        ParquetSink(path="", partition_by=self.partition_by).check(schema)

    @property
    def described(self) -> str:
        """With the table's name."""
        return f"table {self.table}"

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:
        """The table, opened or made."""
        return site.table(self.table, path=self.path, partition_by=self.partition_by, schema=schema) or self

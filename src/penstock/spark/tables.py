"""A Parquet table of Spark's catalog as a sink.

Subtasks prepare files below the table's folder, where Spark does not look. When a checkpoint is complete, the driver
renames the files of all subtasks, as the Parquet sink does. Then the driver refreshes the table in its session: Spark
lists the files of a table once, and would not see files that come later. For a partitioned table the catalog has a list
of the partitions, and the driver adds new partitions to the list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException

from penstock.api.connector import Committer, Footprint, Sink
from penstock.api.hold import Hold
from penstock.connectors.parquet import ParquetSink
from penstock.connectors.partitions import check_partitions
from penstock.connectors.prepared_files import final_folder, publish_files, staged_before, staged_file
from penstock.connectors.table import TableSink
from penstock.core.errors import HostError, UsageError
from penstock.spark import connect
from penstock.spark.clock import fresh_token
from penstock.spark.slots import short_reason

ELSEWHERE = "stream.for_each_checkpoint(...) can write to any table that Spark can"
OWN_CATALOG = "spark_catalog"
"""Spark's own catalog, or a catalog that extends it. In this catalog a table is made in the format that is asked
for."""


class TableFiles(ParquetSink):
    """The sink in the slots: Parquet files that the driver commits."""

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "table"

    @property
    def commits_on_driver(self) -> bool:
        """Always."""
        return True


class CatalogTable(TableFiles):
    """The sink on the driver. Slots get only the part that writes files."""

    keeps_prepared = False
    """Whether there are prepared files that another job may have to commit."""

    def __init__(
        self, path: str, session: Any, table: str, partition_by: tuple[str, ...] = (), *, in_catalog: bool = False
    ) -> None:
        """With `in_catalog`, Spark looks for partitions in its catalog, and not in the folder."""
        super().__init__(path=path, partition_by=partition_by)
        object.__setattr__(self, "_in_catalog", in_catalog)
        object.__setattr__(self, "_session", session)
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "_known", {"."})

    def __reduce__(self) -> tuple[Callable[..., Sink], tuple[Any, ...]]:
        return _files_of, (self.path, self.partition_by)

    @property
    def footprint(self) -> Footprint:
        """The table's folder."""
        return Footprint(place=self.path, written=self.path)

    def committer(self) -> Committer:
        """The committer, which renames files and refreshes the table."""
        return _Publishing(self)

    def publish(self, committables: Sequence[bytes], hold: Hold) -> None:
        """Rename prepared files, and refresh the table, so that the session sees the files. The hold is looked at
        before each file."""
        publish_files(Path(self.path), committables, before_each=hold.check)
        folders = set(map(final_folder, committables))
        try:
            self._tell(has_new_partitions=not folders <= self._known)  # type: ignore[attr-defined]
        except Exception as error:
            raise HostError(
                f"table {self._table} could not be refreshed: {short_reason(str(error))}",  # type: ignore[attr-defined]
                hint="a table must not be dropped while a job writes to it",
            ) from error
        self._known.update(folders)  # type: ignore[attr-defined]

    def _tell(self, *, has_new_partitions: bool) -> None:
        catalog = self._session.catalog  # type: ignore[attr-defined]
        if has_new_partitions and self._in_catalog:  # type: ignore[attr-defined]
            catalog.recoverPartitions(self._table)  # type: ignore[attr-defined]
        catalog.refreshTable(self._table)  # type: ignore[attr-defined]

    def drop_staged(self, job: str, epoch: int, keep: Sequence[bytes]) -> None:
        """Remove the files that attempts before `epoch` prepared, except for files that will be committed."""
        kept = set(map(staged_file, keep))
        for file, _ in staged_before(Path(self.path), self._staging(job), epoch):
            if str(file.relative_to(self.path)) not in kept:
                file.unlink(missing_ok=True)

    def end(self, job: str) -> None:
        """Remove the files that were not committed, unless another job may have to commit them."""
        if not self.keeps_prepared:
            super().end(job)


def _files_of(path: str, partition_by: tuple[str, ...]) -> Sink:
    return TableFiles(path=path, partition_by=partition_by)


class _Publishing(Committer):
    def __init__(self, table: CatalogTable) -> None:
        self._table = table

    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:  # noqa: ARG002  # files have their names
        self._table.publish(committables, self.hold)

    def clean_up(self, job: str, epoch: int, keep: Sequence[bytes]) -> None:
        self._table.drop_staged(job, epoch, keep)

    def close(self, *, owes: bool) -> None:
        object.__setattr__(self._table, "keeps_prepared", owes)


def open_table(sink: TableSink, session: Any, schema: pa.Schema) -> CatalogTable:
    """The table as a sink. A table that does not exist is made. Raises `UsageError` if records of this schema cannot be
    written to the table."""
    wanted = _spark_schema(sink.table, schema)
    try:
        if not session.catalog.tableExists(sink.table):
            _check_catalog(sink.table, session)
            _make_table(sink, session, wanted)
        facts = _facts_of(sink.table, session)
        found = session.table(sink.table).schema
    except UsageError:
        raise
    except Exception as error:
        raise HostError(f"table {sink.table} could not be opened or made: {short_reason(str(error))}") from error
    _check_kind(sink.table, facts)
    _check_columns(sink.table, found, wanted)
    partition_by = _checked_partitions(sink, facts, schema)
    folder = _folder_of(sink.table, facts["location"])
    if sink.path is not None and Path(sink.path).resolve() != Path(folder).resolve():
        raise UsageError(
            f"table {sink.table} exists, and its files are in {folder}, not in {sink.path}",
            hint="leave path= out, or choose another table name",
        )
    if connect.is_connect(session):
        check_same_folder(sink.table, session, Path(folder))
    in_catalog = facts.get("partition_provider") == "Catalog"
    return CatalogTable(folder, session, sink.table, partition_by, in_catalog=in_catalog)


def _check_catalog(table: str, session: Any) -> None:
    """Raise `UsageError` if a table would be made in another catalog than Spark's own: other catalogs make tables of
    their own kind, whatever format is asked for."""
    first, *rest = re.findall(r"`(?:[^`]|``)+`|[^.`]+", table)
    name = first.strip("`").replace("``", "`")
    is_catalog = rest and session.conf.get(f"spark.sql.catalog.{name}", None) is not None
    catalog = name if is_catalog else session.catalog.currentCatalog()
    if catalog != OWN_CATALOG:
        raise UsageError(
            f"table {table} does not exist, and would be made in catalog {catalog}; Parquet tables are made in "
            f"{OWN_CATALOG} only",
            hint=ELSEWHERE,
        )


def _facts_of(table: str, session: Any) -> dict[str, Any]:
    """The description that Spark gives of a table. Raises `UsageError` for a table that another library manages, such
    as a table of Delta."""
    try:
        facts: dict[str, Any] = json.loads(session.sql(f"DESCRIBE TABLE EXTENDED {table} AS JSON").first()[0])
    except PySparkException as error:
        if error.getCondition() != "NOT_SUPPORTED_COMMAND_FOR_V2_TABLE":
            raise
        rows = session.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
        format_of_it = next((row.data_type for row in rows if row.col_name == "Provider"), None)
        what = f"of format {format_of_it}" if format_of_it else "not a table of files"
        raise UsageError(f"table {table} is {what}, and only parquet can be written", hint=ELSEWHERE) from error
    return facts


def _make_table(sink: TableSink, session: Any, wanted: Any) -> None:
    place = None if sink.path is None else _made(sink.path)
    if not sink.partition_by:
        session.catalog.createTable(sink.table, place, source="parquet", schema=wanted)
        return
    columns = ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in wanted)
    text = f"CREATE TABLE {sink.table} ({columns}) USING parquet PARTITIONED BY ({_listed(sink.partition_by)})"
    if place is not None:
        escaped = place.replace("\\", "\\\\").replace("'", "\\'")
        text += f" LOCATION '{escaped}'"
    session.sql(text)


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(map(_quoted, columns))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _checked_partitions(sink: TableSink, facts: dict[str, Any], schema: pa.Schema) -> tuple[str, ...]:
    """The columns by which the table is partitioned. Raises `UsageError` if the user gave other columns."""
    found = tuple(facts.get("partition_columns") or ())
    if sink.partition_by and sink.partition_by != found:
        has = f"partitioned by {', '.join(found)}" if found else "not partitioned"
        raise UsageError(
            f"table {sink.table} exists, and is {has}",
            hint="leave partition_by= out, or choose another table name",
        )
    check_partitions(schema, found)
    return found


def check_same_folder(table: str, session: Any, folder: Path) -> None:
    """Raise `UsageError` if Spark, which may be on another host, does not find a file that this program writes into the
    folder."""
    elsewhere = UsageError(
        f"the files of table {table} are in {folder}, and this program and Spark do not share this folder",
        hint=f"give ps.table a path= that every host has mounted, or: {ELSEWHERE}",
    )
    sign = folder / f"_penstock-{fresh_token()}"
    try:
        sign.touch()
    except OSError as error:
        raise elsewhere from error
    try:
        # Spark ignores hidden files of a folder, but reads a hidden file that is named by its full path.
        session.read.format("binaryFile").load(sign.as_uri()).count()
    except PySparkException as error:
        raise elsewhere from error
    finally:
        sign.unlink()


def table_left_by(table: str, session: Any) -> Sink | None:
    """The table of a job that has ended, to be cleaned up; None if the table does not exist. The table is not made
    again."""
    try:
        if session.catalog.tableExists(table):
            facts = json.loads(session.sql(f"DESCRIBE TABLE EXTENDED {table} AS JSON").first()[0])
            return CatalogTable(_folder_of(table, facts["location"]), session, table)
    except Exception as error:
        raise HostError(f"table {table} could not be opened: {short_reason(str(error))}") from error
    return None


def _spark_schema(table: str, schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return from_arrow_schema(schema)
    except Exception as error:
        raise UsageError(
            f"table {table} cannot have the columns of the stream: {short_reason(str(error))}",
            hint="cast the columns to types that Spark has",
        ) from error


def _made(path: str) -> str:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"folder {path} cannot be made: {error.strerror}") from error
    return path


def _check_kind(table: str, facts: dict[str, Any]) -> None:
    provider = facts.get("provider", "")
    if facts.get("type") == "VIEW" or "location" not in facts:
        raise UsageError(f"{table} is a view, not a table with files", hint="choose the name of a table")
    if provider.lower() != "parquet":
        raise UsageError(f"table {table} is of format {provider}, and only parquet can be written", hint=ELSEWHERE)
    if facts.get("bucket_columns"):
        raise UsageError(f"table {table} has buckets, and tables with buckets cannot be written", hint=ELSEWHERE)


def _check_columns(table: str, found: Any, wanted: Any) -> None:
    """Raise `UsageError` unless the table and the stream have the same columns. Their order may differ: Spark reads
    files by the names of columns."""
    there = {field.name: field.dataType.simpleString() for field in found}
    here = {field.name: field.dataType.simpleString() for field in wanted}
    both = [name for name in there if name in here]
    wrong = [
        f"{name} is {there[name]} in the table and {here[name]} in the stream"
        for name in both
        if there[name] != here[name]
    ]
    wrong += [f"{name} ({there[name]}) is only in the table" for name in there if name not in here]
    wrong += [f"{name} ({here[name]}) is only in the stream" for name in here if name not in there]
    if wrong:
        raise UsageError(
            f"table {table} has other columns than the stream: {'; '.join(wrong)}",
            hint="select and cast the columns that the table has, or choose another table name",
        )


def _folder_of(table: str, location: str) -> str:
    scheme, _, rest = location.partition(":")
    if scheme != "file":
        raise UsageError(f"table {table} lies at {location}, which is not a mounted folder", hint=ELSEWHERE)
    return str(Path("/" + rest.lstrip("/")))

"""How rows become records of Kafka: value, key, headers, topic and partition.

Rows are encoded when they are prepared, and not when they are committed: a row that cannot be written fails the job
before its checkpoint completes, and what a checkpoint keeps is what the cluster gets, whatever the program becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.changelog import DELETE, ROW_KIND, UPDATE_BEFORE
from penstock.connectors.json_sink import JsonFormat, json_lines
from penstock.connectors.text_columns import is_text
from penstock.core.errors import UsageError

_FIELDS: list[Any] = [
    pa.field("value", pa.large_binary()),
    pa.field("key", pa.large_binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
]
RECORDS = pa.schema(_FIELDS)
"""The columns of prepared records. Columns that a sink does not need are left out."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Which columns of a row become which part of a record."""

    format: str
    value: tuple[str, ...] = ()
    """The columns of the value; empty: all columns."""
    key: tuple[str, ...] = ()
    topic: str | None = None
    partition: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Names of headers, with their columns."""
    is_changelog: bool = False
    largest_bytes: int = 1_000_000

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if records of this schema cannot be written."""
        named = [*self.value, *self.key, *(column for _, column in self.headers)]
        for column in [*named, *filter(None, (self.topic, self.partition))]:
            if column not in schema.names:
                raise UsageError(
                    f"kafka_sink names the column {column!r}, which the stream does not have",
                    hint=f"there are {', '.join(schema.names)}",
                )
        values = self._value_columns(schema)
        if self.format == "raw":
            if len(values) != 1 or not _is_bytes(schema.field(values[0]).type):
                raise UsageError(
                    "format='raw' writes one column of bytes or text, and the value is "
                    + ", ".join(f"{name}: {schema.field(name).type}" for name in values),
                    hint="name the column: value='body'",
                )
        else:
            JsonFormat().check(pa.schema([schema.field(name) for name in values]))
        JsonFormat().check(
            pa.schema([schema.field(name) for name in self.key if not _is_bytes(schema.field(name).type)])
        )
        if self.topic is not None and not is_text(schema.field(self.topic).type):
            raise UsageError(f"the column {self.topic!r} is to name topics, and is no text")
        if self.partition is not None and not pt.is_integer(schema.field(self.partition).type):
            raise UsageError(f"the column {self.partition!r} is to number partitions, and is no whole number")
        for _, column in self.headers:
            if not _is_bytes(schema.field(column).type):
                raise UsageError(f"the column {column!r} is to be a header, and is neither bytes nor text")

    def records(self, batch: pa.RecordBatch) -> pa.Table:
        """The rows as records. Raises `UsageError` if a record is too large."""
        deleted = None
        if self.is_changelog:
            batch = batch.filter(pc.field(ROW_KIND) != UPDATE_BEFORE)
            kinds: Any = batch.column(ROW_KIND)
            deleted = pc.equal(kinds, pa.scalar(DELETE, kinds.type))
        values = self._values(batch)
        if deleted is not None:
            # A record without a value: a topic that is compacted forgets the key.
            values = pc.if_else(deleted, pa.scalar(None, values.type), values)
        columns: dict[str, Any] = {"value": values}
        if self.key:
            columns["key"] = self._keys(batch)
        if self.topic is not None:
            columns["topic"] = _without_nulls(batch, self.topic, "topics").cast(pa.string())
        if self.partition is not None:
            columns["partition"] = _without_nulls(batch, self.partition, "partitions").cast(pa.int32())
        if self.headers:
            columns["headers"] = self._headers(batch)
        self._check_sizes(columns)
        schema = pa.schema([field for field in RECORDS if field.name in columns])
        return pa.table([columns[field.name] for field in schema], schema=schema)

    def _value_columns(self, schema: pa.Schema) -> list[str]:
        return [*(self.value or (name for name in schema.names if not (self.is_changelog and name == ROW_KIND)))]

    def _values(self, batch: pa.RecordBatch) -> Any:
        chosen = batch.select(self._value_columns(batch.schema))
        return as_bytes(chosen.column(0)) if self.format == "raw" else _json(chosen)

    def _keys(self, batch: pa.RecordBatch) -> Any:
        chosen = batch.select(list(self.key))
        if len(self.key) > 1:
            return _json(chosen)
        (column,) = chosen.columns
        return as_bytes(column) if _is_bytes(column.type) else _json_scalars(chosen)

    def _headers(self, batch: pa.RecordBatch) -> Any:
        columns = [(name, as_bytes(batch.column(column)).to_pylist()) for name, column in self.headers]
        rows = [
            [{"key": name, "value": values[row]} for name, values in columns if values[row] is not None]
            for row in range(batch.num_rows)
        ]
        return pa.array(rows, RECORDS.field("headers").type)

    def _check_sizes(self, columns: dict[str, Any]) -> None:
        longest = sum(
            pc.max(pc.binary_length(columns[name])).as_py() or 0 for name in ("value", "key") if name in columns
        )
        if longest > self.largest_bytes:
            raise UsageError(
                f"a record for Kafka has {longest} bytes, and the client sends at most {self.largest_bytes} bytes",
                hint="raise message.max.bytes in config=, and max.message.bytes of the topic; or write smaller records",
            )


def _is_bytes(kind: pa.DataType) -> bool:
    return is_text(kind) or pt.is_binary(kind) or pt.is_large_binary(kind)


def as_bytes(column: Any) -> Any:
    """A column of texts or bytes as bytes."""
    return column.cast(pa.large_binary())


def _json(rows: pa.RecordBatch) -> Any:
    lines = json_lines(rows)
    return pa.array(lines.removesuffix(b"\n").split(b"\n") if rows.num_rows else [], pa.large_binary())


def _json_scalars(rows: pa.RecordBatch) -> Any:
    """One column, each value as JSON, without a name. A null is no key."""
    name = rows.schema.names[0]
    prefix = len(json_lines(pa.record_batch({name: pa.array([0])}))) - len(b"0}\n")
    whole = json_lines(rows).removesuffix(b"\n").split(b"\n") if rows.num_rows else []
    found: Sequence[bytes | None] = [line[prefix:-1] for line in whole]
    nulls = rows.column(0).is_null()
    return pc.if_else(nulls, pa.scalar(None, pa.large_binary()), pa.array(found, pa.large_binary()))


def _without_nulls(batch: pa.RecordBatch, column: str, what: str) -> Any:
    found = batch.column(column)
    if found.null_count:
        raise UsageError(f"the column {column!r} names the {what} of records, and is null in {found.null_count} rows")
    return found

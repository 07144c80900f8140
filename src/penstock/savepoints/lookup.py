"""The state of one key in a snapshot: only the files of the key's key group are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import UsageError
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.rows import groups_of
from penstock.savepoints.tables import FoundTable, column_names
from penstock.sql.column_values import REFUSED, array_of
from penstock.sql.python_values import table_rows
from penstock.state.format import KEY_GROUP
from penstock.state.values import unpickled

_SINGLE = ("value", "reducing", "aggregating")
"""Kinds of state with one value per key."""


def value_of_key(data: SnapshotData, operator: str, name: str, key: Any, default: Any = None) -> Any:
    """The state of one key: a value, a list, or a dict of a map; for windows, joins and timers a list of rows, each a
    dict. `default` if the key has no state. The key is a value, or a tuple or a dict of the key columns' values. The
    call blocks.

    Raises:
        UsageError: the operator has no such state, the state is not keyed, or the key does not fit the key columns.

    """
    table, keys = data.found_table(operator, name), data.key_schema(operator, name)
    if table is None or not keys.names:
        raise UsageError(f"state {name!r} of {operator!r} is not kept by key", hint="read all of it as a DataFrame")
    batch = _key_row(keys, key)
    group = int(groups_of(batch, keys, data.snapshot_of(operator).max_parallelism)[0].as_py() or 0)
    rows = [row for found in data.tables(operator, name, (group, group)) for row in _rows_with(found, batch, table)]
    if not rows:
        return default
    columns = table.columns.names
    value = _named(columns, "value")
    if table.kind in _SINGLE:
        return rows[0][value]
    if table.kind == "list":
        return [row[value] for row in rows]
    if table.kind == "map":
        return {row[_named(columns, "map_key")]: row[value] for row in rows}
    return rows


def _key_row(keys: pa.Schema, key: Any) -> pa.RecordBatch:
    """The key as a batch of one row."""
    if isinstance(key, Mapping):
        values = tuple(key.get(name) for name in keys.names) if set(key) == set(keys.names) else ()
    else:
        values = key if isinstance(key, tuple) and len(keys) > 1 else (key,)
    if len(values) != len(keys):
        raise UsageError(f"the key {key!r} does not fit the key columns {', '.join(keys.names)}")
    try:
        columns = [array_of([value], field.type) for value, field in zip(values, keys, strict=True)]
    except REFUSED as error:
        kinds = ", ".join(f"{field.name}: {field.type}" for field in keys)
        raise UsageError(f"the key {key!r} does not fit the key columns {kinds}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(keys))


def _rows_with(found: pa.Table, key: pa.RecordBatch, table: FoundTable) -> list[dict[str, Any]]:
    fits: Any = None
    for name in table.keys.names:
        same = _same(found.column(name), key.column(name))
        fits = same if fits is None else pc.and_(fits, same)
    (group,) = column_names([KEY_GROUP], table.keys.names)
    chosen = found.filter(fits).drop_columns([n for n in (*table.keys.names, group) if n in found.column_names])
    rows = table_rows(chosen)
    spec = table.spec
    if spec is not None:
        for column, kind in (("value", spec.type), ("map_key", spec.map_key)):
            named = _named(table.columns.names, column)
            if kind is None and rows and isinstance(rows[0].get(named), bytes):
                for row in rows:
                    row[named] = unpickled(row[named], what="the snapshot")
    return rows


def _same(column: Any, key: Any) -> Any:
    (value,) = key
    if not value.is_valid:
        return pc.is_null(column)
    if pa.types.is_floating(key.type) and value.as_py() != value.as_py():
        return pc.is_nan(column)
    return pc.fill_null(pc.equal(column, value), pa.scalar(value=False))


def _named(columns: list[str], name: str) -> str:
    """The column that holds the values of a state; a key column of the same name has pushed it aside."""
    return next((found for found in reversed(columns) if found.lstrip("_") == name), name)

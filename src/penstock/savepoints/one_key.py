"""One key of a state, as a person writes it."""

from __future__ import annotations

import pyarrow as pa

from penstock.core.errors import UsageError
from penstock.runtime.task.partitioning import key_groups
from penstock.sql.python_values import shown_rows, shown_values


def groups_of_key(wanted: pa.RecordBatch, groups: int) -> tuple[int, int]:
    """The range of key groups that has only the key group of the key."""
    group = int(key_groups(wanted, wanted.schema.names, groups)[0])
    return group, group


def wanted_key(schema: pa.Schema, keys: tuple[str, ...]) -> pa.RecordBatch:
    """One row with the key that is asked for: a value, or `column=value` for each key column. Raises
    `UsageError` if the given text is not such a key."""
    named = dict(key.partition("=")[::2] for key in keys if key.partition("=")[0] in schema.names and "=" in key)
    if len(schema) == 1 and not named and len(keys) == 1:
        named = {schema.names[0]: keys[0]}
    if sorted(named) != sorted(schema.names) or len(named) != len(keys):
        options = " ".join(f"--key {column}=..." for column in schema.names)
        raise UsageError(f"a key of this state has the columns {', '.join(schema.names)}", hint=f"write {options}")
    try:
        columns = [pa.array([named[field.name]], pa.string()).cast(field.type) for field in schema]
    except pa.ArrowException as error:
        raise UsageError(
            f"{' '.join(keys)} cannot be read as a key of type {', '.join(str(f.type) for f in schema)}"
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def rows_of_key(table: pa.Table, wanted: pa.RecordBatch) -> pa.Table:
    """The rows of a table that have the key."""
    row = shown_rows(wanted)[0]
    keep = [True] * table.num_rows
    for name, value in row.items():
        keep = [kept and found == value for kept, found in zip(keep, shown_values(table.column(name)), strict=True)]
    return table.filter(pa.array(keep, pa.bool_()))

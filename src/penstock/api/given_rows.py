"""Rows as users give them, and the Arrow columns that they become.

A row is a dict, a tuple or list by position, a dataclass, an object with `asDict` (a `Row` of PySpark), a named tuple,
or a single value if there is a single column. Rows are counted from 0 in messages, as Python counts them in a list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import UsageError
from penstock.sql.column_values import REFUSED, array_of, first_misfit, shown
from penstock.sql.ddl import TIMESTAMP
from penstock.sql.schemas import check_schema, unknown_column

_EXAMPLE = "schema='word string, n bigint'"


def batch_of(rows: Sequence[Any], schema: pa.Schema, *, first: int = 0) -> pa.RecordBatch:
    """Rows as a batch with exactly this schema. A column that a row leaves out is null. `first` is the number of the
    first row, for messages. Raises `UsageError` that names the row, the column, the value and the type."""
    columns = _columns(rows, schema, first)
    arrays: list[Any] = []
    for field, values in zip(schema, columns, strict=True):
        try:
            array = array_of(values, field.type)
        except REFUSED as error:
            raise _misfit(values, field, first, error) from error
        if isinstance(array, pa.ChunkedArray):
            raise UsageError(
                f"column {field.name!r} has more than 2 GB in {len(rows)} rows",
                hint="give such data in files, and read the files",
            )
        if array.null_count and not field.nullable:
            number = next(number for number, value in enumerate(values) if value is None)
            raise UsageError(
                f"row {first + number} has no value in column {field.name!r}, which cannot be null",
                hint=f"give the row a value, or take NOT NULL of {field.name!r} out of the schema",
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def inferred_schema(rows: Sequence[Any]) -> pa.Schema:
    """The schema that dicts, dataclasses and the like have together. Raises `UsageError` that says in which row and
    column the schema cannot be told."""
    if not rows:
        raise UsageError("there are no rows to tell the columns from", hint=f"give a schema, such as {_EXAMPLE}")
    as_dicts: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows):
        named = _as_dict(row)
        if named is None:
            raise UsageError(
                f"row {number} is {shown(row)}, which has no names for its columns",
                hint=f"give dicts, or a schema, such as {_EXAMPLE}",
            )
        as_dicts.append(named)
    for number, row in enumerate(as_dicts):
        for name in row:
            if not isinstance(name, str):
                raise UsageError(f"row {number} has a column named {name!r}; names of columns are texts")
    names = dict.fromkeys(name for row in as_dicts for name in row)
    fields = [pa.field(name, _inferred_type(name, [row.get(name) for row in as_dicts])) for name in names]
    return check_schema(pa.schema(fields), argument="the rows")


def _inferred_type(name: str, values: list[Any]) -> pa.DataType:
    try:
        kind = pa.array(values).type
    except REFUSED as error:
        # A longer part of the column cannot fit if a shorter part does not: the shortest part that does not fit ends
        # with the row that is to blame.
        fits, fails = 0, len(values)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if _can_infer(values[:middle]) else (fits, middle)
        raise UsageError(
            f"the type of column {name!r} cannot be told: row {fails - 1} has {shown(values[fails - 1])}, which does "
            f"not go with the rows before it",
            hint=f"mend the row, or give a schema, such as {_EXAMPLE}",
        ) from error
    if _has_no_type(kind):
        raise UsageError(
            f"the type of column {name!r} cannot be told: no row has a value there",
            hint=f"give a schema that names the type of {name!r}, such as {_EXAMPLE}",
        )
    # A time without a time zone is taken as UTC, as it is where the schema says `timestamp`.
    return TIMESTAMP if pt.is_timestamp(kind) else kind


def _can_infer(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except REFUSED:
        return False
    return True


def _has_no_type(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.ListType):
        return _has_no_type(kind.value_type)
    if isinstance(kind, pa.StructType):
        return any(_has_no_type(field.type) for field in kind)
    return pt.is_null(kind)


# --- rows as columns of Python values --------------------------------------------------------------------------------


def _columns(rows: Sequence[Any], schema: pa.Schema, first: int) -> Sequence[Sequence[Any]]:
    names, kinds = schema.names, set(map(type, rows))
    if kinds == {tuple} and set(map(len, rows)) == {len(names)}:
        return list(zip(*rows, strict=True))
    dicts: Sequence[Any] = rows
    if kinds != {dict}:
        to_dict = _reader_of(schema)
        dicts = [to_dict(row, first + number) for number, row in enumerate(rows)]
    known = frozenset(names)
    for number, row in enumerate(dicts):
        if not row.keys() <= known:
            strange = next(name for name in row if name not in known)
            raise unknown_column(str(strange), names, argument=f"row {first + number}")
    return [[row.get(name) for row in dicts] for name in names]


def _reader_of(schema: pa.Schema) -> Callable[[Any, int], Mapping[str, Any]]:
    names = schema.names
    takes_lists = len(names) == 1 and isinstance(schema.field(0).type, pa.ListType | pa.LargeListType)

    def to_dict(row: Any, number: int) -> Mapping[str, Any]:
        named = _as_dict(row)
        if named is not None:
            return named
        if isinstance(row, tuple) or (isinstance(row, list) and not takes_lists):
            if len(row) != len(names):
                raise UsageError(
                    f"row {number} has {len(row)} values, and the schema has {len(names)} columns: {', '.join(names)}",
                    hint="give each row a value for every column, in the order of the schema; None is null",
                )
            return dict(zip(names, row, strict=True))
        if len(names) == 1:
            return {names[0]: row}
        raise UsageError(
            f"row {number} is {shown(row)}; a row needs values for {', '.join(names)}",
            hint="give a dict, a tuple in the order of the schema, a dataclass or a Row",
        )

    return to_dict


def _as_dict(row: Any) -> Mapping[str, Any] | None:
    """The row by names; None if the row has no names."""
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return dataclasses.asdict(row)
    if isinstance(row, tuple):
        # A Row of PySpark may have been made without names.
        if getattr(row, "__fields__", None):
            return dict(row.asDict(recursive=True))  # type: ignore[attr-defined]
        return dict(row._asdict()) if hasattr(row, "_asdict") else None
    return dict(row.asDict()) if callable(getattr(row, "asDict", None)) and not isinstance(row, type) else None


def _misfit(values: Sequence[Any], field: pa.Field[Any], first: int, error: Exception) -> UsageError:
    found = first_misfit(values, field.type)
    if found is None:
        return UsageError(f"column {field.name!r} does not fit the type {field.type}: {error}")
    number, value, reason = found
    return UsageError(
        f"row {first + number} has {value} in column {field.name!r}, which is of type {field.type}: {reason}",
        hint="mend the row, or give the column another type in the schema",
    )

"""Batches as rows and back: a row is a dict of Python values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any

import pyarrow as pa

from penstock.runtime.task.operators.user_code import Wrong, describe
from penstock.sql.column_values import REFUSED, array_of, first_misfit
from penstock.sql.python_values import rows_of as rows_of

Row = dict[str, Any]

SOME_ROWS = 64
"""A generator is asked for this many rows before the operator checks whether the slice is over."""


def add_some(made: list[Any], result: Any) -> Iterator[Any] | None:
    """Append the row or the rows that a function returned; `result` must not be None. Of a generator only the first
    rows are appended. Returns the generator if it may have more rows, for `add_more`; otherwise None."""
    kind = type(result)
    if kind is dict:
        made.append(result)
    elif kind is GeneratorType:
        return add_more(made, result)
    elif kind is list or kind is tuple:
        made.extend(result)
    elif isinstance(result, Mapping):
        made.append(result)
    else:
        return add_more(made, iter(result))
    return None


def add_more(made: list[Any], rest: Iterator[Any]) -> Iterator[Any] | None:
    """Append the next rows of an iterator. Returns the iterator if it may have more rows; otherwise None."""
    before = len(made)
    made.extend(islice(rest, SOME_ROWS))
    return rest if len(made) - before == SOME_ROWS else None


def batch_of(rows: Sequence[Any], schema: pa.Schema, wrong: Wrong) -> pa.RecordBatch:
    """A batch of the rows that a user's function made. Every row must be a dict with exactly the columns of `schema`,
    and its values must fit. Otherwise raises the error that `wrong` makes."""
    names = schema.names
    if set(map(type, rows)) - {dict} or set(map(len, rows)) - {len(names)}:
        _check_rows(rows, names, wrong)
    try:
        columns = [[row[name] for row in rows] for name in names]
    except KeyError:
        _check_rows(rows, names, wrong)
        raise
    arrays = [column_of(values, field, wrong) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def column_of(values: Sequence[Any], field: pa.Field[Any], wrong: Wrong) -> Any:
    """A column of the values that a user's function made. Raises the error that `wrong` makes if a value does not fit
    the type of the column; the error names the column, the value and the type."""
    try:
        return array_of(values, field.type)
    except REFUSED as error:
        raise wrong(_misfit(values, field, error)) from error


def _misfit(values: Sequence[Any], field: pa.Field[Any], error: Exception) -> str:
    found = first_misfit(values, field.type)
    if found is None:
        return f"column {field.name!r} must be of type {field.type}; {error}"
    _, value, reason = found
    return f"column {field.name!r} must be of type {field.type}; got {value}: {reason}"


def _check_rows(rows: Iterable[Any], names: Sequence[str], wrong: Wrong) -> None:
    expected = frozenset(names)
    for row in rows:
        if not isinstance(row, Mapping):
            raise wrong(f"expected a dict with {', '.join(names)}; got {describe(row)}")
        if row.keys() != expected:
            raise wrong(f"expected a dict with {', '.join(names)}; got a dict with {', '.join(map(str, row))}")

"""Batches as rows and back: a row is a dict of Python values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.runtime.operators.user_code import Wrong, describe, describe_columns
from penstock.state.values import to_python

Row = dict[str, Any]


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """The rows of a batch."""
    names = batch.schema.names
    columns = [to_python(column) for column in batch.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def add_rows(made: list[Any], result: Any) -> None:
    """Append what a function returned, if it is not None: one row, or several."""
    if isinstance(result, Mapping):
        made.append(result)
    else:
        made.extend(result)


def batch_of(rows: Sequence[Any], schema: pa.Schema, wrong: Wrong) -> pa.RecordBatch:
    """A batch of rows that a user's function made. Raises what `wrong` makes unless all are dicts with exactly the
    columns of `schema`, of values that fit."""
    names = schema.names
    if set(map(type, rows)) - {dict} or set(map(len, rows)) - {len(names)}:
        _check_rows(rows, names, wrong)
    try:
        columns = [[row[name] for row in rows] for name in names]
    except KeyError:
        _check_rows(rows, names, wrong)
        raise
    try:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise wrong(f"expected rows of {describe_columns(schema)}; {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_rows(rows: Iterable[Any], names: Sequence[str], wrong: Wrong) -> None:
    expected = frozenset(names)
    for row in rows:
        if not isinstance(row, Mapping):
            raise wrong(f"expected a dict with {', '.join(names)}; got {describe(row)}")
        if row.keys() != expected:
            raise wrong(f"expected a dict with {', '.join(names)}; got one with {', '.join(map(str, row))}")

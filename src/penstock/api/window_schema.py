"""The columns of windowed aggregates: what travels between the two halves of a window, and what comes out of it.

A window is computed in two halves: partial aggregates per batch before the exchange, and merged aggregates behind the
exchange. Both halves, and the program that is checked before anything runs, take the columns from here.

The results of windows without a key have no key columns.

    partial     keys, window_start, window_end of a session, then per aggregate its partial columns
    result      keys, window_start, window_end, then per aggregate one column

In a partial of windows that share panes, `window_start` is the start of a pane.

Nulls follow SQL: every aggregate but `count()` of rows ignores nulls, and an aggregate of nulls alone is null (a count
is 0). NaN follows Spark: NaN is greater than every number, NaN as a key equals NaN, and -0.0 and 0.0 are the same key.
A sum or mean over integers is kept as int64, over floats as float64. A mean travels as a sum and a count, and the count
has a column of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.pane_windows import PaneWindow
from penstock.api.steps import Aggregate
from penstock.api.windows import WindowType
from penstock.core.errors import UsageError
from penstock.sql.schemas import can_be_key

WINDOW_START = "window_start"
WINDOW_END = "window_end"

_COUNT_SUFFIX = "__count"


def kept_columns(window: WindowType) -> tuple[str, ...]:
    """The columns that tell windows of one key apart, or panes if windows share panes, in partial aggregates and in
    state."""
    return (WINDOW_START,) if isinstance(window, PaneWindow) else window_columns(window)


def window_columns(window: WindowType) -> tuple[str, ...]:
    """The columns that tell whole windows of one key apart."""
    return (WINDOW_START,) if window.length_us is not None else (WINDOW_START, WINDOW_END)


def completing_column(window: WindowType) -> str:
    """The column by which windows become complete: `WindowType.last_complete` gives a time to compare the column
    with."""
    return window_columns(window)[-1]


def count_column(aggregate: Aggregate) -> str:
    """The partial column that holds the number of values behind a mean."""
    return aggregate.name + _COUNT_SUFFIX


def check_key_types(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise `UsageError` unless every column exists, once, with a type that can be a key."""
    if not columns:
        raise UsageError("a key needs at least one column")
    for column in columns:
        kind = _type_of(schema, column, role="key column")
        if not can_be_key(kind):
            raise UsageError(
                f"column {column!r} of type {kind} cannot be a key",
                hint="use integers, booleans, floats, decimals, dates, times, timestamps, strings or binary, "
                "or cast the column first",
            )
    if len(set(columns)) != len(columns):
        raise UsageError(f"key columns are given twice: {', '.join(columns)}")


def partial_schema(
    input_schema: pa.Schema,
    *,
    keys: Sequence[str],
    time_column: str,
    aggregates: Sequence[Aggregate],
    window: WindowType | None = None,
) -> pa.Schema:
    """Columns of the partial aggregates of records of `input_schema`, by default for windows that all have the same
    length. Raises `UsageError` if the aggregates cannot be computed."""
    time_type = _checked(input_schema, keys, time_column, aggregates)
    fields = [pa.field(key, input_schema.field(key).type) for key in keys]
    fields += [pa.field(column, time_type) for column in ((WINDOW_START,) if window is None else kept_columns(window))]
    for aggregate in aggregates:
        fields.append(pa.field(aggregate.name, _partial_type(input_schema, aggregate)))
        if aggregate.kind == "mean":
            fields.append(pa.field(count_column(aggregate), pa.int64()))
    return _distinct(fields)


def result_schema(
    input_schema: pa.Schema, *, keys: Sequence[str], time_column: str, aggregates: Sequence[Aggregate]
) -> pa.Schema:
    """Columns of a window's results over records of `input_schema`. Raises `UsageError` if the aggregates cannot be
    computed."""
    time_type = _checked(input_schema, keys, time_column, aggregates)
    fields = [pa.field(key, input_schema.field(key).type) for key in keys]
    fields += [pa.field(WINDOW_START, time_type), pa.field(WINDOW_END, time_type)]
    for aggregate in aggregates:
        partial = _partial_type(input_schema, aggregate)
        fields.append(pa.field(aggregate.name, pa.float64() if aggregate.kind == "mean" else partial))
    return _distinct(fields)


def _checked(
    schema: pa.Schema, keys: Sequence[str], time_column: str, aggregates: Sequence[Aggregate]
) -> pa.TimestampType:
    if keys:
        check_key_types(schema, keys)
    if not aggregates:
        raise UsageError("a window needs at least one aggregate", hint="for example n=count()")
    kind = _type_of(schema, time_column, role="time column")
    if not isinstance(kind, pa.TimestampType) or kind.unit != "us":
        raise UsageError(
            f"time column {time_column!r} is of type {kind}, and windows need timestamp[us]",
            hint="cast the column to a timestamp of microseconds",
        )
    return kind


def _partial_type(schema: pa.Schema, aggregate: Aggregate) -> pa.DataType:
    if aggregate.column is None:
        if aggregate.kind != "count":
            raise UsageError(f"aggregate {aggregate.name!r}: {aggregate.kind} needs a column")
        return pa.int64()
    kind = _type_of(schema, aggregate.column, role=f"aggregate {aggregate.name!r}: column")
    if aggregate.kind == "count":
        return pa.int64()
    if aggregate.kind in ("sum", "mean"):
        # uint64 is left out: sums are kept as int64, and a sum of uint64 values may not fit.
        if pt.is_integer(kind) and not pt.is_uint64(kind):
            return pa.int64()
        if pt.is_float32(kind) or pt.is_float64(kind):
            return pa.float64()
    elif aggregate.kind in ("min", "max"):
        if _has_order(kind):
            return kind
    else:
        raise UsageError(
            f"aggregate {aggregate.name!r} is of unknown kind {aggregate.kind!r}",
            hint="there are count, sum, min, max and mean",
        )
    raise UsageError(
        f"aggregate {aggregate.name!r}: column {aggregate.column!r} of type {kind} has no {aggregate.kind}",
        hint="cast the column first",
    )


def _type_of(schema: pa.Schema, column: str, *, role: str) -> pa.DataType:
    found = schema.get_all_field_indices(column)
    if len(found) == 1:
        kind: pa.DataType = schema.field(found[0]).type
        return kind
    if found:
        raise UsageError(f"{role} {column!r} is ambiguous, there are {len(found)} columns of that name")
    near = get_close_matches(column, schema.names, n=1)
    raise UsageError(
        f"{role} {column!r} does not exist, the columns are: {', '.join(schema.names)}",
        hint=f"did you mean {near[0]!r}?" if near else None,
    )


def _distinct(fields: list[pa.Field[Any]]) -> pa.Schema:
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"the result of a window would have two columns named {name!r}",
                hint="give the aggregate another name, or rename the key column before key_by",
            )
    return pa.schema(fields)


def _has_order(kind: pa.DataType) -> bool:
    return (
        pt.is_integer(kind)
        or pt.is_boolean(kind)
        or pt.is_float32(kind)
        or pt.is_float64(kind)
        or pt.is_decimal(kind)
        or pt.is_date(kind)
        or pt.is_time(kind)
        or pt.is_timestamp(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
    )

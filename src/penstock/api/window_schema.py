"""The columns of windowed aggregates: what travels between the two halves of a window, and what comes out of it.

A window is computed in two halves: partial aggregates per batch before the exchange, and merged aggregates behind the
exchange. Both halves, and the program that is checked before anything runs, take the columns from here.

The results of windows without a key have no key columns.

    partial     keys, window_start, window_end of a session, then per aggregate its partial columns
    result      keys, window_start, window_end, then per aggregate one column

In a partial of windows that share panes, `window_start` is the start of a pane.

Nulls follow SQL: every aggregate but `count()` of rows ignores nulls, and an aggregate of nulls alone is null (a count
is 0). NaN follows Spark: NaN is greater than every number, NaN as a key equals NaN, and -0.0 and 0.0 are the same key.
The partial columns of each kind of aggregate are told in `aggregate_kinds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.api.aggregate_kinds.base import type_of
from penstock.api.aggregate_kinds.registry import kind_of
from penstock.api.pane_windows import PaneWindow
from penstock.api.steps import Aggregate
from penstock.api.windows import WindowType
from penstock.core.errors import UsageError
from penstock.sql.schemas import can_be_key

WINDOW_START = "window_start"
WINDOW_END = "window_end"
TIME_TYPE = pa.timestamp("us", tz="UTC")
"""The type of times that are not taken from a column of the records."""


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


def check_key_types(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise `UsageError` unless every column exists, once, with a type that can be a key."""
    if not columns:
        raise UsageError("a key needs at least one column")
    for column in columns:
        kind = type_of(schema, column, role="key column")
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
    time_column: str | None,
    aggregates: Sequence[Aggregate],
    window: WindowType | None = None,
) -> pa.Schema:
    """Columns of the partial aggregates of records of `input_schema`, by default for windows that all have the same
    length. Raises `UsageError` if the aggregates cannot be computed."""
    time_type = _checked(input_schema, keys, time_column, aggregates)
    fields = [pa.field(key, input_schema.field(key).type) for key in keys]
    fields += [pa.field(column, time_type) for column in ((WINDOW_START,) if window is None else kept_columns(window))]
    for aggregate in aggregates:
        fields += kind_of(aggregate).partial_fields(aggregate, input_schema)
    return _distinct(fields)


def result_schema(
    input_schema: pa.Schema,
    *,
    keys: Sequence[str],
    time_column: str | None,
    aggregates: Sequence[Aggregate],
    window: WindowType | None = None,
) -> pa.Schema:
    """Columns of a window's results over records of `input_schema`, by default for windows with a start and an end.
    Raises `UsageError` if the aggregates cannot be computed."""
    time_type = _checked(input_schema, keys, time_column, aggregates)
    fields = [pa.field(key, input_schema.field(key).type) for key in keys]
    if window is None or window.has_bounds:
        fields += [pa.field(WINDOW_START, time_type), pa.field(WINDOW_END, time_type)]
    for aggregate in aggregates:
        kind = kind_of(aggregate)
        kind.partial_fields(aggregate, input_schema)
        fields.append(pa.field(aggregate.name, kind.result_type(aggregate, input_schema)))
    return _distinct(fields)


def _checked(
    schema: pa.Schema, keys: Sequence[str], time_column: str | None, aggregates: Sequence[Aggregate]
) -> pa.TimestampType:
    if keys:
        check_key_types(schema, keys)
    if not aggregates:
        raise UsageError("a window needs at least one aggregate", hint="for example n=count()")
    kind = TIME_TYPE if time_column is None else type_of(schema, time_column, role="time column")
    if not isinstance(kind, pa.TimestampType) or kind.unit != "us":
        raise UsageError(
            f"time column {time_column!r} is of type {kind}, and windows need timestamp[us]",
            hint="cast the column to a timestamp of microseconds",
        )
    return kind


def _distinct(fields: list[pa.Field[Any]]) -> pa.Schema:
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"the result of a window would have two columns named {name!r}",
                hint="give the aggregate another name, or rename the key column before key_by",
            )
    return pa.schema(fields)

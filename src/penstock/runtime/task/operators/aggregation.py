"""Windowed aggregates over tables: records to partials, partials to partials, partials to results.

All functions here are pure. A partial is one row per key and window. Partials may be merged in any order with the same
result, except for the last bits of sums of floats, which depend on the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import Calculation, Groups, one_array
from penstock.api.aggregate_kinds.base import normal_keys as normal_keys
from penstock.api.aggregate_kinds.base import value_name as value_name
from penstock.api.aggregate_kinds.decimals import is_decimal, narrowed, with_decimal_sums
from penstock.api.aggregate_kinds.registry import kind_of
from penstock.api.steps import Aggregate
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.api.windows import WindowType
from penstock.core.errors import UsageError
from penstock.runtime.task.operators.dense import group_dense, int64_values, order_of

_INT64_MAX = 2**63 - 1
_ROW = "\0row"
"""The column with the numbers of rows while rows are grouped."""


def group(
    table: pa.Table, keys: Sequence[str], calculations: Sequence[Calculation], *, window: WindowType | None
) -> pa.Table:
    """One row per distinct key. The columns are the keys, then the calculations. The columns of a window may be the
    last keys; None: the keys have no window. Without keys all rows are one group.

    Raises `UsageError` if a sum of integers does not fit into int64, or a sum of decimals into its type.
    """
    calculations = with_decimal_sums(table, calculations)
    risky = [c for c in calculations if c.function == "sum" and _sum_may_overflow(table.column(str(c.column)))]
    if not risky:
        dense = group_dense(table, keys, calculations, spacing_us=None if window is None else window.spacing_us)
        if dense is not None:
            return dense
    plain = [c for c in calculations if isinstance(c.function, str)]
    if len(plain) == len(calculations):
        return _group_by_hash(table, keys, plain, risky)
    if keys:
        numbered = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
        grouped = _group_by_hash(numbered, keys, [*plain, Calculation(_ROW, "list", _ROW)], risky)
        groups = _groups(grouped.column(_ROW))
    else:
        grouped = _group_by_hash(table, keys, [*plain, Calculation(None, "count", _ROW)], risky)
        groups = Groups(np.arange(table.num_rows), np.zeros(1, np.intp))
    for calculation in calculations:
        if not isinstance(calculation.function, str):
            grouped = grouped.append_column(calculation.name, calculation.function(table, groups))
    return grouped.select([*keys, *(c.name for c in calculations)])


def _group_by_hash(
    table: pa.Table, keys: Sequence[str], calculations: Sequence[Calculation], risky: Sequence[Calculation]
) -> pa.Table:
    checks: list[Calculation] = []
    for calculation in risky:
        table, added = _with_halves(table, calculation)
        checks += added
    spoiled = [c for c in calculations if c.function == "max" and _has_nan(table.column(str(c.column)))]
    marks = [Calculation(f"{c.name}\0nan", "any", f"{c.name}\0nan") for c in spoiled]
    for calculation, mark in zip(spoiled, marks, strict=True):
        table = table.append_column(mark.name, pc.is_nan(table.column(str(calculation.column))))
    wanted = [*calculations, *checks, *marks]
    functions: list[Any] = [([], "count_all") if c.column is None else (c.column, c.function) for c in wanted]
    # Threads would make the order of rows, and so the last bits of float sums, a matter of chance.
    grouped = pa.TableGroupBy(table, list(keys), use_threads=False).aggregate(functions)
    grouped = grouped.rename_columns([*keys, *(c.name for c in wanted)])
    if checks:
        _refuse_overflow(grouped, checks)
    for calculation, mark in zip(spoiled, marks, strict=True):
        grouped = _with_nan(grouped, calculation.name, mark.name)
    return grouped.select(list(range(len(keys) + len(calculations)))) if checks or marks else grouped


def _groups(rows: Any) -> Groups:
    """The groups of a list column with the numbers of the rows of each group."""
    lists = one_array(rows)
    # The offsets of an array that is a slice do not begin at 0, unlike the values that `flatten` gives.
    offsets = np.asarray(lists.offsets.to_numpy())
    return Groups(np.asarray(lists.flatten().to_numpy()), offsets[:-1] - (offsets[0] if offsets.size else 0))


def of_records(aggregates: Sequence[Aggregate]) -> list[Calculation]:
    """The calculations that make partials of records. `record_values` gives the value columns of the records."""
    return [calculation for a in aggregates for calculation in kind_of(a).of_records(a)]


def of_partials(aggregates: Sequence[Aggregate]) -> list[Calculation]:
    """The calculations that merge partials."""
    return [calculation for a in aggregates for calculation in kind_of(a).of_partials(a)]


def results(
    merged: pa.Table, *, keys: Sequence[str], window: WindowType, aggregates: Sequence[Aggregate], schema: pa.Schema
) -> pa.Table:
    """The results of merged partials, in the order of the partials. An aggregate that has no column in `schema` is not
    shown."""
    starts: Any = merged.column(WINDOW_START)
    columns: dict[str, Any] = {WINDOW_START: starts}
    if window.length_us is None:
        columns[WINDOW_END] = merged.column(WINDOW_END)
    else:
        columns[WINDOW_END] = pc.add(starts.cast(pa.int64()), window.length_us).cast(starts.type)
    columns.update({key: merged.column(key) for key in keys})
    for aggregate in [each for each in aggregates if each.name in schema.names]:
        found = kind_of(aggregate).result(aggregate, merged)
        kind = schema.field(aggregate.name).type
        columns[aggregate.name] = narrowed(found, kind, name=aggregate.name) if is_decimal(found.type) else found
    return pa.table([columns[field.name] for field in schema], schema=schema)


def in_order(merged: pa.Table, windows: Sequence[str], keys: Sequence[str]) -> pa.Table:
    """Merged partials, ordered by the columns of the window, the last column first, and then by keys (null last)."""
    names = [*reversed(windows), *keys]
    columns: list[Any] = [merged.column(name) for name in names]
    if len(columns) == 2 and pt.is_int64(columns[1].type) and columns[1].null_count == 0:
        starts, values = int64_values(columns[0]), int64_values(columns[1])
        later, same = starts[1:] > starts[:-1], starts[1:] == starts[:-1]
        if (later | (same & (values[1:] > values[:-1]))).all():
            return merged
        first, least = int(starts.min()), int(values.min())
        span = int(values.max()) - least + 1
        if (int(starts.max()) - first + 1) * span <= _INT64_MAX:
            return merged.take(order_of((starts - first) * span + (values - least)))
        return merged.take(np.lexsort((values, starts)))
    order: list[Any] = [(name, "ascending") for name in names]
    return merged.take(pc.sort_indices(merged, sort_keys=order))


def _has_nan(column: Any) -> bool:
    return pt.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py() is True


def _with_nan(grouped: pa.Table, name: str, mark: str) -> pa.Table:
    """Make the greatest value NaN where one of the values is NaN. Arrow leaves NaN out; in Spark NaN is the
    greatest."""
    column: Any = grouped.column(name)
    found = pc.if_else(grouped.column(mark), pa.scalar(float("nan"), column.type), column)
    return grouped.set_column(grouped.schema.get_field_index(name), name, found)


def _sum_may_overflow(column: Any) -> bool:
    if not pt.is_integer(column.type):
        return False
    extremes = pc.min_max(column)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    return low is not None and max(-low, high) * len(column) > _INT64_MAX


def _with_halves(table: pa.Table, calculation: Calculation) -> tuple[pa.Table, list[Calculation]]:
    """Add columns with the upper and the lower 32 bits of each value. The sums of these columns cannot overflow, and
    together are the true sum."""
    values = table.column(str(calculation.column)).cast(pa.int64())
    high, low = f"{calculation.name}\0high", f"{calculation.name}\0low"
    table = table.append_column(high, pc.shift_right(values, 32))
    table = table.append_column(low, pc.bit_wise_and(values, 0xFFFFFFFF))
    return table, [Calculation(high, "sum", high), Calculation(low, "sum", low)]


def _refuse_overflow(grouped: pa.Table, checks: Sequence[Calculation]) -> None:
    for high, low in zip(checks[0::2], checks[1::2], strict=True):
        upper = pc.add(grouped.column(high.name), pc.shift_right(grouped.column(low.name), 32))
        extremes = pc.min_max(upper)
        least, most = extremes["min"].as_py(), extremes["max"].as_py()
        if least is not None and (least < -(2**31) or most >= 2**31):
            raise UsageError(
                f"the sum {high.name.split(chr(0))[0]!r} of a window does not fit into 64 bits",
                hint="cast the column to float64 before the window, or use smaller windows",
            )

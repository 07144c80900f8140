"""Whole records that come first in an order: the aggregate behind `top` and behind `deduplicate(keep="last")`.

Records are ordered by some columns, as Spark orders them: null is less than every value, NaN is greater than every
number, and -0.0 equals 0.0. Records that are equal in these columns are ordered by all their other columns, in the
order of the columns, ascending. Columns whose type has no order (lists, structs, maps) are left out of that. Records
that are equal in everything come in the order of their arrival. So which records come first depends on the records
alone, and not on the order of their arrival, unless they differ in nothing but columns without an order.

Without columns to order by, the record that arrives last comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.aggregate_kinds.base import (
    KEPT,
    AggregateKind,
    Calculation,
    Groups,
    can_be_kept,
    one_array,
    one_zero,
    type_of,
    value_of,
)
from penstock.api.aggregate_kinds.description import TOP_ROWS, Aggregate
from penstock.api.aggregate_kinds.lists import Numbers, as_lists, flattened
from penstock.api.aggregate_kinds.picks import ranks
from penstock.core.errors import UsageError
from penstock.sql.schemas import can_be_key

Codes = npt.NDArray[Any]


class OrderColumn(NamedTuple):
    """A column that orders records."""

    name: str
    descending: bool


def top_rows(name: str, most: int, order: Sequence[OrderColumn], columns: Sequence[str]) -> Aggregate:
    """The aggregate that keeps these columns of the first records, at most `most`. The columns that order are among
    these columns."""
    ordering = [f"{each.name} {'desc' if each.descending else 'asc'}" for each in order]
    return Aggregate(name=name, kind=TOP_ROWS, column=None, parameters=(most, len(order), *ordering, *columns))


def most_of(aggregate: Aggregate) -> int:
    """How many records are kept."""
    return int(aggregate.parameters[0])


def order_of(aggregate: Aggregate) -> tuple[OrderColumn, ...]:
    """The columns that order the records."""
    texts = map(str, aggregate.parameters[2 : 2 + int(aggregate.parameters[1])])
    parts = (text.rpartition(" ") for text in texts)
    return tuple(OrderColumn(column, direction == "desc") for column, _, direction in parts)


class TopRows(AggregateKind):
    """The first records of a group, as a list of structs, in their order."""

    name = TOP_ROWS
    needs_column = False
    takes = KEPT

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A list of structs."""
        for column in aggregate.columns:
            kind = type_of(schema, column, role="column")
            if not can_be_kept(kind):
                raise UsageError(
                    f"column {column!r} of type {kind} cannot be kept in state",
                    hint=f"state keeps {KEPT}; cast the column, or drop it before",
                )
        fields = [pa.field(column, schema.field(column).type) for column in aggregate.columns]
        return [pa.field(aggregate.name, pa.list_(pa.struct(fields)))]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """The list."""
        kind: pa.DataType = self.partial_fields(aggregate, schema)[0].type
        return kind

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """The first of records."""
        return [Calculation(None, FirstRecords(aggregate), aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """The first of lists."""
        return [Calculation(aggregate.name, FirstOfLists(aggregate), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The list."""
        return merged.column(aggregate.name)


class FirstRecords:
    """The first records of each group, as lists."""

    def __init__(self, aggregate: Aggregate) -> None:
        self._aggregate = aggregate
        self._columns = {column: str(value_of(aggregate, column)) for column in aggregate.columns}

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Lists."""
        arrays = [one_array(table.column(name)) for name in self._columns.values()]
        fields = [pa.field(name, array.type) for name, array in zip(self._columns, arrays, strict=True)]
        rows: Any = pa.array(groups.order)
        records = pa.StructArray.from_arrays(arrays, fields=fields).take(rows)
        return first_records(records, groups.numbers, len(groups), self._aggregate)


class FirstOfLists:
    """The first records of the lists of each group, as lists."""

    def __init__(self, aggregate: Aggregate) -> None:
        self._aggregate = aggregate

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Lists of the same type."""
        lists = one_array(table.column(self._aggregate.name)).take(pa.array(groups.order))
        return first_records(*flattened(lists, groups.numbers), len(groups), self._aggregate)


def first_records(records: Any, numbers: Numbers, groups: int, aggregate: Aggregate) -> Any:
    """The first records of each group, as lists. `numbers` are the groups of the records, in ascending order; records
    of one group are in the order of their arrival."""
    order = in_order(records, numbers, order_of(aggregate))
    numbers = numbers[order]
    places = np.arange(numbers.size) - np.searchsorted(numbers, numbers)
    kept = places < most_of(aggregate)
    picked: Any = pa.array(order[kept])
    return as_lists(records.take(picked), numbers[kept], groups)


def in_order(records: Any, numbers: Numbers, order: Sequence[OrderColumn]) -> Numbers:
    """The places of the records, group by group, and in their order in each group."""
    if not order:
        return np.lexsort((-np.arange(numbers.size), numbers))
    columns = {field.name: column for field, column in zip(records.type, records.flatten(), strict=True)}
    codes: list[Codes] = [numbers]
    for each in order:
        codes += _codes(columns[each.name], descending=each.descending)
    found = np.lexsort(tuple(reversed(codes)))
    same = np.ones(max(found.size - 1, 0), np.bool_)
    for code in codes:
        ordered = code[found]
        same &= ordered[1:] == ordered[:-1]
    if same.any():
        _order_ties(found, same, columns)
    return found


def _order_ties(found: Numbers, same: npt.NDArray[np.bool_], columns: dict[str, Any]) -> None:
    """Order the records that are equal in order. `same` says which records are equal to the record behind them."""
    runs = np.concatenate([[0], np.cumsum(~same)])
    tied = np.zeros(found.size, np.bool_)
    tied[:-1] |= same
    tied[1:] |= same
    rows = found[tied]
    picked: Any = pa.array(rows)
    codes: list[Codes] = [runs[tied]]
    for column in columns.values():
        if can_be_key(column.type):
            codes += _codes(column.take(picked), descending=False)
    found[tied] = rows[np.lexsort(tuple(reversed(codes)))]


def _codes(column: Any, *, descending: bool) -> list[Codes]:
    """Numbers that are in the order of the values; where there are nulls, numbers that put nulls first, or last, come
    before."""
    if not column.null_count:
        code = ranks(one_zero(column))
        # Inverted, not negated: the least integer has no negative.
        return [~code if descending else code]
    known = column.is_valid().to_numpy(zero_copy_only=False)
    code = np.zeros(len(column), np.int64)
    code[known] = ranks(one_zero(column.drop_null()))
    return [~known if descending else known, ~code if descending else code]

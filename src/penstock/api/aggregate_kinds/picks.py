"""Aggregates that pick records by the order of a column: first, last, min_by, max_by and top_n.

A column orders records as Spark does: NaN is greater than every number, -0.0 equals 0.0, and records whose column is
null are left out. The value of a record that is picked may be null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import (
    KEPT,
    ORDERED,
    AggregateKind,
    Calculation,
    Groups,
    can_be_kept,
    has_order,
    one_array,
    one_zero,
    value_of,
)
from penstock.api.aggregate_kinds.description import Aggregate
from penstock.api.aggregate_kinds.lists import as_lists, flattened

_BY, _VALUE = "by", "value"


class Pick(AggregateKind):
    """The value of the first or the last record of a group, in the order of a column. Its partial column has the value,
    and the value of the column that orders."""

    takes = KEPT

    def __init__(self, name: str, *, greatest: bool, last: bool) -> None:
        self.name = name
        self._greatest = greatest
        self._last = last
        """Which record is picked if several records are equal in order: the last to arrive, or the first."""

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """The column that orders, and the value."""
        value = self.value_type(aggregate, schema, can_be_kept)
        kind = pa.struct([(_BY, self.by_type(aggregate, schema)), (_VALUE, value)])
        return [pa.field(aggregate.name, kind)]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """The type of the value."""
        return self.value_type(aggregate, schema, can_be_kept)

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Picked from records."""
        column, by = (str(value_of(aggregate, name)) for name in (aggregate.column, aggregate.by))
        known_only = aggregate.parameters == (IGNORE_NULLS,)
        fold = PickRecords(column, by, greatest=self._greatest, last=self._last, known_only=known_only)
        return [Calculation(None, fold, aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Picked from partials."""
        fold = PickPartials(aggregate.name, greatest=self._greatest, last=self._last)
        return [Calculation(aggregate.name, fold, aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The value."""
        return one_array(merged.column(aggregate.name)).flatten()[1]


IGNORE_NULLS = "ignore_nulls"
"""The parameter of an aggregate that picks only records whose value is not null."""


class PickRecords:
    """Picks a record of each group."""

    def __init__(self, column: str, by: str, *, greatest: bool, last: bool, known_only: bool) -> None:
        self._column = column
        self._by = by
        self._greatest = greatest
        self._last = last
        self._known_only = known_only

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """The value, and the value of the column that orders."""
        values, by = one_array(table.column(self._column)), one_array(table.column(self._by))
        skipped = values if self._known_only else None
        rows = _picked(one_zero(by), groups, greatest=self._greatest, last=self._last, skipped=skipped)
        return pc.make_struct(by.take(rows), values.take(rows), field_names=[_BY, _VALUE])


class PickPartials:
    """Picks a partial of each group."""

    def __init__(self, column: str, *, greatest: bool, last: bool) -> None:
        self._column = column
        self._greatest = greatest
        self._last = last

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """The whole partial."""
        by, values = one_array(table.column(self._column)).flatten()
        rows = _picked(one_zero(by), groups, greatest=self._greatest, last=self._last)
        return pc.make_struct(by.take(rows), values.take(rows), field_names=[_BY, _VALUE])


def _picked(by: Any, groups: Groups, *, greatest: bool, last: bool, skipped: Any = None) -> Any:
    """The row that is picked of each group; null where no row can be picked. Rows that are null in `by` or in `skipped`
    are not picked."""
    able = by.is_valid() if skipped is None else pc.and_(by.is_valid(), skipped.is_valid())
    mask = able.to_numpy(zero_copy_only=False)[groups.order]
    rows, numbers = groups.order[mask], groups.numbers[mask]
    found = np.full(len(groups), -1)
    if rows.size:
        places = ranks(by.take(rows))
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        best = (np.maximum if greatest else np.minimum).reduceat(places, starts)
        lengths = np.diff(starts, append=rows.size)
        hits = np.flatnonzero(places == np.repeat(best, lengths))
        picks = np.searchsorted(hits, starts + lengths) - 1 if last else np.searchsorted(hits, starts)
        found[numbers[starts]] = rows[hits[picks]]
    return pa.array(found, mask=found < 0)


def ranks(values: Any) -> npt.NDArray[Any]:
    """Numbers in the order of the values, equal for equal values. The values are not null."""
    kind = values.type
    if pt.is_temporal(kind):
        values = values.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    elif not pt.is_signed_integer(kind):
        values = pc.rank(values, tiebreaker="dense").cast(pa.int64())
    return np.asarray(values.to_numpy())


class TopN(AggregateKind):
    """The greatest values of a group, or the values of the records that are greatest in the order of another column.
    Its partial column is a list, of values or of values beside the values of the column that orders."""

    name = "top_n"
    takes = ORDERED

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A list."""
        kind = self._value_type(aggregate, schema)
        if aggregate.by is not None:
            kind = pa.struct([(_BY, self.by_type(aggregate, schema)), (_VALUE, kind)])
        return [pa.field(aggregate.name, pa.list_(kind))]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """A list of values."""
        return pa.list_(self._value_type(aggregate, schema))

    def _value_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        return self.value_type(aggregate, schema, has_order if aggregate.by is None else can_be_kept)

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """The greatest of records."""
        column, by = value_of(aggregate, aggregate.column), value_of(aggregate, aggregate.by)
        fold = TopRecords(str(column), None if aggregate.by is None else by, _most(aggregate))
        return [Calculation(None, fold, aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """The greatest of lists."""
        return [Calculation(aggregate.name, TopPartials(aggregate.name, _most(aggregate)), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The values."""
        lists = one_array(merged.column(aggregate.name))
        if aggregate.by is None:
            return lists
        values, numbers = flattened(lists, np.arange(len(lists)))
        return as_lists(values.flatten()[1], numbers, len(lists))


def _most(aggregate: Aggregate) -> int:
    (most,) = aggregate.parameters
    return int(most)


class TopRecords:
    """The greatest records of each group, as lists."""

    def __init__(self, column: str, by: str | None, most: int) -> None:
        self._column = column
        self._by = by
        self._most = most

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Lists of values, or of values beside the values of the column that orders."""
        entries = one_array(table.column(self._column))
        if self._by is not None:
            entries = pc.make_struct(one_array(table.column(self._by)), entries, field_names=[_BY, _VALUE])
        return _top(entries.take(groups.order), groups.numbers, len(groups), self._most)


class TopPartials:
    """The greatest entries of the lists of each group, as lists."""

    def __init__(self, column: str, most: int) -> None:
        self._column = column
        self._most = most

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Lists of the same type."""
        lists = one_array(table.column(self._column)).take(groups.order)
        return _top(*flattened(lists, groups.numbers), len(groups), self._most)


def _top(entries: Any, numbers: npt.NDArray[np.intp], groups: int, most: int) -> Any:
    """The greatest entries of each group, the greatest first; of equal entries, the entry that arrived first."""
    by = one_zero(entries.flatten()[0] if pt.is_struct(entries.type) else entries)
    known = by.is_valid().to_numpy(zero_copy_only=False)
    entries, by, numbers = entries.filter(pa.array(known)), by.drop_null(), numbers[known]
    # Inverted, not negated: the least integer has no negative.
    order = np.lexsort((~ranks(by), numbers))
    numbers = numbers[order]
    places = np.arange(numbers.size) - np.searchsorted(numbers, numbers)
    kept = places < most
    return as_lists(entries.take(pa.array(order[kept])), numbers[kept], groups)

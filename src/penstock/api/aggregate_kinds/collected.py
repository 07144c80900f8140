"""Aggregates that keep the values of a group: collect_list, collect_set, count_distinct, and exact quantiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.aggregate_kinds.base import (
    KEPT,
    AggregateKind,
    Calculation,
    Groups,
    can_be_kept,
    is_number,
    normal_keys,
    one_array,
    type_of,
    value_of,
)
from penstock.api.aggregate_kinds.description import Aggregate
from penstock.api.aggregate_kinds.lists import Numbers, as_lists, flattened
from penstock.core.errors import UsageError
from penstock.sql.schemas import can_be_key


class Collected(AggregateKind):
    """A kind whose partial column is a list of values that are not null, in the order of their arrival."""

    distinct = False
    """Whether equal values are kept once."""
    accepts: Callable[[pa.DataType], bool]

    def kept_type(self, value: pa.DataType) -> pa.DataType:
        """The type of the values in the list."""
        return value

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A list."""
        kind = self.kept_type(self.value_type(aggregate, schema, type(self).accepts))
        return [pa.field(aggregate.name, pa.list_(kind))]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """The list."""
        kind: pa.DataType = self.partial_fields(aggregate, schema)[0].type
        return kind

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Values into lists."""
        column = value_of(aggregate, aggregate.column)
        fold = ListRecords(str(column), self.kept_type, distinct=self.distinct)
        return [Calculation(column, fold, aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Lists into longer lists."""
        return [Calculation(aggregate.name, ListPartials(aggregate.name, distinct=self.distinct), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The list."""
        return merged.column(aggregate.name)


class CollectList(Collected):
    """All values."""

    name = "collect_list"
    takes = KEPT
    accepts = staticmethod(can_be_kept)


class CollectSet(Collected):
    """The distinct values. There is one NaN and one zero."""

    name = "collect_set"
    takes = "numbers, booleans, decimals up to 38 digits, dates, times, timestamps, strings and binary"
    distinct = True
    accepts = staticmethod(can_be_key)


class CollectRows(AggregateKind):
    """All records, as a list of structs with the columns that `parameters` names, in the order of their arrival."""

    name = "rows"
    needs_column = False
    takes = KEPT

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A list of structs."""
        for column in aggregate.columns:
            kind = type_of(schema, column, role="column")
            if not can_be_kept(kind):
                raise UsageError(
                    f"column {column!r} of type {kind} cannot be kept in the rows of a window",
                    hint=f"state keeps {KEPT}; cast the column, or drop it before the window",
                )
        return [pa.field(aggregate.name, pa.list_(pa.struct([schema.field(column) for column in aggregate.columns])))]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """The list."""
        kind: pa.DataType = self.partial_fields(aggregate, schema)[0].type
        return kind

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Records into lists."""
        return [Calculation(None, ListRows(aggregate), aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Lists into longer lists."""
        return [Calculation(aggregate.name, ListPartials(aggregate.name, distinct=False), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The list."""
        return merged.column(aggregate.name)


class CountDistinct(CollectSet):
    """The number of distinct values."""

    name = "count_distinct"

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:  # noqa: ARG002
        """A count."""
        return pa.int64()

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The length of the list."""
        lengths: Any = pc.list_value_length(merged.column(aggregate.name))
        return lengths.cast(pa.int64())


class ExactQuantile(Collected):
    """The value below which a part of the values lie, interpolated as by Spark's `percentile`."""

    name = "quantile"
    takes = "numbers"
    accepts = staticmethod(is_number)

    def kept_type(self, value: pa.DataType) -> pa.DataType:  # noqa: ARG002
        """Doubles, as Spark computes with."""
        return pa.float64()

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:  # noqa: ARG002
        """A double."""
        return pa.float64()

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """A value, or a point between two values that follow each other in order."""
        (part,) = aggregate.parameters
        lists = one_array(merged.column(aggregate.name))
        found, numbers = flattened(lists, np.arange(len(lists)))
        # NaN comes last in numpy's order, as in Spark's.
        values = found.to_numpy()
        values = np.append(values[np.lexsort((values, numbers))], np.nan)
        starts = np.searchsorted(numbers, np.arange(len(lists)))
        lengths = np.diff(starts, append=numbers.size)
        position = float(part) * np.maximum(lengths - 1, 0)
        lower, upper = np.floor(position).astype(np.intp), np.ceil(position).astype(np.intp)
        low, high = values[starts + lower], values[starts + upper]
        with np.errstate(invalid="ignore"):
            between = (upper - position) * low + (position - lower) * high
        return pa.array(np.where((lower == upper) | (low == high), low, between), mask=lengths == 0)


class ListRecords:
    """The values of each group that are not null, as lists."""

    def __init__(self, column: str, kept_type: Callable[[pa.DataType], pa.DataType], *, distinct: bool) -> None:
        self._column = column
        self._kept_type = kept_type
        self._distinct = distinct

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Lists."""
        column = one_array(table.column(self._column))
        kept = self._kept_type(column.type)
        values = (column if column.type == kept else column.cast(kept, safe=False)).take(groups.order)
        known = values.is_valid().to_numpy(zero_copy_only=False)
        return _listed(values.drop_null(), groups.numbers[known], len(groups), distinct=self._distinct)


class ListRows:
    """The records of each group, as lists of structs."""

    def __init__(self, aggregate: Aggregate) -> None:
        self._columns = {column: str(value_of(aggregate, column)) for column in aggregate.columns}

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Lists."""
        arrays = [one_array(table.column(name)).take(groups.order) for name in self._columns.values()]
        fields = [pa.field(name, array.type) for name, array in zip(self._columns, arrays, strict=True)]
        return as_lists(pa.StructArray.from_arrays(arrays, fields=fields), groups.numbers, len(groups))


class ListPartials:
    """The lists of each group, as one list."""

    def __init__(self, column: str, *, distinct: bool) -> None:
        self._column = column
        self._distinct = distinct

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Lists."""
        lists = one_array(table.column(self._column)).take(groups.order)
        return _listed(*flattened(lists, groups.numbers), len(groups), distinct=self._distinct)


def _listed(values: Any, numbers: Numbers, groups: int, *, distinct: bool) -> Any:
    if distinct:
        values, numbers = distinct_pairs(values, numbers)
    return as_lists(values, numbers, groups)


def distinct_pairs(values: Any, numbers: Numbers) -> tuple[Any, Numbers]:
    """Values and their groups, each pair once, in the order of the first of equal pairs. There is one NaN and one
    zero."""
    columns: dict[str, Any] = {"number": pa.array(numbers), "value": normal_keys(values), "row": np.arange(len(values))}
    pairs = pa.TableGroupBy(pa.table(columns), ["number", "value"], use_threads=False).aggregate([("row", "min")])
    # Arrow gives the pairs in an order of its own.
    rows = np.sort(one_array(pairs.column("row_min")).to_numpy())
    return columns["value"].take(pa.array(rows)), numbers[rows]

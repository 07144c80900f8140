"""Aggregates that Arrow computes itself, of records and of partials: count, sum, min, max, mean, any and all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import ORDERED, AggregateKind, Calculation, has_order, one_zero, value_of
from penstock.api.aggregate_kinds.decimals import is_decimal, mean_of, mean_type, sum_type
from penstock.api.aggregate_kinds.description import Aggregate

_COUNT_SUFFIX = "__count"


def count_column(aggregate: Aggregate) -> str:
    """The partial column that holds the number of values behind a mean."""
    return aggregate.name + _COUNT_SUFFIX


class _Single(AggregateKind):
    """A kind with one partial column, which is also the result."""

    merged_by: str
    """The function of Arrow that merges the partial column."""

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """One function of Arrow, of the kind's name."""
        return [Calculation(value_of(aggregate, aggregate.column), self.name, aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """One function of Arrow."""
        return [Calculation(aggregate.name, self.merged_by, aggregate.name)]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """The type of the partial column."""
        kind: pa.DataType = self.partial_fields(aggregate, schema)[0].type
        return kind

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The partial column, with one zero."""
        return one_zero(merged.column(aggregate.name))


class Count(_Single):
    """The number of records, or of values that are not null."""

    name = "count"
    needs_column = False
    takes = "columns of every type"
    merged_by = "sum"

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A count."""
        if aggregate.column is not None:
            self.value_type(aggregate, schema, lambda _: True)
        return [pa.field(aggregate.name, pa.int64())]


class Sum(_Single):
    """A sum of integers as int64, of floats as float64, of decimals with ten digits more."""

    name = "sum"
    takes = "integers up to 64 bits with a sign, floats, and decimals up to 38 digits"
    merged_by = "sum"

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A sum."""
        return [pa.field(aggregate.name, _sum_type(self.value_type(aggregate, schema, _has_sum)))]


class Min(_Single):
    """The least value."""

    name = "min"
    takes = ORDERED
    merged_by = "min"

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A value."""
        return [pa.field(aggregate.name, self.value_type(aggregate, schema, has_order))]


class Max(Min):
    """The greatest value."""

    name = "max"
    merged_by = "max"


class Mean(AggregateKind):
    """A sum and a count, of which the result is the quotient."""

    name = "mean"
    takes = Sum.takes

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A sum and a count."""
        kind = _sum_type(self.value_type(aggregate, schema, _has_sum))
        return [pa.field(aggregate.name, kind), pa.field(count_column(aggregate), pa.int64())]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """A double; of decimals, a decimal with four digits more."""
        kind: Any = self.value_type(aggregate, schema, _has_sum)
        mean: pa.DataType = mean_type(kind) if is_decimal(kind) else pa.float64()
        return mean

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """A sum and a count."""
        column = value_of(aggregate, aggregate.column)
        return [Calculation(column, "sum", aggregate.name), Calculation(column, "count", count_column(aggregate))]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Two sums."""
        return [Calculation(name, "sum", name) for name in (aggregate.name, count_column(aggregate))]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The quotient. Where nothing was counted the sum is null, and so is the quotient: no division by zero is
        seen."""
        total: Any = merged.column(aggregate.name)
        counts: Any = merged.column(count_column(aggregate))
        if is_decimal(total.type):
            return mean_of(total, counts, name=aggregate.name)
        return pc.divide(total.cast(pa.float64(), safe=False), counts.cast(pa.float64(), safe=False))


class Any_(_Single):  # noqa: N801  # the name of the aggregate, which typing has taken
    """Whether a value is true."""

    name = "any"
    takes = "booleans"
    merged_by = "any"

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A boolean."""
        return [pa.field(aggregate.name, self.value_type(aggregate, schema, pt.is_boolean))]


class All(Any_):
    """Whether every value is true."""

    name = "all"
    merged_by = "all"


def _has_sum(kind: pa.DataType) -> bool:
    # uint64 is left out: sums are kept as int64, and a sum of uint64 values may not fit.
    return (
        (pt.is_integer(kind) and not pt.is_uint64(kind))
        or pt.is_float32(kind)
        or pt.is_float64(kind)
        or is_decimal(kind)
    )


def _sum_type(kind: Any) -> Any:
    if is_decimal(kind):
        return sum_type(kind)
    return pa.int64() if pt.is_integer(kind) else pa.float64()

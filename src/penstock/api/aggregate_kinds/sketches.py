"""Approximate aggregates, by the sketches of Apache DataSketches: distinct counts (HLL) and quantiles (KLL).

A sketch is small however many values it has seen, and two sketches merge into one. The library is an extra of its own,
`penstock[sketches]`, and is imported when the first sketch is made. Sketches are kept in DataSketches' own binary form,
which is the same in all its languages and versions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import (
    ORDERED,
    AggregateKind,
    Calculation,
    Groups,
    has_order,
    is_number,
    one_array,
    value_of,
)
from penstock.api.aggregate_kinds.collected import distinct_pairs
from penstock.api.aggregate_kinds.description import Aggregate
from penstock.api.aggregate_kinds.lists import Numbers
from penstock.api.aggregate_kinds.sketch_bytes import check_distinct, check_ranks
from penstock.core.errors import UsageError

RANK_SIZE = 200
"""KLL's parameter k: the rank of a quantile is wrong by at most 1.33 %, in 99 of 100 cases."""
_LEAST_BITS, _MOST_BITS = 4, 21
"""HLL has between 2^4 and 2^21 registers."""


def library(what: str) -> Any:
    """The library. Raises `UsageError`, which names `what`, if the library is not installed."""
    try:
        import datasketches
    except ImportError as error:
        raise UsageError(
            f"{what} needs the library datasketches, which is not installed",
            hint="pip install 'penstock[sketches]' on the driver and on all executors, or use the exact aggregate",
        ) from error
    return datasketches


def register_bits(deviation: float) -> int:
    """How many bits number the registers of an HLL sketch whose relative standard deviation is at most this."""
    bits = math.ceil(2 * math.log2(1.04 / deviation))
    return min(max(bits, _LEAST_BITS), _MOST_BITS)


class ApproxCountDistinct(AggregateKind):
    """The number of distinct values, about. The partial column has a sketch."""

    name = "approx_count_distinct"
    takes = ORDERED

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A sketch."""
        self.value_type(aggregate, schema, has_order)
        return [pa.field(aggregate.name, pa.binary())]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:  # noqa: ARG002
        """A count."""
        return pa.int64()

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Sketches of values."""
        column = value_of(aggregate, aggregate.column)
        return [Calculation(column, SketchDistinct(str(column), _bits(aggregate)), aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Sketches of sketches."""
        return [Calculation(aggregate.name, UniteDistinct(aggregate.name, _bits(aggregate)), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The estimates."""
        read, bits = library(self.name).hll_sketch.deserialize, _bits(aggregate)
        sketches = merged.column(aggregate.name).to_pylist()
        found = [round(read(check_distinct(sketch, bits)).get_estimate()) for sketch in sketches]
        return pa.array(found, pa.int64())


def _bits(aggregate: Aggregate) -> int:
    (deviation,) = aggregate.parameters
    return register_bits(float(deviation))


class SketchDistinct:
    """A sketch of the values of each group. A value that a group has several times is shown to the sketch once."""

    def __init__(self, column: str, bits: int) -> None:
        self._column = column
        self._bits = bits

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Sketches."""
        column = one_array(table.column(self._column)).take(pa.array(groups.order))
        known = column.is_valid().to_numpy(zero_copy_only=False)
        values, numbers = distinct_pairs(column.drop_null(), groups.numbers[known])
        given = _sketched(values).to_pylist()
        lib = library("approx_count_distinct")
        found = []
        for first, last in _spans(numbers, len(groups)):
            sketch = lib.hll_sketch(self._bits, lib.HLL_8)
            deque(map(sketch.update, given[first:last]), maxlen=0)
            found.append(sketch.serialize_compact())
        return pa.array(found, pa.binary())


def _sketched(values: Any) -> Any:
    """The values as a sketch takes them: whole numbers, floats or texts. A text gets a letter in front, because a
    sketch leaves out empty texts."""
    kind = values.type
    if pt.is_temporal(kind):
        return values.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if pt.is_boolean(kind):
        return values.cast(pa.int8())
    if pt.is_integer(kind) or pt.is_floating(kind):
        return values
    return pc.binary_join_element_wise(pa.scalar("_"), values.cast(pa.string()), "")


class UniteDistinct:
    """One sketch of the sketches of each group."""

    def __init__(self, column: str, bits: int) -> None:
        self._column = column
        self._bits = bits

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Sketches."""
        column = one_array(table.column(self._column)).take(pa.array(groups.order))
        if len(groups) == len(column):
            return column
        lib, sketches, found = library("approx_count_distinct"), column.to_pylist(), []
        for first, last in _spans(groups.numbers, len(groups)):
            united = lib.hll_union(self._bits)
            for sketch in sketches[first:last]:
                united.update(lib.hll_sketch.deserialize(check_distinct(sketch, self._bits)))
            found.append(united.get_result(lib.HLL_8).serialize_compact())
        return pa.array(found, pa.binary())


_QUANTILES = pa.struct([("sketch", pa.binary()), ("nans", pa.int64())])


class ApproxQuantile(AggregateKind):
    """The value below which a part of the values lie, about. The partial column has a sketch, and the number of NaNs,
    which a sketch does not take: NaN is greater than every number."""

    name = "approx_quantile"
    takes = "numbers"

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A sketch, and the number of NaNs."""
        self.value_type(aggregate, schema, is_number)
        return [pa.field(aggregate.name, _QUANTILES)]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:  # noqa: ARG002
        """A double."""
        return pa.float64()

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Sketches of values."""
        column = value_of(aggregate, aggregate.column)
        return [Calculation(column, SketchRanks(str(column)), aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Sketches of sketches."""
        return [Calculation(aggregate.name, UniteRanks(aggregate.name), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The estimates."""
        read = library(self.name).kll_doubles_sketch.deserialize
        (part,) = aggregate.parameters
        sketches, nans = (field.to_pylist() for field in one_array(merged.column(aggregate.name)).flatten())
        found = [
            _estimate(read(check_ranks(sketch, RANK_SIZE)), count, float(part))
            for sketch, count in zip(sketches, nans, strict=True)
        ]
        return pa.array(found, pa.float64())


def _estimate(sketch: Any, nans: int, part: float) -> float | None:
    total = sketch.n + nans
    if total == 0:
        return None
    rank = part * total
    if nans and rank > sketch.n:
        return math.nan
    return float(sketch.get_quantile(min(rank / sketch.n, 1.0), inclusive=True)) if sketch.n else math.nan


class SketchRanks:
    """A sketch of the values of each group."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Sketches, and the numbers of NaNs."""
        column = one_array(table.column(self._column)).cast(pa.float64(), safe=False).take(pa.array(groups.order))
        known = column.is_valid().to_numpy(zero_copy_only=False)
        # Copied, because the library takes only arrays that can be changed.
        values, numbers = np.array(column.drop_null()), groups.numbers[known]
        nans = np.bincount(numbers[np.isnan(values)], minlength=len(groups))
        lib, found = library("approx_quantile"), []
        for first, last in _spans(numbers, len(groups)):
            sketch = lib.kll_doubles_sketch(RANK_SIZE)
            sketch.update(values[first:last])
            found.append(sketch.serialize())
        return _with_nans(found, nans)


class UniteRanks:
    """One sketch of the sketches of each group."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Sketches, and the numbers of NaNs."""
        column = one_array(table.column(self._column)).take(pa.array(groups.order))
        if len(groups) == len(column):
            return column
        parts, counts = column.flatten()
        nans = np.bincount(groups.numbers, counts.to_numpy(), len(groups)).astype(np.int64)
        lib, sketches, found = library("approx_quantile"), parts.to_pylist(), []
        for first, last in _spans(groups.numbers, len(groups)):
            united = lib.kll_doubles_sketch(RANK_SIZE)
            for sketch in sketches[first:last]:
                united.merge(lib.kll_doubles_sketch.deserialize(check_ranks(sketch, RANK_SIZE)))
            found.append(united.serialize())
        return _with_nans(found, nans)


def _with_nans(sketches: list[bytes], nans: Any) -> Any:
    columns: list[Any] = [pa.array(sketches, pa.binary()), pa.array(nans, pa.int64())]
    return pc.make_struct(*columns, field_names=[field.name for field in _QUANTILES])


def _spans(numbers: Numbers, groups: int) -> Iterator[tuple[int, int]]:
    """Where the entries of each group begin and end. `numbers` are the groups of the entries, in ascending order."""
    return pairwise(np.searchsorted(numbers, np.arange(groups + 1)).tolist())

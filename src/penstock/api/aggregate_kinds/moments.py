"""Variance and standard deviation, from counts, means and sums of squared distances to the mean (M2).

M2 is stable: unlike a sum of squares, M2 does not lose the digits in which large values differ. Partials merge by the
formula of Chan, Golub and LeVeque, for all groups at once. Means are computed as distances from one value of the group,
so that equal values have a variance of exactly 0, however large they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.aggregate_kinds.base import (
    AggregateKind,
    Calculation,
    Groups,
    Rows,
    is_number,
    one_array,
    value_of,
)
from penstock.api.aggregate_kinds.description import Aggregate

_PARTIAL = pa.struct([("count", pa.int64()), ("mean", pa.float64()), ("m2", pa.float64())])

Floats = npt.NDArray[np.float64]


class Moments(AggregateKind):
    """A measure of spread. Its partial column has count, mean and M2."""

    takes = "numbers"

    def __init__(self, name: str, *, population: bool, root: bool) -> None:
        self.name = name
        self._fewer = 0 if population else 1
        """The divisor is the count of values less this number."""
        self._root = root

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """Count, mean and M2."""
        self.value_type(aggregate, schema, is_number)
        return [pa.field(aggregate.name, _PARTIAL)]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:  # noqa: ARG002
        """A double."""
        return pa.float64()

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Moments of values."""
        column = value_of(aggregate, aggregate.column)
        return [Calculation(column, OfValues(str(column)), aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Moments of moments."""
        return [Calculation(aggregate.name, OfMoments(aggregate.name), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """M2 by the divisor; null where the divisor is not above 0."""
        counts, _, m2 = _fields(one_array(merged.column(aggregate.name)))
        divisors = counts - self._fewer
        with np.errstate(invalid="ignore", divide="ignore"):
            found = m2 / divisors
            return pa.array(np.sqrt(found) if self._root else found, mask=divisors <= 0)


class OfValues:
    """Moments of the values of each group."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Each value that is not null is a count of 1."""
        values = one_array(table.column(self._column)).cast(pa.float64(), safe=False).take(groups.order)
        known = values.is_valid().to_numpy(zero_copy_only=False)
        means = values.drop_null().to_numpy()
        return _merged(np.ones(means.size, np.int64), means, np.zeros(means.size), groups.numbers[known], len(groups))


class OfMoments:
    """Moments of the partials of each group."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Partials without values are left out: they have no mean."""
        counts, means, m2 = _fields(one_array(table.column(self._column)).take(groups.order))
        some = counts > 0
        return _merged(counts[some], means[some], m2[some], groups.numbers[some], len(groups))


def _fields(moments: Any) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    count, mean, m2 = (np.asarray(field.to_numpy()) for field in moments.flatten())
    return count, mean, m2


def _merged(counts: npt.NDArray[np.int64], means: Floats, m2: Floats, numbers: Rows, groups: int) -> Any:
    """One row of moments per group. `numbers` are the groups of the entries, in ascending order."""
    totals = np.bincount(numbers, counts, groups).astype(np.int64)
    first = np.searchsorted(numbers, np.arange(groups))
    origins = np.append(means, 0.0)[first]
    # A group with an infinite value has no variance: infinity less infinity is NaN, as in Spark.
    with np.errstate(all="ignore"):
        shifts = np.bincount(numbers, counts * (means - origins[numbers]), groups) / np.maximum(totals, 1)
        overall = np.where(totals > 0, origins + shifts, 0.0)
        squares = np.bincount(numbers, m2 + counts * (means - overall[numbers]) ** 2, groups)
    # Without entries the sums are integers.
    squares = squares.astype(np.float64)
    columns: list[Any] = [pa.array(totals), pa.array(overall), pa.array(squares)]
    return pc.make_struct(*columns, field_names=[field.name for field in _PARTIAL])

"""Sums and means of decimals, exactly, with the types and the rounding of Spark.

A sum of decimal(p, s) is a decimal(min(38, p + 10), s). A mean is the quotient of the sum and the count, rounded once,
halves away from zero, as decimal(min(38, p + 4), min(38, s + 4)). What does not fit fails the job, as with Spark's ANSI
mode.

A decimal is an integer of 128 bits. Sums are made of four parts of 32 bits each, whose sums fit into 64 bits, for all
groups at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import Calculation, Groups, one_array
from penstock.core.errors import UsageError

MOST_DIGITS = 38
"""The precision of the longest decimal of Spark."""

_SUM_DIGITS = 10
"""A sum has so many digits more than its values: ten thousand million of the greatest values fit."""
_MEAN_DIGITS = 4

_LOW = 0xFFFF_FFFF
_SMALL = 2**63 // (4 * 10**_MEAN_DIGITS)
"""Sums below this bound are divided as integers of 64 bits."""

Wide = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""Integers of 128 bits: the lower halves, and the upper halves with the sign."""


def is_decimal(kind: pa.DataType) -> bool:
    """Whether a type is a decimal that Spark has."""
    return pt.is_decimal128(kind)


def sum_type(kind: pa.Decimal128Type) -> Any:
    """The type of a sum."""
    return pa.decimal128(min(MOST_DIGITS, kind.precision + _SUM_DIGITS), kind.scale)


def mean_type(kind: pa.Decimal128Type) -> pa.DataType:
    """The type of a mean."""
    digits, scale = (min(MOST_DIGITS, number + _MEAN_DIGITS) for number in (kind.precision, kind.scale))
    return pa.decimal128(digits, scale)


def with_decimal_sums(table: pa.Table, calculations: Sequence[Calculation]) -> list[Calculation]:
    """The calculations, with folds for the sums of decimals. A sum of partials has the type of the partials, which have
    the name of their aggregate; a sum of values has digits to spare."""
    return [_with_decimal_sum(table, calculation) for calculation in calculations]


def _with_decimal_sum(table: pa.Table, calculation: Calculation) -> Calculation:
    column = calculation.column
    kind: Any = table.schema.field(column).type if calculation.function == "sum" and column is not None else None
    if column is None or kind is None or not is_decimal(kind):
        return calculation
    total = kind if column == calculation.name else sum_type(kind)
    return calculation._replace(function=DecimalSum(column, calculation.name, total))


class DecimalSum:
    """The sum of the values of each group, without nulls; null for a group of nulls alone."""

    def __init__(self, column: str, name: str, kind: pa.Decimal128Type) -> None:
        """`kind` is the type of the sum, whose scale is that of the column."""
        self._column = column
        self._name = name
        self._kind = kind

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Raises `UsageError` if a sum does not fit."""
        column = one_array(table.column(self._column))
        if not len(groups):
            return pa.array([], self._kind)
        known = column.is_valid().to_numpy(zero_copy_only=False)[groups.order]
        low, high = (np.where(known, half[groups.order], 0) for half in _wide(column))
        parts = [(low & _LOW).astype(np.int64), (low >> 32).astype(np.int64), high & _LOW, high >> 32]
        sums = [np.add.reduceat(part, groups.starts) for part in parts]
        for lower in range(3):
            sums[lower + 1] += sums[lower] >> 32
            sums[lower] &= _LOW
        counts = np.add.reduceat(known.astype(np.int64), groups.starts)
        fits = (sums[3] >= -(2**31)) & (sums[3] < 2**31)
        found = (sums[0].astype(np.uint64) | sums[1].astype(np.uint64) << np.uint64(32), sums[2] | sums[3] << 32)
        if not (fits & _fits(found, self._kind.precision))[counts > 0].all():
            raise _overflow("sum", self._name, self._kind)
        return _decimals(found, counts > 0, self._kind)


def mean_of(total: Any, count: Any, *, name: str) -> Any:
    """The quotients of sums and counts, with the scale of a mean and as many digits as there are: `narrowed` makes them
    as short as a mean is. Null where the sum is null. Raises `UsageError` if a mean does not fit."""
    total, count = one_array(total), one_array(count)
    kind: Any = pa.decimal128(MOST_DIGITS, min(MOST_DIGITS, total.type.scale + _MEAN_DIGITS))
    known = total.is_valid().to_numpy(zero_copy_only=False)
    counts = np.where(known, count.fill_null(1).to_numpy(), 1)
    factor = 10 ** (kind.scale - total.type.scale)
    low, high = _wide(total)
    values = low.astype(np.int64)
    is_small = known & (high == values >> 63) & (values > -_SMALL) & (values < _SMALL) & (counts < _SMALL)
    scaled = np.abs(np.where(is_small, values, 0)) * factor
    quotients = (2 * scaled + counts) // (2 * counts) * np.where(values < 0, -1, 1)
    found = (quotients.astype(np.uint64), quotients >> 63)
    # Sums of so many digits are rare: they are divided one by one.
    for row in np.flatnonzero(known & ~is_small).tolist():
        value = (int(high[row]) << 64) + int(low[row])
        quotient = (2 * abs(value) * factor + int(counts[row])) // (2 * int(counts[row]))
        quotient = -quotient if value < 0 else quotient
        if abs(quotient) >= 10**MOST_DIGITS:
            raise _overflow("mean", name, kind)
        found[0][row], found[1][row] = quotient & (2**64 - 1), quotient >> 64
    return _decimals(found, known, kind)


def narrowed(column: Any, kind: Any, *, name: str) -> Any:
    """A column of decimals as another type of decimals with the same scale. Raises `UsageError` if a value has too many
    digits."""
    if column.type == kind:
        return column
    column = one_array(column)
    known = column.is_valid().to_numpy(zero_copy_only=False)
    values = _wide(column)
    if not _fits(values, kind.precision)[known].all():
        raise _overflow("mean", name, kind)
    return _decimals(values, known, kind)


def _wide(column: Any) -> Wide:
    """The values of a column of decimals; whatever stands there where the column is null."""
    _, data = column.buffers()
    halves = np.frombuffer(data, np.uint64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    return halves[:, 0], halves[:, 1].view(np.int64)


def _fits(values: Wide, digits: int) -> npt.NDArray[np.bool_]:
    """Which values have at most so many digits."""
    bound = 10**digits
    return _is_below(values, bound) & ~_is_below(values, 1 - bound)


def _is_below(values: Wide, bound: int) -> npt.NDArray[np.bool_]:
    low, high = values
    upper, lower = bound >> 64, np.uint64(bound & (2**64 - 1))
    found: npt.NDArray[np.bool_] = (high < upper) | ((high == upper) & (low < lower))
    return found


def _decimals(values: Wide, known: npt.NDArray[np.bool_], kind: pa.Decimal128Type) -> Any:
    low, high = values
    halves = np.stack([low, high.view(np.uint64)], axis=1)
    mask = None if known.all() else pa.array(known).buffers()[1]
    return pa.Array.from_buffers(kind, low.size, [mask, pa.py_buffer(halves.tobytes())])


def _overflow(what: str, name: str, kind: pa.Decimal128Type) -> UsageError:
    return UsageError(
        f"the {what} {name!r} does not fit into decimal({kind.precision}, {kind.scale})",
        hint="cast the column to double, or to a decimal with fewer digits, or use smaller windows",
    )

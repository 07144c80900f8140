"""The arithmetic of SQL text that Polars computes differently from Spark: in Spark an overflow or a division by zero
fails.

A kernel is put into a Polars expression and runs there, batch by batch, in every slot: slots import this module, so
this module must stay light. Where Spark in ANSI mode fails, a kernel raises the error that Polars raises for records
that Polars cannot compute, with the part of the text that failed. A result that is computed from a null is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from polars.exceptions import ComputeError

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Checked:
    """An Arrow function that fails on overflow and on division by zero, as a function of Polars columns."""

    function: str
    """`add`, `subtract`, `multiply`, `divide`, `negate` or `abs`, with the ending `_checked`."""
    text: str
    """What the user wrote, for the error."""

    def __call__(self, columns: Sequence[pl.Series]) -> pl.Series:
        """One result per row; columns of one row are repeated."""
        every_one_is_single = all(len(column) == 1 for column in columns)
        arguments: list[Any] = []
        for column in columns:
            array = column.to_arrow()
            arguments.append(array[0] if len(array) == 1 and not every_one_is_single else array)
        try:
            result = pc.call_function(self.function, arguments)
        except pa.ArrowInvalid as error:
            raise _arithmetic_error(str(error), self.text) from None
        return pl.Series(result)


def _arithmetic_error(reason: str, text: str) -> ComputeError:
    if "divide by zero" in reason:
        return _division_by_zero(text)
    return ComputeError(f"the result of {text!r} is out of range: cast to a wider type first")


def _division_by_zero(text: str) -> ComputeError:
    return ComputeError(f"division by zero in {text!r}: guard the division, for example by nullif(divisor, 0)")


@dataclass(frozen=True)
class Remainder:
    """The remainder of a division towards zero, with the sign of the dividend. With `positive`, as pmod has it, a
    positive divisor never gives a negative remainder."""

    positive: bool
    text: str

    def __call__(self, columns: Sequence[pl.Series]) -> pl.Series:
        """One result per row; columns of one row are repeated."""
        dividend, divisor = columns
        nulls = dividend.is_null().to_numpy() | divisor.is_null().to_numpy()
        left = dividend.fill_null(0).to_numpy()
        right = divisor.fill_null(1).to_numpy()
        if bool(((right == 0) & ~nulls).any()):
            raise _division_by_zero(self.text)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A zero in a row that is null anyway must not be divided by.
            right = np.where(right == 0, right.dtype.type(1), right)
            rest = np.fmod(left, right)
            if self.positive:
                rest = np.where(rest < 0, np.fmod(rest + right, right), rest)
        return _series(rest, nulls)


@dataclass(frozen=True)
class RoundHalfUp:
    """Rounds floats, as they are written in decimal, to `digits` behind the point. Halves are rounded away from zero.

    1.005 is rounded to 1.01, although the float that is written 1.005 is a little less than that.
    """

    digits: int

    def __call__(self, columns: Sequence[pl.Series]) -> pl.Series:
        """One result per row."""
        (column,) = columns
        values = column.fill_null(0.0).cast(pl.Float64).to_numpy()
        factor = 10.0**self.digits
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.abs(values) * factor
            whole = np.floor(scaled)
            part = scaled - whole
            rounded = np.copysign((whole + (part >= 0.5)) / factor, values) + 0.0
            # A number is doubtful if it is so near to a half that binary arithmetic cannot tell on which side the
            # written number lies.
            error = scaled * 4 * np.finfo(np.float64).eps
            doubtful = np.isfinite(values) & ~(np.abs(part - 0.5) > error)
        quantum = Decimal(1).scaleb(-self.digits)
        for row in np.flatnonzero(doubtful):
            written = Decimal(str(values[row]))
            # A number with no digit behind the last kept digit is already rounded; quantising such a number could need
            # more digits than a decimal has room for.
            keeps = -int(written.as_tuple().exponent) <= self.digits
            rounded[row] = values[row] if keeps else float(written.quantize(quantum, ROUND_HALF_UP))
        return _series(rounded, column.is_null().to_numpy()).cast(column.dtype)


@dataclass(frozen=True)
class SplitText:
    """Splits texts at the matches of a pattern. Empty parts at the end are kept."""

    pattern: str
    most: int | None
    """The last part has the rest of the text if there are more parts than this, which is at least 2; None: no limit."""

    def __call__(self, columns: Sequence[pl.Series]) -> pl.Series:
        """One array per row."""
        (column,) = columns
        texts = column.to_arrow().cast(pa.large_string())
        splits = None if self.most is None else self.most - 1
        return pl.Series(pc.split_pattern_regex(texts, self.pattern, max_splits=splits))


def _series(values: Numbers, nulls: npt.NDArray[np.bool_]) -> pl.Series:
    return pl.Series(pa.array(values, mask=np.broadcast_to(nulls, values.shape) if nulls.any() else None))

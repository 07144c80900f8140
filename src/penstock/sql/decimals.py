"""Casts to decimals as Spark computes them: rounded half up, and out of range where the digits do not fit.

A number from a float is the number that the float is written as: 1.005 becomes 1.005, although the float is a little
less than that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, NoReturn

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from polars.exceptions import ComputeError

_WRITTEN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""What Spark reads as a number."""
_MOST_DIGITS = 38
_EXACT = Context(prec=2 * _MOST_DIGITS + 4, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class ToDecimal:
    """Turns whole numbers, floats, decimals or texts into decimals."""

    precision: int
    scale: int
    lenient: bool
    """What cannot be turned into a decimal is null; otherwise it fails."""
    text: str
    """The name of the cast, for the error."""

    def __call__(self, columns: Sequence[pl.Series]) -> pl.Series:
        """One decimal per row."""
        (column,) = columns
        array = column.to_arrow()
        return pl.Series(self._of_integers(array) if pa.types.is_integer(array.type) else self._of_written(array))

    def _of_integers(self, array: Any) -> Any:
        digits = self.precision - self.scale
        numbers = array.cast(pa.decimal128(20, 0))
        if digits < 20:  # no whole number has more digits
            bound = pa.scalar(Decimal(10) ** digits, pa.decimal128(21, 0))
            fits = pc.and_(pc.less(numbers, bound), pc.greater(numbers, pc.negate(bound)))
            numbers = self._where(numbers, fits)
        return numbers.cast(pa.decimal128(self.precision, self.scale))

    def _where(self, numbers: Any, fits: Any) -> Any:
        if not self.lenient and pc.any(pc.invert(fits)).as_py():
            raise self._out_of_range()
        return pc.if_else(fits, numbers, pa.scalar(None, numbers.type))

    def _of_written(self, array: Any) -> Any:
        read = (
            self._read_text if pa.types.is_large_string(array.type) or pa.types.is_string(array.type) else _read_number
        )
        # Equal values are turned into a decimal once.
        values = array.to_pylist()
        known = {value: None if value is None else self._rounded(value, read) for value in dict.fromkeys(values)}
        return pa.array([known[value] for value in values], pa.decimal128(self.precision, self.scale))

    def _rounded(self, value: Any, read: Callable[[Any], Decimal | None]) -> Decimal | None:
        number = read(value)
        if number is None:
            return None
        # The number of digits before the point, without zeros in front.
        if number and number.adjusted() >= self.precision:
            return None if self.lenient else self._fail()
        if number and number.adjusted() < -self.scale - 1:
            return Decimal(0)
        rounded = number.quantize(Decimal(1).scaleb(-self.scale), context=_EXACT)
        if rounded and rounded.adjusted() >= self.precision - self.scale:
            return None if self.lenient else self._fail()
        return rounded

    def _read_text(self, text: str) -> Decimal | None:
        stripped = text.strip(_BLANKS)
        if _WRITTEN.fullmatch(stripped):
            return Decimal(stripped)
        if self.lenient:
            return None
        raise ComputeError(f"{text!r} is no number, in {self.text}: use try_cast to have null in its place")

    def _fail(self) -> NoReturn:
        raise self._out_of_range()

    def _out_of_range(self) -> ComputeError:
        return ComputeError(f"a value is out of range in {self.text}: cast to a wider decimal")


_BLANKS = "".join(map(chr, range(33)))
"""What Spark strips from a text before reading a number: all characters up to the blank."""


def _read_number(value: float | Decimal) -> Decimal | None:
    if isinstance(value, Decimal):
        return value
    # Spark has null for what is no number, and for numbers without an end.
    return Decimal(repr(value)) if np.isfinite(value) else None

"""Draws: 64 random bits for every number, which numpy and Spark SQL compute alike.

A draw is Spark's own `xxhash64` of a number, mixed with the seed. The fields of a row are cut from the bits of its
draws. Rows that need more bits have several draws, each with a salt of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

BASE_TIME = datetime(2015, 7, 15, tzinfo=UTC)
FIRST_ID = 1000
OCTAVES = 20

_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5
_SPARK_SEED = 42
_MASK = 2**64 - 1

OCTAVE_STARTS = np.array([100 << (draw * OCTAVES >> 13) for draw in range(1 << 13)], np.int64)
"""For each value of 13 bits: the least price of the octave."""

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


def micros(time: datetime) -> int:
    """Microseconds since 1970."""
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def seed_mask(seed: int, salt: int = 0) -> int:
    """The mask that the number of a row is xor-ed with. The mask has at most 62 bits, so that the mask is a positive
    literal in SQL."""
    drawn = _scalar_draw(seed & _MASK)
    return (_scalar_draw((drawn + salt) & _MASK) if salt else drawn) >> 2


class Draws:
    """The draws of ranges of numbers."""

    def __init__(self, seed: int, salt: int = 0) -> None:
        self._mask = np.uint64(seed_mask(seed, salt))
        # These arrays are kept from batch to batch: to allocate memory takes longer than to fill it.
        self._counted = self._value = self._spare = np.empty(0, np.uint64)

    def of(self, first: int, count: int) -> UInt64s:
        """The draws of `count` numbers from `first` on. The array is used again by the next call."""
        if self._counted.size < count:
            self._counted = np.arange(count, dtype=np.uint64)
            self._value, self._spare = np.empty_like(self._counted), np.empty_like(self._counted)
        value, spare = self._value[:count], self._spare[:count]
        np.add(self._counted[:count], np.uint64(first), out=value)
        value ^= self._mask
        value *= np.uint64(_P2)
        _rotate_left(value, 31, spare)
        value *= np.uint64(_P1)
        value ^= np.uint64((_SPARK_SEED + _P5 + 8) & _MASK)
        _rotate_left(value, 27, spare)
        value *= np.uint64(_P1)
        value += np.uint64(_P4)
        for shift, factor in ((33, _P2), (29, _P3)):
            np.right_shift(value, np.uint64(shift), out=spare)
            value ^= spare
            value *= np.uint64(factor)
        np.right_shift(value, np.uint64(32), out=spare)
        value ^= spare
        return value


def bits(draws: UInt64s, first: int, count: int) -> Int64s:
    """Some of the bits of each draw, as a number."""
    return ((draws >> np.uint64(first)) & np.uint64(2**count - 1)).astype(np.int64)


def picks(draws: UInt64s, first: int, choices: int | Int64s) -> Int64s:
    """One of the numbers 0 to `choices` - 1 for each draw, by 16 of its bits."""
    return (bits(draws, first, 16) * choices) >> 16


def prices(draws: UInt64s, first: int) -> Int64s:
    """A price for each draw, by 29 of its bits: each of the 20 octaves from 100 on is as likely as the others."""
    octaves = OCTAVE_STARTS.take(bits(draws, first, 13))
    return octaves + (bits(draws, first + 13, 16) * octaves >> 16)


def draw_sql(seed: int, salt: int = 0) -> str:
    """The draw of the number in column `n`."""
    return f"xxhash64(n ^ {seed_mask(seed, salt)}L)"


def bits_sql(draw: str, first: int, count: int) -> str:
    """As `bits`."""
    return f"(shiftrightunsigned({draw}, {first}) & {2**count - 1}L)"


def picks_sql(draw: str, first: int, choices: str | int) -> str:
    """As `picks`."""
    return f"shiftright({bits_sql(draw, first, 16)} * {choices}, 16)"


def prices_sql(draw: str, first: int, within: int | None = None) -> str:
    """As `prices`; `within` is the first of the 16 bits for the price within its octave, if other bits lie between."""
    octave = f"shiftleft(100L, CAST(shiftright({bits_sql(draw, first, 13)} * {OCTAVES}, 13) AS INT))"
    place = bits_sql(draw, first + 13 if within is None else within, 16)
    return f"{octave} + shiftright({place} * {octave}, 16)"


def _scalar_draw(value: int) -> int:
    rotated = (value * _P2) & _MASK
    rotated = ((rotated << 31) | (rotated >> 33)) & _MASK
    mixed = (_SPARK_SEED + _P5 + 8) ^ ((rotated * _P1) & _MASK)
    mixed &= _MASK
    mixed = ((mixed << 27) | (mixed >> 37)) & _MASK
    mixed = (mixed * _P1 + _P4) & _MASK
    mixed = ((mixed ^ (mixed >> 33)) * _P2) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * _P3) & _MASK
    return mixed ^ (mixed >> 32)


def _rotate_left(values: UInt64s, count: int, spare: UInt64s) -> None:
    np.right_shift(values, np.uint64(64 - count), out=spare)
    np.left_shift(values, np.uint64(count), out=values)
    values |= spare

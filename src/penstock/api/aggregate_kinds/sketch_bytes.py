"""What the bytes of a sketch must be before the library reads them.

The library is native code that believes what a sketch says of itself: a changed sketch makes it read and write outside
of its memory. A snapshot may be changed by somebody else. So the bytes are looked at here first. Everything that the
library makes is accepted. Other bytes are accepted only if they harm nothing but the result:

    HLL     8 bytes of preamble ─┬─ list: up to 7 coupons of 4 bytes
                                 ├─ set: how many, then as many coupons
                                 └─ registers: sums, how many are zero, then 2^bits registers of a byte each
    KLL     8 bytes of preamble ─┬─ nothing, or one value
                                 └─ how many values, levels, least and greatest value, the values of all levels

A sketch is read in a microsecond, so a look at it must not take much longer.
"""

from __future__ import annotations

import struct
from functools import cache
from itertools import pairwise

import numpy as np

from penstock.core.errors import CorruptFile

_VERSION = 1
_PREAMBLE_BYTES = 8
_HLL, _KLL = 7, 15
"""The families, as DataSketches numbers them."""

# --- HLL -------------------------------------------------------------------------------------------------------------

_LIST, _SET, _REGISTERS = (2, 8), (3, 9), (10, 10)
"""The number of 4-byte words in the preamble, and the mode of a sketch that has registers of 8 bits."""
_EMPTY, _COMPACT, _OUT_OF_ORDER = 4, 8, 16
_LIST_BITS, _LEAST_SET_BITS = 3, 5
_FIRST_COUPON = 12
_FIRST_REGISTER = 40
_VALUES = bytes(range(64))
"""Registers have 6 bits."""
_MOST = 2.0**80
"""No estimate is greater."""


def check_distinct(data: bytes | None, bits: int) -> bytes:
    """The bytes of an HLL sketch with 2^`bits` registers. Raises `CorruptFile` for other bytes."""
    if data is not None and len(data) >= _PREAMBLE_BYTES and (data[1], data[2], data[3]) == (_VERSION, _HLL, bits):
        form, flags = (data[0], data[7]), data[5] | _OUT_OF_ORDER
        if form == _LIST:
            is_sound = _is_list(data, flags)
        elif flags != _COMPACT | _OUT_OF_ORDER:
            is_sound = False
        elif form == _SET:
            is_sound = _is_set(data, bits)
        else:
            is_sound = form == _REGISTERS and _has_registers(data, bits)
        if is_sound:
            return data
    raise _corrupt("approx_count_distinct")


def _is_list(data: bytes, flags: int) -> bool:
    count = data[6]
    expected = _COMPACT | _OUT_OF_ORDER | (0 if count else _EMPTY)
    is_short = count < 1 << _LIST_BITS and len(data) == _PREAMBLE_BYTES + 4 * count
    return data[4] == _LIST_BITS and flags == expected and is_short


def _is_set(data: bytes, bits: int) -> bool:
    if len(data) < _FIRST_COUPON:
        return False
    count: int = struct.unpack_from("<I", data, _PREAMBLE_BYTES)[0]
    places = 1 << data[4] if _LEAST_SET_BITS <= data[4] <= max(bits - 3, _LEAST_SET_BITS) else 0
    return 4 * count <= 3 * places and len(data) == _FIRST_COUPON + 4 * count


def _has_registers(data: bytes, bits: int) -> bool:
    if len(data) != _FIRST_REGISTER + (1 << bits) or data[4] or data[6]:
        return False
    estimate, small, great, zeros, others = struct.unpack_from("<dddII", data, 8)
    # Each register adds a power of two, from 1 down, to one of the sums.
    can_be: bool = (
        0 <= estimate <= _MOST and min(small, great) >= 0 and len(_VALUES) / _MOST < small + great <= 1 << bits
    )
    registers = data[_FIRST_REGISTER:]
    has_zeros = (registers.count(0), 0) == (zeros, others)
    return can_be and has_zeros and not registers.translate(None, _VALUES)


# --- KLL -------------------------------------------------------------------------------------------------------------

_LEAST_WIDTH = 8
_MOST_LEVELS = 60
"""A level more would stand for more values than 64 bits can count."""
_NOTHING, _SINGLE, _FULL = (2, _VERSION), (2, 2), (5, _VERSION)
"""The number of 4-byte words in the preamble, and the version."""
_IS_EMPTY, _IS_SINGLE = 1, 4
_FIRST_LEVEL = 20
_LONGEST_ROW = 30


def check_ranks(data: bytes | None, size: int) -> bytes:
    """The bytes of a KLL sketch whose parameter k is `size`. Raises `CorruptFile` for other bytes."""
    if (
        data is not None
        and len(data) >= _PREAMBLE_BYTES
        and data[2] == _KLL
        and struct.unpack_from("<HB", data, 4) == (size, _LEAST_WIDTH)
    ):
        form, flags = (data[0], data[1]), data[3] & (_IS_EMPTY | _IS_SINGLE)
        if flags == _IS_EMPTY:
            is_sound = form == _NOTHING and len(data) == _PREAMBLE_BYTES
        elif flags == _IS_SINGLE:
            is_sound = form == _SINGLE and len(data) == _PREAMBLE_BYTES + 8 and _are_numbers(data, _PREAMBLE_BYTES)
        else:
            is_sound = flags == 0 and form == _FULL and _has_levels(data, size)
        if is_sound:
            return data
    raise _corrupt("approx_quantile")


def _has_levels(data: bytes, size: int) -> bool:
    if len(data) < _FIRST_LEVEL:
        return False
    total, least_size, count = struct.unpack_from("<QHB", data, _PREAMBLE_BYTES)
    values = _FIRST_LEVEL + 4 * count
    if not 1 <= count <= _MOST_LEVELS or not _LEAST_WIDTH <= least_size <= size or len(data) < values:
        return False
    bounds = (*struct.unpack_from(f"<{count}I", data, _FIRST_LEVEL), _capacity(size, count))
    lengths = [end - start for start, end in pairwise(bounds)]
    if min(lengths) < 0 or len(data) != values + 16 + 8 * (bounds[-1] - bounds[0]):
        return False
    return total == sum(length << level for level, length in enumerate(lengths)) > 0 and _are_numbers(data, values)


def _are_numbers(data: bytes, start: int) -> bool:
    """Whether no value from this byte on is NaN: NaN has no place in an order, and values are sorted."""
    return not np.isnan(np.frombuffer(data, "<f8", offset=start)).any()


@cache
def _capacity(size: int, levels: int) -> int:
    """How many values the levels have room for, as the library computes it."""
    return sum(max(_LEAST_WIDTH, _room(size, levels - level - 1)) for level in range(levels))


def _room(size: int, depth: int) -> int:
    if depth > _LONGEST_ROW:
        half = depth // 2
        return _room(_room(size, half), depth - half)
    return int((2 * size << depth) // 3**depth + 1) // 2


def _corrupt(kind: str) -> CorruptFile:
    return CorruptFile(
        f"a sketch of {kind} cannot be read",
        hint="the snapshot was changed: restore from another checkpoint or savepoint",
    )

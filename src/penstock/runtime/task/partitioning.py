"""Computes the key group of every row of a batch from the key columns.

The hash never changes, because the hash is part of the storage format: state is laid out by key group. The hash has
three steps:

1. Every value gets a 32-bit hash, as in Java. Integers, dates, times and timestamps are widened to 64 bits (in the unit
   in which they are stored) and folded: low half xor high half. Booleans are 1231 or 1237. Floats are widened to
   float64 and their bits folded, with one NaN and one zero (-0.0 hashes as 0.0). Strings are s[0]*31^(n-1) + ... +
   s[n-1] over UTF-16 units; binary values have the same sum over signed bytes. A decimal is taken as an integer without
   its point: the same sum over the four 32-bit words of the absolute value, with the sign of the decimal, times 31,
   plus the scale. Null is 0.
2. The hash of a single key column is taken as it is. The hashes of several key columns are combined by h = 31*h + hash,
   starting from 1. Without key columns every row has the hash 1, and so all rows are in one key group.
3. The bits of the hash are mixed as murmur3 does for one 4-byte block. The result is made non-negative, and taken
   modulo the number of key groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.window_schema import check_key_types
from penstock.core.errors import UsageError

__all__ = ["check_key_types", "groups_of_hashes", "key_groups", "key_hashes", "partition", "row_hashes", "split"]

UInt32s = npt.NDArray[np.uint32]
Column = Any
"""A pyarrow array. The type stubs of compute functions do not allow a closer type."""

_CHARACTERS_AT_ONCE = 1 << 20
"""Strings are hashed in runs of about this many characters, which bounds the tables of powers."""

_FEW_TARGETS = 4
"""Up to this many targets one scan per target is quicker than a sort."""


def key_groups(batch: pa.RecordBatch, columns: Sequence[str], groups: int) -> npt.NDArray[np.int32]:
    """The key group of every row. Raises `UsageError` for a type that cannot be a key."""
    return groups_of_hashes(key_hashes(batch, columns), groups)


def groups_of_hashes(hashes: npt.NDArray[np.int32], groups: int) -> npt.NDArray[np.int32]:
    """The key groups of rows whose keys have these hashes. May change the hashes in place."""
    if groups & (groups - 1) == 0:
        hashes &= np.int32(groups - 1)
    else:
        hashes %= np.int32(groups)
    return hashes


def key_hashes(batch: pa.RecordBatch, columns: Sequence[str]) -> npt.NDArray[np.int32]:
    """The hash of the key of every row, which is not negative. The key group is the hash modulo the number of key
    groups. Raises `UsageError` for a type that cannot be a key."""
    if len(columns) == 1:
        hashes = _value_hashes(batch, columns[0])
    else:
        combined = np.full(batch.num_rows, 1, np.uint32)
        for column in columns:
            combined *= np.uint32(31)
            combined += _value_hashes(batch, column)
        hashes = combined
    mixed = _mixed(hashes).view(np.int32)
    # The least int32 has no positive counterpart: `abs` leaves it negative, and `maximum` makes it 0.
    np.abs(mixed, out=mixed)
    np.maximum(mixed, 0, out=mixed)
    return mixed


def row_hashes(batch: pa.RecordBatch, columns: Sequence[str], *, seed: int) -> UInt32s:
    """A hash of every row, from the values of some columns and a seed. The bits are mixed after every column, so that
    the hashes of small numbers in several columns are spread evenly."""
    hashes = _mixed(np.full(batch.num_rows, seed & 0xFFFFFFFF, np.uint32))
    for column in columns:
        hashes = _mixed(hashes ^ _value_hashes(batch, column))
    return hashes


def partition(
    batch: pa.RecordBatch, columns: Sequence[str], *, parallelism: int, groups: int
) -> list[pa.RecordBatch | None]:
    """The rows of each subtask, in the order they have in `batch`; None for a subtask that gets no row."""
    parts: list[pa.RecordBatch | None] = [None] * parallelism
    if parallelism == 1 or batch.num_rows == 0:
        parts[0] = batch if batch.num_rows else None
        return parts
    return split(batch, _owners(parallelism, groups)[key_groups(batch, columns, groups)], parallelism)


def split(batch: pa.RecordBatch, targets: npt.NDArray[np.uint16], parallelism: int) -> list[pa.RecordBatch | None]:
    """The rows of each target, in the order they have in `batch`, which is not empty; None for a target that gets no
    row. `targets` has the target of each row."""
    parts: list[pa.RecordBatch | None] = [None] * parallelism
    counts = np.bincount(targets, minlength=parallelism)
    if counts.max() == batch.num_rows:
        parts[int(counts.argmax())] = batch
        return parts
    gathered = batch.take(_stable_order(targets, parallelism))
    start = 0
    for target, count in enumerate(counts.tolist()):
        if count:
            parts[target] = gathered.slice(start, count)
            start += count
    return parts


@lru_cache(maxsize=64)
def _owners(parallelism: int, groups: int) -> npt.NDArray[np.uint16]:
    """The subtask of each key group."""
    return (np.arange(groups, dtype=np.int64) * parallelism // groups).astype(np.uint16)


def _stable_order(targets: npt.NDArray[np.uint16], parallelism: int) -> npt.NDArray[np.int64]:
    """The numbers of the rows, ordered by target. With this order one gather per column serves all targets."""
    if parallelism <= _FEW_TARGETS:
        return np.concatenate([np.flatnonzero(targets == target) for target in range(parallelism)])
    # A stable sort of 16-bit numbers is a radix sort: linear whatever the parallelism.
    return np.argsort(targets, kind="stable")


def _mixed(hashes: UInt32s) -> UInt32s:
    mixed = hashes * np.uint32(0xCC9E2D51)
    spare = np.empty_like(mixed)
    _rotate_left(mixed, 15, spare)
    mixed *= np.uint32(0x1B873593)
    _rotate_left(mixed, 13, spare)
    mixed *= np.uint32(5)
    mixed += np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        np.right_shift(mixed, np.uint32(shift), out=spare)
        mixed ^= spare
        mixed *= np.uint32(factor)
    np.right_shift(mixed, np.uint32(16), out=spare)
    mixed ^= spare
    return mixed


def _rotate_left(values: UInt32s, bits: int, spare: UInt32s) -> None:
    np.right_shift(values, np.uint32(32 - bits), out=spare)
    np.left_shift(values, np.uint32(bits), out=values)
    values |= spare


def _value_hashes(batch: pa.RecordBatch, column: str) -> UInt32s:
    values: Column = batch.column(column)
    kind = values.type
    if pt.is_boolean(kind):
        hashes = np.where(values.cast(pa.uint8()).fill_null(0).to_numpy(), np.uint32(1231), np.uint32(1237))
        if values.null_count:
            hashes[values.is_null().to_numpy(zero_copy_only=False)] = 0
        return hashes
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _string_hashes(values.fill_null("") if values.null_count else values)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        data, offsets = _characters(values.fill_null(b"") if values.null_count else values)
        return _polynomials(data.view(np.int8).astype(np.int32).view(np.uint32), offsets)
    if pt.is_decimal128(kind):
        return _decimal_hashes(values)
    return _folded(_bits(values, column))


def _bits(values: Column, column: str) -> npt.NDArray[np.int64]:
    """Every value as 64 bits. Null is 0, because 0 folds to the hash 0."""
    kind = values.type
    if pt.is_timestamp(kind) or pt.is_date64(kind) or pt.is_time64(kind):
        values = values.view(pa.int64())
    elif pt.is_date32(kind) or pt.is_time32(kind):
        values = values.view(pa.int32())
    elif not (pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind)):
        raise UsageError(f"column {column!r} of type {kind} cannot be a key")
    numbers: npt.NDArray[Any] = (values.fill_null(0) if values.null_count else values).to_numpy()
    if numbers.dtype.kind == "f":
        # Adding zero turns -0.0 into 0.0; every NaN takes the same bits.
        numbers = numbers.astype(np.float64) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.int64)
    if numbers.dtype == np.uint64:
        return numbers.view(np.int64)
    return numbers.astype(np.int64, copy=False)


def _decimal_hashes(values: Column) -> UInt32s:
    hashes = np.zeros(len(values), np.uint32)
    digits = values.buffers()[1]
    if digits is None:
        return hashes
    halves = np.frombuffer(memoryview(digits), np.uint64)[2 * values.offset : 2 * (values.offset + len(values))].copy()
    low, high = halves[0::2], halves[1::2]
    negative = high.view(np.int64) < 0
    # The absolute value of a negative number: all bits inverted, plus one. The one carries into the high half where the
    # low half becomes 0.
    low[negative] = ~low[negative] + np.uint64(1)
    high[negative] = ~high[negative] + (low[negative] == 0)
    words = halves.view(np.uint32)
    for word in (3, 2, 1, 0):
        hashes *= np.uint32(31)
        hashes += words[word::4]
    np.negative(hashes, out=hashes, where=negative)
    hashes *= np.uint32(31)
    hashes += np.uint32(values.type.scale & 0xFFFFFFFF)
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _folded(bits: npt.NDArray[np.int64]) -> UInt32s:
    halves = np.ascontiguousarray(bits).view(np.uint32)
    return np.bitwise_xor(halves[0::2], halves[1::2])


def _characters(values: Column) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of all values, one after another; and where each value begins, followed by where the last value
    ends."""
    kind = values.type
    width = np.int64 if pt.is_large_string(kind) or pt.is_large_binary(kind) else np.int32
    _, where, content = values.buffers()
    if where is None or len(values) == 0:
        return np.empty(0, np.uint8), np.zeros(len(values) + 1, np.int64)
    ends = np.frombuffer(memoryview(where), width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    data = np.frombuffer(memoryview(content), np.uint8) if content is not None else np.empty(0, np.uint8)
    return data[ends[0] : ends[-1]], ends - ends[0]


def _string_hashes(values: Column) -> UInt32s:
    data, offsets = _characters(values)
    if data.size == 0 or data.max() < 0x80:
        return _polynomials(data, offsets)
    # A byte that begins a character stands for one UTF-16 unit, or for two if the character takes four bytes.
    units = np.zeros(data.size + 1, np.int64)
    np.cumsum(((data & 0xC0) != 0x80) + (data >= 0xF0).astype(np.int8), out=units[1:])
    text = data.tobytes().decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
    return _polynomials(np.frombuffer(text, "<u2"), units[offsets])


def _polynomials(characters: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> UInt32s:
    """s[0]*31^(n-1) + ... + s[n-1] of every value, modulo 2^32.

    31 has an inverse modulo 2^32. So running sums of s[i] * 31^-(i+1) over all characters give the hash of each value
    as the difference of two sums, times a power. No loop over values or lengths is needed.
    """
    rows = len(offsets) - 1
    hashes = np.empty(rows, np.uint32)
    first = 0
    while first < rows:
        last = int(np.searchsorted(offsets, offsets[first] + _CHARACTERS_AT_ONCE, side="right")) - 1
        last = min(max(last, first + 1), rows)
        begin, end = int(offsets[first]), int(offsets[last])
        size = 1 << max(end - begin, 255).bit_length()
        # Tables for a single value of enormous length are not worth keeping.
        powers, inverses = _powers(size) if size <= 2 * _CHARACTERS_AT_ONCE else _powers.__wrapped__(size)
        sums = np.zeros(end - begin + 1, np.uint32)
        np.multiply(characters[begin:end], inverses[: end - begin], out=sums[1:], casting="unsafe", dtype=np.uint32)
        np.cumsum(sums, dtype=np.uint32, out=sums)
        where = offsets[first : last + 1] - begin
        hashes[first:last] = (sums[where[1:]] - sums[where[:-1]]) * powers[where[1:]]
        first = last
    return hashes


@lru_cache(maxsize=16)
def _powers(count: int) -> tuple[UInt32s, UInt32s]:
    """31^0, 31^1, ... and 31^-1, 31^-2, ... modulo 2^32, `count` of each."""
    powers = np.full(count, 31, np.uint32)
    powers[0] = 1
    inverses = np.full(count, pow(31, -1, 1 << 32), np.uint32)
    return np.cumprod(powers, dtype=np.uint32), np.cumprod(inverses, dtype=np.uint32)

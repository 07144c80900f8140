from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from key_group_owners import owner_of

from penstock.core.errors import UsageError
from penstock.runtime.task.partitioning import check_key_types, key_groups, partition

# --- the hash, one value at a time, by its definition ---------------------------------------------------------------

MASK = 0xFFFFFFFF


def fold(bits):
    bits &= 2**64 - 1
    return (bits ^ (bits >> 32)) & MASK


def polynomial(units):
    h = 0
    for unit in units:
        h = (31 * h + unit) & MASK
    return h


def value_hash(value):
    if value is None:
        return 0
    if isinstance(value, bool):
        return 1231 if value else 1237
    if isinstance(value, int):
        return fold(value)
    if isinstance(value, float):
        if value != value:
            return fold(0x7FF8000000000000)
        return fold(struct.unpack("<q", struct.pack("<d", value if value else 0.0))[0])
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        amount = int("".join(map(str, digits)))
        words = [amount >> 32 * word & MASK for word in (3, 2, 1, 0)]
        return (31 * (-1 if sign else 1) * polynomial(words) - exponent) & MASK
    if isinstance(value, str):
        data = value.encode("utf-16-le", "surrogatepass")
        return polynomial(struct.unpack(f"<{len(data) // 2}H", data))
    return polynomial(b - 256 if b > 127 else b for b in value)


def rotate(x, n):
    return ((x << n) | (x >> (32 - n))) & MASK


def group_of(values, groups):
    if len(values) == 1:
        code = value_hash(values[0])
    else:
        code = 1
        for value in values:
            code = (31 * code + value_hash(value)) & MASK
    code = rotate(code * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    code = (rotate(code, 13) * 5 + 0xE6546B64) & MASK
    code ^= 4
    code = (code ^ (code >> 16)) * 0x85EBCA6B & MASK
    code = (code ^ (code >> 13)) * 0xC2B2AE35 & MASK
    code ^= code >> 16
    signed = code - 2**32 if code >= 2**31 else code
    return (0 if signed == -(2**31) else abs(signed)) % groups


# --- against golden vectors and the definition ----------------------------------------------------------------------


def test_integers_have_their_golden_groups():
    batch = pa.record_batch({"k": pa.array(range(10))})
    assert key_groups(batch, ["k"], 128).tolist() == [94, 86, 127, 113, 7, 126, 18, 113, 15, 51]


def test_without_key_columns_all_rows_are_in_one_golden_group():
    assert key_groups(pa.record_batch({"k": pa.array(range(3))}), [], 128).tolist() == [86, 86, 86]


def test_strings_have_their_golden_groups():
    batch = pa.record_batch({"k": ["a", "b", "hello", "flink", "spark"]})
    assert key_groups(batch, ["k"], 128).tolist() == [81, 22, 35, 98, 7]


def test_decimals_hash_as_those_of_java():
    hashes = {
        "0.00": 2,
        "1.50": 4652,
        "-1.50": -4648,
        "99999999.99": 762356581,
        "-92233720368547758.08": -2147483646,
        "-42949672.96": -959,
        "184467440737095516.16": 29793,
        "123456789012345678901234567890123456.78": -880932665,
        "-123456789012345678901234567890123456.78": 880932669,
    }
    batch = pa.record_batch({"k": pa.array([Decimal(text) for text in hashes], pa.decimal128(38, 2))})
    # An integer whose upper half is 0 is its own hash.
    numbers = pa.record_batch({"k": pa.array([found & MASK for found in hashes.values()])})
    assert key_groups(batch, ["k"], 32_768).tolist() == key_groups(numbers, ["k"], 32_768).tolist()


def test_the_least_hash_has_no_positive_counterpart_and_counts_as_zero():
    key = 2205091669
    assert key_groups(pa.record_batch({"k": pa.array([key])}), ["k"], 1000).tolist() == [0] == [group_of([key], 1000)]


def test_the_type_of_an_integer_does_not_change_its_group():
    numbers = [0, 1, 7, 100]
    expected = key_groups(pa.record_batch({"k": pa.array(numbers)}), ["k"], 1000).tolist()
    for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint32(), pa.uint64(), pa.date32()):
        values = pa.array(numbers, pa.int32()).cast(kind)
        assert key_groups(pa.record_batch({"k": values}), ["k"], 1000).tolist() == expected


def with_point(number, scale):
    """As Arrow gives a decimal: with all digits behind the point."""
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def column(values, kind):
    return st.lists(st.none() | values, max_size=30).map(lambda v: (v, pa.array(v, kind)))


COLUMNS = st.one_of(
    column(st.integers(-(2**63), 2**63 - 1), pa.int64()),
    column(st.integers(-(2**31), 2**31 - 1), pa.int32()),
    column(st.integers(0, 2**64 - 1), pa.uint64()),
    column(st.booleans(), pa.bool_()),
    column(st.floats(), pa.float64()),
    column(st.floats(width=32), pa.float32()),
    column(st.integers(1 - 10**38, 10**38 - 1).map(lambda n: with_point(n, 5)), pa.decimal128(38, 5)),
    column(st.integers(-99, 99).map(lambda n: with_point(n, 0)), pa.decimal128(2, 0)),
    column(st.text(), pa.string()),
    column(st.text(alphabet="abcde "), pa.large_string()),
    column(st.binary(), pa.binary()),
    column(st.binary(), pa.large_binary()),
)


@given(COLUMNS, st.sampled_from([1, 2, 3, 10, 128, 1000, 32_768]))
def test_a_column_hashes_as_defined(made, groups):
    values, array = made
    found = key_groups(pa.record_batch({"k": array}), ["k"], groups)
    assert found.tolist() == [group_of([v], groups) for v in values]


@given(COLUMNS, st.integers(0, 10))
def test_a_slice_hashes_as_its_rows(made, start):
    values, array = made
    batch = pa.record_batch({"k": array}).slice(start)
    assert key_groups(batch, ["k"], 128).tolist() == [group_of([v], 128) for v in values[start:]]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(), st.none() | st.booleans()), max_size=20))
def test_columns_are_combined_as_defined(rows):
    batch = pa.record_batch(
        {
            "a": pa.array([r[0] for r in rows], pa.int64()),
            "b": pa.array([r[1] for r in rows], pa.string()),
            "c": pa.array([r[2] for r in rows], pa.bool_()),
        }
    )
    assert key_groups(batch, ["a", "b", "c"], 128).tolist() == [group_of(r, 128) for r in rows]


def test_times_hash_as_the_number_they_are_stored_as():
    moment, day = datetime(2026, 3, 1, 12, tzinfo=UTC), date(2026, 3, 1)
    micros = int(moment.timestamp()) * 1_000_000
    batch = pa.record_batch(
        {
            "utc": pa.array([moment], pa.timestamp("us", "UTC")),
            "naive": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
            "day": pa.array([day], pa.date32()),
            "clock": pa.array([moment.time()], pa.time64("us")),
        }
    )
    assert key_groups(batch, ["utc"], 1000).tolist() == [group_of([micros], 1000)]
    assert key_groups(batch, ["naive"], 1000).tolist() == [group_of([micros], 1000)]
    assert key_groups(batch, ["day"], 1000).tolist() == [group_of([day.toordinal() - 719_163], 1000)]
    assert key_groups(batch, ["clock"], 1000).tolist() == [group_of([12 * 3_600_000_000], 1000)]


def test_all_nans_are_one_key_and_both_zeros_another():
    odd_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
    batch = pa.record_batch({"k": pa.array(np.array([float("nan"), odd_nan, 0.0, -0.0]))})
    first, second, zero, negative_zero = key_groups(batch, ["k"], 32_768).tolist()
    assert first == second == group_of([float("nan")], 32_768)
    assert zero == negative_zero == group_of([0.0], 32_768)


def test_strings_longer_than_the_table_of_powers_hash_as_defined():
    texts = ["x" * 700_000 + "y", "", "é" + "z" * 1_100_000, "short"] + ["ab"] * 3
    batch = pa.record_batch({"k": texts})
    assert key_groups(batch, ["k"], 32_768).tolist() == [group_of([t], 32_768) for t in texts]


# --- partitioning ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 9), st.sampled_from([9, 128]))
def test_every_row_goes_to_the_owner_of_its_group_in_order(keys, parallelism, groups):
    batch = pa.record_batch({"k": pa.array(keys, pa.int64()), "n": pa.array(range(len(keys)), pa.int64())})
    parts = partition(batch, ["k"], parallelism=parallelism, groups=groups)
    expected = [
        [
            {"k": key, "n": n}
            for n, key in enumerate(keys)
            if owner_of(group_of([key], groups), parallelism=parallelism, groups=groups) == target
        ]
        for target in range(parallelism)
    ]
    assert [part.to_pylist() if part is not None else [] for part in parts] == expected
    assert all(part is None or part.num_rows for part in parts)


def test_a_batch_of_one_target_is_handed_over_as_it_is():
    batch = pa.record_batch({"k": [7] * 100})
    parts = partition(batch, ["k"], parallelism=4, groups=128)
    assert sum(part is batch for part in parts) == 1
    assert sum(part is None for part in parts) == 3
    assert partition(batch, ["k"], parallelism=1, groups=128) == [batch]


# --- types -----------------------------------------------------------------------------------------------------------


def test_a_type_that_cannot_be_a_key_is_refused_by_name():
    kind = pa.list_(pa.int64())
    with pytest.raises(UsageError, match=r"column 'tags' of type list<.*> cannot be a key"):
        check_key_types(pa.schema([("id", pa.int64()), ("tags", kind)]), ["id", "tags"])
    with pytest.raises(UsageError, match="column 'tags'"):
        key_groups(pa.record_batch({"tags": pa.array([[1]], kind)}), ["tags"], 128)


def test_a_missing_key_column_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="'auctoin' does not exist") as caught:
        check_key_types(pa.schema([("auction", pa.int64())]), ["auctoin"])
    assert "auction" in str(caught.value.hint)


@pytest.mark.parametrize("columns", [[], ["a", "a"]])
def test_a_key_is_one_column_or_several_different_ones(columns):
    with pytest.raises(UsageError):
        check_key_types(pa.schema([("a", pa.int64())]), columns)


def test_every_type_that_is_accepted_as_a_key_can_be_hashed():
    kinds = [
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.bool_(),
        pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"),
        pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.string(), pa.large_string(), pa.binary(), pa.large_binary(),
    ]  # fmt: skip
    for kind in kinds:
        schema = pa.schema([("k", kind)])
        check_key_types(schema, ["k"])
        assert key_groups(pa.record_batch([pa.nulls(3, kind)], schema=schema), ["k"], 128).tolist() == [94] * 3

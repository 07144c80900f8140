"""How keys and values lie in RocksDB. The bytes are part of the format of snapshots: they never change."""

from __future__ import annotations

import datetime
import math
from decimal import Context, Decimal

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from penstock.core.errors import CorruptFile, UsageError
from penstock.sql.schemas import as_schema, as_type
from penstock.state.keys import NAN, ranking
from penstock.state.rocksdb.ordered import KeyCodec, decode_time, encode_time, object_identity
from penstock.state.rocksdb.packed import time_of, value_packer, with_time, without_time

UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 2, 28, 23, 59, 59, 999999, UTC)


def codec(*types):
    return KeyCodec(as_schema({f"k{n}": kind for n, kind in enumerate(types)}, argument="keys"))


# --- keys ------------------------------------------------------------------------------------------------------------

GOLDEN_KEYS = [
    ("bigint", 0, "01 8000000000000000"),
    ("bigint", -1, "01 7fffffffffffffff"),
    ("bigint", 2**63 - 1, "01 ffffffffffffffff"),
    ("bigint", None, "00"),
    ("int", 7, "01 80000007"),
    ("smallint", -2, "01 7ffe"),
    ("tinyint", 5, "01 85"),
    (pa.uint16(), 258, "01 0102"),
    ("boolean", True, "01 01"),
    ("boolean", False, "01 00"),
    ("double", 1.5, "01 bff8000000000000"),
    ("double", -1.5, "01 4007ffffffffffff"),
    ("double", 0.0, "01 8000000000000000"),
    ("double", -math.inf, "01 000fffffffffffff"),
    ("double", NAN, "02"),
    ("float", 0.5, "01 bfe0000000000000"),
    ("decimal(4, 2)", Decimal("-0.01"), "01 7fffffffffffffffffffffffffffffff"),
    ("decimal(4, 2)", Decimal("2.50"), "01 800000000000000000000000000000fa"),
    ("decimal(38, 0)", Decimal(10**38 - 1), "01 cb3b4ca85a86c47a098a223fffffffff"),
    ("string", "", "01 0000"),
    ("string", "a\0ä", "01 6100ffc3a4 0000"),
    ("binary", b"\x00\xff", "01 00ffff 0000"),
    ("date", datetime.date(1970, 1, 2), "01 80000001"),
    ("timestamp", MOMENT, "01 80064beb26c35fff"),
    ("timestamp_ntz", datetime.datetime(1970, 1, 1, 0, 0, 1), "01 80000000000f4240"),  # noqa: DTZ001
    (pa.time64("us"), datetime.time(0, 0, 1), "01 80000000000f4240"),
]


@pytest.mark.parametrize(("kind", "key", "expected"), GOLDEN_KEYS)
def test_a_key_is_always_written_the_same(kind, key, expected):
    keys = codec(kind)
    data = keys.encode(key)
    assert data == bytes.fromhex(expected)
    found, end = keys.decode(b"prefix" + data + b"rest", 6)
    assert (found is NAN or found == key, type(found), str(found)) == (True, type(key), str(key))
    assert end == 6 + len(data)


def test_a_key_of_several_columns_is_one_after_the_other():
    keys = codec("string", "bigint", "double")
    data = keys.encode(("a", None, 1.5))
    assert data == bytes.fromhex("01610000 00 01bff8000000000000")
    assert keys.decode(data, 0) == (("a", None, 1.5), len(data))


def test_a_time_of_a_timer_is_always_written_the_same():
    assert encode_time(-1) == bytes.fromhex("7fffffffffffffff")
    assert decode_time(b"xx" + encode_time(-5), 2) == -5


TEXTS = st.text(st.sampled_from("a\0\x01ÿ𝄞"), max_size=4)
FLOATS = st.sampled_from([NAN, -math.inf, -1.5, 0.0, 5e-324, 2.0, math.inf])
DECIMALS = st.integers(1 - 10**38, 10**38 - 1).map(lambda number: Decimal(number).scaleb(-4, Context(prec=38)))
TUPLES = st.tuples(
    st.none() | TEXTS, st.none() | FLOATS, st.none() | DECIMALS, st.none() | st.integers(-(2**63), 2**63 - 1)
)


@given(st.lists(TUPLES, min_size=2, max_size=8))
def test_the_order_of_the_bytes_is_that_of_the_keys(found):
    schema = as_schema("a string, b double, c decimal(38, 4), d bigint", argument="keys")
    keys, rank = KeyCodec(schema), ranking(schema)
    by_bytes = sorted(found, key=keys.encode)
    assert [rank(key) for key in by_bytes] == sorted(rank(key) for key in found)


@given(TUPLES, TUPLES)
def test_no_key_is_the_beginning_of_another(one, other):
    keys = codec("string", "double", "decimal(38, 4)", "bigint")
    first, second = keys.encode(one), keys.encode(other)
    assert first == second or not second.startswith(first)


def test_a_decimal_may_be_given_with_fewer_digits_and_not_with_more():
    keys = codec("decimal(4, 2)")
    assert keys.encode(Decimal("2.5")) == keys.encode(Decimal("2.500")) == keys.encode(Decimal("2.50"))
    assert keys.encode(3) == keys.encode(Decimal("3.00"))
    for number in (Decimal("0.001"), Decimal(100), Decimal("1E+400")):
        with pytest.raises(
            UsageError, match=r"does not fit decimal128\(4, 2\), which has 4 digits, 2 of them behind the point"
        ):
            keys.encode(number)


def test_a_type_that_cannot_be_a_key_is_refused():
    with pytest.raises(UsageError, match="list<"):
        KeyCodec(pa.schema([pa.field("k", pa.list_(pa.int64()))]))


# --- objects as keys of a map ----------------------------------------------------------------------------------------


def test_equal_objects_are_one_key():
    text = "".join(["a", "b"])
    for one, other in (
        (1, 1.0),
        (1, True),
        (("ab", "ab"), ("ab", text)),
        (frozenset(["x", "y"]), frozenset(["y", "x"])),
        (datetime.timedelta(1), datetime.timedelta(1)),
        ((datetime.date(2026, 1, 1), "ab"), (datetime.date(2026, 1, 1), text)),
    ):
        assert one == other
        assert object_identity(one) == object_identity(other)


def test_different_objects_are_different_keys():
    values = [None, 0, 1, 1.5, "", "1", b"1", (), (1,), ((1,),), ("a", "bc"), ("ab", "c"), frozenset(), frozenset([1])]
    assert len({object_identity(value) for value in values}) == len(values)


# --- values ----------------------------------------------------------------------------------------------------------

GOLDEN_VALUES = [
    ("bigint", 7, "07"),
    ("bigint", -(2**63), "d38000000000000000"),
    ("double", 1.5, "cb3ff8000000000000"),
    ("string", "ä", "a2c3a4"),
    ("binary", b"\x00", "c40100"),
    ("boolean", True, "c3"),
    ("date", datetime.date(1970, 1, 11), "0a"),
    ("timestamp", MOMENT, "cf00064beb26c35fff"),
    ("timestamp_ntz", datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), "ff"),  # noqa: DTZ001
    (pa.time64("us"), datetime.time(0, 0, 0, 5), "05"),
    (pa.duration("ms"), datetime.timedelta(milliseconds=3), "03"),
    (pa.timestamp("ms", "Europe/Berlin"), None, "c0"),
    ("decimal(20, 3)", Decimal("1.125"), "a5312e313235"),
    ("array<int>", [1, None], "9201c0"),
    ("array<date>", [datetime.date(1970, 1, 2), None], "9201c0"),
    ("struct<a: int, b: string>", {"a": 1, "b": None}, "9201c0"),
    ("map<string, date>", [("a", datetime.date(1970, 1, 2))], "9192a16101"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), GOLDEN_VALUES)
def test_a_value_is_always_written_the_same(kind, value, expected):
    pack, unpack = value_packer(as_type(kind, argument="type"), what="state 'x'")
    assert pack(value).hex() == expected
    found = unpack(bytes.fromhex(expected))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("ns"), pa.scalar(1, pa.timestamp("ns")).as_py()),
        (pa.timestamp("s", "Europe/Berlin"), pa.scalar(1, pa.timestamp("s", "Europe/Berlin")).as_py()),
        (pa.dictionary(pa.int8(), pa.string()), "a"),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), ["a", None]),
        (pa.float64(), math.inf),
        (None, {"a": {1, 2}}),
        (None, None),
    ],
)
def test_values_of_rare_types_come_back(kind, value):
    pack, unpack = value_packer(kind, what="state 'x'")
    found = unpack(pack(value))
    assert (found, type(found)) == (value, type(value))


def test_nan_comes_back():
    pack, unpack = value_packer(pa.float64(), what="state 'x'")
    assert math.isnan(unpack(pack(math.nan)))


def test_an_entry_with_a_time_begins_with_it():
    pack, _ = value_packer(pa.int64(), what="state 'x'")
    data = with_time(pack(7), 258)
    assert data.hex() == "c1000000000000010207"
    assert (time_of(data), without_time(data)) == (258, pack(7))
    assert (time_of(pack(7)), without_time(pack(7))) == (None, pack(7))


def test_an_object_that_cannot_be_unpickled_is_told_with_its_state():
    _, unpack = value_packer(None, what="state 'x'")
    with pytest.raises(CorruptFile, match="state 'x'"):
        unpack(b"\x80\x05.")

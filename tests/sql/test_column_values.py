"""Which Python values a column takes. PySpark's own check of `createDataFrame` is the oracle."""

import datetime as dt
import enum
import uuid
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import _make_type_verifier

from penstock.sql.column_values import REFUSED, array_of, check_objects, first_misfit
from penstock.sql.ddl import parse_type


class Level(enum.IntEnum):
    LOW = 1


NAIVE = dt.datetime(2024, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001  # times without a zone are what is tested
AWARE = NAIVE.replace(tzinfo=ZoneInfo("Asia/Tokyo"))
VALUES = [
    None, 0, 3, -1, 300, 2**40, 2**53 + 1, 2**63, 2.5, 2.0, float("nan"), 0.1, True, False, "5", "2024-01-01", b"x",
    bytearray(b"x"), Decimal("2"), Decimal("2.5"), Decimal("2.555"), NAIVE, AWARE, NAIVE.date(), NAIVE.time(),
    dt.timedelta(days=1), uuid.UUID(int=1), np.int64(3), np.float64(2.5), np.float64(2), np.True_, Level.LOW,
    [1], [2.5], [True], [None], (1,), {"a": 1}, {"a": 2.5}, {"a": True}, {"a": None}, {1}, [("a", 1)], [("a", 2.5)],
]  # fmt: skip
TYPES = [
    "boolean", "tinyint", "int", "bigint", "float", "double", "decimal(10, 2)", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "array<bigint>", "array<double>", "struct<a: bigint>", "map<string, bigint>",
    "array<struct<a: bigint>>",
]  # fmt: skip


def stays_equal(kind, value):
    """Whether a value that PySpark refuses is taken here, because the value stays equal or has a single meaning."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if kind in ("float", "double", "decimal(10, 2)") and whole:
        return True
    if kind in ("timestamp", "timestamp_ntz") and whole:  # microseconds since 1970
        return True
    if kind in ("tinyint", "int", "bigint") and isinstance(value, np.integer | Level):
        return True
    if kind == "array<double>" and value in ([1], (1,)):
        return True
    if kind == "map<string, bigint>" and value == [("a", 1)]:  # as Arrow gives maps to functions
        return True
    return (kind == "boolean" and isinstance(value, np.bool_)) or (
        kind in ("float", "double") and isinstance(value, np.floating)
    )


def accepted_by_pyspark(kind, value):
    verify = _make_type_verifier(from_arrow_type(parse_type(kind, argument="kind"), prefer_timestamp_ntz=True))
    try:
        verify(value)
    except (PySparkException, AttributeError, TypeError):
        return False
    return True


def taken(kind, value):
    try:
        return array_of([value], parse_type(kind, argument="kind")).to_pylist()
    except REFUSED:
        return None


@pytest.mark.parametrize("kind", TYPES)
def test_what_pyspark_refuses_is_refused_unless_the_value_stays_equal(kind):
    wrongly = [
        value
        for value in VALUES
        if taken(kind, value) is not None and not accepted_by_pyspark(kind, value) and not stays_equal(kind, value)
    ]
    assert wrongly == []


@pytest.mark.parametrize("kind", ["boolean", "tinyint", "int", "bigint", "double", "decimal(10, 2)", "string", "date"])
def test_a_value_that_is_taken_comes_back_equal(kind):
    for value in VALUES:
        found = taken(kind, value)
        if found is not None and not isinstance(value, bytes | bytearray):
            assert found == [value] or found != found or value != value, value


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("bigint", 2.5, "int64 takes no float"),
        ("bigint", 2.0, "int64 takes no float"),
        ("bigint", Decimal("2.5"), "int64 takes no Decimal"),
        ("int", uuid.UUID(int=1), "int32 takes no UUID"),
        ("bigint", np.True_, "int64 takes no bool"),
        ("double", True, "double takes no bool"),
        ("tinyint", 300, "too large"),
        ("float", 2**24 + 1, "outside of the range exactly representable"),
        ("double", 2**53 + 1, "outside of the range exactly representable"),
        ("decimal(10, 2)", 0.1, "int or Decimal object expected, got float"),
        ("decimal(10, 2)", Decimal("2.555"), "Rescaling Decimal value would cause data loss"),
        ("string", 5, "Expected bytes, got a 'int' object"),
        ("binary", "x", "binary takes no str"),
        ("timestamp", "2024-01-01", "takes no str"),
        ("timestamp", 1.5, "takes no float"),
        ("timestamp_ntz", AWARE, "the time has a time zone, and the column has none"),
        ("date", NAIVE, "takes no datetime"),
        ("date", 3, "takes no int"),
        ("array<bigint>", [1, 2.5], "int64 takes no float"),
        ("array<bigint>", {1}, "takes no set"),
        ("array<string>", "ab", "takes no str"),
        ("struct<a: bigint>", {"a": 2.5}, "int64 takes no float"),
        ("struct<a: bigint>", (2.5,), "int64 takes no float"),
        ("map<string, bigint>", {"k": 2.5}, "int64 takes no float"),
        ("map<bigint, string>", [(2.5, "v")], "int64 takes no float"),
        ("map<string, bigint>", [None], "a map is a dict, or a list of tuples"),
        ("map<string, bigint>", [("a", 1, 2)], "a map is a dict, or a list of tuples"),
        ("struct<a: bigint>", (1, 2), "a value for each of the 1 fields"),
        ("struct<a: bigint>", [("a", 1)], "takes no list"),
        ("array<bigint>", 5, "takes no int"),
        ("array<map<string, array<int>>>", [{"k": [1]}, {"k": [None, 2.5]}], "int32 takes no float"),
    ],
)
def test_a_value_that_arrow_would_change_is_refused_and_named(kind, value, reason):
    found = first_misfit([None, value], parse_type(kind, argument="kind"))
    assert found is not None
    number, shown, why = found
    assert (number, type(value).__name__ in shown) == (1, True)
    assert reason in why


def test_a_time_that_a_coarser_column_would_cut_is_refused():
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 600, tzinfo=dt.UTC)
    assert array_of([moment.replace(microsecond=0)], pa.timestamp("s", "UTC")).to_pylist() == [
        moment.replace(microsecond=0)
    ]
    for value, kind in [
        (moment, pa.timestamp("ms", "UTC")),
        (dt.timedelta(microseconds=1), pa.duration("ms")),
        (dt.time(1, 2, 3, 4), pa.time32("ms")),
        (pd.Timestamp("2024-01-01T00:00:00.000000001Z"), pa.timestamp("us", "UTC")),
        (pd.Timedelta(nanoseconds=1), pa.duration("us")),
    ]:
        with pytest.raises(pa.ArrowInvalid, match="would lose data"):
            array_of([value], kind)


def test_the_same_point_in_time_in_another_zone_is_taken():
    assert taken("timestamp", AWARE) == [AWARE]
    assert taken("timestamp", NAIVE) == [NAIVE.replace(tzinfo=dt.UTC)]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64()])
def test_plain_numbers_are_the_column_that_arrow_makes(kind):
    exact = float if kind == pa.float64() else int
    for values in ([], [0], [1, -1, 127, -128], [5, None]):
        given = [None if value is None else exact(value) for value in values]
        found = array_of(given, kind)
        found.validate(full=True)
        assert found.equals(pa.array(given, kind))


def test_columns_of_python_objects_in_pandas_are_looked_at():
    check_objects(pd.Series([1.5, None]), pa.int64())
    check_objects(pd.Series([1, None], dtype=object), pa.int64())
    with pytest.raises(ValueError, match="int64 takes no float"):
        check_objects(pd.Series([1, None, 2.5], dtype=object), pa.int64())
    with pytest.raises(ValueError, match="int64 takes no float"):
        check_objects(pd.Series([[1], None, [2.5]]), pa.list_(pa.int64()))

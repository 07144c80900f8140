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


def plain(value, kind):
    """The value as Arrow gives such values back. Numbers of `float` have 4 bytes; a time without a zone is UTC where
    the column has a zone; a whole number counts microseconds; a tuple is a list, or has the fields of a struct."""
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        given = value.values() if isinstance(value, dict) else value
        names = list(value) if isinstance(value, dict) else [field.name for field in kind]
        types = {field.name: field.type for field in kind}
        return {name: plain(one, types.get(name)) for name, one in zip(names, given, strict=True)}
    if isinstance(kind, pa.MapType):
        pairs = value.items() if isinstance(value, dict) else value
        return [(plain(key, kind.key_type), plain(one, kind.item_type)) for key, one in pairs]
    if pa.types.is_list(kind):
        return [plain(one, kind.value_type) for one in value]
    if pa.types.is_floating(kind):
        return pytest.approx(float(value), rel=1e-7 if kind == pa.float32() else 0, abs=0, nan_ok=True)
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else dt.UTC
        if isinstance(value, int | np.integer):
            value = dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=int(value))
        if isinstance(value, np.datetime64):
            value = pd.Timestamp(value)
        return value.replace(tzinfo=zone) if value.tzinfo is None else value
    return value


FINE = pd.Timestamp("2024-01-01T00:00:00.000000001")
PANDAS = pd.Timestamp("2024-01-01T00:00:00.000001")
HARD = [
    1e300, -1e300, 3.4e38, float("inf"), np.float64(1e300), 16_777_217, FINE, PANDAS, FINE.tz_localize("UTC"),
    np.datetime64(1, "ns"), np.datetime64(1, "us"), np.datetime64(1, "s"), np.datetime64(1, "D"),
]  # fmt: skip
INSIDE = [
    lambda value: [value], lambda value: (value,), lambda value: {"a": value}, lambda value: {"a": 1, "b": value},
    lambda value: [{"a": value}], lambda value: [[value]], lambda value: {"b": value}, lambda value: np.array([value]),
    lambda value: [{"a": value, "c": None}], lambda value: [("a", value)],
]  # fmt: skip
SIMPLE = ["boolean", "tinyint", "int", "bigint", "float", "double", "decimal(10, 2)", "string", "date", "timestamp"]
SIMPLE += ["timestamp_ntz"]
NESTED = ["array<{}>", "struct<a: {}>", "map<string, {}>", "array<struct<a: {}>>", "array<array<{}>>"]


@pytest.mark.parametrize("simple", SIMPLE)
@pytest.mark.parametrize("shape", ["{}", *NESTED])
def test_a_value_that_is_taken_comes_back_equal(shape, simple):
    name = shape.format(simple)
    kind = parse_type(name, argument="kind")
    values = [value for value in [*VALUES, *HARD] if not isinstance(value, bytes | bytearray)]
    if shape != "{}":
        values += [around(value) for value in values for around in INSIDE]
    for value in values:
        found = taken(name, value)
        assert found is None or found == [plain(value, kind)], value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.timestamp("us")), [FINE]),
        (pa.struct([("a", pa.timestamp("us"))]), {"a": FINE}),
        (pa.map_(pa.string(), pa.duration("us")), {"k": pd.Timedelta(nanoseconds=1)}),
        (pa.list_(pa.timestamp("ms")), [NAIVE]),
    ],
)
def test_a_time_inside_of_a_value_is_not_cut(kind, value):
    with pytest.raises(pa.ArrowInvalid, match="would lose data"):
        array_of([value], kind)


def test_whole_numbers_count_the_units_of_the_column_beside_times_of_pandas():
    found = array_of([PANDAS, 5_000], pa.timestamp("us"))
    assert found.cast(pa.int64()).to_pylist()[1] == 5_000
    assert array_of([5], pa.timestamp("ms")).cast(pa.int64()).to_pylist() == [5]


def test_a_time_of_pandas_that_nanoseconds_cannot_hold_is_taken():
    far = pd.Timestamp("2400-01-01")
    assert array_of([far], pa.timestamp("us")).to_pylist() == [far]


def test_times_in_an_array_of_numpy_must_count_the_units_of_the_column():
    moments = np.array([1, 2], "datetime64[ns]")
    with pytest.raises(ValueError, match="the units differ"):
        array_of([moments], pa.list_(pa.timestamp("us")))
    assert array_of([moments], pa.list_(pa.timestamp("ns"))).cast(pa.list_(pa.int64())).to_pylist() == [[1, 2]]
    with pytest.raises(ValueError, match="the units differ"):
        array_of([np.datetime64(1, "ns")], pa.date32())


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
        ("float", 1e300, "1e+300 is too large for float, and would become infinite"),
        ("array<float>", [1.0, -1e300], "-1e+300 is too large for float"),
        ("struct<a: bigint>", {"a": 1, "b": 2}, "the struct has no field 'b'; its fields are a"),
        ("array<struct<a: struct<x: int>>>", [{"a": {"x": 1, "y": 2}}], "the struct has no field 'y'"),
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
    with pytest.raises(ValueError, match="would lose data"):
        check_objects(pd.Series([FINE, None], dtype=object), pa.timestamp("us"))
    check_objects(pd.Series([PANDAS, None], dtype=object), pa.timestamp("us"))


@pytest.mark.parametrize("dtype", ["float64", "Float64", "object", "double[pyarrow]"])
def test_a_number_in_pandas_that_would_become_infinite_is_refused(dtype):
    check_objects(pd.Series([1e300, None], dtype=dtype), pa.float64())
    check_objects(pd.Series([1.5, None, float("inf")], dtype=dtype), pa.float32())
    with pytest.raises(ValueError, match="too large for float"):
        check_objects(pd.Series([1e300, None], dtype=dtype), pa.float32())

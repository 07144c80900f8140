"""Schema arguments: every form gives the Arrow schema that was meant, and no text is read by halves."""

from __future__ import annotations

import datetime

import polars as pl
import pyarrow as pa
import pytest

from penstock.core.errors import UsageError
from penstock.sql.schemas import arrow_type, as_schema, check_schema, empty_frame, unknown_column

UTC_TIME = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a bigint, b string", [("a", pa.int64()), ("b", pa.string())]),
        ("A BIGINT,b:STRING", [("A", pa.int64()), ("b", pa.string())]),
        (
            "a boolean, b tinyint, c smallint, d int, e float, f double, g binary, h date",
            [
                ("a", pa.bool_()),
                ("b", pa.int8()),
                ("c", pa.int16()),
                ("d", pa.int32()),
                ("e", pa.float32()),
                ("f", pa.float64()),
                ("g", pa.binary()),
                ("h", pa.date32()),
            ],
        ),
        (
            "a byte, b short, c integer, d long, e real",
            [(n, t()) for n, t in zip("abcde", (pa.int8, pa.int16, pa.int32, pa.int64, pa.float32), strict=True)],
        ),
        ("t timestamp, n timestamp_ntz", [("t", UTC_TIME), ("n", pa.timestamp("us"))]),
        (
            "a decimal, b decimal(5), c decimal(10, 2)",
            [("a", pa.decimal128(10, 0)), ("b", pa.decimal128(5, 0)), ("c", pa.decimal128(10, 2))],
        ),
        ("a varchar(10), b char(3)", [("a", pa.string()), ("b", pa.string())]),
        (
            "a array<int>, m map<string, double>",
            [("a", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.float64()))],
        ),
        (
            "s struct<x: int, y: array<struct<z string>>>",
            [("s", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.string())])))]))],
        ),
        ("`my ``odd`` col` int, größe int", [("my `odd` col", pa.int32()), ("größe", pa.int32())]),
        ("date date, timestamp timestamp", [("date", pa.date32()), ("timestamp", UTC_TIME)]),
    ],
)
def test_a_text_is_read_as_spark_reads_it(text, fields):
    assert as_schema(text, argument="schema") == pa.schema(fields)


def test_not_null_is_kept():
    schema = as_schema("a int not null, b int", argument="schema")
    assert [field.nullable for field in schema] == [False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a column name at the end"),
        ("a", "a type at the end"),
        ("a foo", "a type at 'foo'"),
        ("a bigint,", "a column name at the end"),
        ("a int b int", "',' or the end at 'b int'"),
        ("a bigint>", "',' or the end at '>'"),
        ("a array<int", "'>' at the end"),
        ("a map<int>", "',' at '>'"),
        ("a int not x", "'null' at 'x'"),
        ("a decimal(x)", "a number at 'x)'"),
        ("a decimal(40, 2)", "a decimal with a precision from 1 to 38"),
        ("a decimal(2, 3)", "a decimal with a precision from 1 to 38"),
        ("1a int", "a column name at '1a int'"),
        ("a int; drop table b", "a name, a type or one of < > ( ) , : at '; drop table b'"),
    ],
)
def test_a_text_that_cannot_be_read_to_its_end_is_refused_with_the_place(text, expected):
    with pytest.raises(UsageError) as caught:
        as_schema(text, argument="schema")
    assert f"schema is {text!r}; expected {expected}" in caught.value.message


def test_a_mapping_takes_python_types_arrow_types_and_names():
    given = {
        "a": int,
        "b": float,
        "c": str,
        "d": bool,
        "e": bytes,
        "f": datetime.datetime,
        "g": datetime.date,
        "h": pa.int8(),
        "i": "decimal(10, 2)",
    }
    kinds = [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.binary(), UTC_TIME, pa.date32(), pa.int8()]
    assert as_schema(given, argument="schema").types == [*kinds, pa.decimal128(10, 2)]


def test_an_arrow_schema_is_taken_as_it_is():
    schema = pa.schema([pa.field("a", pa.large_string(), nullable=False)])
    assert as_schema(schema, argument="schema") is schema


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        (5, "schema is 5, which is no schema"),
        ({"a": list}, "schema has <class 'list'> as the type of column 'a'"),
        ({"a": 5}, "schema has 5 as the type of column 'a'"),
        ({5: int}, "schema has a column named 5"),
        ({"a": "foo"}, "the type of column 'a' in schema is 'foo'"),
        ({}, "schema has no columns"),
        ("a int, b int, a string", "schema has 2 columns named 'a'"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "schema has 2 columns named 'a'"),
    ],
)
def test_what_is_no_schema_is_refused(wrong, fact):
    with pytest.raises(UsageError) as caught:
        as_schema(wrong, argument="schema")
    assert fact in caught.value.message


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (pl.String(), pa.string()),
        (pl.Binary(), pa.binary()),
        (pl.Categorical(), pa.string()),
        (pl.Datetime("us", "UTC"), UTC_TIME),
        (pl.List(pl.String()), pa.list_(pa.string())),
        (pl.Struct({"x": pl.String()}), pa.struct([("x", pa.string())])),
        (pl.Int16(), pa.int16()),
    ],
)
def test_a_computed_column_has_the_plain_arrow_type(dtype, kind):
    assert arrow_type(dtype) == kind


def test_an_empty_frame_has_the_columns_and_no_rows():
    frame = empty_frame(as_schema("a bigint, t timestamp", argument="schema"))
    assert dict(frame.schema) == {"a": pl.Int64(), "t": pl.Datetime("us", "UTC")}
    assert frame.height == 0


@pytest.mark.parametrize(
    ("name", "guess"), [("prise", "did you mean 'price'?"), ("PRICE", "did you mean 'price'?"), ("zzz", None)]
)
def test_an_unknown_column_is_answered_with_the_nearest_one(name, guess):
    error = unknown_column(name, ["auction", "price"], argument="drop")
    assert error.message == f"drop: there is no column {name!r}; there are auction, price"
    assert error.hint == guess


def test_a_schema_without_fault_is_returned():
    schema = pa.schema([("a", pa.int64())])
    assert check_schema(schema, argument="schema") is schema

"""Expressions are checked when they are given: an error shows the text, the part, the facts, and a way out."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from penstock.api.expressions import compile_columns, compile_condition
from penstock.core.errors import UsageError
from penstock.sql.schemas import as_schema

SCHEMA = as_schema(
    "auction bigint, price bigint, name string, ts timestamp, ok boolean, cost decimal(10, 2), "
    "place struct<x: int, y: struct<z: string>>, tags array<int>",
    argument="schema",
).append(pa.field("big", pa.uint64()))
COLUMNS = "auction, price, name, ts, ok, cost, place, tags, big"
PRICE = pl.col("price")


def refusal(given):
    with pytest.raises(UsageError) as caught:
        compile_condition(given, SCHEMA, argument="condition")
    return caught.value


# --- SQL text --------------------------------------------------------------------------------------------------------


def test_an_unknown_column_lists_those_there_are_and_the_nearest():
    error = refusal("prise > 100")
    assert error.message == f"condition 'prise > 100': there is no column 'prise'; there are {COLUMNS}"
    assert error.hint == "did you mean 'price'?"


def test_names_are_case_sensitive():
    assert refusal("Price > 100").hint == "did you mean 'price'?"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("soundex(name) = 'x'", "'SOUNDEX(name)' in \"soundex(name) = 'x'\""),
        ("tags[0] = 1", "'tags[0]' in 'tags[0] = 1'"),
        ("price & 1 = 1", "'price & 1' in 'price & 1 = 1'"),
        ("name like any ('a', 'b')", "\"ANY ('a', 'b')\" in \"name like any ('a', 'b')\""),
        ("x'1F' = name", "\"X'1F'\" in \"x'1F' = name\""),
        ("price in (select 1)", "'price IN (SELECT 1)' in 'price in (select 1)'"),
        ("price > 1; drop table x", "'price > 1; DROP TABLE x' in 'price > 1; drop table x'"),
        ("name like ok", "'ok' in 'name like ok'"),
        ("floor(price, 1) = 1", "'FLOOR(price, 1)' in 'floor(price, 1) = 1'"),
        ("round(price, -1) = 1", "'-1' in 'round(price, -1) = 1'"),
        ("price is ok", "'price IS ok' in 'price is ok'"),
        ("name like 'a' escape 'xy'", "\"name LIKE 'a' ESCAPE 'xy'\" in \"name like 'a' escape 'xy'\""),
        ("ts + interval 1 month > ts", "\"INTERVAL '1' MONTH\" in 'ts + interval 1 month > ts'"),
    ],
)
def test_what_is_outside_the_subset_is_refused_with_the_text_the_part_and_a_way_out(text, part):
    error = refusal(text)
    assert error.message.startswith(f"condition: {part} is not supported")
    assert error.hint


@pytest.mark.parametrize("text", ["price = sum(price)", "row_number() over (order by price) = 1"])
def test_an_aggregate_is_sent_to_windows(text):
    error = refusal(text)
    assert "needs more than one record" in error.message
    assert "aggregate by key_by(...).window(...)" in (error.hint or "")


@pytest.mark.parametrize("text", ["rand() > 0.5", "ts < current_timestamp()", "uuid() = name"])
def test_what_would_differ_in_a_replay_is_refused(text):
    assert "a replay after a failure would differ" in refusal(text).message


@pytest.mark.parametrize("text", ["", "price >", "price, name", "(price", "'open", "nullif(1)", "cast(price as foo)"])
def test_what_is_no_expression_is_refused(text):
    assert refusal(text).message.startswith(f"condition: {text!r} is no SQL expression: ")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("price > '5'", "bigint and string do not go together"),
        ("name = 5", "string and int do not go together"),
        ("ok = 1", "boolean and int do not go together"),
        ("cost > 1", "decimal(10, 2) and int do not go together"),
        ("big > 1", "uint64 and int do not go together"),
        ("price in (1, 'x')", "bigint and string do not go together"),
        ("coalesce(price, name) = 1", "bigint and string do not go together"),
        ("tags = tags", "compares list(int32), which is not supported"),
        ("tags in (tags)", "compares list(int32), which is not supported"),
        ("greatest(tags, tags) = tags", "compares list(int32), which is not supported"),
        ("cast(tags as int) = 1", "list(int32) cannot be cast to int"),
        ("cast(name as binary) = name", "string cannot be cast to binary"),
        ("cast(ts as boolean)", "timestamp cannot be cast to boolean"),
        ("cast(price as interval day) = 1", "is not supported: interval day is no known type"),
        ("*", "'*' is not an expression"),
        ("select price", "is a query where an expression is needed"),
        ("name + 1 = 2", "'name' in 'name + 1 = 2' is string where a number is needed"),
        ("cost + 1 = 2", "'cost' in 'cost + 1 = 2' is decimal(10, 2) where a number is needed"),
        ("upper(price) = 'X'", "'price' in \"upper(price) = 'X'\" is bigint where string is needed"),
        ("year(name) = 2024", "'name' in 'year(name) = 2024' is string where a timestamp or a date is needed"),
        ("not price", "'price' in 'not price' is bigint where a condition is needed"),
        ("price and ok", "'price' in 'price and ok' is bigint where a condition is needed"),
        ("case when price then ok end", "is bigint where a condition is needed"),
        ("1.5D div 2 = 0", "needs whole numbers on both sides"),
        ("substring(name, 1.5D) = ''", "is double where a whole number is needed"),
        ("cast(name as timestamp) > ts", "string cannot be cast to timestamp"),
        ("cast(ts as decimal(10, 2)) = cost", "timestamp cannot be cast to decimal(10, 2)"),
        ("name || 1.5D = 'x'", "double cannot be cast to string"),
        ("ts > 'yesterday'", "'yesterday' is no timestamp"),
        ("price > 99999999999999999999", "is too large for a bigint"),
        ("price > 1e999", "is too large for a double"),
        ("date_trunc('decade', ts) = ts", "has the unit 'DECADE'; the units are YEAR"),
        ("name rlike '(?=a)'", "look-around, including look-ahead and look-behind, is not supported"),
        ("name like 'a\\\\b'", "has '\\\\' before a character that needs no escape"),
        ("pmod(price) = 1", "has the wrong number of arguments: pmod takes 2"),
        ("round(1.5D, 20) = 1", "rounds to more than 15 digits"),
        ("price + interval 1 day = price", "an interval can be added to a timestamp only"),
        ("place.w = 1", "'place.w' in 'place.w = 1' has no field 'w'; there are x, y"),
        ("price.x = 1", "'price.x' in 'price.x = 1' has no field 'x'; there are none"),
        ("1 / 0 = 1", "division by zero in '1 / 0'"),
    ],
)
def test_a_type_error_is_found_at_once(text, fact):
    assert fact in refusal(text).message


@pytest.mark.parametrize(
    "text", ["ok = price > 1", "ok <=> price > 1", "ok <=> (price > 1)", "name || price + 1 = 'x'"]
)
def test_what_spark_reads_in_another_order_is_refused(text):
    assert "can be read in two ways" in refusal(text).message


@pytest.mark.parametrize("text", ["price", "name", "NULL", "price + 1"])
def test_a_condition_must_be_boolean(text):
    assert refusal(text).message.startswith(f"condition {text!r} is ")


@pytest.mark.parametrize("wrong", [5, None, ["price"]])
def test_an_expression_is_text_or_polars(wrong):
    error = refusal(wrong)
    assert error.message == f"condition is {wrong!r}, which is no expression"
    assert error.hint == "give Spark SQL text or a Polars expression"


def test_fields_of_structs_are_columns():
    frame = pl.DataFrame({"place": [{"x": 7, "y": {"z": "a"}}]}, schema_overrides={"place": pl.Struct})
    schema = as_schema("place struct<x: bigint, y: struct<z: string>>", argument="schema")
    expr = compile_condition("place.x + 1 = 8 and place.y.z = 'a'", schema, argument="condition")
    assert frame.select(expr).item() is True


def test_unsigned_columns_are_read_as_the_next_wider_type():
    schema = pa.schema([("small", pa.uint8()), ("wide", pa.uint32())])
    compiled = compile_columns("small + wide", schema, argument="column", name="x")
    assert compiled.columns[0].field.type == pa.int64()
    frame = pl.DataFrame({"small": [255], "wide": [2**32 - 1]}, schema={"small": pl.UInt8, "wide": pl.UInt32})
    assert frame.select(compiled.expr).item() == 2**32 + 254


def test_a_dictionary_column_is_read_as_its_texts():
    schema = pa.schema([("kind", pa.dictionary(pa.int32(), pa.string()))])
    expr = compile_condition("upper(kind) = 'BID'", schema, argument="condition")
    batch = pa.record_batch([pa.array(["bid", "ask"]).dictionary_encode()], schema=schema)
    assert pl.from_arrow(batch).select(expr).to_series().to_list() == [True, False]


# --- names of columns ------------------------------------------------------------------------------------------------


def columns_of(given, name=None):
    compiled = compile_columns(given, SCHEMA, argument="column", name=name)
    return [(column.field.name, column.field.type, column.origin) for column in compiled.columns]


def test_a_column_keeps_its_name_and_type():
    assert columns_of("big") == [("big", pa.uint64(), "big")]
    assert columns_of("`price`") == [("price", pa.int64(), "price")]
    assert columns_of(pl.col("tags")) == [("tags", pa.list_(pa.int32()), "tags")]


def test_a_column_may_be_renamed():
    assert columns_of("price as cents") == [("cents", pa.int64(), "price")]
    assert columns_of("price", name="cents") == [("cents", pa.int64(), "price")]
    assert columns_of(PRICE.alias("cents")) == [("cents", pa.int64(), "price")]


def test_a_computed_column_is_named_by_as_or_by_its_argument():
    assert columns_of("price + 1 as more") == [("more", pa.int64(), None)]
    assert columns_of("price + 1", name="more") == [("more", pa.int64(), None)]
    assert columns_of("price + 1 as less", name="more") == [("more", pa.int64(), None)]
    assert columns_of((PRICE + 1).alias("more")) == [("more", pa.int64(), None)]


def test_a_computed_column_without_a_name_is_refused():
    with pytest.raises(UsageError) as caught:
        columns_of("price + 1")
    assert caught.value.message == "column: 'price + 1' computes a column that has no name"
    assert caught.value.hint == "write 'price + 1 AS some_name', or some_name='price + 1'"


def test_the_name_of_a_column_is_that_column_whatever_it_means_as_sql():
    schema = pa.schema([("my col", pa.int64()), ("my", pa.int64()), ("a-b", pa.int64())])
    for name in schema.names:
        compiled = compile_columns(name, schema, argument="column")
        assert compiled.columns[0].origin == name


def test_several_columns_may_be_selected_at_once():
    schema = as_schema("a int, b string, c double", argument="schema")
    compiled = compile_columns(pl.col("b", "a"), schema, argument="column")
    assert [(column.field.name, column.origin) for column in compiled.columns] == [("b", "b"), ("a", "a")]
    compiled = compile_columns(pl.all().exclude("a"), schema, argument="column")
    assert [(column.field.name, column.origin) for column in compiled.columns] == [("b", "b"), ("c", "c")]
    with pytest.raises(UsageError, match="gives 2 columns, so 'x' cannot be its name"):
        compile_columns(pl.col("a", "b"), schema, argument="column", name="x")


# --- Polars expressions ----------------------------------------------------------------------------------------------


def test_an_unknown_column_of_a_polars_expression_is_named():
    assert refusal(pl.col("prise") > 1).hint == "did you mean 'price'?"


@pytest.mark.parametrize(
    "mixing",
    [
        PRICE.sum(),
        PRICE.shift(),
        PRICE.cum_sum(),
        PRICE.rank(),
        PRICE.filter(pl.col("ok")),
        PRICE.max().over("auction"),
        PRICE.sort(),
        pl.len(),
        pl.col("tags").explode(),
        PRICE.is_duplicated().cast(pl.Int64),
    ],
    ids=str,
)
def test_an_expression_over_several_records_is_refused_wherever_it_hides(mixing):
    for expr in (mixing > 1, mixing < PRICE, pl.when(pl.col("ok")).then(mixing).otherwise(0) > 1):
        assert "looks at more than one record" in refusal(expr).message


def test_a_format_that_is_guessed_from_the_records_is_refused():
    assert (
        "looks at more than one record"
        in refusal(pl.col("name").str.to_datetime(time_zone="UTC") > pl.col("ts")).message
    )


def test_several_computed_columns_at_once_are_refused():
    with pytest.raises(UsageError, match="computes several columns at once"):
        compile_columns(pl.col("price", "auction").sum(), SCHEMA, argument="column")


@pytest.mark.parametrize(
    "expr",
    [
        PRICE > 1,
        PRICE.is_in([1, 2]),
        pl.lit(value=True),
        pl.when(PRICE > 1).then(pl.col("ok")).otherwise(pl.lit(value=False)),
        pl.col("tags").list.eval(pl.element().rank()).list.sum() > 3,
        pl.col("name").str.to_datetime("%Y", time_zone="UTC") > pl.col("ts"),
        PRICE.map_batches(lambda column: column > 1, return_dtype=pl.Boolean, is_elementwise=True),
        pl.max_horizontal("price", "auction") > 1,
        pl.col("place").struct.field("x") > 1,
    ],
    ids=str,
)
def test_an_expression_over_one_record_is_taken(expr):
    assert compile_condition(expr, SCHEMA, argument="condition") is expr


def test_what_polars_says_about_types_is_passed_on():
    error = refusal(pl.col("name") + 1 > 2)
    assert error.message.startswith('condition `[([(col("name")) + (dyn int: 1)]) > (dyn int: 2)]` does not fit')


def test_an_error_of_a_users_function_is_kept_as_the_cause():
    def broken(column):
        raise KeyError("no such thing")

    with pytest.raises(UsageError, match="no such thing") as caught:
        compile_condition(PRICE.map_batches(broken, return_dtype=pl.Boolean), SCHEMA, argument="condition")
    assert caught.value.__cause__ is not None


def test_a_column_without_a_type_is_refused():
    with pytest.raises(UsageError) as caught:
        compile_columns(pl.lit(None), SCHEMA, argument="column", name="nothing")
    assert "is always null, and so has no type" in caught.value.message

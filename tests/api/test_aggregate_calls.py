"""Aggregates are checked when the program is built, and say which types they take."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.aggregates import named_aggregate
from penstock.api.windows import tumbling
from penstock.core.errors import UsageError

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("i", pa.int64()),
        ("s", pa.string()),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("code", pa.dictionary(pa.int32(), pa.string())),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)


def made(call, *, time_column="ts"):
    from penstock.api.window_schema import partial_schema, result_schema

    aggregate = named_aggregate("x", call, schema=SCHEMA, time_column=time_column)
    shape = {"keys": ("k",), "time_column": "ts", "aggregates": [aggregate]}
    return aggregate, partial_schema(SCHEMA, **shape).field("x").type, result_schema(SCHEMA, **shape).field("x").type


@pytest.mark.parametrize(
    ("call", "fact", "hint"),
    [
        (ps.variance("s"), "column 's' of type string has no variance", "variance takes numbers"),
        (ps.stddev("flag"), "column 'flag' of type bool has no stddev", "stddev takes numbers"),
        (ps.any("i"), "column 'i' of type int64 has no any", "any takes booleans"),
        (ps.all("s"), "column 's' of type string has no all", "all takes booleans"),
        (ps.first("code"), "has no first", "no dictionaries"),
        (ps.collect_list("code"), "has no collect_list", "no dictionaries"),
        (
            ps.collect_set("tags"),
            "column 'tags' of type list<item: string> has no collect_set",
            "takes numbers, booleans",
        ),
        (ps.count_distinct("tags"), "has no count_distinct", "strings and binary"),
        (ps.top_n("tags", 2), "has no top_n", "top_n takes numbers, booleans"),
        (ps.median("s", exact=True), "column 's' of type string has no quantile", "quantile takes numbers"),
        (
            ps.max_by("i", "tags"),
            "max_by cannot order by column 'tags' of type list<item: string>",
            "orders by numbers",
        ),
        (ps.max_by("i", "when"), "column 'when' does not exist", None),
        (ps.sum("s"), "column 's' of type string has no sum", "sum takes integers"),
    ],
)
def test_a_type_that_is_not_taken_is_refused_with_the_types_that_are(call, fact, hint):
    with pytest.raises(UsageError) as caught:
        made(call)
    assert fact in caught.value.message
    assert hint is None or hint in caught.value.hint


@pytest.mark.parametrize(
    ("use", "fact"),
    [
        (lambda: ps.top_n("i", 0), "n is 0; the number of values must be a whole number above 0"),
        (lambda: ps.top_n("i", True), "n is True"),
        (lambda: ps.quantile("i", 1.5, exact=True), "q is 1.5; the part must be a number from 0 to 1"),
        (lambda: ps.quantile("i", "half", exact=True), "q is 'half'"),
        (lambda: ps.max_by("i", 5), "max_by takes the name of a column, not 5"),
        (lambda: ps.first(None), "first takes the name of a column, not None"),
        (lambda: made(ps.first("i"), time_column=None), "aggregate 'x': first needs event time"),
        (
            lambda: made(ps.count(where="i")),
            "aggregate 'x': where 'i' is of type int64, and a condition must be boolean",
        ),
        (lambda: made(ps.count(where="j > 0")), "aggregate 'x': where"),
        (lambda: made(ps.count(where=pl.col("i").sum() > 0)), "looks at more than one record"),
    ],
)
def test_wrong_arguments_are_refused(use, fact):
    with pytest.raises(UsageError) as caught:
        use()
    assert fact in caught.value.message


def test_a_condition_with_a_column_that_does_not_exist_is_refused_at_the_users_line(program, bids):
    keyed = bids.watermark("ts").key_by("auction").window(tumbling("10s"))
    with pytest.raises(UsageError, match="prise"):
        keyed.aggregate(n=ps.count(where="prise > 0"))


@pytest.mark.parametrize(
    ("call", "partial", "result"),
    [
        (ps.variance("i"), "struct<count: int64, mean: double, m2: double>", "double"),
        (ps.any("flag"), "bool", "bool"),
        (ps.first("tags"), "struct<by: timestamp[us, tz=UTC], value: list<item: string>>", "list<item: string>"),
        (ps.max_by("s", "i"), "struct<by: int64, value: string>", "string"),
        (ps.top_n("s", 2), "list<item: string>", "list<item: string>"),
        (ps.top_n("s", 2, by="i"), "list<item: struct<by: int64, value: string>>", "list<item: string>"),
        (ps.collect_set("s"), "list<item: string>", "list<item: string>"),
        (ps.count_distinct("s"), "list<item: string>", "int64"),
        (ps.median("i", exact=True), "list<item: double>", "double"),
    ],
)
def test_an_aggregate_has_one_partial_column_and_a_result_of_these_types(call, partial, result):
    _, found, shown = made(call)
    assert (str(found), str(shown)) == (partial, result)


@pytest.mark.parametrize(
    ("call", "shown", "saved"),
    [
        (ps.max_by("s", "i"), "max_by('s', by='i')", "x=max_by(s, by i)"),
        (ps.top_n("s", 2, where="i > 0"), "top_n('s', 2, where='i > 0')", "x=top_n(s, 2, where i > 0)"),
        (ps.count(), "count()", "x=count()"),
        (ps.first("s", ignore_nulls=True), "first('s', 'ignore_nulls')", "x=first(s, by ts, ignore_nulls)"),
    ],
)
def test_an_aggregate_shows_itself(call, shown, saved):
    assert repr(call) == shown
    assert str(made(call)[0].saved()) == saved


# --- aggregates that users write -------------------------------------------------------------------------------------


class Total(ps.AggregateFunction):
    state_type = "bigint"
    result_type = "bigint"

    def create(self):
        return 0

    def add(self, state, row):
        return state + (row["i"] or 0)

    def merge(self, a, b):
        return a + b

    def result(self, state):
        return state


def without(name):
    """The class without one of its parts."""
    return type("Partly", (ps.AggregateFunction,), {k: v for k, v in vars(Total).items() if k != name})


@pytest.mark.parametrize("name", ["create", "merge", "result", "state_type", "result_type"])
def test_a_class_that_lacks_a_part_is_refused(name):
    with pytest.raises(UsageError, match=f"Partly has no (method )?{name}"):
        made(without(name)("i"))


def test_a_class_needs_a_way_to_add_records_and_columns_to_read():
    with pytest.raises(UsageError, match="Partly has no method add or add_batch"):
        made(without("add")("i"))
    with pytest.raises(UsageError, match="Total has no columns to read"):
        made(Total())
    with pytest.raises(UsageError, match="column 'j' does not exist"):
        made(Total("j"))
    with pytest.raises(UsageError, match=r"Later\.merge is async"):
        made(type("Later", (Total,), {"merge": _merge_later})("i"))


async def _merge_later(self, a, b):
    return a


def test_a_class_says_its_name_its_state_and_its_columns():
    aggregate, partial, result = made(Total("i", where="i > 0"))
    assert str(aggregate.saved()) == "x=custom(, Total, int64, i, where i > 0)"
    assert (partial, result) == (pa.int64(), pa.int64())
    assert not aggregate.saved().is_pickled
    pickles = made(type("Total", (Total,), {"state_type": object})("i"))
    assert pickles[0].saved().is_pickled
    assert pickles[1] == pa.binary()

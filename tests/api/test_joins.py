"""Joins as programs say them: the columns and the event time behind a join, and what is refused when the program is
built."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.join_steps import Interval, JoinStep
from penstock.core.errors import UsageError
from penstock.testing import run

ORDERS = "id bigint, item string, ts timestamp"
PAYMENTS = "id bigint, amount double, paid timestamp"


def both(env: Any) -> tuple[Any, Any]:
    orders = env.from_iterable([], schema=ORDERS, name="orders").watermark("ts")
    return orders, env.from_iterable([], schema=PAYMENTS, name="payments").watermark("paid")


def built(make: Any) -> Any:
    """What `make` returns for the two streams."""
    found = []

    def program(env: Any) -> None:
        made = make(*both(env))
        found.append(made)
        made.write(ps.collect())

    run(program)
    return found[0]


@pytest.mark.parametrize(
    ("how", "columns"),
    [
        ("inner", ["id", "item", "ts", "amount", "paid"]),
        ("full", ["id", "item", "ts", "amount", "paid"]),
        ("semi", ["id", "item", "ts"]),
        ("anti", ["id", "item", "ts"]),
    ],
)
def test_keys_come_first_and_once(how: Any, columns: list[str]):
    assert built(lambda one, other: one.join(other, on="id", within="1s", how=how)).schema.names == columns


@pytest.mark.parametrize(
    ("how", "time"), [("inner", "ts"), ("left", "ts"), ("right", "paid"), ("full", None), ("semi", "ts")]
)
def test_the_event_time_behind_a_join_is_that_of_the_side_that_is_always_there(how: Any, time: str | None):
    joined = built(lambda one, other: one.join(other, on="id", within="1s", how=how))
    assert joined._state.time_column == time


@pytest.mark.parametrize("how", ["inner", "full", "right"])
def test_behind_windows_the_event_time_is_the_end_of_the_window(how: Any):
    joined = built(lambda one, other: one.join(other, on="id", window=ps.tumbling("1 min"), how=how))
    assert joined.schema.names[:3] == ["id", "window_start", "window_end"]
    assert (joined._state.time_column, joined._state.time_offset_us) == ("window_end", -1)


@pytest.mark.parametrize(
    ("within", "bounds"),
    [
        (("0s", "15 min"), (0, 900_000_000)),
        (("-5s", "-1 s"), (-5_000_000, -1_000_000)),
        ("2s", (-2_000_000, 2_000_000)),
        ((timedelta(seconds=-1), timedelta(0)), (-1_000_000, 0)),
    ],
)
def test_within_is_a_range_of_differences(within: Any, bounds: tuple[int, int]):
    joined = built(lambda one, other: one.join(other, on="id", within=within))
    step = joined._state.ledger.step(joined._state.last_step).step
    assert isinstance(step, JoinStep)
    assert step.reach == Interval(lower_us=bounds[0], upper_us=bounds[1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"on": "idd"}, "on, in this stream: there is no column 'idd'"),
        ({"on": {"id": "amount"}}, "'id' of this stream is of type int64, and column 'amount' of the other stream is"),
        ({"on": 3}, "join: on is 3"),
        ({"on": []}, "a key needs at least one column"),
        ({"how": "outer"}, "how='outer' is no kind of join; there are inner, left, right, full, semi, anti"),
        ({"how": "left_outer"}, "how='left_outer' is no kind of join"),
        ({"within": None}, "join: give within, window or ttl"),
        ({"ttl": "1h"}, "within and ttl were both given"),
        ({"within": None, "ttl": "soon"}, "soon"),
        ({"within": None, "ttl": ps.ttl("1h", on="read-and-write")}, "matches do not renew it"),
        ({"window": ps.tumbling("1s")}, "within and window were both given"),
        ({"within": None, "window": ps.session("1s")}, "streams can be joined in tumbling windows"),
        ({"within": ("2s", "1s")}, "begins after it ends"),
        ({"within": ("2s",)}, "within has 1 durations"),
        ({"within": 5}, "within has 5, which is no duration"),
        ({"within": "5"}, "which is no duration"),
        ({"where": "amount"}, "a condition must be boolean"),
        ({"where": "price > 1"}, "price"),
        ({"suffix": ""}, "suffix is ''"),
    ],
)
def test_mistakes_are_found_when_the_program_is_built(words: dict[str, Any], said: str):
    given = {"on": "id", "within": "1s", **words}
    with pytest.raises(UsageError) as raised:
        built(lambda one, other: one.join(other, **given))
    assert said in str(raised.value)


def test_equal_names_are_refused_unless_a_suffix_tells_them_apart():
    def joined(suffix: str | None) -> Any:
        return built(lambda one, other: one.join(other.with_columns(item="'x'"), on="id", within="1s", suffix=suffix))

    with pytest.raises(UsageError, match="both streams have a column 'item'"):
        joined(None)
    assert joined("_paid").schema.names == ["id", "item", "ts", "amount", "paid", "item_paid"]


def test_a_bounds_column_of_the_window_may_not_be_there():
    with pytest.raises(UsageError, match="this stream has a column 'window_end'"):
        built(lambda one, other: one.with_columns(window_end="1").join(other, on="id", window=ps.tumbling("1s")))


def test_both_streams_need_event_time():
    with pytest.raises(UsageError, match="the other stream has none"):
        built(lambda one, other: one.join(other.drop("paid"), on="id", within="1s"))


def test_what_is_no_stream_is_refused():
    with pytest.raises(UsageError, match="join takes a stream or a table, not 'payments'"):
        built(lambda one, other: one.join("payments", on="id", within="1s"))


def test_late_records_of_either_side_are_streams():
    def late(of: Any) -> pa.Schema:
        return built(lambda one, other: one.join(other, on="id", within="1s").late(of=of)).schema

    assert late("left").names == ["id", "item", "ts"]
    assert late("right").names == ["id", "amount", "paid"]
    with pytest.raises(UsageError, match="late: of is 'both'"):
        late("both")


def test_a_join_keeps_its_state_under_its_name_and_explains_itself():
    joined = built(lambda one, other: one.join(other, on="id", within="1s", name="paid orders"))
    text = str(joined.explain())
    assert "paid orders" in text
    assert "hash by id" in text


# --- without a limit of time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "is_changelog"),
    [("inner", False), ("semi", False), ("left", True), ("right", True), ("full", True), ("anti", True)],
)
def test_a_join_that_may_take_rows_back_is_a_changelog(how: Any, is_changelog: bool):
    joined = built(lambda one, other: one.join(other, on="id", how=how, ttl="1h"))
    assert (joined._state.changelog is not None) is is_changelog
    assert (joined.schema.names[-1] == "row_kind") is is_changelog


def totals(stream: Any, *keys: str) -> Any:
    return stream.key_by(*keys).aggregate(n=ps.count())


@pytest.mark.parametrize(
    ("how", "keys", "identity"),
    [
        ("inner", ("id",), ("id",)),
        ("left", ("id",), ("id",)),
        ("full", ("id",), ("id",)),
        ("semi", ("id",), ("id",)),
        ("inner", ("id", "item"), ("id", "item")),
        # The counts of an item go from subtask to subtask as their number changes.
        ("inner", ("item",), None),
    ],
)
def test_the_columns_that_identify_a_row_are_known_where_the_changes_of_a_row_keep_their_order(
    how: Any, keys: tuple[str, ...], identity: Any
):
    def make(one: Any, other: Any) -> Any:
        on = "id" if "id" in keys else {"n": "id"}
        return totals(one, *keys).join(totals(other, "id").rename({"n": "paid"}), on=on, how=how, ttl=None)

    joined = built(make)
    assert joined._state.changelog.keys == identity


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_the_changes_that_are_looked_for_may_be_identified_by_columns_that_are_not_in_the_results(how: Any):
    def make(one: Any, other: Any) -> Any:
        changes = totals(other, "id", "amount").rename({"n": "payments"})
        return totals(one, "id").join(changes, on="id", how=how, ttl=None)

    joined = built(make)
    assert joined._state.changelog.keys == ("id",)


def test_a_join_of_changelogs_by_event_time_is_refused_and_told_of_the_join_that_takes_them():
    with pytest.raises(UsageError, match="this join takes records that stay as they are") as raised:
        built(lambda one, other: totals(one, "id").join(other, on="id", within="1s"))
    assert "ttl=None" in str(raised.value.hint)


def test_a_join_has_to_know_rows_as_they_were():
    with pytest.raises(UsageError, match=r"upserts\(\) has left that out of the other stream"):
        built(lambda one, other: one.join(totals(other, "id").upserts(), on="id", ttl=None))


def test_the_column_of_the_time_of_a_row_is_taken():
    with pytest.raises(UsageError, match="has a column '__written'"):
        built(lambda one, other: one.with_columns(__written="1").join(other, on="id", ttl=None))


def test_ttl_is_for_two_streams():
    with pytest.raises(UsageError, match="ttl says how long rows of two streams are kept"):
        built(lambda one, other: one.join(ITEMS, on="id", ttl="1h"))


def test_the_result_of_a_join_without_a_limit_of_time_has_no_event_time():
    joined = built(lambda one, other: one.join(other, on="id", ttl=None))
    assert joined._state.time_column is None
    assert "of all times" in joined._state.time_lost


# --- tables -----------------------------------------------------------------------------------------------------------

ITEMS = pa.table({"id": [1, 2], "title": ["pen", "ink"]})


def test_a_join_with_a_table_keeps_event_time_and_needs_no_exchange():
    def joined(**words: Any) -> Any:
        found = []

        def program(env: Any) -> None:
            orders = env.from_iterable([], schema=ORDERS).watermark("ts")
            found.append(orders.join(ITEMS, on="id", how="left", **words))
            found[0].write(ps.collect())

        run(program)
        return found[0]

    assert joined().schema.names == ["id", "item", "ts", "title"]
    assert joined()._state.time_column == "ts"
    assert "hash" not in str(joined().explain())
    assert "hash by id" in str(joined(spread="by key").explain())


@pytest.mark.parametrize("table", [ITEMS, ITEMS.to_batches()[0], pl.from_arrow(ITEMS), ITEMS.to_pandas()])
def test_tables_of_every_kind_are_taken(table: Any):
    def program(env: Any) -> None:
        env.from_iterable([{"id": 2}, {"id": 3}]).join(table, on="id").write(ps.collect())

    assert run(program, crashes=1) == [{"id": 2, "title": "ink"}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"how": "right"}, "how='right' does not exist for this join; there are inner, left, semi, anti"),
        ({"within": "1s"}, "the rows of a table have no event time"),
        ({"on": {"id": "title"}}, "of this stream is of type int64, and column 'title' of the table is of type string"),
        ({"spread": "hash"}, "spread is 'hash'"),
    ],
)
def test_mistakes_of_joins_with_tables_are_found(words: dict[str, Any], said: str):
    with pytest.raises(UsageError) as raised:
        built(lambda one, other: one.join(ITEMS, **{"on": "id", **words}))
    assert said in str(raised.value)


def test_streams_are_not_spread_and_frames_of_spark_need_spark():
    with pytest.raises(UsageError, match="streams are always joined by key"):
        built(lambda one, other: one.join(other, on="id", within="1s", spread="by key"))

    class Frame:
        isStreaming = False  # noqa: N815  # the name in Spark

    with pytest.raises(UsageError, match="needs an Environment on Spark"):
        built(lambda one, other: one.join(Frame(), on="id"))


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_join_with_versions_keeps_the_event_time_of_the_records():
    joined = built(lambda one, other: one.join(other.versioned("id"), on="id", as_of="ts", how="left"))
    assert joined.schema.names == ["id", "item", "ts", "amount", "paid"]
    assert joined._state.time_column == "ts"
    assert joined.late().schema.names == ["id", "item", "ts"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"how": "full"}, "how='full' does not exist for this join; there are inner, left, semi, anti"),
        ({"within": "1s"}, "a version holds until the next version"),
        ({"as_of": "item"}, "as_of is 'item', and the event time of this stream is in 'ts'"),
        ({"on": {"id": "amount"}}, "of this stream is of type int64, and column 'amount'"),
    ],
)
def test_mistakes_of_joins_with_versions_are_found(words: dict[str, Any], said: str):
    with pytest.raises(UsageError) as raised:
        built(lambda one, other: one.join(other.versioned("id"), **{"on": "id", **words}))
    assert said in str(raised.value)


def test_versions_need_keys_and_event_time_and_joins_need_the_same_keys():
    with pytest.raises(UsageError, match="there is no column 'idd'"):
        built(lambda one, other: other.versioned("idd"))
    with pytest.raises(UsageError, match="a key needs at least one column"):
        built(lambda one, other: other.versioned())
    with pytest.raises(UsageError, match="a versioned stream has none"):
        built(lambda one, other: other.drop("paid").versioned("id"))
    with pytest.raises(UsageError, match="the versions are by amount, and on has id"):
        built(lambda one, other: one.join(other.versioned("amount"), on="id"))
    with pytest.raises(UsageError, match="as_of is for versions"):
        built(lambda one, other: one.join(other, on="id", within="1s", as_of="ts"))
    assert "by id" in repr(both_versioned())


def both_versioned() -> Any:
    found = []

    def program(env: Any) -> None:
        orders, payments = both(env)
        found.append(payments.versioned("id"))
        orders.join(found[0], on="id").write(ps.collect())

    run(program)
    return found[0]

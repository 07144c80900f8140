"""What the picture of a job says that operators run."""

from __future__ import annotations

import polars as pl

import penstock as ps
from penstock.testing import collect, run
from penstock.web.pictured_steps import LONGEST, runs_of

ROWS = [{"item": "pen", "price": 3, "at": 1_000_000}]


def doubled(row):
    return {"item": row["item"], "price": 2 * row["price"], "ts": row["ts"]}


class Kept(ps.ProcessFunction):
    """Hands on what comes."""

    def on_row(self, row, context):
        return row


def runs(build):
    """What each operator of a stream runs, by the name of the operator."""
    found = {}

    def program(env):
        stream = build(env.from_iterable(ROWS, schema="item string, price bigint, at bigint"))
        plan = stream.explain()._plan
        names = {str(o.operator): o.name for vertex in plan.vertices for o in vertex.operators}
        found.update({names[operator]: text for operator, text in runs_of(plan).items()})
        stream.write(collect())

    run(program)
    return found


def test_conditions_and_columns_are_as_the_user_wrote_them():
    found = runs(lambda rows: rows.where("price > 2 AND item <> ''").select("item", dear="price * 100"))
    assert found["where"] == "price > 2 AND item <> ''"
    assert found["select"] == "item, price * 100 AS dear"


def test_an_expression_is_shown_too():
    assert "price" in runs(lambda rows: rows.where(pl.col("price") > 2))["where"]


def test_a_function_is_named_with_its_place():
    timed = "item string, price bigint, ts timestamp"
    found = runs(lambda rows: rows.select("item", "price", ts="timestamp_micros(at)").map(doubled, schema=timed))
    line = doubled.__code__.co_firstlineno
    assert found["map"] == f"{doubled.__module__}.doubled, {__file__}:{line}"


def test_a_window_says_what_it_computes():
    found = runs(
        lambda rows: (
            rows.select("item", "price", ts="timestamp_micros(at)")
            .watermark("ts", delay="2s")
            .key_by("item")
            .window(ps.tumbling("10s"))
            .aggregate(n=ps.count(), top=ps.max("price"))
        )
    )
    assert found["window"] == "n = count(), top = max(price) by item, windows: tumbling 10 s"
    assert found["watermark"] == "event time is ts; records are late by up to 2.0 s"


def test_a_long_text_is_cut():
    condition = f"price IN ({', '.join(map(str, range(1_000)))})"
    assert runs(lambda rows: rows.where(condition))["where"] == f"{condition[:LONGEST]}…"


def test_a_source_is_named_by_its_kind():
    assert runs(lambda rows: rows)["iterable"] == "ListedRows"


def test_an_object_with_functions_is_named_by_its_class():
    found = runs(lambda rows: rows.process(Kept(), schema="item string, price bigint, at bigint"))
    assert found["process"] == f"{Kept.__module__}.Kept"

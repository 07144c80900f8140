"""Each kind of aggregate gives what its definition says, however records fall into batches and partials are merged."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.aggregate_kinds.description import Condition
from penstock.api.aggregate_kinds.registry import KINDS
from penstock.api.steps import Aggregate
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.runtime.task.operators.aggregation import group, of_partials, of_records, results
from penstock.runtime.task.operators.record_values import record_values

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("o", pa.int64()), ("b", pa.bool_()), ("ts", TIME)])
WINDOW = TumblingWindow(size_us=10**9)
SOME = Condition("o > 0", pl.col("o") > 0)


def aggregate(kind, column="v", **given):
    return Aggregate(name="x", kind=kind, column=column, **given)


def batches(rows, cuts):
    """Records of (key, value, order, truth) in batches; the time of a record is the order, without nulls."""
    edges = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    for first, last in pairwise(edges):
        part = rows[first:last]
        if part:
            keys, values, orders, truths = zip(*part, strict=True)
            times = pa.array([order or 0 for order in orders], pa.int64()).cast(TIME)
            columns = [pa.array(keys), pa.array(values, pa.float64()), pa.array(orders, pa.int64())]
            yield pa.record_batch([*columns, pa.array(truths, pa.bool_()), times], schema=SCHEMA)


def computed(wanted, rows, cuts, *, pairs=False):
    """The result by key: partials of each batch, merged all at once or in pairs."""
    shape = {"keys": ("k",), "time_column": "ts", "aggregates": [wanted]}
    partial, result = partial_schema(SCHEMA, **shape), result_schema(SCHEMA, **shape)
    keys = ["k", "window_start"]
    parts = []
    for batch in batches(rows, cuts):
        table = pa.table({"k": batch.column("k"), **record_values(batch, [wanted])})
        found = group(table, ["k"], of_records([wanted]), window=WINDOW)
        found = found.append_column("window_start", pa.array([0] * found.num_rows).cast(TIME))
        assert found.select(partial.names).schema.equals(partial)
        parts.append(found.select(partial.names))
    while len(parts) > 1:
        head = 2 if pairs else len(parts)
        merged = group(pa.concat_tables(parts[:head]), keys, of_partials([wanted]), window=WINDOW)
        parts = [merged.select(partial.names), *parts[head:]]
    merged = group(parts[0], keys, of_partials([wanted]), window=WINDOW)
    found = results(merged, keys=("k",), window=WINDOW, aggregates=[wanted], schema=result)
    assert found.schema.equals(result)
    return dict(zip(found.column("k").to_pylist(), found.column("x").to_pylist(), strict=True))


def by_definition(rows, function):
    found = {}
    for key, *rest in rows:
        found.setdefault(key, []).append(rest)
    return {key: function(records) for key, records in found.items()}


NUMBERS = st.one_of(st.none(), st.integers(-50, 50).map(float))
ROWS = st.lists(
    st.tuples(
        st.integers(0, 3), NUMBERS, st.one_of(st.none(), st.integers(-5, 5)), st.one_of(st.none(), st.booleans())
    ),
    min_size=1,
    max_size=40,
)
CUTS = st.lists(st.integers(0, 40), max_size=4)


def known(records):
    return [value for value, _, _ in records if value is not None]


def picked(records, order, *, last=False, ignore_nulls=False):
    """The value of the record that comes first in an order; the later of two that are equal, if asked for."""
    able = [record for record in records if order(record) is not None and (record[0] is not None or not ignore_nulls)]
    if last:
        able = able[::-1]
    return min(able, key=order)[0] if able else None


def moment(values, *, fewer):
    return statistics.fsum((v - statistics.fmean(values)) ** 2 for v in values) / (len(values) - fewer)


def by_order(record):
    return record[1]


def by_order_down(record):
    return None if record[1] is None else -record[1]


def time(record):
    return record[1] or 0


def time_down(record):
    return -(record[1] or 0)


CASES = {
    "any": (aggregate("any", "b"), lambda r: any(t for *_, t in r) if [t for *_, t in r if t is not None] else None),
    "all": (
        aggregate("all", "b"),
        lambda r: all(t for *_, t in r if t is not None) if any(t is not None for *_, t in r) else None,
    ),
    "first": (aggregate("first", by="ts"), lambda r: picked(r, time)),
    "last": (aggregate("last", by="ts"), lambda r: picked(r, time_down, last=True)),
    "first known": (
        aggregate("first", by="ts", parameters=("ignore_nulls",)),
        lambda r: picked(r, time, ignore_nulls=True),
    ),
    "last known": (
        aggregate("last", by="ts", parameters=("ignore_nulls",)),
        lambda r: picked(r, time_down, last=True, ignore_nulls=True),
    ),
    "min_by": (aggregate("min_by", by="o"), lambda r: picked(r, by_order)),
    "max_by": (aggregate("max_by", by="o"), lambda r: picked(r, by_order_down)),
    "max_by where": (
        aggregate("max_by", by="o", where=SOME),
        lambda r: picked([each for each in r if (each[1] or 0) > 0], by_order_down),
    ),
    "collect_list": (aggregate("collect_list"), known),
    "collect_set": (aggregate("collect_set"), lambda r: list(dict.fromkeys(known(r)))),
    "count_distinct": (aggregate("count_distinct"), lambda r: len(set(known(r)))),
    "count where": (aggregate("count", None, where=SOME), lambda r: sum((order or 0) > 0 for _, order, _ in r)),
    "top_n": (aggregate("top_n", parameters=(3,)), lambda r: sorted(known(r), reverse=True)[:3]),
    "top_n by": (
        aggregate("top_n", by="o", parameters=(2,)),
        lambda r: [each[0] for each in sorted((e for e in r if e[1] is not None), key=by_order_down)][:2],
    ),
    "median": (
        aggregate("quantile", parameters=(0.5,)),
        lambda r: statistics.median(known(r)) if known(r) else None,
    ),
    "variance": (
        aggregate("variance"),
        lambda r: moment(known(r), fewer=1) if len(known(r)) > 1 else None,
    ),
    "stddev_pop where": (
        aggregate("stddev_pop", where=SOME),
        lambda r: math.sqrt(moment(kept, fewer=0)) if (kept := known([e for e in r if (e[1] or 0) > 0])) else None,
    ),
}


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("case", CASES)
@given(rows=ROWS, cuts=CUTS)
def test_an_aggregate_is_what_its_definition_says(case, pairs, rows, cuts):
    wanted, function = CASES[case]
    found = computed(wanted, rows, cuts, pairs=pairs)
    expected = by_definition(rows, function)
    if case.startswith(("variance", "stddev")):
        expected = {key: value if value is None else pytest.approx(value, abs=1e-9) for key, value in expected.items()}
    assert found == expected


@pytest.mark.parametrize("value", [1e300, 123456789.123, -1e15])
def test_equal_values_have_no_variance_however_large(value):
    rows = [(1, value, 0, None)] * 30
    assert computed(aggregate("var_pop"), rows, [7, 20]) == {1: 0.0}


def test_the_variance_of_large_values_that_are_close_is_exact():
    rows = [(1, 1e9 + number, 0, None) for number in (4.0, 7.0, 13.0, 16.0)]
    assert computed(aggregate("variance"), rows, [1, 2]) == {1: 30.0}


@pytest.mark.parametrize("case", CASES)
def test_without_keys_all_rows_are_one_group(case):
    wanted, _ = CASES[case]
    rows = [(1, 2.0, 1, True), (1, None, 3, None), (1, 5.0, None, False), (1, 2.0, 3, True)]
    (batch,) = batches(rows, [])
    table = pa.table({"k": batch.column("k"), **record_values(batch, [wanted])})
    alone = group(table, [], of_records([wanted]), window=WINDOW)
    assert alone.equals(group(table, ["k"], of_records([wanted]), window=WINDOW).drop_columns(["k"]))


EXACT = sorted(kind for kind in KINDS if kind != "custom" and not kind.startswith("approx"))


@pytest.mark.parametrize("kind", EXACT)
def test_every_kind_groups_no_rows_into_no_rows(kind):
    column = {"any": "b", "all": "b"}.get(kind, "v")
    parameters = {"top_n": (2,), "quantile": (0.5,), "top_rows": (2, 1, "v desc", "v")}.get(kind, ())
    by = "o" if kind in ("first", "last", "min_by", "max_by") else None
    wanted = aggregate(kind, column, by=by, parameters=parameters)
    shape = {"keys": ("k",), "time_column": "ts", "aggregates": [wanted]}
    empty = pa.table(partial_schema(SCHEMA, **shape).empty_table())
    merged = group(empty, ["k", "window_start"], of_partials([wanted]), window=WINDOW)
    assert merged.num_rows == 0
    found = results(merged, keys=("k",), window=WINDOW, aggregates=[wanted], schema=result_schema(SCHEMA, **shape))
    assert found.num_rows == 0

"""Sums and means of decimals are exact, have Spark's types, are rounded once, and fail where they do not fit."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.aggregate_kinds.decimals import mean_of
from penstock.api.steps import Aggregate
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.core.errors import UsageError
from penstock.runtime.task.operators.aggregation import group, of_partials, of_records, results
from penstock.runtime.task.operators.record_values import record_values

TIME = pa.timestamp("us", "UTC")
WINDOW = TumblingWindow(size_us=10**9)
AGGREGATES = [Aggregate(name="total", kind="sum", column="v"), Aggregate(name="average", kind="mean", column="v")]
TYPES = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))


@pytest.fixture(autouse=True, scope="module")
def _exact():
    """By default Python rounds decimals to 28 digits."""
    with localcontext() as exact:
        exact.prec = 120
        yield


def computed(kind, rows, cuts=()):
    """Key -> (sum, mean), of partials of each part of the rows, and the types of both."""
    schema = pa.schema([("k", pa.int64()), ("v", kind), ("ts", TIME)])
    shape = {"keys": ("k",), "time_column": "ts", "aggregates": AGGREGATES}
    partial, result = partial_schema(schema, **shape), result_schema(schema, **shape)
    edges = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    parts = []
    for first, last in pairwise(edges):
        if first == last:
            continue
        keys, values = zip(*rows[first:last], strict=True)
        arrays = [pa.array(keys, pa.int64()), pa.array(values, kind), pa.array([0] * len(keys)).cast(TIME)]
        batch = pa.record_batch(arrays, schema=schema)
        table = pa.table(
            {"k": batch.column("k"), "window_start": batch.column("ts")} | record_values(batch, AGGREGATES)
        )
        parts.append(group(table, ["k", "window_start"], of_records(AGGREGATES), window=WINDOW).select(partial.names))
    assert all(part.schema.equals(partial) for part in parts)
    merged = group(pa.concat_tables(parts), ["k", "window_start"], of_partials(AGGREGATES), window=WINDOW)
    assert merged.select(partial.names).schema.equals(partial)
    table = results(merged, keys=["k"], window=WINDOW, aggregates=AGGREGATES, schema=result)
    found = {row["k"]: (row["total"], row["average"]) for row in table.to_pylist()}
    return found, (result.field("total").type, result.field("average").type)


def rounded(value, scale):
    return value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)


@given(TYPES, st.data(), st.lists(st.integers(0, 40), max_size=3))
def test_sums_and_means_are_exact(kind, data, cuts):
    precision, scale = kind
    most = 10**precision - 1
    # A column of 38 digits has sums of 38 digits: values that are not the greatest leave room.
    most //= 10 ** max(0, precision - 30)
    whole = st.none() | st.integers(-most, most) | st.sampled_from([-most, most, 0, 1, -1])
    drawn = data.draw(st.lists(st.tuples(st.integers(0, 3), whole), min_size=1, max_size=40))
    rows = [(key, None if n is None else Decimal(n).scaleb(-scale)) for key, n in drawn]
    expected = {}
    for key in {key for key, _ in rows}:
        values = [value for k, value in rows if k == key and value is not None]
        average = rounded(sum(values) / len(values), min(38, scale + 4)) if values else None
        expected[key] = (sum(values) if values else None, average)
    found, types = computed(pa.decimal128(precision, scale), rows, cuts)
    assert found == expected
    bound = [min(38, number) for number in (precision + 10, precision + 4, scale + 4)]
    assert types == (pa.decimal128(bound[0], scale), pa.decimal128(bound[1], bound[2]))


@pytest.mark.parametrize("value", ["0.005", "-0.005", "1.005", "99999999999999.99", "-0.01"])
def test_halves_are_rounded_away_from_zero(value):
    total = pa.array([Decimal(value)], pa.decimal128(38, 3))
    for count in (1, 2, 3, 7, 8, 16, 20_000, 10**12):
        found = mean_of(total, pa.array([count]), name="x")[0].as_py()
        assert found == rounded(Decimal(value) / count, 7)


def test_a_sum_that_does_not_fit_is_refused_by_name():
    kind = pa.decimal128(38, 2)
    most = Decimal(10**38 - 1).scaleb(-2)
    assert computed(kind, [(1, most), (1, -most), (1, Decimal("0.01"))])[0][1][0] == Decimal("0.01")
    for rows in ([most, Decimal("0.01")], [-most, Decimal("-0.01")], [most] * 9):
        with pytest.raises(UsageError, match=r"the sum 'total' does not fit into decimal\(38, 2\)"):
            computed(kind, [(1, value) for value in rows])


def test_partials_that_do_not_fit_together_are_refused():
    kind, most = pa.decimal128(38, 0), Decimal(10**38 - 1)
    with pytest.raises(UsageError, match="the sum 'total' does not fit"):
        computed(kind, [(1, most), (1, most)], cuts=[1])


def test_a_mean_that_does_not_fit_is_refused_by_name():
    kind = pa.decimal128(38, 2)
    with pytest.raises(UsageError, match=r"the mean 'average' does not fit into decimal\(38, 6\)"):
        computed(kind, [(1, Decimal(10**34))])

"""Approximate aggregates are as near to the exact aggregates as they promise, however partials are merged."""

from __future__ import annotations

import datetime
import math
import sys

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.aggregate_kinds.sketches import register_bits
from penstock.api.steps import Aggregate
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.runtime.task.operators.aggregation import group, of_partials, of_records, results
from penstock.runtime.task.operators.record_values import record_values

WINDOW = TumblingWindow(size_us=10**9)
TIME = pa.timestamp("us", "UTC")


def computed(kind, values, *parameters, parts=4):
    """The result over values that come in several batches."""
    pytest.importorskip("datasketches", reason="the extra sketches is not installed")
    wanted = Aggregate(name="x", kind=kind, column="v", parameters=parameters)
    schema = pa.schema([("k", pa.int64()), ("v", values.type), ("ts", TIME)])
    shape = {"keys": ("k",), "time_column": "ts", "aggregates": [wanted]}
    partial, result = partial_schema(schema, **shape), result_schema(schema, **shape)
    step, found = -(-len(values) // parts), []
    for first in range(0, len(values), step):
        part = values.slice(first, step)
        batch = pa.record_batch([pa.array([1] * len(part)), part, pa.array([0] * len(part)).cast(TIME)], schema=schema)
        table = pa.table({"k": batch.column("k"), **record_values(batch, [wanted])})
        grouped = group(table, ["k"], of_records([wanted]), window=WINDOW)
        grouped = grouped.append_column("window_start", pa.array([0]).cast(TIME)).select(partial.names)
        assert grouped.schema.equals(partial)
        found.append(grouped)
    merged = group(pa.concat_tables(found), ["k", "window_start"], of_partials([wanted]), window=WINDOW)
    (row,) = results(merged, keys=("k",), window=WINDOW, aggregates=[wanted], schema=result).to_pylist()
    return row["x"]


@pytest.mark.parametrize("deviation", [0.05, 0.01])
def test_a_distinct_count_is_within_four_deviations(deviation):
    values = pa.array(np.arange(200_000) % 50_000)
    found = computed("approx_count_distinct", values, deviation)
    assert abs(found - 50_000) < 4 * deviation * 50_000


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["", "a", None, "", "b"]),
        pa.array([0.0, -0.0, math.nan, -math.nan, None, 1.0]),
        pa.array([True, False, None, True]),
        pa.array([datetime.date(2026, 1, 1), None, datetime.date(2026, 1, 2)]),
        pa.array([1, 2, None], pa.decimal128(10, 2)),
        pa.array([None, None], pa.int64()),
    ],
    ids=str,
)
def test_few_distinct_values_are_counted_exactly(values):
    plain = {str(v + 0 if isinstance(v, float) else v).lstrip("-") for v in values.to_pylist() if v is not None}
    assert computed("approx_count_distinct", values, 0.05) == len(plain)


def test_the_number_of_registers_follows_from_the_deviation():
    assert [register_bits(d) for d in (0.9, 0.05, 0.01, 0.000001)] == [4, 9, 14, 21]


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99, 1.0])
def test_the_rank_of_a_quantile_is_nearly_right(part):
    values = np.random.default_rng(1).permutation(100_000).astype(np.float64)
    assert abs(computed("approx_quantile", pa.array(values), part) / 100_000 - part) < 0.03


def test_nan_is_greater_than_every_number():
    values = pa.array([1.0, math.nan, 2.0, None, math.nan], from_pandas=False)
    assert [computed("approx_quantile", values, part) for part in (0.0, 0.5)] == [1.0, 2.0]
    assert math.isnan(computed("approx_quantile", values, 1.0))
    assert math.isnan(computed("approx_quantile", pa.array([math.nan]), 0.0))
    assert computed("approx_quantile", pa.array([None], pa.float64()), 0.5) is None


@pytest.mark.parametrize("use", [lambda: ps.median("v"), lambda: ps.approx_count_distinct("v")])
def test_a_missing_library_is_named_when_the_program_is_built(monkeypatch, use):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(ps.UsageError, match="needs the library datasketches, which is not installed") as caught:
        use()
    assert "penstock[sketches]" in caught.value.hint


@pytest.mark.parametrize("deviation", [0, 1.0, "some"])
def test_a_deviation_that_is_none_is_refused(deviation):
    with pytest.raises(ps.UsageError, match="deviation is"):
        ps.approx_count_distinct("v", deviation=deviation)

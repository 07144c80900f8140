"""Windows of a world with many kinds of aggregates, and a step behind them that compares the aggregates.

The world expects the number of records and the greatest value of each window. Both are computed here from the list of
all values, so that a value that an aggregate loses or repeats is seen. Every other aggregate of the window must be what
Python computes from the same list; otherwise the step shows a number of records that no window has.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.api.aggregate_functions import AggregateFunction
from penstock.api.aggregate_kinds.description import CUSTOM, OBJECT, Condition
from penstock.api.aggregate_kinds.top_rows import OrderColumn, top_rows
from penstock.api.steps import Aggregate
from penstock.sim.jobs import SCHEMA

WRONG = -1
"""Stands for the number of records of a window of which an aggregate is wrong."""
_BEST = 3
_FIRSTS = 2
_IS_ODD = Condition("value % 2 = 1", pl.col("value") % 2 == 1)


class Total(AggregateFunction):
    """The sum of the values, as an aggregate that a user wrote, with pickled state."""

    state_type = object
    result_type = "bigint"

    def create(self) -> Any:
        """No values."""
        return [0]

    def add(self, state: Any, row: dict[str, Any]) -> Any:
        """One more value."""
        state[0] += row["value"]
        return state

    def merge(self, a: Any, b: Any) -> Any:
        """The values of both."""
        return [a[0] + b[0]]

    def result(self, state: Any) -> Any:
        """The sum."""
        return state[0]


AGGREGATES = (
    Aggregate(name="n", kind="count", column=None),
    Aggregate(name="top", kind="max_by", column="value", by="value"),
    Aggregate(name="values", kind="collect_list", column="value"),
    Aggregate(name="spread", kind="var_pop", column="value"),
    Aggregate(name="earliest", kind="first", column="ts", by="ts"),
    Aggregate(name="begin", kind="min", column="ts"),
    Aggregate(name="distinct", kind="count_distinct", column="value"),
    Aggregate(name="odd", kind="count", column=None, where=_IS_ODD),
    Aggregate(name="odd_set", kind="collect_set", column="value", where=_IS_ODD),
    Aggregate(name="best", kind="top_n", column="value", parameters=(_BEST,)),
    Aggregate(name="total", kind=CUSTOM, column=None, parameters=("Total", OBJECT, "value"), function=Total("value")),
    top_rows("firsts", _FIRSTS, (OrderColumn("value", descending=True),), ("seq", "value", "ts")),
    Aggregate(name="middle", kind="quantile", column="value", parameters=(0.5,)),
)


def compared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The results with the number of records and the greatest value, from the lists of values. The number is `WRONG` if
    another aggregate is not what Python makes of the list."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    columns = {
        **{name: batch.column(name) for name in ("key", "window_start", "window_end")},
        "n": pa.array([len(row["values"]) if _is_right(row) else WRONG for row in rows], pa.int64()),
        "top": pa.array([max(row["values"]) for row in rows], SCHEMA.field("value").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _is_right(row: dict[str, Any]) -> bool:
    values, odd = row["values"], [value for value in row["values"] if value % 2 == 1]
    expected = {
        "n": len(values),
        "top": max(values),
        "earliest": row["begin"],
        "distinct": len(set(values)),
        "odd": len(odd),
        "best": sorted(values, reverse=True)[:_BEST],
        "middle": statistics.median(values),
        "total": sum(values),
    }
    spread = math.isclose(row["spread"], statistics.pvariance(values), rel_tol=1e-9, abs_tol=1e-9)
    odd_set = sorted(row["odd_set"]) == sorted(set(odd))
    firsts = [each["value"] for each in row["firsts"]] == sorted(values, reverse=True)[:_FIRSTS]
    return spread and odd_set and firsts and all(row[name] == value for name, value in expected.items())

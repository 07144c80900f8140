"""Windows of a world with many kinds of aggregates, and a step behind them that compares the aggregates.

The world expects the number of records and the greatest value of each window. Both are computed here from the list of
all values, so that a value that an aggregate loses or repeats is seen. Every other aggregate of the window must be what
Python computes from the same list; otherwise the step raises, and the job fails.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.api.aggregate_kinds.description import Condition
from penstock.api.steps import Aggregate
from penstock.core.errors import InvariantError
from penstock.sim.jobs import SCHEMA

_BEST = 3
_IS_ODD = Condition("value % 2 = 1", pl.col("value") % 2 == 1)

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
    Aggregate(name="middle", kind="quantile", column="value", parameters=(0.5,)),
)


def compared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The results with the number of records and the greatest value, from the lists of values. Raises `InvariantError`
    if another aggregate is not what Python makes of the list."""
    for row in batch.to_pylist():
        _check(row)
    lists: list[Any] = batch.column("values").to_pylist()
    columns = {
        **{name: batch.column(name) for name in ("key", "window_start", "window_end")},
        "n": pa.array([len(values) for values in lists], pa.int64()),
        "top": pa.array([max(values) for values in lists], SCHEMA.field("value").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _check(row: dict[str, Any]) -> None:
    values, odd = row["values"], [value for value in row["values"] if value % 2 == 1]
    expected = {
        "n": len(values),
        "top": max(values),
        "earliest": row["begin"],
        "distinct": len(set(values)),
        "odd": len(odd),
        "best": sorted(values, reverse=True)[:_BEST],
        "middle": statistics.median(values),
    }
    wrong = {name: (row[name], value) for name, value in expected.items() if row[name] != value}
    if not math.isclose(row["spread"], statistics.pvariance(values), rel_tol=1e-9, abs_tol=1e-9):
        wrong["spread"] = (row["spread"], statistics.pvariance(values))
    if sorted(row["odd_set"]) != sorted(set(odd)):
        wrong["odd_set"] = (row["odd_set"], odd)
    if wrong:
        raise InvariantError(f"aggregates of {values} are wrong (found, expected): {wrong}")

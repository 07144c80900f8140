"""Running aggregates of a world: an aggregate of an aggregate, and a step behind it that makes its changes countable.

Which changes a running aggregate hands on depends on which records come together, and so differs from run to run. So
the last step makes *units* of the changes. The total of a bucket is the number of all records of its keys. A record
that is counted raises the total by one, and the step makes one unit for each number that the total has risen to for the
first time. Between the two halves of an update the total may fall for a moment: then it rises to the same number
again. So whatever comes together, a bucket with n records has the units 1 to n, each once. A change that does not fit
the changes before, and a row whose aggregates do not fit each other, make a unit that is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.api.changelog import DELETE, INSERT, ROW_KIND, UPDATE_AFTER, with_row_kind
from penstock.api.functions import EPOCH, KeyedContext, KeyedFunction
from penstock.api.running_schema import running_partial_schema, running_result_schema
from penstock.api.state_declarations import value_state
from penstock.api.steps import Aggregate, RunningCombineStep, RunningStep, SelectStep
from penstock.sim.inputs import Row
from penstock.sim.jobs import SCHEMA

BUCKETS = 3
WRONG = -1
"""Stands for the number of a unit of a change that is wrong."""

_COUNTS = (Aggregate(name="n", kind="count", column=None), Aggregate(name="top", kind="max", column="value"))
_TOTALS = (
    Aggregate(name="total", kind="sum", column="n"),
    Aggregate(name="rows", kind="count", column=None),
    Aggregate(name="mean", kind="mean", column="n"),
    Aggregate(name="most", kind="max", column="n"),
    Aggregate(name="values", kind="collect_list", column="n"),
    Aggregate(name="keys", kind="count_distinct", column="key"),
)


def _steps(
    keys: tuple[str, ...], aggregates: tuple[Aggregate, ...], schema: pa.Schema, *, retracts: bool
) -> tuple[RunningCombineStep, RunningStep]:
    how: dict[str, Any] = {"keys": keys, "aggregates": aggregates, "retracts": retracts}
    partial, result = running_partial_schema(schema, **how), running_result_schema(schema, **how)
    combine = RunningCombineStep(input_schema=schema, schema=partial, **how)
    return combine, RunningStep(input_schema=schema, partial=partial, schema=result, **how)


COMBINE_COUNTS, COUNTS = _steps(("key",), _COUNTS, SCHEMA, retracts=False)
"""How many records each key has."""

BUCKETED = pa.schema([*list(COUNTS.schema)[:-1], pa.field("bucket", SCHEMA.field("key").type)])
BUCKET = SelectStep(columns=((pl.col("key") % BUCKETS).alias("bucket"),), keep=True, schema=with_row_kind(BUCKETED))
"""Puts keys into buckets."""

COMBINE_TOTALS, TOTALS = _steps(("bucket",), _TOTALS, BUCKETED, retracts=True)
"""How many records the keys of each bucket have together."""

BUCKET_KEY = pa.schema([BUCKETED.field("bucket")])


class Rises(KeyedFunction):
    """Makes the units of the changes of totals."""

    row = value_state("row", "string")
    """The row of the bucket after the changes so far, as text."""
    reached = value_state("reached", "bigint", default=0)
    """The greatest total of the bucket so far."""

    def on_row(self, row: dict[str, Any], context: KeyedContext) -> Iterator[dict[str, Any]]:
        """The units up to the total of the row; a wrong unit if the row cannot be."""
        kind = row.pop(ROW_KIND)
        row["values"].sort()
        before = self.row.get()
        if kind in (INSERT, UPDATE_AFTER):
            fits = (before is None) == (kind == INSERT) and _fits(row)
            self.row.set(str(row))
        else:
            fits = before == str(row)
            # Only the half that takes the old row away has been seen of an update: its other half comes next.
            if kind == DELETE:
                self.row.clear()
        if not fits:
            yield _unit(context.key, WRONG)
        for number in range(self.reached.get() + 1, row["total"] + 1):
            yield _unit(context.key, number)
        self.reached.set(max(self.reached.get(), row["total"]))


def _fits(row: dict[str, Any]) -> bool:
    values: list[int] = row["values"]
    return bool(
        row["total"] == sum(values)
        and row["rows"] == len(values) == row["keys"]
        and row["most"] == max(values)
        and row["mean"] == sum(values) / len(values)
    )


def _unit(bucket: int, number: int) -> dict[str, Any]:
    return {"key": bucket, "seq": number, "value": 0, "ts": EPOCH}


def expected_units(records: Iterable[Row]) -> Counter[Row]:
    """The units of all records, from the records alone."""
    counts = Counter(record[0] % BUCKETS for record in records)
    return Counter((bucket, number, 0, 0) for bucket, count in counts.items() for number in range(1, count + 1))

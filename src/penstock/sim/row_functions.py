"""The functions of the user in the jobs of a world."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa

from penstock.api.functions import FunctionContext, ProcessFunction
from penstock.api.steps import Aggregate
from penstock.api.window_schema import result_schema
from penstock.sim import rich_windows
from penstock.sim.external import system_of
from penstock.sim.jobs import SCHEMA

AGGREGATES = (Aggregate(name="n", kind="count", column=None), Aggregate(name="top", kind="max", column="value"))

RESULTS = result_schema(SCHEMA, keys=("key",), time_column="ts", aggregates=AGGREGATES)
"""The schema of the results of windows by key."""

BUCKETS = 4
"""How many different values there are behind the first exchange of the shape `TWICE`."""


def keep_condition() -> pl.Expr:
    """The condition by which windows, timers and one branch of a diamond filter records."""
    return pl.col("value") % 3 != 0


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with doubled values."""
    return _with_values(batch, pl.Series(batch.column("value")) * 2)


def bucket(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with one of `BUCKETS` values in each row."""
    return _with_values(batch, pl.Series(batch.column("value")) % BUCKETS)


def compare(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The results of windows with many aggregates, compared with each other, as the results of other windows."""
    return rich_windows.compared(batch, RESULTS)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch itself."""
    return batch


def by_key(batch: pa.RecordBatch, subtasks: int) -> pl.Series:
    """The subtask of every record, by its key."""
    return (pl.Series(batch.column("key")) * 7 + 1) % subtasks


class NegatesMisplaced(ProcessFunction):
    """Hands records on. The value of a record that `by_key` sends to another subtask becomes negative."""

    def on_batch(self, batch: pa.RecordBatch, context: FunctionContext) -> pa.RecordBatch:
        """The batch, with the values of misplaced records negated."""
        values = pl.Series(batch.column("value"))
        is_here = by_key(batch, context.parallelism) == context.subtask
        return _with_values(batch, values.zip_with(is_here, -1 - values))


def _with_values(batch: pa.RecordBatch, values: pl.Series) -> pa.RecordBatch:
    return batch.set_column(2, "value", values.to_arrow())


class Negate:
    """Makes values negative, row by row. Each row may take processor time."""

    def __init__(self, world: int, row_us: int) -> None:
        self._world = world
        self._row_us = row_us

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with its value negated."""
        if self._row_us:
            system_of(self._world).spend(self._row_us)
        return {**row, "value": -1 - row["value"]}


class Slow:
    """Hands batches on. Each batch takes processor time."""

    def __init__(self, world: int, batch_us: int) -> None:
        self._world = world
        self._batch_us = batch_us

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch itself."""
        system_of(self._world).spend(self._batch_us)
        return batch

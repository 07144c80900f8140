"""The value columns of records, as the calculations of aggregates name them.

An aggregate with a condition has columns of its own. Where a record does not meet the condition, these columns are
null: every kind of aggregate leaves out such records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.aggregate_functions import AggregateFunction
from penstock.api.aggregate_kinds.base import one_array, value_of
from penstock.api.steps import Aggregate

_MASK = "condition"


def record_values(batch: pa.RecordBatch, aggregates: Sequence[Aggregate]) -> dict[str, Any]:
    """The columns that `of_records` reads, by name. Raises a `PolarsError` if a condition cannot be computed."""
    masks = _masks(batch, aggregates)
    found: dict[str, Any] = {}
    for aggregate in aggregates:
        columns = aggregate.columns
        if aggregate.where is None:
            found.update({str(value_of(aggregate, column)): batch.column(column) for column in columns})
            continue
        mask = masks[aggregate.name]
        if not columns or aggregate.function is not None:
            found[str(value_of(aggregate, None))] = mask
        # Rows by number, because a choice between a value and null is not there for every type.
        rows = pc.if_else(mask, pa.array(np.arange(batch.num_rows)), pa.scalar(None, pa.int64()))
        for column in columns:
            found[str(value_of(aggregate, column))] = batch.column(column).take(rows)
    return dict(sorted(found.items()))


def _masks(batch: pa.RecordBatch, aggregates: Sequence[Aggregate]) -> dict[str, Any]:
    """For each aggregate with a condition: true where a record meets the condition, and null everywhere else."""
    # By the name of the aggregate: the texts of two different expressions may be equal, because Polars shortens lists.
    conditions = {a.name: a.where.expression for a in aggregates if a.where is not None}
    if not conditions:
        return {}
    # Only programs with conditions wait for the import of Polars.
    import polars as pl

    reads = dict.fromkeys(name for expression in conditions.values() for name in expression.meta.root_names())
    # If no column is read, any column will do: the column gives the frame its height.
    frame = pl.DataFrame(batch.select(list(reads) or batch.schema.names[:1]))
    found: dict[str, Any] = {}
    for name, expression in conditions.items():
        mask = one_array(frame.with_columns(expression.alias(_MASK)).get_column(_MASK).to_arrow())
        found[name] = pc.if_else(mask, mask, pa.scalar(None, pa.bool_()))
    return found


def adds_by_row(aggregates: Iterable[Aggregate]) -> bool:
    """Whether an aggregate of the user's is called with every record: such calls may be slow."""
    plain = AggregateFunction.add_batch
    return any(each.function is not None and type(each.function).add_batch is plain for each in aggregates)

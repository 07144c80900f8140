"""Filters and computed columns, by Polars expressions over whole batches; and streams that become one.

Only the columns an expression reads go into Polars; what it does not compute stays the array it was, so nothing is
copied or changes its type on the way. Polars runs in its own pool, whose size the process sets before it is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.api.steps import SelectStep, UnionStep, WhereStep
from penstock.core.errors import UserCodeError
from penstock.runtime.task.operators.base import Operator

_MASK = "condition"


class WhereOperator(Operator):
    """Only records for which the condition is true; null counts as false."""

    def __init__(self, step: WhereStep) -> None:
        self._condition = step.condition.alias(_MASK)
        self._reads = _reads((step.condition,))

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on the records that meet the condition; the batch itself if all do."""
        if batch.num_rows == 0:
            return
        try:
            mask = _frame(batch, self._reads).with_columns(self._condition).get_column(_MASK)
        except pl.exceptions.PolarsError as error:
            raise _user_error(self, error) from error
        kept = int(mask.sum() or 0)
        if kept == batch.num_rows:
            self.output.emit(batch)
        elif kept:
            self.output.emit(batch.filter(mask.to_arrow()))


class SelectOperator(Operator):
    """Computed columns, in place of the record or beside its other columns."""

    def __init__(self, step: SelectStep) -> None:
        self._step = step
        self._reads = _reads(step.columns)
        self._computed: frozenset[str] | None = None

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on the batch with its computed columns, in exactly the step's schema."""
        if batch.num_rows == 0:
            return
        schema = self._step.schema
        try:
            frame = _frame(batch, self._reads)
            if self._computed is None:
                # Only against columns is it known what an expression such as `all()` makes.
                self._computed = frozenset(frame.lazy().select(*self._step.columns).collect_schema().names())
            frame = frame.with_columns(*self._step.columns)
            columns = [
                _as_type(frame.get_column(field.name).to_arrow(), field.type)
                if field.name in self._computed
                else batch.column(field.name)
                for field in schema
            ]
        except Exception as error:
            raise _user_error(self, error) from error
        self.output.emit(pa.RecordBatch.from_arrays(columns, schema=schema))


class UnionOperator(Operator):
    """What comes in on any input, under one schema: batches that are merged behind it must agree on all of it."""

    def __init__(self, step: UnionStep) -> None:
        self._schema = step.schema

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand the records on."""
        if not batch.schema.equals(self._schema, check_metadata=True):
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        self.output.emit(batch)


def _reads(expressions: Sequence[pl.Expr]) -> list[str] | None:
    """The columns that expressions read; None if that depends on what columns there are."""
    if any(expression.meta.has_multiple_outputs() for expression in expressions):
        return None
    return list(dict.fromkeys(name for expression in expressions for name in expression.meta.root_names()))


def _frame(batch: pa.RecordBatch, reads: list[str] | None) -> pl.DataFrame:
    if reads is None:
        return pl.DataFrame(batch)
    # Where nothing is read, any column will do: it gives the frame its height.
    return pl.DataFrame(batch.select(reads or batch.schema.names[:1]))


def _as_type(column: Any, wanted: pa.DataType) -> Any:
    return column if column.type == wanted else column.cast(wanted)


def _user_error(operator: Operator, error: Exception) -> UserCodeError:
    # Polars appends what it was doing, in a form that says nothing to who wrote the expression.
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return UserCodeError(operator=operator.context.name, subtask=operator.context.task.subtask, traceback_text=text)

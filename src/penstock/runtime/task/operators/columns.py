"""Filters, splits and computed columns, by Polars expressions over whole batches; and the union of streams.

Only the columns that an expression reads go into Polars. A column that is not computed stays the same Arrow array: the
column is not copied, and its type does not change. Polars has a thread pool of its own. The process sets the size of
the pool before Polars is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.api.steps import SelectStep, SplitStep, UnionStep, WhereStep
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.changes import kept_changes
from penstock.runtime.task.operators.user_code import expression_error

_MASK = "condition"
_CHOICE = "choice"


class WhereOperator(Operator):
    """Hands on only the records for which the condition is true; null counts as false."""

    def __init__(self, step: WhereStep) -> None:
        self._condition = step.condition.alias(_MASK)
        self._reads = _reads((step.condition,))
        self._has_changes = step.has_changes

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on the records that meet the condition; if all records do, the batch itself."""
        if batch.num_rows == 0:
            return
        try:
            mask = _frame(batch, self._reads).with_columns(self._condition).get_column(_MASK)
        except pl.exceptions.PolarsError as error:
            raise expression_error(error, self.context) from error
        kept = int(mask.sum() or 0)
        if kept == batch.num_rows:
            self.output.emit(batch)
        elif kept and self._has_changes:
            self.output.emit(kept_changes(batch, mask.fill_null(value=False).to_numpy()))
        elif kept:
            self.output.emit(batch.filter(mask.to_arrow()))


class SplitOperator(Operator):
    """Hands each record to the side output of the first condition that is true; null counts as false. Records for which
    no condition is true go to the main output."""

    def __init__(self, step: SplitStep) -> None:
        self._names = [name for name, _ in step.conditions]
        self._choice = pl.lit(len(self._names), pl.UInt32)
        for number, (_, condition) in reversed(list(enumerate(step.conditions))):
            self._choice = pl.when(condition).then(pl.lit(number, pl.UInt32)).otherwise(self._choice)
        self._reads = _reads([condition for _, condition in step.conditions])

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on every record once; if all records go the same way, the batch itself."""
        if batch.num_rows == 0:
            return
        try:
            chosen = _frame(batch, self._reads).with_columns(self._choice.alias(_CHOICE)).get_column(_CHOICE).to_numpy()
        except pl.exceptions.PolarsError as error:
            raise expression_error(error, self.context) from error
        counts = np.bincount(chosen, minlength=len(self._names) + 1).tolist()
        for number, name in enumerate(self._names):
            if counts[number] and name in self.sides:
                self.sides[name].emit(_picked(batch, chosen == number, counts[number]))
        if counts[-1] and self.main_is_read:
            self.output.emit(_picked(batch, chosen == len(self._names), counts[-1]))


class SelectOperator(Operator):
    """Computes columns, in place of the record or beside the other columns of the record."""

    def __init__(self, step: SelectStep) -> None:
        self._schema = step.schema
        self._maker = ColumnMaker(step.columns, list(step.schema))

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on the batch with its computed columns, in exactly the step's schema."""
        if batch.num_rows == 0:
            return
        columns = list(self._maker.columns(batch, self).values())
        self.output.emit(pa.RecordBatch.from_arrays(columns, schema=self._schema))


class ColumnMaker:
    """Computes columns of a batch by expressions. A column that no expression computes is the column of the batch."""

    def __init__(self, expressions: Sequence[pl.Expr], fields: Sequence[pa.Field[pa.DataType]]) -> None:
        self._expressions = expressions
        self._fields = fields
        self._reads = _reads(expressions)
        self._computed: frozenset[str] | None = None

    def columns(self, batch: pa.RecordBatch, operator: Operator) -> dict[str, Any]:
        """The columns in the types of the fields, by name and in the order of the fields. Raises an error that names
        `operator`."""
        try:
            frame = _frame(batch, self._reads)
            if self._computed is None:
                # Which columns an expression such as `all()` makes is known only with the columns of a batch.
                self._computed = frozenset(frame.lazy().select(*self._expressions).collect_schema().names())
            frame = frame.with_columns(*self._expressions)
            return {
                field.name: _as_type(frame.get_column(field.name).to_arrow(), field.type)
                if field.name in self._computed
                else batch.column(field.name)
                for field in self._fields
            }
        except Exception as error:
            raise expression_error(error, operator.context) from error


class UnionOperator(Operator):
    """Hands on the records of all inputs under one schema. Batches that are merged behind the operator must have the
    same schema, metadata included."""

    def __init__(self, step: UnionStep) -> None:
        self._schema = step.schema

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand the records on."""
        if not batch.schema.equals(self._schema, check_metadata=True):
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        self.output.emit(batch)


def condition_mask(batch: pa.RecordBatch, condition: pl.Expr) -> npt.NDArray[np.bool_]:
    """For which records of a batch a condition is true; null counts as false."""
    mask = _frame(batch, None).select(condition.alias(_MASK)).get_column(_MASK).fill_null(value=False).to_numpy()
    # A condition without columns is a single value.
    return np.broadcast_to(np.asarray(mask), (batch.num_rows,))


def condition_masks(batch: pa.RecordBatch, conditions: Sequence[pl.Expr]) -> list[npt.NDArray[np.bool_]]:
    """For each of some conditions, for which records of a batch it is true; null counts as false. Computed in one
    pass."""
    frame = _frame(batch, _reads(conditions))
    found = frame.select(expr.fill_null(value=False).alias(str(number)) for number, expr in enumerate(conditions))
    # A condition without columns is a single value.
    masks = (np.asarray(column.to_numpy()) for column in found.get_columns())
    return [np.broadcast_to(mask, (batch.num_rows,)) for mask in masks]


def _picked(batch: pa.RecordBatch, mask: npt.NDArray[np.bool_], count: int) -> pa.RecordBatch:
    return batch if count == batch.num_rows else batch.filter(pa.array(mask))


def _reads(expressions: Sequence[pl.Expr]) -> list[str] | None:
    """The columns that expressions read; None if these depend on which columns a batch has."""
    if any(expression.meta.has_multiple_outputs() for expression in expressions):
        return None
    return list(dict.fromkeys(name for expression in expressions for name in expression.meta.root_names()))


def _frame(batch: pa.RecordBatch, reads: list[str] | None) -> pl.DataFrame:
    if reads is None:
        return pl.DataFrame(batch)
    # If no column is read, any column will do: the column gives the frame its height.
    return pl.DataFrame(batch.select(reads or batch.schema.names[:1]))


def _as_type(column: Any, wanted: pa.DataType) -> Any:
    return column if column.type == wanted else column.cast(wanted)

"""Puts records of the two sides of a join together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import normal_keys
from penstock.api.join_steps import LEFT, JoinedColumn, JoinStep, SameWindow, TableJoinStep, TwoSidedStep
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.user_code import expression_error

Rows = npt.NDArray[np.int64]


class Pairs:
    """Pairs of records: `left[i]` of one batch with `right[i]` of another batch."""

    def __init__(self, left: pa.RecordBatch, left_rows: Rows, right: pa.RecordBatch, right_rows: Rows) -> None:
        self._batches = (left, right)
        self._rows = (left_rows, right_rows)

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return int(self._rows[0].size)

    def of(self, mask: npt.NDArray[np.bool_]) -> Pairs:
        """Some of the pairs."""
        (left, right), (left_rows, right_rows) = self._batches, self._rows
        return self if mask.all() else Pairs(left, left_rows[mask], right, right_rows[mask])

    def rows(self, side: int) -> Rows:
        """The number of the record of a side in each pair."""
        return self._rows[side]

    def column(self, side: int, name: str) -> Any:
        """A column of one side."""
        return self._batches[side].column(name).take(self._rows[side])

    def equal(self, left: str, right: str) -> npt.NDArray[np.bool_]:
        """In which pairs a column of the left side equals a column of the right side, as keys are equal. Neither
        column has nulls."""
        first, second = normal_keys(self.column(0, left)), normal_keys(self.column(1, right))
        same = pc.equal(first, second)
        if pt.is_floating(first.type):
            same = pc.or_(same, pc.and_(pc.is_nan(first), pc.is_nan(second)))
        return np.asarray(same.to_numpy(zero_copy_only=False))


class ResultMaker:
    """Makes the results of a join."""

    def __init__(self, step: TwoSidedStep | TableJoinStep) -> None:
        self._step = step
        self._schema = pa.schema([column.field for column in step.columns])
        # In a right join the keys are those of the right record. Equal keys may still differ: 0.0 and -0.0 are equal.
        self._keys_of = 1 if step.how.value == "right" else LEFT
        self._condition: Any = None

    def pairs(self, pairs: Pairs) -> pa.RecordBatch:
        """One result for each pair."""
        arrays = [self._of_pairs(column, pairs) for column in self._step.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def alone(self, batch: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """One result for each record of a side, without a record of the other side."""
        arrays: list[Any] = []
        for column in self._step.columns:
            name = column.left if side == LEFT else column.right
            if name is not None:
                arrays.append(batch.column(name))
            elif column.left is None and column.right is None:
                arrays.append(self._bound(column, batch, side))
            else:
                kind: Any = column.field.type
                arrays.append(pa.nulls(batch.num_rows, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _of_pairs(self, column: JoinedColumn, pairs: Pairs) -> Any:
        if column.left is not None and (column.right is None or self._keys_of == LEFT):
            return pairs.column(0, column.left)
        if column.right is not None:
            return pairs.column(1, column.right)
        return self._bound(column, pairs, LEFT)

    def _bound(self, column: JoinedColumn, records: pa.RecordBatch | Pairs, side: int) -> Any:
        """The start or the end of the windows of records of a side. A record without a time has no window."""
        assert isinstance(self._step, JoinStep)
        given, reach = self._step.side(side), self._step.reach
        assert isinstance(reach, SameWindow)
        times: Any
        if isinstance(records, Pairs):
            times = records.column(side, given.time_column)
        else:
            times = records.column(given.time_column)
        values = int64_values(times.fill_null(0) if times.null_count else times)
        starts, lasts = reach.of(side, values + given.time_offset_us)
        bounds: Any = pa.array(
            {WINDOW_START: starts, WINDOW_END: lasts + 1}[column.field.name],
            mask=times.is_null().to_numpy(zero_copy_only=False) if times.null_count else None,
        )
        return bounds.view(column.field.type)

    def meeting(self, pairs: Pairs, keys: Sequence[tuple[str, str]], context: OperatorContext) -> Pairs:
        """The pairs whose keys are equal and for which the extra condition is true."""
        for left, right in keys:
            pairs = pairs.of(pairs.equal(left, right))
        step = self._step
        if step.where is None or pairs.count == 0:
            return pairs
        # Not imported at the top: a slot that needs no Polars starts sooner without Polars.
        from penstock.runtime.task.operators.columns import condition_mask

        columns = step.where_columns
        read = pa.RecordBatch.from_arrays(
            [self._of_pairs(column, pairs) for column in columns], schema=pa.schema([c.field for c in columns])
        )
        try:
            return pairs.of(condition_mask(read, step.where))
        except Exception as error:
            raise expression_error(error, context) from error

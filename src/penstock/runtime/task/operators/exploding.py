"""Several records of one record: a record of each element of an array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.steps import Explosion, SelectStep
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.columns import ColumnMaker
from penstock.runtime.task.operators.functions import emitted
from penstock.runtime.task.slices import MOST_ROWS, Work


class ExplodeOperator(Operator):
    """Computes columns, of which one has arrays, and makes a record of each element. The records leave in batches of at
    most `MOST_ROWS`, whatever the length of the arrays."""

    def __init__(self, step: SelectStep, explosion: Explosion) -> None:
        self._schema = step.schema
        self._explosion = explosion
        self._maker = ColumnMaker(
            step.columns,
            [
                field.with_type(pa.large_list(field.type)) if field.name == explosion.column else field
                for field in step.schema
                if field.name != explosion.position
            ],
        )

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand on the records of all elements."""
        if batch.num_rows == 0:
            return None
        return Work.begin(emitted(self, self._pieces(self._maker.columns(batch, self))))

    def _pieces(self, columns: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        explosion = self._explosion
        arrays: pa.LargeListArray[Any] = columns[explosion.column]
        lengths = arrays.value_lengths().fill_null(0).to_numpy()
        counts = np.maximum(lengths, 1) if explosion.is_outer else lengths
        ends = np.cumsum(counts)
        begins, first_elements = ends - counts, arrays.offsets.to_numpy()
        for start in range(0, int(ends[-1]), MOST_ROWS):
            numbers = np.arange(start, min(start + MOST_ROWS, int(ends[-1])))
            parents = np.searchsorted(ends, numbers, side="right")
            positions = numbers - begins[parents]
            nothing = lengths[parents] == 0 if explosion.is_outer else None
            elements = arrays.values.take(pa.array(first_elements[parents] + positions, mask=nothing))
            made = [
                elements
                if field.name == explosion.column
                else pa.array(positions, pa.int32(), mask=nothing)
                if field.name == explosion.position
                else columns[field.name].take(pa.array(parents))
                for field in self._schema
            ]
            yield pa.RecordBatch.from_arrays(made, schema=self._schema)

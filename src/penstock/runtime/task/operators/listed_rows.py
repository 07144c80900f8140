"""The records of lists, each as a record of its own: behind a window that keeps its first records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.aggregate_kinds.base import one_array
from penstock.api.aggregate_kinds.lists import flattened
from penstock.api.steps import WINDOW_ROWS, ListedRowsStep
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.functions import emitted
from penstock.runtime.task.slices import MOST_ROWS, Work


class ListedRowsOperator(Operator):
    """Makes a record of each listed record, with the columns beside the list."""

    def __init__(self, step: ListedRowsStep) -> None:
        self._step = step

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand on the records of all lists."""
        if batch.num_rows == 0:
            return None
        return Work.begin(emitted(self, self._pieces(batch)))

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        step, lists = self._step, one_array(batch.column(WINDOW_ROWS))
        records, parents = flattened(lists, np.arange(batch.num_rows))
        listed = {field.name: column for field, column in zip(records.type, records.flatten(), strict=True)}
        ranks: Any = np.arange(parents.size) - np.searchsorted(parents, parents) + 1
        for start in range(0, parents.size, MOST_ROWS):
            of_piece: Any = pa.array(parents[start : start + MOST_ROWS])
            columns: list[Any] = []
            for field in step.schema:
                if field.name == step.rank:
                    columns.append(pa.array(ranks[start : start + MOST_ROWS], pa.int32()))
                elif field.name in listed:
                    columns.append(listed[field.name].slice(start, MOST_ROWS))
                else:
                    columns.append(batch.column(field.name).take(of_piece))
            yield pa.RecordBatch.from_arrays(columns, schema=step.schema)

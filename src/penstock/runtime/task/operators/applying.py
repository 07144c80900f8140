"""A function of the user's over all records of a window. The records are a list in the result of the window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.aggregate_kinds.base import one_array
from penstock.api.steps import WINDOW_ROWS, ApplyStep
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.functions import conversions, emitted, results_of
from penstock.runtime.task.operators.user_code import wrong_result
from penstock.runtime.task.slices import Work


class ApplyOperator(Operator):
    """Calls a function once for each window."""

    def __init__(self, step: ApplyStep) -> None:
        self._step = step
        self._to_user, self._from_user = conversions(step.kind, step.made)

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand on what the function makes of the windows."""
        return Work.begin(emitted(self, self._made(batch)))

    def _made(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        step, wrong = self._step, wrong_result(self.context)
        lists: Any = one_array(batch.column(WINDOW_ROWS))
        # The offsets of an array that is a slice do not begin at 0, unlike the values that `flatten` gives.
        offsets = lists.offsets.to_numpy()
        rows, bounds = lists.flatten(), (offsets - offsets[0]).tolist()
        windows = batch.drop_columns([WINDOW_ROWS])
        for number in range(batch.num_rows):
            held = rows.slice(bounds[number], bounds[number + 1] - bounds[number])
            given = self._to_user(pa.RecordBatch.from_arrays(held.flatten(), schema=step.rows))
            window = windows.slice(number, 1)
            more = window.to_pylist() if step.takes_window else []
            for result in results_of(lambda given=given, more=more: step.function(given, *more), self.context):  # type: ignore[misc]
                for made in self._from_user(result, wrong):
                    places: Any = pa.array(np.zeros(made.num_rows, np.int64))
                    columns = [column.take(places) for column in window.columns]
                    yield pa.RecordBatch.from_arrays([*columns, *made.columns], schema=step.schema)

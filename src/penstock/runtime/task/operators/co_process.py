"""Functions over two keyed streams, whose records share the state and the timers of their key."""

from __future__ import annotations

import pyarrow as pa

from penstock.api.functions import KeyedCoFunction
from penstock.api.join_steps import LATE_OF_RIGHT, RIGHT
from penstock.api.steps import KeyedProcessStep, RightInput
from penstock.runtime.task.operators.keyed import KeyedOperator
from penstock.runtime.task.operators.process import on_time
from penstock.runtime.task.slices import Work


class CoOperator(KeyedOperator):
    """Runs a function over the rows of two keyed streams."""

    def __init__(self, step: KeyedProcessStep, function: KeyedCoFunction, right: RightInput) -> None:
        super().__init__(step)
        self._co_function = function
        self._right = right

    @property
    def timeless_inputs(self) -> tuple[int, ...]:
        """The input without a watermark, if the other input has a watermark."""
        return () if self._right.timeless is None else (self._right.timeless,)

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Call `on_left` for every row, with the state of the row's key."""
        return self._call_by_row(self._on_time(batch), self._step.keys, self._co_function.on_left)

    def process_input(self, batch: pa.RecordBatch, number: int) -> Work | None:
        """Call `on_left` for every row of the first input, and `on_right` for every row of the second input."""
        if number != RIGHT:
            return self.process(batch)
        right = self._right
        batch = on_time(batch, right.late, self.sides.get(LATE_OF_RIGHT), self._running.watermark_us)
        return self._call_by_row(batch, right.keys, self._co_function.on_right)

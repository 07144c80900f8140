"""Which records go on: chosen by a function of the user's program, or by a hash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.steps import FilterStep, SampleStep
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.rows import rows_of
from penstock.runtime.task.operators.user_code import guarded, wrong_result
from penstock.runtime.task.partitioning import row_hashes


class FilterOperator(Operator):
    """Hands on the records for which a function returns a true value. The values of a record do not change: the records
    are cut out of the batch, and are not made anew from the dicts."""

    def __init__(self, step: FilterStep) -> None:
        self._step = step

    @property
    def is_row_wise(self) -> bool:
        """True: the operator calls a function for every row."""
        return True

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on the chosen records; if all records are chosen, the batch itself."""
        if batch.num_rows == 0:
            return
        function, rows = self._step.function, rows_of(batch)
        found: list[Any] = guarded(lambda: [function(row) for row in rows], self.context)
        self._refuse_unawaited(found)
        chosen = guarded(lambda: list(map(bool, found)), self.context)
        emit_chosen(self, batch, pa.array(chosen, pa.bool_()))

    def _refuse_unawaited(self, found: list[Any]) -> None:
        """Raise `UserCodeError` if the function has called an async function: a coroutine counts as true, so that no
        record would ever be left out."""
        for kind in dict.fromkeys(map(type, found)):
            if hasattr(kind, "__await__") or hasattr(kind, "__anext__"):
                wrong = wrong_result(self.context)
                raise wrong(f"expected a true or false value; got {kind.__qualname__}, which nothing awaits")


class SampleOperator(Operator):
    """Hands on a part of the records. The hash of a record decides, so that the same record is decided in the same way
    in every subtask and every attempt."""

    def __init__(self, step: SampleStep) -> None:
        self._step = step
        # Hashes have 32 bits: all hashes are below the limit if the fraction is 1.
        self._limit = round(step.fraction * (1 << 32))

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on the chosen records; if all records are chosen, the batch itself."""
        if batch.num_rows == 0:
            return
        hashes = row_hashes(batch, self._step.columns, seed=self._step.seed)
        emit_chosen(self, batch, pa.array(hashes.astype(np.uint64) < self._limit))


def emit_chosen(operator: Operator, batch: pa.RecordBatch, chosen: pa.BooleanArray) -> None:
    """Hand on the records that are chosen, if there are any."""
    count = chosen.true_count
    if count == batch.num_rows:
        operator.output.emit(batch)
    elif count:
        operator.output.emit(batch.filter(chosen))

"""Which records go on: chosen by a function of the user's program."""

from __future__ import annotations

import pyarrow as pa

from penstock.api.steps import FilterStep
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.rows import rows_of
from penstock.runtime.task.operators.user_code import guarded


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
        chosen = guarded(lambda: [bool(function(row)) for row in rows], self.context)
        emit_chosen(self, batch, pa.array(chosen, pa.bool_()))


def emit_chosen(operator: Operator, batch: pa.RecordBatch, chosen: pa.BooleanArray) -> None:
    """Hand on the records that are chosen, if there are any."""
    count = chosen.true_count
    if count == batch.num_rows:
        operator.output.emit(batch)
    elif count:
        operator.output.emit(batch.filter(chosen))

"""The first record of each key. Batches stay batches: only the keys become Python values, each key of a batch once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.api.first_rows import FirstOfKey
from penstock.api.steps import KeyedProcessStep
from penstock.runtime.task.operators.choosing import emit_chosen
from penstock.runtime.task.operators.grouped import key_codes
from penstock.runtime.task.operators.keyed import KeyedOperator
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Work
from penstock.state.keys import keys_of


class DistinctOperator(KeyedOperator):
    """Hands on the first record of each key. Whether a key has been seen is keyed state."""

    def __init__(self, step: KeyedProcessStep, function: FirstOfKey) -> None:
        super().__init__(step)
        self._first = function

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand on the records whose keys have not been seen; if no key has been seen, the batch itself."""
        if batch.num_rows == 0:
            return None
        columns = batch.select(list(self._step.keys))
        _, rows = np.unique(key_codes(columns), return_index=True)
        if len(rows) < batch.num_rows:
            batch, columns = batch.take(rows), columns.take(rows)
        groups = key_groups(columns, self._step.keys, self.context.max_parallelism).tolist()
        set_key, is_first = self._backend.set_key, self._first.is_first
        chosen: list[bool] = []
        for key, group in zip(keys_of(dict(zip(self._step.keys, columns.columns, strict=True))), groups, strict=True):
            set_key(key, group)
            chosen.append(is_first())
        self._leave_key()
        emit_chosen(self, batch, pa.array(chosen))
        return self._begin(iter(()), len(chosen))

"""Records in the order of their event time.

A record waits in the state until the watermark has come to its time. Then no earlier record can come, and the record
leaves behind all records of earlier times. Records of the same time and key leave together, in the order of further
columns. A record that comes behind the watermark would break the order, and is late. Up to which time records have left
is state, by key group: so after a restore no record leaves that belongs before a record that has left.

At the end of all data every record leaves. After a stop with drain the data goes on if a job starts from the savepoint,
and then its records begin an order of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.aggregate_kinds.base import one_array
from penstock.api.aggregate_kinds.top_rows import OrderColumn, in_order
from penstock.api.join_steps import moved
from penstock.api.steps import LATE, SortStep
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators.base import Operator, OperatorContext, SnapshotWork
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.sorted_rows import SortedRows
from penstock.runtime.task.operators.window_state import WindowState
from penstock.runtime.task.operators.window_table import Header, Layout
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Steps, Work

_EMITTED_ROWS = 65_536
"""Records are handed on in batches of at most this many."""


class SortOperator(Operator):
    """Hands records on in the order of their event time."""

    def __init__(self, step: SortStep) -> None:
        self._step = step
        self._time = step.late.time_column
        self._order = (OrderColumn(self._time, descending=False), *(OrderColumn(*each) for each in step.order))
        self._table = SortedRows(step.keys, self._time, step.schema)
        self._to_close: SortedRows | None = None
        self._fired = Fired()
        self._leaving: pa.Table | None = None
        """Records that are due, in their order, and have not been handed on."""
        self._late_dropped = 0
        self._timeless_dropped = 0

    def load(self, context: OperatorContext) -> None:
        """Restore the records of this subtask's keys that wait, and how far event time had come."""
        self._state = WindowState(self._table, self._step, context)
        self._to_close = self._table
        if not context.fresh and context.restored:
            fired = self._state.load(lambda rows, _: self._table.append(rows))
            self._fired.restore(fired, context.key_groups)

    def close(self) -> None:
        """Let go of the records."""
        if self._to_close is not None:
            self._to_close.close()
            self._to_close = None

    # --- records ---------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Keep the records that are not late."""
        times: Any = batch.column(self._time)
        if times.null_count:
            self._timeless_dropped += times.null_count
            batch = batch.filter(times.is_valid())
        late = self._fired.late(self._times(batch), lambda: self._groups(batch))
        if late is not None and late.any():
            if LATE in self.sides:
                self.sides[LATE].emit(batch.filter(pa.array(late)))
            else:
                self._late_dropped += int(late.sum())
            batch = batch.filter(pa.array(~late))
        self._table.append(pa.Table.from_batches([batch]))
        return None

    def _times(self, batch: pa.RecordBatch) -> Any:
        return moved(int64_values(batch.column(self._time)), self._step.late.time_offset_us)

    def _groups(self, batch: pa.RecordBatch) -> Any:
        return key_groups(batch, self._step.keys, self.context.max_parallelism)

    # --- time ------------------------------------------------------------------------------

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Hand on the records that are due, then the watermark."""
        if time_us != MAX_WATERMARK:
            self._fired.advance(time_us)
        return Work.begin(self._to_watermark(time_us, idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        """Records that are due are in the state until they are handed on, so a snapshot may be taken between two
        batches of them."""
        last_us = time_us
        if time_us != MAX_WATERMARK:
            last_us = int(moved(np.array([time_us]), -self._step.late.time_offset_us)[0])
        while (due := self._table.take_due(last_us)) is not None:
            self._leaving = self._sorted(due)
            yield from self._hand_on()
        self.output.watermark(time_us, idle=idle)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        columns = [one_array(column) for column in rows.columns]
        records = pa.StructArray.from_arrays(columns, fields=list(rows.schema))
        places: Any = pa.array(in_order(records, np.zeros(rows.num_rows, np.int64), self._order))
        return rows.take(places).combine_chunks()

    def _hand_on(self) -> Steps:
        while self._leaving is not None:
            rows = min(_EMITTED_ROWS, self.slice.left)
            batch, rest = self._leaving.slice(0, rows), self._leaving.slice(rows)
            self._leaving = rest if rest.num_rows else None
            for piece in batch.to_batches():
                self.output.emit(pa.RecordBatch.from_arrays(piece.columns, schema=self._step.schema))
            if self.slice.spend(batch.num_rows):
                yield True

    # --- checkpoints -----------------------------------------------------------------------

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the records by reference. The returned work writes what no completed checkpoint has."""
        leaving = () if self._leaving is None else (self._leaving,)
        header = Header(layout=Layout.of(self._step), fired=self._fired.ranges(self.context.key_groups))
        return self._state.snapshot(checkpoint, options, header=header, rows=leaving)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Later checkpoints may refer to the files of this checkpoint."""
        self._state.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """No checkpoint may refer to the files of this checkpoint."""
        self._state.aborted(checkpoint)

    def metrics(self) -> dict[str, float]:
        """How many records wait, how many were late, and how many had no time."""
        return {
            "rows_kept": self._table.rows + (0 if self._leaving is None else self._leaving.num_rows),
            "late_dropped": self._late_dropped,
            "timeless_dropped": self._timeless_dropped,
        }

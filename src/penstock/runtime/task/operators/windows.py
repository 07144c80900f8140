"""Tumbling windows of event time. A window step has two halves: partial aggregates before the exchange by key, and
merged aggregates behind the exchange. The first half is the same for windows that share panes
(`operators/pane_windows.py`).

A window [start, end) is due when the watermark has reached end - 1. Partials of a window that has fired are late: they
are dropped and counted. Up to which time windows have fired is state, by key group. So after a restore, at any
parallelism, a window that has fired does not fire again, even though event time starts anew.

With an allowed lateness the event time of the window is behind the watermark by the lateness, in all that the window
does, and the watermark that the window hands on is behind as well.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.pane_windows import PaneWindow
from penstock.api.steps import CombineStep, WindowStep
from penstock.api.window_schema import TIME_TYPE, WINDOW_START, window_columns
from penstock.api.windows import TumblingWindow
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators.aggregation import (
    group,
    in_order,
    normal_keys,
    of_partials,
    of_records,
    results,
)
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork
from penstock.runtime.task.operators.dense import int64_values, ungrouped
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.record_values import adds_by_row, record_values
from penstock.runtime.task.operators.slow_merging import in_slices, merges_by_row
from penstock.runtime.task.operators.user_code import expression_error
from penstock.runtime.task.operators.window_state import WindowState
from penstock.runtime.task.operators.window_table import Header, Layout, WindowTable
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Slices, Steps, Work

RESULT_ROWS = 65_536
"""Results are handed on in batches of at most this many rows."""
_FIRST_TIME = -(2**63)
_HELD_ROWS = 4_096
"""Partials are held back to be merged while they have fewer rows than this."""
_WORTH_GROUPING = 0.9
"""Records are grouped before the exchange if a smaller share of rows is left."""
_UNGROUPED_BATCHES = 15
"""After a batch that grouping made hardly smaller, so many batches are not grouped. Then grouping is tried again."""


def settled_us(watermark_us: int, lateness_us: int) -> int:
    """The time up to which results cannot change any more, when records may come behind the watermark and count. The
    beginning and the end of event time stay what they are."""
    if watermark_us == MAX_WATERMARK:
        return watermark_us
    return max(watermark_us - lateness_us, _FIRST_TIME)


class CombineOperator(Operator):
    """Makes partial aggregates, per key and pane, of the batches between two watermarks, or of fewer batches. Every
    tumbling window is a pane. No window fires before the watermark moves. So partials that are held back delay no
    result, and fewer partials cross the exchange. All held partials are handed on before a barrier: the operator has no
    state."""

    def __init__(self, step: CombineStep) -> None:
        self._step = step
        self._ungrouped = 0
        """So many batches are not grouped, because most keys of the batch before were different: then to group records
        costs much, and saves nothing."""
        self._calculations = of_records(step.aggregates)
        self._merging = of_partials(step.aggregates)
        self._slow = Slices(most=_HELD_ROWS) if merges_by_row(step.aggregates) else None
        """How many partials are merged in a few milliseconds; None if merges call no aggregate of the user's."""
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self.timeless_dropped = 0
        """How many records had no time: such records belong to no window."""
        self._earliest, self._latest = step.window.times()
        self.beyond_time_dropped = 0
        """How many records had a time so near to the limits of 64 bits that the start or the end of the window does not
        fit."""

    @property
    def is_row_wise(self) -> bool:
        """Whether an aggregate of the user's is called with every record."""
        return adds_by_row(self._step.aggregates)

    def process(self, batch: pa.RecordBatch) -> None:
        """Make one row per key and pane of the batch."""
        step = self._step
        time_type: pa.DataType = TIME_TYPE
        if step.time_column is None:
            instants = np.zeros(batch.num_rows, np.int64)
        else:
            time_type = batch.schema.field(step.time_column).type
            batch, instants = self._timed(batch, step.time_column)
        if batch.num_rows == 0:
            return
        columns: dict[str, Any] = {key: normal_keys(batch.column(key)) for key in step.keys}
        columns.update(self._record_values(batch))
        partials = self._partials(columns, instants, time_type)
        partials = partials.select(step.schema.names)
        if not partials.schema.equals(step.schema):
            partials = partials.cast(step.schema)
        most = _HELD_ROWS if self._slow is None else self._slow.rows
        if self._slow is not None and self._held_rows + partials.num_rows > most:
            self.before_barrier()
        self._held.append(partials)
        self._held_rows += partials.num_rows
        if self._held_rows >= most or not step.holds:
            self.before_barrier()

    def _timed(self, batch: pa.RecordBatch, column: str) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """The records that belong to a window, and their times."""
        times: Any = batch.column(column)
        if times.null_count:
            batch = batch.filter(times.is_valid())
            self.timeless_dropped += len(times) - batch.num_rows
            times = batch.column(column)
        instants = int64_values(times)
        if self._step.time_offset_us:
            instants = instants + self._step.time_offset_us
        if instants.size and (instants.min() < self._earliest or instants.max() > self._latest):
            inside = (instants >= self._earliest) & (instants <= self._latest)
            self.beyond_time_dropped += batch.num_rows - int(inside.sum())
            batch, instants = batch.filter(pa.array(inside)), instants[inside]
        return batch, instants

    def _record_values(self, batch: pa.RecordBatch) -> dict[str, Any]:
        try:
            return record_values(batch, self._step.aggregates)
        except Exception as error:
            raise expression_error(error, self.context) from error

    def _partials(self, columns: dict[str, Any], instants: npt.NDArray[np.int64], time_type: Any) -> pa.Table:
        """One row per key and pane. `columns` are the keys and the values of the records, `instants` their times."""
        panes, keys = self._panes, self._step.keys
        first, last = panes.assign(np.array([instants.min(), instants.max()])).tolist()
        if first == last and keys:
            # Most batches have only one pane.
            partials = self._grouped(pa.table(columns), keys)
            filled: Any = pa.array(np.full(partials.num_rows, first)).view(time_type)
            return partials.append_column(WINDOW_START, filled)
        starts: Any = pa.array(panes.assign(instants)).view(time_type)
        return self._grouped(pa.table({**columns, WINDOW_START: starts}), [*keys, WINDOW_START])

    def _grouped(self, records: pa.Table, keys: Sequence[str]) -> pa.Table:
        if self._ungrouped:
            self._ungrouped -= 1
            partials = ungrouped(records, keys, self._calculations)
            if partials is not None:
                return partials
        partials = group(records, keys, self._calculations, window=self._panes)
        if records.num_rows >= _HELD_ROWS and partials.num_rows > _WORTH_GROUPING * records.num_rows:
            self._ungrouped = _UNGROUPED_BATCHES
        return partials

    @cached_property
    def _panes(self) -> TumblingWindow:
        assert isinstance(self._step.window, TumblingWindow | PaneWindow)
        return self._step.window.panes

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Hand on the partials that are held, then the watermark."""
        self.before_barrier()
        self.output.watermark(time_us, idle=idle)

    def before_barrier(self) -> None:
        """Hand on the partials that are held."""
        held, self._held, self._held_rows = self._held, [], 0
        if not held:
            return
        since_ms = self.slice.now_ms()
        partials = held[0] if len(held) == 1 else self._merged(pa.concat_tables(held))
        if self._slow is not None and len(held) > 1:
            self._slow.took(sum(each.num_rows for each in held), self.slice.now_ms() - since_ms)
        for part in partials.combine_chunks().to_batches():
            self.output.emit(part)

    def finish(self) -> None:
        """All data has been seen: hand on the partials that are held."""
        self.before_barrier()

    def _merged(self, partials: pa.Table) -> pa.Table:
        merged = group(partials, [*self._step.keys, WINDOW_START], self._merging, window=self._panes)
        return merged.select(self._step.schema.names).cast(self._step.schema)

    def metrics(self) -> dict[str, float]:
        """How many records belong to no window: they had no time, or a time whose window does not fit into 64 bits."""
        return {"timeless_dropped": self.timeless_dropped, "beyond_time_dropped": self.beyond_time_dropped}


class WindowOperator(Operator):
    """Merges partials per key and window. The results of a window are emitted when the watermark passes the window."""

    def __init__(self, step: WindowStep) -> None:
        self._step = step
        self._table = self._make_table(step)
        self._to_close: WindowTable | None = None
        self._fired = Fired()
        self._leaving: pa.Table | None = None
        """Partials of windows that fire, whose results have not been handed on."""
        self.late_dropped = 0
        """How many partials came after their windows had fired."""

    def _make_table(self, step: WindowStep) -> WindowTable:
        return WindowTable(step)

    def load(self, context: OperatorContext) -> None:
        """Restore the rows of this subtask's key groups, and how far the windows of these key groups have fired."""
        self._state = WindowState(self._table, self._step, context)
        self._to_close = self._table
        if not context.fresh and context.restored:
            self._fired.restore(self._state.load(self._restore_rows), context.key_groups)

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start."""
        super().open(context, output)
        self._state.begin()

    def close(self) -> None:
        """Let go of the table."""
        if self._to_close is not None:
            self._to_close.close()
            self._to_close = None

    def _restore_rows(self, rows: pa.Table, header: Header) -> None:  # noqa: ARG002
        self._table.append(rows)

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Take partials in. Late partials are dropped and counted."""
        if self._table.slow is not None:
            return Work.begin(self._merge_in(batch))
        self._append(batch)
        return None

    def _merge_in(self, batch: pa.RecordBatch) -> Steps:
        """Take partials in, and merge in slices."""
        # The partials are in no state before they are appended.
        yield from in_slices(self._before_append(batch), may_snapshot=False)
        self._append(batch)
        yield from in_slices(self._table.settle(self.slice), may_snapshot=True)

    def _before_append(self, batch: pa.RecordBatch) -> Generator[None, None, None]:  # noqa: ARG002
        """Merge what must be merged before it is known which partials are late."""
        yield from ()

    def _append(self, batch: pa.RecordBatch) -> None:
        late = self._late(batch)
        if late is not None and late.any():
            self.late_dropped += int(late.sum())
            batch = batch.filter(pa.array(~late))
        self._table.append(pa.Table.from_batches([batch]))

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Fire the windows that are due, then hand the watermark on."""
        time_us = settled_us(time_us, self._step.lateness_us)
        # After a stop with drain the data goes on if a job starts from the savepoint. So no record may be late because
        # of the stop.
        if time_us != MAX_WATERMARK:
            self._fired.advance(time_us)
        return Work.begin(self._to_watermark(time_us, idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        """Partials that are due are in the state until their results are handed on, so a snapshot may be taken between
        two batches of results. After a restore these partials are not late, although their window has fired: they are
        in the restored table."""
        last = self._step.window.last_complete(time_us)
        while (due := (yield from self._next_due(last))) is not None:
            yield from self._hand_on(due)
        self._hand_on_watermark(time_us, idle=idle)

    def _next_due(self, last_us: int) -> Generator[bool, None, pa.Table | None]:
        """The first partials that are due, merged; None if no partials are due."""
        return (yield from in_slices(self._table.take_due_in_slices(last_us, self.slice), may_snapshot=True))

    def _hand_on_watermark(self, time_us: int, *, idle: bool) -> None:
        self.output.watermark(time_us, idle=idle)

    def _hand_on(self, merged: pa.Table, *, may_snapshot: bool = True) -> Steps:
        """Hand on the results of merged partials, in the order of their windows and keys."""
        step = self._step
        self._leaving = in_order(merged, window_columns(step.window), step.keys)
        while self._leaving is not None:
            rows = min(RESULT_ROWS, self.slice.left)
            batch, rest = self._leaving.slice(0, rows), self._leaving.slice(rows)
            made = results(batch, keys=step.keys, window=step.window, aggregates=step.aggregates, schema=step.schema)
            self._leaving = rest if rest.num_rows else None
            for piece in made.combine_chunks().to_batches():
                self.output.emit(piece)
            if self.slice.spend(made.num_rows):
                yield may_snapshot

    def metrics(self) -> dict[str, float]:
        """How many partials came after their windows had fired."""
        return {"late_dropped": self.late_dropped}

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the partials by reference. The returned work writes what no completed checkpoint has."""
        leaving = () if self._leaving is None else (self._leaving,)
        header = Header(layout=Layout.of(self._step), fired=self._fired.ranges(self.context.key_groups))
        return self._state.snapshot(checkpoint, options, header=header, rows=leaving)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Later checkpoints may refer to the files of this checkpoint."""
        self._state.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """No checkpoint may refer to the files of this checkpoint."""
        self._state.aborted(checkpoint)

    def _late(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """Which rows are late; None if no row is late."""
        last_times = self._table.completing_times(batch) + ((self._step.window.length_us or 0) - 1)
        return self._fired.late(last_times, lambda: self._groups(batch))

    def _groups(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        return key_groups(batch, self._step.keys, self.context.max_parallelism)

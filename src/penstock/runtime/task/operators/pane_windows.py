"""Windows that share panes: sliding and cumulative windows.

State has one row per key and pane, whatever the overlap. When the watermark passes the ends of windows, the rows of
their panes are repeated once for each window that fires, and grouped by key and window. Windows that fire together are
put together in parts of about `window_table.PART_ROWS` repeated rows, or of one window. A part with more rows is put
together in pieces, each with the keys of a range of hashes.

    watermark ─► which windows are due ─► a part of them ─► a piece: take, group, order ─► results, in slices ─► …
                                              └─ from here on the windows of the part count as fired

A pane stays in the state until the last window that holds the pane has fired. So it is not the rows that say which
windows have fired. It is the time that the windows of each key group have come to: this time moves on with every part.
The windows of such a part are saved as whole windows until their results are handed on. Pieces that have not been put
together are put together for the snapshot, off the loop.

A record is late when all windows that hold its pane have fired. A record that is late for some of its windows counts in
the other windows.

At the end of event time that time does not move, because records may follow a drain. So no snapshot is taken until all
windows have fired.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.pane_windows import PaneWindow
from penstock.api.steps import WindowStep
from penstock.api.window_schema import WINDOW_START, window_columns
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators import window_table
from penstock.runtime.task.operators.aggregation import of_partials
from penstock.runtime.task.operators.base import SnapshotWork
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.pane_pieces import PanePieces, Piece, panes_of, parts_of
from penstock.runtime.task.operators.slow_merging import in_slices
from penstock.runtime.task.operators.window_table import Header, Layout, WindowTable
from penstock.runtime.task.operators.windows import WindowOperator, settled_us
from penstock.runtime.task.slices import Steps, Work

Times = npt.NDArray[np.int64]


class PaneWindowOperator(WindowOperator):
    """Merges partials per key and pane. Windows are put together from panes when the watermark passes their ends."""

    def __init__(self, step: WindowStep) -> None:
        super().__init__(step)
        assert isinstance(step.window, PaneWindow)
        self._window = step.window
        self._panes = PanePieces(step.window, step.keys, of_partials(step.aggregates))
        self._pieces: list[Piece] = []
        """Windows that count as fired and have not been put together."""
        self._restored: pa.Table | None = None
        """Whole windows whose results had not been handed on when the snapshot was taken. Their time has not come again
        yet."""

    def _make_table(self, step: WindowStep) -> WindowTable:
        assert isinstance(step.window, PaneWindow)
        table = WindowTable(replace(step, window=step.window.panes))
        # A pane is read for each window that holds the pane.
        table.reads_once = False
        return table

    def _restore_rows(self, rows: pa.Table, header: Header) -> None:
        if header.leaving is not True:
            self._table.append(rows)
        elif rows.num_rows:
            self._restored = rows if self._restored is None else pa.concat_tables([self._restored, rows])

    def _late(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        last_times = self._window.last_end(int64_values(batch.column(WINDOW_START))) - 1
        return self._fired.late(last_times, lambda: self._groups(batch))

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Fire the windows that are due, then hand the watermark on."""
        return Work.begin(self._to_watermark(settled_us(time_us, self._step.lateness_us), idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        is_end = time_us == MAX_WATERMARK
        yield from self._again(time_us, may_snapshot=not is_end)
        if self._may_be_due(time_us):
            yield from self._fire(time_us, may_snapshot=not is_end)
        if not is_end:
            self._fired.advance(time_us)
        self._hand_on_watermark(time_us, idle=idle)

    def _again(self, time_us: int, *, may_snapshot: bool) -> Steps:
        """Hand on the windows that were being handed on when the snapshot was taken, if their time has come again."""
        if self._restored is None:
            return
        ends = int64_values(self._restored.column(window_columns(self._window)[-1])) + (self._window.length_us or 0)
        due = ends - 1 <= time_us
        if due.any():
            leaving, rest = self._restored.filter(pa.array(due)), self._restored.filter(pa.array(~due))
            self._restored = rest if rest.num_rows else None
            yield from self._hand_on(leaving, may_snapshot=may_snapshot)

    def _may_be_due(self, time_us: int) -> bool:
        """Whether a window may be due. Most watermarks complete no window, and cost no look at the rows."""
        earliest = self._table.earliest
        if earliest is None:
            return False
        window = self._window
        bounds = np.array([earliest + window.panes.size_us - 1, self._fired.least + 1])
        return int(window.end_after(bounds).max()) - 1 <= time_us

    def _fire(self, time_us: int, *, may_snapshot: bool) -> Steps:
        window = self._window
        if self._table.slow is not None:
            yield from in_slices(self._table.flush_in_slices(self.slice), may_snapshot=may_snapshot)
        runs = self._table.runs()
        panes, rows = yield from panes_of(runs, time_us, may_snapshot=may_snapshot)
        first = np.maximum(window.first_end(panes), window.end_after(np.array([self._fired.least + 1])))
        last = window.last_end(panes)
        latest = None
        if may_snapshot:
            # The last end that the watermark has reached is one spacing before the first end that is not reached.
            latest = int(window.end_after(np.array([time_us + 1]))[0]) - window.spacing_us
            last = np.minimum(last, latest)
        done = int(first.min()) - window.spacing_us
        for end in parts_of(first, last, window.spacing_us, most=window_table.PART_ROWS, rows=rows):
            begin, done = done + window.spacing_us, end
            held = (first <= end) & (last >= begin)
            ends = np.minimum(last, end) - np.maximum(first, begin)
            repeated = int(((ends // window.spacing_us + 1) * rows)[held].sum())
            self._pieces = self._panes.pieces(
                runs,
                panes[held],
                (begin, end),
                fired=copy(self._fired),
                rows=repeated,
                limits=self._table.limits,
                groups=self.context.max_parallelism,
            )
            if may_snapshot:
                self._fired.advance(end - 1)
            while self._pieces:
                # A piece that is put together in slices is in the state until that is done.
                merged = yield from self._panes.done(
                    self._pieces[0], self._table.slow, self.slice, may_snapshot=may_snapshot
                )
                del self._pieces[0]
                if merged is not None:
                    yield from self._hand_on(merged, may_snapshot=may_snapshot)
        self._table.drop(window.first_kept(int(last.max())) - 1)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the panes by reference. The returned work writes the panes that no completed checkpoint has, and the
        windows whose results have not been handed on."""
        leaving: list[Callable[[], pa.Table | None]] = [
            partial(_as_it_is, rows) for rows in (self._leaving, self._restored) if rows is not None
        ]
        header = Header(layout=Layout.of(self._step), fired=self._fired.ranges(self.context.key_groups))
        return self._state.snapshot(checkpoint, options, header=header, windows=(*leaving, *self._pieces))


def _as_it_is(rows: pa.Table) -> pa.Table:
    return rows

"""Windows that are made of panes and show updates: tumbling windows, each of which is a pane, sliding and cumulative
windows.

Partials are appended to the rows of their panes, as for windows with final results, and no row is looked up for them.
Rows are looked up only for partials of windows that are shown: what these windows were before, and what they are now,
makes the changes. So a window that shows updates of late records costs little more than a window with final results.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.pane_windows import PaneWindow, SlidingWindow
from penstock.api.steps import WindowStep
from penstock.api.window_schema import WINDOW_START
from penstock.api.windows import TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators import window_table
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.pane_pieces import PanePieces, Piece, panes_of, parts_of
from penstock.runtime.task.operators.run_lookup import HASH_BITS, rows_between, rows_like, rows_of_hashes
from penstock.runtime.task.operators.run_merging import like_runs
from penstock.runtime.task.operators.slow_merging import SlowMerging, merges_by_row
from penstock.runtime.task.operators.sorted_runs import (
    KEY_HASH,
    LAST_HASH,
    LiveSorted,
    RunLimits,
    few,
    lookup_limits,
    ordered,
)
from penstock.runtime.task.operators.updating_windows import UpdatingWindowOperator, Windows
from penstock.runtime.task.operators.window_changes import add_panes, changes_of_panes, repeated
from penstock.runtime.task.operators.window_table import WindowTable
from penstock.runtime.task.partitioning import key_hashes
from penstock.runtime.task.slices import Steps
from penstock.state.run_places import RunPlace

Times = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]

_FANOUT = 6
"""So many runs of about one size are merged."""
_RUN_ROWS = 16_384
"""Appended rows become a run when there are this many, or more if there are many rows."""
_MOST_SMALL = 16
"""So many of the newest runs are merged if they are small."""
_SCAN = 4
"""Rows are looked at one by one when there are not this many times as many as are looked up."""
_LAST_START = 2**63 - 1


class PaneTable(WindowTable):
    """Rows of panes in which rows are looked up. So a run has few blocks, and runs are merged sooner than runs whose
    rows are read when their windows fire. What a checkpoint writes anew, because it is in no file, is a small part of
    all rows."""

    reads_once = False

    @property
    def slow(self) -> SlowMerging | None:
        """No merge waits for the operator: merges that may take long are made in the background."""
        return None

    @property
    def merges_slowly(self) -> bool:
        """Whether merges call an aggregate of the user's, and so may take long."""
        return self._slow is not None

    def keep_at(self, place: RunPlace, limits: RunLimits) -> None:
        """From here on runs are kept at this place, within these limits. The table closes the place."""
        limits = lookup_limits(limits)
        super().keep_at(place, replace(limits, loop_rows=0) if self.merges_slowly else limits)

    @property
    def run_rows(self) -> int:
        """Appended rows become a run when there are this many."""
        return min(self.limits.run_rows, max(few(self.rows), _RUN_ROWS))

    @property
    def section_rows(self) -> int:
        """Small runs are saved with the index of a snapshot, up to this many rows."""
        return min(self.limits.section_rows, few(self.rows))

    def looked_up(self) -> Sequence[LiveSorted]:
        """The rows in runs. Rows that were appended last may not be in runs."""
        return self._runs

    def append_run(self, rows: pa.Table, hashes: npt.NDArray[np.int32]) -> None:
        """Take rows in, as a run of their own."""
        self._begins_at(int(int64_values(rows.column(self.time)).min()))
        with_hashes = rows.append_column(KEY_HASH, pa.array(hashes))
        self._runs.append(self._run_of(ordered(with_hashes, self.time)))
        self._compact()

    def _first_to_merge(self, runs: Sequence[LiveSorted]) -> int | None:
        sizes = [live.rows for live in runs]
        first, rows = len(sizes), 0
        while first and sizes[first - 1] <= min(self.run_rows, max(2 * rows, sizes[-1])):
            first -= 1
            rows += sizes[first]
        if len(sizes) - first >= min(_MOST_SMALL, self.limits.first_fanout):
            return first
        if not self._merges and self._waste.is_great(runs):
            return 0
        fanout = min(self.limits.fanout, _FANOUT)
        # Runs of the smallest size are smaller than the runs that are made of appended rows.
        limits = replace(self.limits, run_rows=max(2 * self.run_rows // fanout, 1), fanout=fanout)
        return like_runs(sizes, limits, fanout)


class UpdatingPaneOperator(UpdatingWindowOperator):
    """Windows that are made of panes."""

    _table: PaneTable

    def __init__(self, step: WindowStep) -> None:
        self._window = _of_panes(step.window)
        super().__init__(step)
        self._table = PaneTable(replace(step, window=self._window.panes))
        self._panes = PanePieces(self._window, step.keys, self._calculations)
        self._slow = SlowMerging(self._calculations, step.window) if merges_by_row(step.aggregates) else None

    def load(self, context: OperatorContext) -> None:
        """Restore the rows of this subtask's key groups. Windows of these rows may be shown: they are looked up."""
        super().load(context)
        self._table.runs()

    @property
    def _windows_per_row(self) -> int:
        return -(-self._window.size_us // self._window.spacing_us)

    def _completing_until(self, time_us: int) -> int:
        if time_us == MAX_WATERMARK:
            return _LAST_START
        # The first end of a window of a pane has been reached if a window has ended behind the start of the pane.
        return int(self._last_shown(np.array([time_us]))[0]) - 1

    def _settle(self, settled_us: int) -> None:
        first_kept = self._first_kept(settled_us)
        if first_kept is not None:
            self._table.drop(first_kept - 1)

    def _first_kept(self, time_us: int) -> int | None:
        """The first pane of a window that ends later than a time; None if no pane of the table is earlier."""
        earliest, window = self._table.earliest, self._window
        ended = int(self._last_shown(np.array([time_us]))[0])
        if earliest is None or ended < int(window.first_end(np.array([earliest]))[0]):
            return None
        first_kept = window.first_kept(ended)
        return first_kept if earliest < first_kept else None

    def _late(self, batch: pa.RecordBatch) -> Bits | None:
        last_times = self._window.last_end(int64_values(batch.column(WINDOW_START))) - 1
        return self._settled.late(last_times, lambda: self._groups(batch))

    def _merged(self, there: pa.Table, added: pa.Table) -> tuple[Bits, pa.Table]:
        return add_panes(there, added, self._keys, self._calculations, window=self._window)

    # --- changes -------------------------------------------------------------------------

    def _change(self, added: pa.Table) -> pa.Table | None:
        added = added.select(self._partials.names).cast(self._partials)
        rows, others = self._may_be_shown(added)
        changes = None
        if rows.num_rows:
            first, last = self._shown_ends(rows)
            is_shown = last >= first
            hashes = key_hashes(rows.combine_chunks().to_batches()[0], self._keys)
            if is_shown.any():
                of_added = repeated(rows, self._window, first, last)
                there = self._there(hashes[is_shown], first[is_shown], last[is_shown])
                before = repeated(there, self._window, *self._shown_ends(there))
                changes = changes_of_panes(before, of_added, self._keys, self._calculations, window=self._window)
            self._table.append_run(rows, hashes)
        # No window of these rows is shown, so they are not looked up until they are in runs: then they are shown.
        if not self._table.merges_slowly:
            self._table.append(others)
        elif others.num_rows:
            self._table.append_run(others, key_hashes(others.combine_chunks().to_batches()[0], self._keys))
        return changes

    def _may_be_shown(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The rows that may be in a window that is shown, and the other rows."""
        if self._updates.is_early:
            return rows, rows.slice(0, 0)
        panes = int64_values(rows.column(WINDOW_START))
        may_be = panes < int(self._last_shown(np.array([self._shown.most]))[0])
        if not may_be.any():
            return rows.slice(0, 0), rows
        return rows.filter(pa.array(may_be)), rows.filter(pa.array(~may_be))

    def _shown_ends(self, rows: pa.Table) -> tuple[Times, Times]:
        """The first and the last end of the windows of each row that are shown and may change. If there are no such
        windows the last end is before the first end."""
        window, panes = self._window, int64_values(rows.column(WINDOW_START))
        settled = self._settled.of_rows(lambda: self._groups(rows))
        first = np.maximum(window.first_end(panes), window.end_after(settled + 1))
        last = window.last_end(panes)
        if not self._updates.is_early:
            last = np.minimum(last, self._last_shown(self._shown.of_rows(lambda: self._groups(rows))))
        return first, last

    def _last_shown(self, times: Times) -> Times:
        """The last end of a window that is shown at these times."""
        return self._window.end_after(times + 1) - self._window.spacing_us

    def _there(self, hashes: npt.NDArray[np.int32], first: Times, last: Times) -> pa.Table:
        """The rows in the windows with ends from `first` to `last` of keys with these hashes, and perhaps others."""
        window, pane_us, runs = self._window, self._window.panes.size_us, self._table.looked_up()
        begins, ends = window.starts_of(first), last - pane_us
        counts = (ends - begins) // pane_us + 1
        first_us, last_us = int(begins.min()), int(ends.max())
        if int(counts.sum()) * _SCAN >= rows_between(runs, first_us, last_us):
            found = list(rows_of_hashes(runs, first_us, last_us, np.unique(hashes)))
        else:
            of_row = np.repeat(np.arange(begins.size), counts)
            steps = np.arange(of_row.size) - np.repeat(np.cumsum(counts) - counts, counts)
            times, numbers = np.unique(begins[of_row] + steps * pane_us, return_inverse=True)
            wanted = np.unique((numbers.reshape(-1) << HASH_BITS) | hashes[of_row])
            found = rows_like(runs, times[wanted >> HASH_BITS], (wanted & LAST_HASH).astype(np.int32))
        if not found:
            return self._partials.empty_table()
        return pa.Table.from_batches(found).select(self._partials.names).cast(self._partials)

    # --- results -------------------------------------------------------------------------

    def _show(self, time_us: int) -> Steps:
        window, is_end = self._window, time_us == MAX_WATERMARK
        earliest = self._table.earliest
        latest = None if is_end else int(self._last_shown(np.array([time_us]))[0])
        is_due = latest is None or latest - 1 > self._shown.least
        if is_due and earliest is not None and (latest is None or earliest < latest):
            yield from self._show_panes(window, latest)
        if not is_end:
            self._shown.advance(time_us)

    def _done(self, piece: Windows) -> Generator[bool, None, pa.Table | None]:
        assert isinstance(piece, Piece)
        return (yield from self._panes.done(piece, self._slow, self.slice, may_snapshot=True))

    def _show_panes(self, window: PaneWindow, latest: int | None) -> Steps:
        """Hand on the windows with ends up to `latest`, or all windows, that are not shown yet."""
        runs = self._table.runs()
        least = self._shown.least
        panes, rows = yield from panes_of(
            runs,
            _LAST_START if latest is None else latest - 1,
            may_snapshot=True,
            first_us=self._first_kept(least),
        )
        if panes.size == 0:
            return
        first = np.maximum(window.first_end(panes), window.end_after(np.array([least + 1])))
        last = window.last_end(panes)
        if latest is not None:
            last = np.minimum(last, latest)
        done = int(first.min()) - window.spacing_us
        for end in parts_of(first, last, window.spacing_us, most=window_table.PART_ROWS, rows=rows):
            begin, done = done + window.spacing_us, end
            held = (first <= end) & (last >= begin)
            ends = np.minimum(last, end) - np.maximum(first, begin)
            self._pieces[:] = self._panes.pieces(
                runs,
                panes[held],
                (begin, end),
                fired=copy(self._shown),
                rows=int(((ends // window.spacing_us + 1) * rows)[held].sum()),
                limits=self._table.limits,
                groups=self.context.max_parallelism,
            )
            self._shown.advance(end - 1)
            yield from self._show_pieces()


def _of_panes(window: object) -> PaneWindow:
    """The windows as windows that are made of panes."""
    if isinstance(window, TumblingWindow):
        return SlidingWindow(size_us=window.size_us, slide_us=window.size_us, offset_us=window.offset_us)
    assert isinstance(window, PaneWindow)
    return window

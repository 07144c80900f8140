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

from collections.abc import Callable, Generator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.pane_windows import PaneWindow
from penstock.api.steps import WindowStep
from penstock.api.window_schema import WINDOW_END, WINDOW_START, window_columns
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators import window_table
from penstock.runtime.task.operators.aggregation import group, of_partials
from penstock.runtime.task.operators.base import SnapshotWork
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.slow_merging import in_slices
from penstock.runtime.task.operators.sorted_runs import (
    KEY_HASH,
    LAST_HASH,
    LiveSorted,
    rows_by_time,
    rows_within,
)
from penstock.runtime.task.operators.window_table import Header, Layout, WindowTable
from penstock.runtime.task.operators.windows import WindowOperator, settled_us
from penstock.runtime.task.partitioning import groups_of_hashes
from penstock.runtime.task.slices import Steps, Work

Times = npt.NDArray[np.int64]

_BLOCKS_AT_ONCE = 64
"""A slice of work counts the rows of this many blocks."""


@dataclass(frozen=True)
class Piece:
    """Windows that have not been put together, with some of their keys. To call the piece is to put them together.
    Reads nothing that changes, and may be called anywhere."""

    panes: Callable[[], pa.Table | None]
    """Each pane once for every window; None if there are none."""
    merged: Callable[[pa.Table], pa.Table]
    """Makes the windows of these panes."""

    def __call__(self) -> pa.Table | None:
        """The windows; None if there are none."""
        panes = self.panes()
        return None if panes is None else self.merged(panes)


class PaneWindowOperator(WindowOperator):
    """Merges partials per key and pane. Windows are put together from panes when the watermark passes their ends."""

    def __init__(self, step: WindowStep) -> None:
        super().__init__(step)
        assert isinstance(step.window, PaneWindow)
        self._window = step.window
        self._merging = of_partials(step.aggregates)
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
        panes, rows = yield from _panes_of(runs, time_us, may_snapshot=may_snapshot)
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
            self._pieces = self._pieces_of(runs, panes[held], (begin, end), repeated)
            if may_snapshot:
                self._fired.advance(end - 1)
            while self._pieces:
                # A piece that is put together in slices is in the state until that is done.
                merged = yield from self._done(self._pieces[0], may_snapshot=may_snapshot)
                del self._pieces[0]
                if merged is not None:
                    yield from self._hand_on(merged, may_snapshot=may_snapshot)
        self._table.drop(window.first_kept(int(last.max())) - 1)

    def _pieces_of(self, runs: Sequence[LiveSorted], panes: Times, ends: tuple[int, int], repeated: int) -> list[Piece]:
        """The windows with ends from the first to the last of `ends`, in pieces of keys. To call a piece is to put its
        windows together. The pieces read nothing that changes, and may be called anywhere."""
        limits, fired, merged = self._table.limits, copy(self._fired), self._merged
        count = -(-repeated // (limits.block_rows * limits.part_blocks))
        bounds = [(LAST_HASH + 1) * number // count for number in range(count + 1)]
        return [
            Piece(partial(self._panes_of_piece, runs, panes, hashes=(least, below - 1), ends=ends, fired=fired), merged)
            for least, below in pairwise(bounds)
        ]

    def _done(self, piece: Piece, *, may_snapshot: bool) -> Generator[bool, None, pa.Table | None]:
        """The windows of a piece. If merges call an aggregate of the user's, they are put together in slices."""
        slow = self._table.slow
        if slow is None or (panes := piece.panes()) is None:
            return piece()
        merging = slow.grouped(panes, [*self._step.keys, WINDOW_END], self.slice)
        return self._whole((yield from in_slices(merging, may_snapshot=may_snapshot)))

    def _panes_of_piece(
        self, runs: Sequence[LiveSorted], panes: Times, *, hashes: tuple[int, int], ends: tuple[int, int], fired: Fired
    ) -> pa.Table | None:
        found = rows_within(runs, panes, hashes)
        if found is None:
            return None
        window, groups = self._window, self.context.max_parallelism
        numbers: Any = found.column(KEY_HASH).to_numpy()
        rows = found.drop_columns([KEY_HASH])
        times = int64_values(rows.column(WINDOW_START))
        after = window.end_after(fired.of_rows(lambda: groups_of_hashes(numbers.copy(), groups)) + 1)
        first = np.maximum(np.maximum(window.first_end(times), after), ends[0])
        last = np.minimum(window.last_end(times), ends[1])
        return self._repeated(rows, first, last) if (first <= last).any() else None

    def _repeated(self, rows: pa.Table, first: Times, last: Times) -> pa.Table:
        """Each row once for every window with an end from `first` to `last` of the row."""
        window = self._window
        counts = np.maximum((last - first) // window.spacing_us + 1, 0)
        found = np.flatnonzero(counts)
        first, counts = first[found], counts[found]
        taken = np.repeat(found, counts)
        # The number of each repetition among the repetitions of its row.
        numbers = np.arange(taken.size) - np.repeat(np.cumsum(counts) - counts, counts)
        ends = np.repeat(first, counts) + numbers * window.spacing_us
        table, time_type = rows.take(taken), rows.schema.field(WINDOW_START).type
        return table.set_column(table.schema.get_field_index(WINDOW_START), WINDOW_END, pa.array(ends).view(time_type))

    def _merged(self, panes: pa.Table) -> pa.Table:
        """Whole windows, from their panes."""
        return self._whole(group(panes, [*self._step.keys, WINDOW_END], self._merging, window=self._window))

    def _whole(self, merged: pa.Table) -> pa.Table:
        """Windows with their starts, from one row per key and window."""
        window, keys = self._window, self._step.keys
        ends = merged.column(WINDOW_END)
        merged = merged.append_column(WINDOW_START, pa.array(window.starts_of(int64_values(ends))).view(ends.type))
        return merged.select([*keys, *window_columns(window), *(c.name for c in self._merging)])

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


def _panes_of(
    runs: Sequence[LiveSorted], last_us: int, *, may_snapshot: bool
) -> Generator[bool, None, tuple[Times, Times]]:
    """The starts of the panes up to a time, in order, and how many rows each pane has. A slice of work has some
    blocks."""
    starts, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, (times, rows) in enumerate(rows_by_time(runs, last_us)):
        starts.append(times)
        counts.append(rows)
        if number % _BLOCKS_AT_ONCE == _BLOCKS_AT_ONCE - 1:
            yield may_snapshot
    panes, places = np.unique(np.concatenate(starts), return_inverse=True)
    return panes, np.bincount(places, weights=np.concatenate(counts), minlength=panes.size).astype(np.int64)


def parts_of(first: Times, last: Times, spacing: int, *, most: int, rows: Times | None = None) -> list[int]:
    """The parts in which to put windows together, as the last end of each part. Row i is in all windows from `first[i]`
    to `last[i]`, `spacing` apart, and stands for `rows[i]` rows. A part has at most `most` rows with repetitions, or a
    single window."""
    counts = np.maximum((last - first) // spacing + 1, 0)
    weights = np.ones(first.size, np.int64) if rows is None else rows
    total = int((counts * weights).sum())
    if total == 0:
        return []
    held = counts > 0
    if total <= most:
        return [int(last[held].max())]
    # All windows between two edges have the same number of rows. There are about as many edges as there are panes.
    edges, places = np.unique(np.concatenate([first[held], last[held] + spacing]), return_inverse=True)
    signed = np.concatenate([weights[held], -weights[held]]).astype(np.float64)
    sums = np.cumsum(np.bincount(places, weights=signed, minlength=edges.size)).astype(np.int64)[:-1]
    parts: list[int] = []
    room = most
    for edge, windows, rows_each in zip(
        edges.tolist(), (np.diff(edges) // spacing).tolist(), sums.tolist(), strict=False
    ):
        done = 0
        while rows_each and done < windows:
            fitting = min(room // rows_each, windows - done) or int(room == most)
            if not fitting:
                parts.append(edge + (done - 1) * spacing)
                room = most
                continue
            done += fitting
            room = max(0, room - fitting * rows_each)
    return [*parts, int(last[held].max())]

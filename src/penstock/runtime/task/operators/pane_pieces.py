"""Windows that share panes are put together from the rows of runs: in parts of few windows, and the windows of a part
in pieces of few keys. So no piece takes long, however many keys a window has and however many windows a pane is in."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.aggregate_kinds.base import Calculation
from penstock.api.pane_windows import PaneWindow
from penstock.api.window_schema import WINDOW_END, WINDOW_START, window_columns
from penstock.runtime.task.operators.aggregation import group
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.slow_merging import SlowMerging, in_slices
from penstock.runtime.task.operators.sorted_runs import (
    KEY_HASH,
    LAST_HASH,
    LiveSorted,
    RunLimits,
    rows_by_time,
    rows_within,
)
from penstock.runtime.task.partitioning import groups_of_hashes
from penstock.runtime.task.slices import Slice

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


class PanePieces:
    """Puts windows together from the rows of their panes."""

    def __init__(self, window: PaneWindow, keys: Sequence[str], merging: Sequence[Calculation]) -> None:
        self._window = window
        self._keys = tuple(keys)
        self._merging = merging

    def pieces(
        self,
        runs: Sequence[LiveSorted],
        panes: Times,
        ends: tuple[int, int],
        *,
        fired: Fired,
        rows: int,
        limits: RunLimits,
        groups: int,
    ) -> list[Piece]:
        """The windows of some panes with ends from the first to the last of `ends`, which have about `rows` rows with
        repetitions, without the windows that have `fired`; in pieces of keys. To call a piece is to put its windows
        together. The pieces read nothing that changes, and may be called anywhere."""
        count = -(-rows // (limits.block_rows * limits.part_blocks))
        bounds = [(LAST_HASH + 1) * number // count for number in range(count + 1)]
        return [
            Piece(
                partial(self._panes_of, runs, panes, hashes=(least, below - 1), ends=ends, fired=fired, groups=groups),
                self._merged,
            )
            for least, below in pairwise(bounds)
        ]

    def done(
        self, piece: Piece, slow: SlowMerging | None, slice_: Slice, *, may_snapshot: bool
    ) -> Generator[bool, None, pa.Table | None]:
        """The windows of a piece. If merges call an aggregate of the user's, they are put together in slices."""
        if slow is None or (panes := piece.panes()) is None:
            return piece()
        merging = slow.grouped(panes, [*self._keys, WINDOW_END], slice_)
        return self._whole((yield from in_slices(merging, may_snapshot=may_snapshot)))

    def _panes_of(
        self,
        runs: Sequence[LiveSorted],
        panes: Times,
        *,
        hashes: tuple[int, int],
        ends: tuple[int, int],
        fired: Fired,
        groups: int,
    ) -> pa.Table | None:
        found = rows_within(runs, panes, hashes)
        if found is None:
            return None
        window = self._window
        numbers: Any = found.column(KEY_HASH).to_numpy()
        rows = found.drop_columns([KEY_HASH])
        times = int64_values(rows.column(WINDOW_START))
        after = window.end_after(fired.of_rows(lambda: groups_of_hashes(numbers.copy(), groups)) + 1)
        first = np.maximum(np.maximum(window.first_end(times), after), ends[0])
        last = np.minimum(window.last_end(times), ends[1])
        return self.repeated(rows, first, last) if (first <= last).any() else None

    def repeated(self, rows: pa.Table, first: Times, last: Times) -> pa.Table:
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
        return self._whole(group(panes, [*self._keys, WINDOW_END], self._merging, window=self._window))

    def _whole(self, merged: pa.Table) -> pa.Table:
        """Windows with their starts, from one row per key and window."""
        window, keys = self._window, self._keys
        ends = merged.column(WINDOW_END)
        merged = merged.append_column(WINDOW_START, pa.array(window.starts_of(int64_values(ends))).view(ends.type))
        return merged.select([*keys, *window_columns(window), *(c.name for c in self._merging)])


def panes_of(
    runs: Sequence[LiveSorted], last_us: int, *, may_snapshot: bool, first_us: int | None = None
) -> Generator[bool, None, tuple[Times, Times]]:
    """The starts of the panes from a time up to another time, in order, and how many rows each pane has. A slice of
    work has some blocks."""
    starts, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, (times, rows) in enumerate(rows_by_time(runs, last_us, first_us)):
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

"""Which runs of keyed rows are merged, and how: part by part, while rows are still taken away from them.

A row lies in one run only, so any runs may be merged. Small runs become one run as soon as the newer runs are half as
large as the older, on the loop. Larger runs are merged when there are four of about one size. So a row is written a few
times, however long it stays. A run that has lost half of its rows is made anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.keyed_runs import FrozenKeyed, KeyedRun
from penstock.runtime.task.operators.sorted_runs import (
    KEY_HASH,
    LAST_HASH,
    LiveSorted,
    Place,
    RunLimits,
    SortedRun,
    next_place,
    run_order,
)
from penstock.state.run_places import RunPlace

Int64s = npt.NDArray[np.int64]

_FANOUT = 4
_FIRST_PLACE = Place(-(2**63), -1)


def runs_to_merge(runs: Sequence[KeyedRun], few: int, limits: RunLimits) -> list[KeyedRun]:
    """The runs that are worth merging, of runs from the oldest to the newest; none if no runs are."""
    runs = [run for run in runs if run.rows]
    small = [run for run in runs if run.rows <= few]
    newest: list[KeyedRun] = small[-1:]
    rows = sum(run.rows for run in newest)
    for run in reversed(small[:-1]):
        if run.rows > 2 * rows:
            break
        newest.append(run)
        rows += run.rows
    if len(newest) > 1:
        return newest
    by_size: dict[int, list[KeyedRun]] = {}
    for run in runs:
        if run.rows > few:
            by_size.setdefault(_size_class(run.rows, few), []).append(run)
    for _, like in sorted(by_size.items()):
        if len(like) >= _FANOUT:
            return like
    return next(([run] for run in runs if _is_hollow(run, limits)), [])


def _size_class(rows: int, few: int) -> int:
    size, bound = 0, few * _FANOUT
    while rows >= bound:
        size, bound = size + 1, bound * _FANOUT
    return size


def _is_hollow(run: KeyedRun, limits: RunLimits) -> bool:
    """Whether a run has lost so many rows that it is made anew. Its first rows take no room in checkpoints that refer
    to its file, but room in memory."""
    there = run.run.rows - run.first
    is_in_file = run.run.buffer is not None
    return 2 * run.rows < there or (not is_in_file and 2 * there < run.run.rows and run.rows > limits.block_rows)


class KeyedMerge:
    """Merges runs into one run, part by part. The runs stay in use meanwhile."""

    def __init__(self, runs: Sequence[KeyedRun], *, time: str, place: RunPlace, limits: RunLimits) -> None:
        self.inputs = {run.run.token: number for number, run in enumerate(runs)}
        self.rows = sum(run.rows for run in runs)
        self.dropped: Place | None = None
        """The rows up to here were taken away since the merge began."""
        self._removed: list[tuple[int, Int64s]] = []
        """The other rows that were taken away since: the number of their run, and their places."""
        self._frozen = [run.freeze() for run in runs]
        self._left = [LiveSorted(each.run, each.first) for each in self._frozen]
        self._moved = [np.empty(0, np.int32) for _ in runs]
        """For each run where its rows are now; -1 if they are gone. Made in the background."""
        self._begin = _FIRST_PLACE
        self._done = 0
        self._time = time
        self._limits = limits
        self._builder = place.build()

    def note(self, run: KeyedRun, places: Int64s) -> None:
        """Rows were taken away from a run."""
        number = self.inputs.get(run.run.token)
        if number is not None:
            self._removed.append((number, places))

    def work(self) -> KeyedRun | None:
        """Merge the next parts. Returns the run if the merge is done."""
        if not self._moved[0].size:
            self._moved = [np.full(each.run.rows, -1, np.int32) for each in self._frozen]
        rows = 0
        while self._left and rows < self._limits.turn_rows:
            rows += self._part()
        if self._left:
            return None
        blocks, buffer = self._builder.end()
        return KeyedRun(SortedRun(blocks, self._time, buffer))

    def _part(self) -> int:
        end = next_place(self._left, Place(2**63 - 1, LAST_HASH), self._limits)
        batches: list[pa.RecordBatch] = []
        sources: list[tuple[FrozenKeyed, int, Int64s]] = []
        read = 0
        for number, live in enumerate(self._frozen):
            first, last = max(live.first, live.run.count(self._begin)), live.run.count(end)
            read += max(last - first, 0)
            kept = np.flatnonzero(live.kept[first:last]) + first
            if kept.size:
                batches += live.between(self._begin, end)
                sources.append((live, number, kept))
        if batches:
            self._add(pa.Table.from_batches(batches).combine_chunks(), sources)
        counts = ((live, live.run.count(end)) for live in self._left)
        self._left = [LiveSorted(live.run, first) for live, first in counts if first < live.run.rows]
        self._begin = end
        return read

    def _add(self, table: pa.Table, sources: Sequence[tuple[FrozenKeyed, int, Int64s]]) -> None:
        order = run_order(int64_values(table.column(self._time)), table.column(KEY_HASH).to_numpy())
        where = np.arange(self._done, self._done + table.num_rows, dtype=np.int32)
        if order is not None:
            table = table.take(order).combine_chunks()
            ordered, where = where, np.empty_like(where)
            where[order] = ordered
        begin = 0
        for _, number, kept in sources:
            self._moved[number][kept] = where[begin : begin + kept.size]
            begin += kept.size
        for block in table.to_batches(max_chunksize=self._limits.block_rows):
            self._builder.add(block)
        self._done += table.num_rows

    def catch_up(self, run: KeyedRun) -> None:
        """Take the rows away from the new run that were taken away since the merge began."""
        if self.dropped is not None:
            run.drop(self.dropped)
        for number, places in self._removed:
            moved = self._moved[number][places].astype(np.int64)
            run.remove_some(moved[moved >= 0])

    def give_up(self) -> None:
        """The run is not needed any more."""
        self._builder.give_up()

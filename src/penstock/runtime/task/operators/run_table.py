"""Rows by time and key, in runs that are merged as they grow in number.

Rows are appended as they come. Appended rows become a run when there are enough of them, and runs are merged by the
rules of `run_merging`: small runs at once, large runs in the background, piece by piece. So every row is merged only a
few times, distinct keys bound the size, and no call takes long, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ports import Background, WorkResult
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.run_merging import Merge, Waste, like_runs, runs_to_merge
from penstock.runtime.task.operators.slow_merging import Merged, SlowMerging
from penstock.runtime.task.operators.sorted_runs import (
    KEY_HASH,
    LAST_HASH,
    LiveSorted,
    Place,
    RunLimits,
    SortedRun,
    heads,
    next_place,
    ordered,
    repeated_share,
    with_hashes,
    without,
)
from penstock.runtime.task.slices import Slice
from penstock.state.run_places import MemoryPlace, RunPlace
from penstock.state.runs import RunFiles, SavedRun

MOST_APPENDED = 64
"""Appended tables become a run when there are this many tables, however small they are."""
_WORTH_GROUPING = 0.9
"""Appended rows are grouped if a smaller share of them would be left."""


class TableRun(SavedRun, Protocol):
    """What is left of a run of a table."""

    @property
    def rows(self) -> int:
        """How many rows are left."""
        ...

    @property
    def table(self) -> pa.Table:
        """The rows that are left."""
        ...


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """The rows of a table at the moment of a snapshot."""

    runs: tuple[TableRun, ...] = ()
    tables: tuple[pa.Table, ...] = ()
    """Rows that are in no run yet."""

    def __len__(self) -> int:
        return len(self.runs) + len(self.tables)

    @property
    def parts(self) -> list[pa.Table]:
        """All rows. A key and a time may have several rows."""
        return [*(live.table for live in self.runs), *self.tables]

    def split(self, files: RunFiles, section_rows: int) -> tuple[tuple[TableRun, ...], Frozen]:
        """The runs that a snapshot saves in files of their own; and what it saves with the index: the newest runs, up
        to so many rows, unless they are in files already."""
        kept, rows = len(self.runs), sum(table.num_rows for table in self.tables)
        while kept:
            live = self.runs[kept - 1]
            rows += live.rows
            if rows > section_rows or files.has(live.run):
                break
            kept -= 1
        return self.runs[:kept], Frozen(runs=self.runs[kept:], tables=self.tables)


class RunTable:
    """Rows by time and key. `grouped` makes one row of all rows with the same time and key."""

    reads_once = True
    """Whether every row is read once: when it is removed."""
    takes_marks = False
    """Whether a run that has lost rows behind its first rows can be restored as it is."""

    def __init__(self, keys: Sequence[str], time: str, grouped: Callable[[Sequence[pa.Table]], pa.Table]) -> None:
        self.keys = tuple(keys)
        self.time = time
        """The name of the column of times."""
        self.limits = RunLimits()
        self._grouped_rows = grouped
        self._runs: list[LiveSorted] = []
        self._appended: list[pa.Table] = []
        self._appended_rows = 0
        self._appended_bytes = 0
        self._are_distinct: pa.Schema | None = None
        """Set if the rows that were appended last had different times and keys, nearly all of them: to group such rows
        costs much and saves nothing. Then it is the schema of grouped rows."""
        self._waste = Waste()
        self._earliest: int | None = None
        self._merges: list[Merge] = []
        """Merges under way, of runs from older to newer."""
        self._place: RunPlace = MemoryPlace()
        self._background: Background | None = None
        self._fail: Callable[[BaseException], None] | None = None

    @property
    def slow(self) -> SlowMerging | None:
        """Set if merges call an aggregate of the user's, and so may take long. Then the loop merges only by the methods
        that do so in slices: `settle`, `flush_in_slices` and `take_due_in_slices`."""
        return None

    def keep_at(self, place: RunPlace, limits: RunLimits) -> None:
        """From here on runs are kept at this place, within these limits. The table closes the place."""
        self._place, self.limits = place, limits

    def merge_in(self, background: Background, fail: Callable[[BaseException], None]) -> None:
        """From here on large runs are merged in the background. `fail` is called if a merge fails."""
        self._background, self._fail = background, fail

    def close(self) -> None:
        """The table is not used any more. Pieces of merges that were submitted may still run."""
        self._merges.clear()
        self._place.close()

    @property
    def rows(self) -> int:
        """How many rows are held, merged or not."""
        return sum(live.rows for live in self._runs) + self._appended_rows

    @property
    def earliest(self) -> int | None:
        """The first time of a row; None if the table is empty."""
        return self._earliest

    def append(self, rows: pa.Table) -> None:
        """Take rows in."""
        if rows.num_rows == 0:
            return
        self._begins_at(int(int64_values(rows.column(self.time)).min()))
        self._appended.append(rows)
        self._appended_rows += rows.num_rows
        self._appended_bytes += rows.nbytes
        if self.slow is None and self._are_many_appended:
            self._flush()
            self._compact()

    @property
    def _are_many_appended(self) -> bool:
        limits = self.limits
        is_large = self._appended_rows >= self.run_rows or self._appended_bytes >= limits.run_bytes
        return is_large or len(self._appended) >= MOST_APPENDED

    # --- merges that call user code --------------------------------------------------------

    def settle(self, slice_: Slice) -> Generator[None, None, None]:
        """Make a run of the appended rows if they are many. A snapshot may be taken between two slices."""
        if self.slow is not None and self._are_many_appended:
            yield from self.flush_in_slices(slice_)
            self._compact()

    def flush_in_slices(self, slice_: Slice) -> Generator[None, None, None]:
        """Make a run of the appended rows. Meanwhile nothing may be appended."""
        if self._appended:
            merged = yield from self._merged_in_slices(self._appended, slice_)
            self._add_run(with_hashes(merged, self.keys), is_grouped=True)

    def take_due_in_slices(self, last_us: int, slice_: Slice) -> Generator[None, None, pa.Table | None]:
        """As `take_due`. Rows are removed when they are merged."""
        if self.slow is None:
            return self.take_due(last_us)
        if self._earliest is None or last_us < self._earliest:
            return None
        yield from self.flush_in_slices(slice_)
        end = next_place(self._runs, Place(last_us, LAST_HASH), self.limits)
        due, is_grouped = self._heads(end)
        if not is_grouped:
            due = yield from self._merged_in_slices([due], slice_)
        self._drop(end)
        return due

    def _merged_in_slices(self, parts: Sequence[pa.Table], slice_: Slice) -> Merged:
        raise NotImplementedError

    def take_in(
        self,
        blocks: Sequence[pa.RecordBatch],
        buffer: pa.Buffer | None,
        first: int,
        gone: npt.NDArray[np.bool_] | None = None,
    ) -> SortedRun:
        """Take a run in that was restored, of which the rows before `first` are gone."""
        assert gone is None
        run = SortedRun(blocks, self.time, buffer)
        if first < run.rows:
            self._begins_at(run.first_time(first))
            self._runs.append(LiveSorted(run, first))
        return run

    def take_in_rows(self, blocks: Sequence[pa.RecordBatch]) -> None:
        """Take in rows of a run that was restored."""
        if blocks:
            builder = self._place.build()
            for block in blocks:
                builder.add(block)
            self.take_in(*builder.end(), 0)

    def _begins_at(self, time_us: int) -> None:
        self._earliest = time_us if self._earliest is None else min(self._earliest, time_us)

    # --- the first rows ------------------------------------------------------------------

    def take_due(self, last_us: int) -> pa.Table | None:
        """Remove the first rows up to a time, at most about as many as a part has. Returns the rows, merged: no row
        that is left has one of their times and keys. None if there is no row up to that time."""
        if self._earliest is None or last_us < self._earliest:
            return None
        self._flush()
        end = next_place(self._runs, Place(last_us, LAST_HASH), self.limits)
        due, is_grouped = self._heads(end)
        self._drop(end)
        return due if is_grouped else self._grouped_rows([due])

    def _heads(self, end: Place) -> tuple[pa.Table, bool]:
        """The rows up to a place, and whether no two of them have the same time and key."""
        parts = [(live.run.is_grouped, batches) for live, batches in heads(self._runs, end)]
        due = pa.Table.from_batches([batch for _, batches in parts for batch in batches]).drop_columns([KEY_HASH])
        return due, len(parts) == 1 and parts[0][0]

    def runs(self) -> tuple[LiveSorted, ...]:
        """All rows, in runs."""
        self._flush()
        return tuple(self._runs)

    def drop(self, last_us: int) -> None:
        """Remove all rows up to a time."""
        self._flush()
        self._drop(Place(last_us, LAST_HASH))

    def _drop(self, end: Place) -> None:
        busy = self._busy()
        left = (without(live, end, trims=live.run.token not in busy) for live in self._runs)
        self._runs = [live for live in left if live is not None]
        self._earliest = min((live.run.first_time(live.first) for live in self._runs), default=None)
        self._waste.forget()
        for merge in self._merges:
            merge.dropped = end if merge.dropped is None else max(merge.dropped, end)

    # --- runs ----------------------------------------------------------------------------

    def _flush(self) -> None:
        """Make a run of the appended rows."""
        if not self._appended:
            return
        rows, is_grouped = self._hashed(self._appended)
        self._add_run(rows, is_grouped=is_grouped)

    def _add_run(self, rows: pa.Table, *, is_grouped: bool) -> None:
        """The appended rows are this run from here on."""
        self._runs.append(self._run_of(ordered(rows, self.time), is_grouped=is_grouped))
        self._appended, self._appended_rows, self._appended_bytes = [], 0, 0

    def _run_of(self, rows: pa.Table, *, is_grouped: bool = False) -> LiveSorted:
        """A run of rows that have hashes and are in order."""
        builder = self._place.build()
        for block in rows.to_batches(max_chunksize=self.limits.block_rows):
            builder.add(block)
        blocks, buffer = builder.end()
        return LiveSorted(SortedRun(blocks, self.time, buffer, is_grouped=is_grouped))

    def _hashed(self, appended: Sequence[pa.Table]) -> tuple[pa.Table, bool]:
        """Appended rows with their hashes, and whether no time and key comes twice. Rows are grouped if that makes them
        much fewer."""
        if self._are_distinct is not None:
            schema = self._are_distinct
            together = pa.concat_tables(appended).select(schema.names).cast(schema)
            rows = ordered(with_hashes(together, self.keys), self.time)
            if repeated_share(rows, self.time) <= 1 - _WORTH_GROUPING:
                return rows, False
        grouped = self._grouped_rows(appended)
        are_distinct = grouped.num_rows > _WORTH_GROUPING * self._appended_rows and self._is_many
        self._are_distinct = grouped.schema if are_distinct else None
        return with_hashes(grouped, self.keys), True

    @property
    def _is_many(self) -> bool:
        """Whether the appended rows are so many that grouping costs much."""
        return self._appended_rows >= self.limits.run_rows

    def _busy(self) -> dict[object, None]:
        """The runs that are being merged."""
        return {token: None for merge in self._merges for token in merge.inputs}

    def _compact(self) -> None:
        """Merge runs while there are enough of them. Large runs are merged in the background."""
        while True:
            # Runs that are being merged, and all older runs, stay as they are.
            busy = self._busy()
            behind = max((number + 1 for number, live in enumerate(self._runs) if live.run.token in busy), default=0)
            free = self._runs[behind:]
            first = self._first_to_merge(free)
            if first is None:
                return
            merge = Merge(
                free[first:],
                lambda rows: self._grouped_rows([rows]),
                keys=self.keys,
                time=self.time,
                place=self._place,
                limits=self.limits,
            )
            self._merges.append(merge)
            is_large = merge.rows > self.limits.loop_rows or self.slow is not None
            if self._background is not None and is_large:
                self._merge_on(merge, self._background)
                continue
            run = merge.work()
            while run is None:
                run = merge.work()
            self._merged(merge, run)

    def _first_to_merge(self, runs: Sequence[LiveSorted]) -> int | None:
        """From which run on all runs are merged; None if no runs are merged."""
        sizes = [live.rows for live in runs]
        if sum(sizes) <= self.limits.loop_rows:
            return runs_to_merge(sizes, self.limits)
        if not self._merges and self._waste.is_great(runs):
            return 0
        limits = self.limits
        return like_runs(sizes, limits, limits.once_fanout if self.reads_once else limits.first_fanout)

    def _merge_on(self, merge: Merge, background: Background) -> None:
        """Do the next piece of a merge in the background."""

        def done(outcome: WorkResult) -> None:
            if merge not in self._merges:
                # The table was closed.
                merge.give_up()
            elif outcome.error is not None:
                self._merges.remove(merge)
                merge.give_up()
                if self._fail is not None:
                    self._fail(outcome.error)
            elif outcome.value is None:
                self._merge_on(merge, background)
            else:
                self._merged(merge, outcome.value)
                self._compact()

        background.submit(merge.work, done)

    def _merged(self, merge: Merge, run: SortedRun) -> None:
        """The run takes the place of the runs that it was made of."""
        self._merges.remove(merge)
        left: LiveSorted | None = LiveSorted(run)
        if merge.dropped is not None:
            left = without(LiveSorted(run), merge.dropped)
        inputs = [number for number, live in enumerate(self._runs) if live.run.token in merge.inputs]
        kept = [live for live in self._runs if live.run.token not in merge.inputs]
        if inputs and left is not None:
            kept.insert(inputs[0], left)
        self._runs = kept

    @property
    def run_rows(self) -> int:
        """Appended rows become a run when there are this many."""
        return self.limits.run_rows

    @property
    def section_rows(self) -> int:
        """Small runs are saved with the index of a snapshot, up to this many rows."""
        return self.limits.section_rows

    def freeze(self) -> Frozen:
        """All rows, by reference. Later changes replace runs and tables, and do not change them."""
        return Frozen(runs=tuple(self._runs), tables=tuple(self._appended))

"""Rows that are found by key and replaced, in immutable runs.

Every append makes a *run* in the order of all runs of windows: by a time, and by the hash of the key at each time
(`operators/sorted_runs.py`). So the rows up to a time are the heads of the runs. Beside the rows a run has an *index*
in memory: the hashes of its rows in order, and where the row of each hash lies. To find the rows of some keys costs a
search of every index, however many rows there are.

A row is taken away by a mark in its run, and lies in one run only. Rows that are marked are left out when their run is
merged with others (`operators/keyed_merging.py`). Large runs are merged in the background. Runs lie where the back end
wants them: in memory, or in files that are mapped into memory.

A snapshot takes references to runs and marks: neither is changed from then on, only replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ports import Background, WorkResult
from penstock.runtime.task.operators.keyed_merging import KeyedMerge, runs_to_merge
from penstock.runtime.task.operators.keyed_runs import FrozenKeyed, KeyedRun, rows_at
from penstock.runtime.task.operators.run_table import Frozen
from penstock.runtime.task.operators.sorted_runs import (
    KEY_HASH,
    LAST_HASH,
    LiveSorted,
    Place,
    RunLimits,
    SortedRun,
    few,
    in_blocks,
    lookup_limits,
    next_place,
)
from penstock.runtime.task.operators.window_table import Header, encode_rows
from penstock.runtime.task.partitioning import key_hashes
from penstock.state.run_places import MemoryPlace, RunPlace

Bits = npt.NDArray[np.bool_]


class Found(NamedTuple):
    """Some rows, and where they are."""

    rows: pa.Table
    runs: npt.NDArray[np.int64]
    """The number of the run of each row."""
    places: npt.NDArray[np.int64]
    """The place of each row in its run."""


class KeyedRows:
    """Rows that are found by key and taken away by time."""

    takes_marks = True
    """Whether a run that has lost rows can be restored as it is."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str], time: str) -> None:
        """`time` is the name of the column of times."""
        self.keys = tuple(keys)
        self.time = time
        self.limits = RunLimits()
        self.row_columns = tuple(schema.names)
        """The columns of the rows."""
        self._schema = schema
        self._runs: list[KeyedRun] = []
        self._merges: list[KeyedMerge] = []
        self._place: RunPlace = MemoryPlace()
        self._background: Background | None = None
        self._fail: Callable[[BaseException], None] | None = None

    def keep_at(self, place: RunPlace, limits: RunLimits) -> None:
        """From here on runs are kept at this place, within these limits. The table closes the place."""
        self._place, self.limits = place, lookup_limits(limits)

    def merge_in(self, background: Background, fail: Callable[[BaseException], None]) -> None:
        """From here on large runs are merged in the background. `fail` is called if a merge fails."""
        self._background, self._fail = background, fail

    def close(self) -> None:
        """The rows are not used any more. Pieces of merges that were submitted may still run."""
        self._merges.clear()
        self._place.close()

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(run.rows for run in self._runs)

    @property
    def earliest(self) -> int | None:
        """No row has an earlier time; None if there are no rows."""
        # A run that is being merged may have lost all rows.
        return min((run.run.first_time(run.first) for run in self._runs if run.rows), default=None)

    @property
    def latest(self) -> int | None:
        """No row has a later time; None if there are no rows."""
        return max((run.run.first_time(run.run.rows - 1) for run in self._runs if run.rows), default=None)

    # --- changes -------------------------------------------------------------------------

    def append(self, rows: pa.Table) -> None:
        """Take rows in."""
        if rows.num_rows == 0:
            return
        # Rows of different batches must have one schema: whether a column may be null differs from sender to sender.
        rows = rows.cast(self._schema)
        self._runs.append(self._made(list(in_blocks(rows, self.keys, self.time, self.limits.block_rows))))
        self._compact()

    def find(self, like: pa.Table) -> Found:
        """The rows that have the keys of any of these rows, and perhaps rows of other keys."""
        parts = [np.empty(0, np.int32), *(key_hashes(batch, self.keys) for batch in like.to_batches())]
        wanted = np.unique(np.concatenate(parts))
        batches: list[pa.RecordBatch] = []
        nothing = np.empty(0, np.int64)
        runs, places = [nothing], [nothing]
        for number, run in enumerate(self._runs):
            found = run.places_of(wanted)
            if found.size:
                batches += rows_at(run.run, found)
                runs.append(np.full(found.size, number))
                places.append(found)
        return Found(self._table_of(batches), np.concatenate(runs), np.concatenate(places))

    def remove(self, found: Found, gone: Bits) -> None:
        """Take away some of the rows that were found since the last change."""
        runs, places = found.runs[gone], found.places[gone]
        for number in np.unique(runs).tolist():
            self._remove(self._runs[number], places[runs == number])
        self._tidy()

    def take_due(self, last_us: int) -> pa.Table | None:
        """Take away the first rows up to a time, about as many as a part has, and return them. None if there are no
        more."""
        while (earliest := self.earliest) is not None and earliest <= last_us:
            end = next_place(_sorted(self._runs), Place(last_us, LAST_HASH), self.limits)
            batches = [batch for run in self._runs for batch in run.upto(end)]
            self._drop(end)
            if batches:
                return self._table_of(batches)
        return None

    def drop(self, last_us: int) -> None:
        """Take away the rows up to a time."""
        earliest = self.earliest
        if earliest is not None and earliest <= last_us:
            self._drop(Place(last_us, LAST_HASH))

    def between(self, after_us: int, last_us: int) -> list[Callable[[], pa.Table]]:
        """The rows that are later than a time, up to another time: in parts, each of which is put together when it is
        called. The parts follow each other in time, and read nothing that changes."""
        begin, until = Place(after_us, LAST_HASH), Place(last_us, LAST_HASH)
        found: list[Callable[[], pa.Table]] = []
        if begin >= until:
            return found
        counts = ((run, max(run.first, run.run.count(begin)), run.run.count(until)) for run in self._runs)
        held = [(run, first) for run, first, count in counts if first < count]
        left = [LiveSorted(run.run, first) for run, first in held]
        frozen = [run.freeze() for run, _ in held]
        while left and min(live.run.first_time(live.first) for live in left) <= last_us:
            end = next_place(left, until, self.limits)
            found.append(_Part(frozen, begin, end, self._table_of))
            places = ((live, live.run.count(end)) for live in left)
            left = [LiveSorted(live.run, first) for live, first in places if first < live.run.rows]
            begin = end
        return found

    def _remove(self, run: KeyedRun, places: npt.NDArray[np.int64]) -> None:
        run.remove(places)
        for merge in self._merges:
            merge.note(run, places)

    def _drop(self, end: Place) -> None:
        for run in self._runs:
            run.drop(end)
        for merge in self._merges:
            merge.dropped = end if merge.dropped is None else max(merge.dropped, end)
        self._tidy()

    def _tidy(self) -> None:
        """Forget runs without rows, and merge what is worth merging."""
        busy = self._busy()
        self._runs = [run for run in self._runs if run.rows or run.run.token in busy]
        self._compact()

    def _table_of(self, batches: list[pa.RecordBatch]) -> pa.Table:
        if not batches:
            return self._schema.empty_table()
        return pa.Table.from_batches(batches).drop_columns([KEY_HASH]).combine_chunks()

    # --- runs ----------------------------------------------------------------------------

    def _made(self, blocks: Sequence[pa.RecordBatch]) -> KeyedRun:
        builder = self._place.build()
        for block in blocks:
            builder.add(block)
        kept, buffer = builder.end()
        return KeyedRun(SortedRun(kept, self.time, buffer))

    def _busy(self) -> dict[object, None]:
        """The runs that are being merged."""
        return {token: None for merge in self._merges for token in merge.inputs}

    def _compact(self) -> None:
        """Merge runs while some are worth it. Large runs are merged in the background."""
        while True:
            busy = self._busy()
            free = [run for run in self._runs if run.run.token not in busy]
            chosen = runs_to_merge(free, self._few, self.limits)
            if not chosen:
                return
            merge = KeyedMerge(chosen, time=self.time, place=self._place, limits=self.limits)
            self._merges.append(merge)
            if self._background is not None and merge.rows > self.limits.loop_rows:
                self._merge_on(merge, self._background)
                continue
            run = merge.work()
            while run is None:
                run = merge.work()
            self._merged(merge, run)

    @property
    def _few(self) -> int:
        """How many rows are few, in comparison with all rows."""
        return min(few(self.rows), self.limits.section_rows)

    def _merge_on(self, merge: KeyedMerge, background: Background) -> None:
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
                self._tidy()

        background.submit(merge.work, done)

    def _merged(self, merge: KeyedMerge, run: KeyedRun) -> None:
        """The run takes the place of the runs that it was made of, without the rows that were taken away since."""
        self._merges.remove(merge)
        merge.catch_up(run)
        kept = [each for each in self._runs if each.run.token not in merge.inputs]
        self._runs = [*kept, run] if run.rows else kept

    # --- snapshots -----------------------------------------------------------------------

    def take_in(
        self, blocks: Sequence[pa.RecordBatch], buffer: pa.Buffer | None, first: int, gone: Bits | None = None
    ) -> SortedRun:
        """Take a run in that was restored, of which the rows before `first` and the marked rows are gone."""
        run = KeyedRun(SortedRun(blocks, self.time, buffer), first, gone)
        if run.rows:
            self._runs.append(run)
        return run.run

    def take_in_rows(self, blocks: Sequence[pa.RecordBatch]) -> None:
        """Take in rows of a run that was restored."""
        if blocks:
            self._runs.append(self._made(blocks))

    def freeze(self) -> Frozen:
        """All rows, by reference. Later changes replace what is returned, and do not change it."""
        by_age = sorted((run.freeze() for run in self._runs if run.rows), key=_size, reverse=True)
        return Frozen(runs=tuple(by_age))

    @property
    def section_rows(self) -> int:
        """Small runs are saved with the index of a snapshot, up to this many rows."""
        return self._few

    def encode(self, frozen: Frozen, *, header: Header, groups: int) -> bytes:
        """The bytes of a snapshot in one file. Reads nothing that changes, and may run off the loop."""
        rows = pa.concat_tables([self._schema.empty_table(), *frozen.parts])
        return encode_rows(rows, keys=self.keys, header=header, groups=groups)


class _Part:
    """The frozen rows behind one place, up to another place."""

    def __init__(
        self, frozen: Sequence[FrozenKeyed], begin: Place, end: Place, table_of: Callable[[list[Any]], pa.Table]
    ) -> None:
        self._frozen, self._begin, self._end, self._table_of = frozen, begin, end, table_of

    def __call__(self) -> pa.Table:
        return self._table_of([b for live in self._frozen for b in live.between(self._begin, self._end)])


def _sorted(runs: Sequence[KeyedRun]) -> list[LiveSorted]:
    return [LiveSorted(run.run, run.first) for run in runs if run.rows]


def _size(live: FrozenKeyed) -> int:
    return live.rows

"""All records of one side of a join that are not done, in runs (`join_run`).

Appended batches are runs themselves. Runs are merged by the rules of `join_merging`. Records that are done are dropped
when their run is merged, or when they are most of their run; a run that has only such records is dropped as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.ports import Background, WorkResult
from penstock.runtime.task.operators.join_merging import JoinMerge, Trim, runs_to_join
from penstock.runtime.task.operators.join_run import (
    GONE,
    MATCHED,
    SHOWN,
    UNMATCHED,
    Bits,
    Done,
    Frozen,
    Int64s,
    Marks,
    Probe,
    Run,
    UInt32s,
    one_batch,
    spread,
)
from penstock.runtime.task.operators.sorted_runs import RunLimits
from penstock.state.run_places import MemoryPlace, RunPlace

__all__ = [
    "GONE",
    "MATCHED",
    "SHOWN",
    "UNMATCHED",
    "Bits",
    "Done",
    "Frozen",
    "Int64s",
    "JoinRuns",
    "Marks",
    "Probe",
    "Run",
    "UInt32s",
    "one_batch",
    "spread",
]

_MOST_DONE = 3
"""A run in memory is made anew when more than this many times the records that are left are done by their times."""


class JoinRuns:
    """All records of one side that are not done."""

    def __init__(
        self,
        *,
        last_match: Callable[[Int64s], Int64s],
        mark_type: type[np.uint8 | np.int32] | None = None,
        done: Done | None = None,
    ) -> None:
        """`last_match` gives, from times that do not decrease, the last time of records that match. `mark_type` is the
        type of marks, None if there are no marks; `done` says which records are done by their marks."""
        self._last_match = last_match
        self.mark_type = mark_type
        self._done = done
        self._merges: list[JoinMerge] = []
        """Merges under way, of runs from older to newer."""
        self._merged: list[tuple[JoinMerge, list[Run]]] = []
        """Merges that are done, and whose runs are not in use yet. Runs are replaced only where nobody looks at
        them: when records are appended or dropped."""
        self._place: RunPlace = MemoryPlace()
        self._background: Background | None = None
        self._fail: Callable[[BaseException], None] | None = None
        self.limits = RunLimits()
        self.runs: list[Run] = []

    def keep_at(self, place: RunPlace, limits: RunLimits) -> None:
        """From here on runs are kept at this place, within these limits. The caller closes the place."""
        self._place, self.limits = place, limits

    def merge_in(self, background: Background, fail: Callable[[BaseException], None]) -> None:
        """From here on large runs are merged in the background. `fail` is called if a merge fails."""
        self._background, self._fail = background, fail

    def close(self) -> None:
        """The records are not used any more. A piece of a merge may still run."""
        self._merges.clear()
        self._merged.clear()

    @property
    def rows(self) -> int:
        """How many records are kept."""
        return sum(run.size - run.lost for run in self.runs)

    @property
    def nbytes(self) -> int:
        """How many bytes the records of all runs have, in memory or in files, without marks and indexes."""
        return sum(run.nbytes for run in self.runs)

    def append(self, rows: pa.RecordBatch, times: Int64s, hashes: UInt32s, marks: Marks | None = None) -> None:
        """Take records in."""
        self._use_merged()
        if self._done is not None and marks is not None and (done := self._done(marks)).any():
            kept = ~done
            rows, times, hashes, marks = rows.filter(pa.array(kept)), times[kept], hashes[kept], marks[kept]
        if rows.num_rows == 0:
            return
        if self.mark_type is None:
            marks = None
        elif marks is None:
            marks = np.zeros(rows.num_rows, self.mark_type)
        self.runs.append(Run(rows, times, hashes, marks))
        self._compact()

    def take_in(self, run: Run) -> None:
        """Take a restored run in as it is."""
        run.lost = 0 if self._done is None or run.marks is None else int(self._done(run.marks[run.begin :]).sum())
        self.runs.append(run)

    # --- merges ----------------------------------------------------------------------------

    def _trim(self) -> Trim | None:
        """Says which records of a new run are kept; None: all of them."""
        return None

    def _compact(self) -> None:
        """Merge runs while there are enough of them. Large runs are merged in the background."""
        while True:
            # Runs that are being merged, and all older runs, stay as they are.
            behind = self._behind_merges()
            found = runs_to_join(self.runs[behind:], self.limits)
            if found is None:
                return
            self._merge(self.runs[behind + found[0] : behind + found[1]])

    def _behind_merges(self) -> int:
        busy = self._busy()
        return max((number + 1 for number, run in enumerate(self.runs) if id(run) in busy), default=0)

    def _busy(self) -> dict[int, None]:
        """The runs that are being merged."""
        return {id(run): None for merge in self._under_way() for run in merge.inputs}

    def _under_way(self) -> list[JoinMerge]:
        return [*self._merges, *(merge for merge, _ in self._merged)]

    def _merge(self, runs: Sequence[Run], *, sweeps: bool = False) -> None:
        """Make new runs of these runs: at once if they are small. `sweeps`: these are all runs."""
        merge = JoinMerge(runs, done=self._done, trim=self._trim(), limits=self.limits, sweeps=sweeps)
        pieces = merge.work(self._place)
        if self._background is not None and merge.rows > self.limits.loop_rows:
            self._merges.append(merge)
            self._go_on(merge, pieces, self._background)
            return
        *_, made = pieces
        self._replace(merge, made or [])

    def _go_on(self, merge: JoinMerge, pieces: Iterator[list[Run] | None], background: Background) -> None:
        """Do the next piece of a merge in the background."""

        def done(outcome: WorkResult) -> None:
            if merge not in self._merges:
                # The records are not used any more.
                return
            if outcome.error is not None:
                self._merges.remove(merge)
                merge.end()
                if self._fail is not None:
                    self._fail(outcome.error)
            elif outcome.value is None:
                self._go_on(merge, pieces, background)
            else:
                self._merges.remove(merge)
                self._merged.append((merge, outcome.value))

        background.submit(lambda: next(pieces), done)

    def _use_merged(self) -> None:
        """Use the runs of the merges that are done."""
        if self._merged:
            merged, self._merged = self._merged, []
            for merge, made in merged:
                self._replace(merge, made)
            self._compact()

    def _replace(self, merge: JoinMerge, made: list[Run]) -> None:
        """New runs take the place of the runs that they were made of."""
        inputs = {id(run): None for run in merge.inputs}
        at = next((number for number, run in enumerate(self.runs) if id(run) in inputs), None)
        if at is None:
            # All records were dropped meanwhile.
            merge.end()
            return
        for run in made:
            self._catch_up(merge, run)
        merge.end()
        kept = [run for run in self.runs if id(run) not in inputs]
        kept[at:at] = [run for run in made if run.size]
        self.runs = kept
        self._replaced(sweeps=merge.sweeps)

    def _replaced(self, *, sweeps: bool) -> None:
        """New runs are in use. `sweeps`: all runs were merged."""

    def _catch_up(self, merge: JoinMerge, run: Run) -> None:
        if merge.dropped is not None:
            run.begin = self.due(run, merge.dropped)
        merge.catch_up(run)
        if self._done is not None and run.marks is not None:
            run.lost = int(self._done(run.marks[run.begin :]).sum())

    # --- records that are done -------------------------------------------------------------

    def due(self, run: Run, time_us: int) -> int:
        """How many records of a run match nothing later than this time."""
        # Times are in order, and so are the last times of their matches. Few of these times are computed.
        if not run.size or int(self._last_match(run.times[run.begin : run.begin + 1])[0]) > time_us:
            return run.begin
        return bisect_right(
            range(run.times.size),
            time_us,
            lo=run.begin,
            key=lambda row: int(self._last_match(run.times[row : row + 1])[0]),
        )

    def drop(self, time_us: int) -> None:
        """Records that match nothing later than this time are done."""
        for merge in self._under_way():
            merge.dropped = time_us
        self._use_merged()
        for run in self.runs:
            run.begin = max(run.begin, self.due(run, time_us))
        self.runs = [run for run in self.runs if run.size]
        self._remake(lambda run: run.begin > _MOST_DONE * run.size and not run.is_in_file(self._place))

    def mark(self, run: Run, rows: Int64s, marks: Marks) -> None:
        """Set the marks of some records of a run, each record once."""
        if self._done is not None and run.marks is not None:
            run.lost += int(self._done(marks).sum()) - int(self._done(run.marks[rows]).sum())
        run.mark(rows, marks)

    def tidy(self) -> None:
        """Make runs anew of which most records are done by their marks."""
        self._use_merged()
        self._remake(lambda run: 3 * run.lost > 2 * run.size)

    def _remake(self, is_wasteful: Callable[[Run], Any]) -> None:
        wasteful = [run for run in self.runs if is_wasteful(run)]
        if wasteful:
            busy = self._busy()
            for run in wasteful:
                if id(run) not in busy:
                    self._merge((run,))

    def freeze(self) -> tuple[Frozen, ...]:
        """All records, by reference."""
        return tuple(run.freeze() for run in self.runs)

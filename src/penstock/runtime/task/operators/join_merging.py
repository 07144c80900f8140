"""Which runs of a side of a join are merged, and how.

Runs that no snapshot has in a file are merged when they are of like size: so there are few of them, and a batch is
looked up in few runs. Runs that are in files are merged when there are as many of one class of sizes as there are
sizes between one class and the next: so a record is written into few files, and checkpoints write little. A run does
not grow beyond `RunLimits.most_bytes`: to merge runs takes that much memory, and a run that is in files takes none.

Large runs are merged in the background, a piece at a time. The runs stay in use meanwhile, and their marks may change;
the changes are made up for when the new run takes their place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from penstock.runtime.task.operators.join_run import Bits, Done, Int64s, Marks, Run, UInt32s, one_batch
from penstock.runtime.task.operators.run_merging import like_runs
from penstock.runtime.task.operators.sorted_runs import RunLimits
from penstock.state.run_places import RunPlace

_LIKE = 2
"""Two neighbouring runs that are in no file are merged unless the older run has more than this many times the records
of the newer run."""
_LEAST_SHARE = 4
"""The runs of the smallest class have fewer records than this share of `RunLimits.run_rows`, times the fanout."""
_HASHES = 1 << 32

Trim = Callable[[Run], Bits]
"""Which records of a new run are kept."""


def runs_to_join(runs: Sequence[Run], limits: RunLimits) -> tuple[int, int] | None:
    """From which run to which run, of runs from the oldest to the newest, runs are merged into one; None if no runs are
    merged."""
    first = next((n + 1 for n in range(len(runs) - 1, -1, -1) if 2 * runs[n].nbytes >= limits.most_bytes), 0)
    if len(runs) - first < 2:
        return None
    older, newer = runs[-2:]
    if not (older.saved.has_rows or newer.saved.has_rows) and older.size <= _LIKE * newer.size:
        return len(runs) - 2, len(runs)
    behind = next((n + 1 for n in range(len(runs) - 1, first - 1, -1) if runs[n].saved.has_rows), first)
    if behind - first + 1 < limits.fanout:
        return None
    # Runs that are in no file count as one run: they will soon be one.
    sizes = [run.size for run in runs[first:behind]] + [sum(run.size for run in runs[behind:])] * (behind < len(runs))
    classes = RunLimits(run_rows=max(limits.run_rows // _LEAST_SHARE, 2), fanout=limits.fanout)
    found = like_runs(sizes, classes, limits.fanout)
    if found is None:
        return None
    begin = first + found
    totals = accumulate(run.nbytes for run in runs[begin:])
    count = sum(total <= limits.most_bytes for total in totals)
    return (begin, begin + count) if count > 1 else None


class JoinMerge:
    """Makes new runs of some runs."""

    def __init__(
        self, runs: Sequence[Run], *, done: Done | None, trim: Trim | None, limits: RunLimits, sweeps: bool = False
    ) -> None:
        """`done` says which records are done by their marks, `trim` which records of a new run are kept."""
        self.inputs = tuple(runs)
        self.sweeps = sweeps
        """Whether these were all runs when the merge began."""
        self.rows = sum(run.size for run in runs)
        self.dropped: int | None = None
        """Records that match nothing later than this were dropped since the merge began."""
        self._done = done
        self._trim = trim
        self._limits = limits
        self._begins = [run.begin for run in runs]
        self._marks = [run.freeze_marks() for run in runs]
        self._places: list[Int64s] = []
        """For each input the number of each record in the new run; -1 if the record was not kept."""
        for run in runs:
            if run.marks is not None:
                run.changes = []

    def work(self, place: RunPlace) -> Iterator[list[Run] | None]:
        """Make the runs, a piece of work at a time. The last result is the runs. May run off the loop."""
        nbytes = sum(run.nbytes for run in self.inputs)
        # Records with marks are merged only where they fit into one run.
        parts = 1 if self._marks[0] is not None else max(1, -(-nbytes // self._limits.most_bytes))
        found: list[Run] = []
        for part in range(parts):
            kept = [self._kept(number, part, parts) for number in range(len(self.inputs))]
            yield None
            run = yield from self._joined(kept)
            if run is not None:
                run.keep_at(place)
                found.append(run)
        yield found

    def _kept(self, number: int, part: int, parts: int) -> Int64s | None:
        """The records of an input that are kept; None if all are kept."""
        run, begin, marks = self.inputs[number], self._begins[number], self._marks[number]
        if parts > 1:
            rows = run.between(_HASHES * part // parts, _HASHES * (part + 1) // parts)
            return rows[rows >= begin]
        kept = np.ones(run.times.size, np.bool_)
        kept[:begin] = False
        if self._done is not None and marks is not None:
            kept &= ~self._done(marks)
        return None if kept.all() else np.flatnonzero(kept)

    def _joined(self, kept: Sequence[Int64s | None]) -> Generator[None, None, Run | None]:
        """One run of the records that are kept; None if no records are kept."""
        columns: list[tuple[pa.RecordBatch, Int64s, UInt32s, Marks | None, Int64s]] = []
        offset = 0
        for run, marks, rows in zip(self.inputs, self._marks, kept, strict=True):
            if rows is None:
                columns.append((run.rows, run.times, run.hashes, marks, run.order + offset))
                places = np.arange(offset, offset + run.times.size)
            else:
                places = np.full(run.times.size, -1)
                places[rows] = np.arange(offset, offset + rows.size)
                order = places[run.order]
                of_marks = None if marks is None else marks[rows]
                columns.append((run.rows.take(rows), run.times[rows], run.hashes[rows], of_marks, order[order >= 0]))
            offset += columns[-1][1].size
            if marks is not None:
                self._places.append(places)
        if offset == 0:
            return None
        batches, times, hashes, kept_marks, orders = (list(each) for each in zip(*columns, strict=True))
        given = np.concatenate(times)
        by_time = None if (given[1:] >= given[:-1]).all() else np.argsort(given, kind="stable")
        rows_ = one_batch(batches, batches[0].schema)
        joined = np.concatenate(hashes)
        together = None if kept_marks[0] is None else np.concatenate(kept_marks)
        order = np.concatenate(orders)
        yield None
        if by_time is not None:
            rows_, given, joined = rows_.take(by_time), given[by_time], joined[by_time]
            together = None if together is None else together[by_time]
            moved = np.empty_like(by_time)
            moved[by_time] = np.arange(by_time.size)
            order = moved[order]
            self._places = [np.where(places < 0, -1, moved[places]) for places in self._places]
        yield None
        # Versions of a key lie in the order of their times, also where the index does not tell these times apart.
        made = Run(rows_, given, joined, together, order if self._trim is None else None)
        if self._trim is None or (current := self._trim(made)).all():
            return made
        if not current.any():
            return None
        return Run(rows_.filter(pa.array(current)), given[current], joined[current], None)

    def catch_up(self, run: Run) -> None:
        """Give the new run the marks that have changed since the merge began."""
        for given, places in zip(self.inputs, self._places, strict=False):
            for rows, marks in given.changes or ():
                at = places[rows]
                there = at >= 0
                run.mark(at[there], marks[there])

    def end(self) -> None:
        """The merge is over, or is given up."""
        for run in self.inputs:
            run.changes = None

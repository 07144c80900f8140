"""The records of one side of a join, in immutable runs.

The records of a run are ordered by time, so that the records that are done, and match nothing any more, are the head of
the run. Beside the records a run has an *index*: one number of 64 bits for each record, ascending, made of the hash of
the record's key (the upper half) and of the record's time (the lower half). All records of a key between two times lie
next to each other in the index. So a batch of the other side is looked up by two binary searches for each of its
records, all at once. Times in the index are counted from the first time of the run, in units that make the last time of
the run fit into 32 bits. So the index finds some records too many, and the caller compares keys and times.

Appended batches are runs themselves. Runs of like size become one run, so that runs shrink from oldest to newest, and
each record is merged only a few times. Records that are done are dropped when their run is merged, or when they are
half of their run; a run that has only such records is dropped as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
UInt32s = npt.NDArray[np.uint32]
Marks = npt.NDArray[Any]
"""A number for each record of a run: what is known about the record."""
Bits = npt.NDArray[np.bool_]

UNMATCHED, MATCHED, SHOWN = 0, 1, 2
"""What is known about a record: nothing; the record has matched; the record has been handed on as a record without a
match, because the data was at its end."""

GONE = -1
"""The mark of a row of a regular join that has been taken back."""

_LIKE = 2
"""Two neighbouring runs are merged unless the older run has more than this many times the records of the newer run."""
_MOST_BYTES = 1 << 30
"""A run does not grow beyond this size by merging: the texts of a column must stay below two gigabytes."""


Done = Callable[[Marks], Bits]
"""Which records are done, by their marks."""


class Frozen(NamedTuple):
    """The records of a run that are not done, and their marks if marks are kept. Nothing changes them."""

    rows: pa.RecordBatch
    marks: Marks | None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What is looked up: for each record its hash, and the first and the last time of records that match it."""

    hashes: UInt32s
    first: Int64s
    last: Int64s


class Run:
    """Some records, ordered by time. Only `marks` and `begin` change."""

    __slots__ = (
        "_base",
        "_index",
        "_marks_are_frozen",
        "_shift",
        "begin",
        "hashes",
        "lost",
        "marks",
        "order",
        "rows",
        "times",
    )

    def __init__(
        self, rows: pa.RecordBatch, times: Int64s, hashes: UInt32s, marks: Marks | None, order: Int64s | None = None
    ) -> None:
        """`order` may have the numbers of the records in any order; the closer to the order of the index, the
        quicker."""
        if not (times[1:] >= times[:-1]).all():
            by_time = np.argsort(times, kind="stable")
            rows, times, hashes = rows.take(by_time), times[by_time], hashes[by_time]
            marks = None if marks is None else marks[by_time]
            if order is not None:
                places = np.empty_like(by_time)
                places[by_time] = np.arange(by_time.size)
                order = places[order]
        self.rows = rows
        self.times = times
        self.hashes = hashes
        self.marks = marks
        self._marks_are_frozen = False
        self.begin = 0
        """Records before this record are done."""
        self.lost = 0
        """About how many records behind them are done by their marks."""
        self._base = int(times[0])
        self._shift = max(0, (int(times[-1]) - self._base).bit_length() - 32)
        if order is None:
            order = np.arange(times.size)
        unordered = self._places(hashes[order], times[order])
        # A stable sort of numbers merges parts that are in order already.
        by_index = np.argsort(unordered, kind="stable")
        self._index = unordered[by_index]
        self.order = order[by_index]

    def _places(self, hashes: UInt32s, times: Int64s) -> UInt64s:
        since = (times.view(np.uint64) - np.uint64(self._base & 0xFFFFFFFFFFFFFFFF)) >> np.uint64(self._shift)
        return (hashes.astype(np.uint64) << np.uint64(32)) | since

    @property
    def size(self) -> int:
        """How many records are not done."""
        return int(self.times.size) - self.begin

    def found(self, probe: Probe) -> tuple[Int64s, Int64s] | None:
        """For each record that is looked up: where the records that may match it begin in `order`, and how many they
        are. None if no record of the run can match any of them."""
        first, last = self._base, int(self.times[-1])
        hit = (probe.last >= first) & (probe.first <= last) & (probe.first <= probe.last)
        if not hit.any():
            return None
        begins = np.searchsorted(self._index, self._places(probe.hashes, np.clip(probe.first, first, last)))
        ends = np.searchsorted(self._index, self._places(probe.hashes, np.clip(probe.last, first, last)), side="right")
        return begins, np.where(hit, np.maximum(ends - begins, 0), 0)

    def last_upto(self, hashes: UInt32s, times: Int64s) -> Int64s:
        """For each hash and time: the last place in `order` of a record whose hash is that or less, and whose time, if
        the hashes are equal, is not later, or is later by less than the unit of times in the index. -1 if there is no
        such record."""
        places = self._places(hashes, np.clip(times, self._base, int(self.times[-1])))
        found = np.searchsorted(self._index, places, side="right") - 1
        return np.where(times >= self._base, found, -1)

    def mark(self, rows: Int64s | slice, marks: int | Marks) -> None:
        """Set the marks of some records."""
        assert self.marks is not None
        if self._marks_are_frozen:
            self.marks, self._marks_are_frozen = self.marks.copy(), False
        self.marks[rows] = marks

    def freeze(self) -> Frozen:
        """The records that are not done, by reference."""
        self._marks_are_frozen = True
        return Frozen(self.rows.slice(self.begin), None if self.marks is None else self.marks[self.begin :])

    def is_kept(self, done: Done | None) -> Bits:
        """Which records are kept when the run is made anew."""
        kept = np.ones(self.times.size, np.bool_)
        kept[: self.begin] = False
        if done is not None and self.marks is not None:
            kept &= ~done(self.marks)
        return kept


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
        self._mark_type = mark_type
        self._done = done
        self.runs: list[Run] = []

    @property
    def rows(self) -> int:
        """How many records are kept."""
        return sum(run.size - run.lost for run in self.runs)

    def append(self, rows: pa.RecordBatch, times: Int64s, hashes: UInt32s, marks: Marks | None = None) -> None:
        """Take records in."""
        if self._done is not None and marks is not None and (done := self._done(marks)).any():
            kept = ~done
            rows, times, hashes, marks = rows.filter(pa.array(kept)), times[kept], hashes[kept], marks[kept]
        if rows.num_rows == 0:
            return
        if self._mark_type is None:
            marks = None
        elif marks is None:
            marks = np.zeros(rows.num_rows, self._mark_type)
        self.runs.append(Run(rows, times, hashes, marks))
        while len(self.runs) > 1 and self._belong_together(*self.runs[-2:]):
            newest, older = self.runs.pop(), self.runs.pop()
            self.runs += self._merged((older, newest))

    def _belong_together(self, older: Run, newer: Run) -> bool:
        return older.size <= _LIKE * newer.size and older.rows.nbytes + newer.rows.nbytes <= _MOST_BYTES

    def _merged(self, runs: Sequence[Run]) -> list[Run]:
        """The records of the runs that are kept, as one run, or as no run."""
        parts: list[tuple[Any, ...]] = []
        offset = 0
        for run in runs:
            kept = run.is_kept(self._done)
            count = int(kept.sum())
            if count == kept.size:
                parts.append((run.rows, run.times, run.hashes, run.marks, run.order + offset))
            elif count:
                mask = pa.array(kept)
                marked = None if run.marks is None else run.marks[kept]
                places = np.cumsum(kept) - 1
                order = places[run.order[kept[run.order]]] + offset
                parts.append((run.rows.filter(mask), run.times[kept], run.hashes[kept], marked, order))
            offset += count
        if not parts:
            return []
        columns: Any = zip(*parts, strict=True)
        rows, times, hashes, marks, orders = columns
        return [
            Run(
                one_batch(rows, rows[0].schema),
                np.concatenate(times),
                np.concatenate(hashes),
                None if marks[0] is None else np.concatenate(marks),
                np.concatenate(orders),
            )
        ]

    def due(self, run: Run, time_us: int) -> int:
        """How many records of a run match nothing later than this time."""
        # Times are in order, and so are the last times of their matches. Few of these times are computed.
        return bisect_right(
            range(run.times.size), time_us, key=lambda row: int(self._last_match(run.times[row : row + 1])[0])
        )

    def drop(self, time_us: int) -> None:
        """Records that match nothing later than this time are done."""
        runs: list[Run] = []
        for run in self.runs:
            run.begin = max(run.begin, self.due(run, time_us))
            if run.size == 0:
                continue
            runs += self._merged((run,)) if run.begin > run.size else [run]
        self.runs = runs

    def mark(self, run: Run, rows: Int64s, marks: Marks) -> None:
        """Set the marks of some records of a run, each record once."""
        if self._done is not None and run.marks is not None:
            run.lost += int(self._done(marks).sum()) - int(self._done(run.marks[rows]).sum())
        run.mark(rows, marks)

    def tidy(self) -> None:
        """Make runs anew of which half of the records are done by their marks."""
        if any(2 * run.lost > run.size for run in self.runs):
            self.runs = [
                each for run in self.runs for each in (self._merged((run,)) if 2 * run.lost > run.size else [run])
            ]

    def freeze(self) -> tuple[Frozen, ...]:
        """All records, by reference."""
        return tuple(run.freeze() for run in self.runs)


def one_batch(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The records of some batches of this schema as one batch."""
    found = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    if not found:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    (batch,) = found
    return batch


def spread(begins: Int64s, counts: Int64s, most: int) -> Iterator[tuple[Int64s, Int64s]]:
    """The numbers begins[i], begins[i] + 1, ..., counts[i] of them for each i, each number beside its i; in parts of at
    most `most` numbers."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    for start in range(0, total, most):
        wanted = np.arange(start, min(start + most, total))
        owners = np.searchsorted(ends, wanted, side="right")
        yield owners, begins[owners] + (wanted - (ends[owners] - counts[owners]))

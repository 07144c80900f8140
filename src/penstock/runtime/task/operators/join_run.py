"""Some records of one side of a join, which never change: a run.

The records of a run are ordered by time, so that the records that are done, and match nothing any more, are the head of
the run. Beside the records a run has an *index*: one number of 64 bits for each record, ascending, made of the hash of
the record's key (the upper half) and of the record's time (the lower half). All records of a key between two times lie
next to each other in the index. So a batch of the other side is looked up by two binary searches for each of its
records, all at once. Times in the index are counted from the first time of the run, in units that make the last time of
the run fit into 32 bits. So the index finds some records too many, and the caller compares keys and times.

A run lies where the back end says: in memory, or in mapped files, the index included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.runtime.task.operators.join_marks import MarkLog, MarksRun
from penstock.state.run_places import MemoryPlace, RunPlace
from penstock.state.runs import Run as StoredRun

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

_LARGE_ROWS = 4_096
"""A run with so many records is searched in the order of its index, for at least `_MANY` records."""
_MANY = 1_024

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

    @cached_property
    def by_hash(self) -> Int64s:
        """The records in the order of their hashes."""
        return np.argsort(self.hashes, kind="stable")


@dataclass
class Saved:
    """What snapshots have of a run."""

    has_rows: bool = False
    """Whether a snapshot has the rows in a file of their own."""
    marks: MarksRun | None = None
    """All marks as a completed checkpoint has them."""
    log: MarkLog | None = None
    """The marks that have changed since then; None: no completed checkpoint has the marks."""


class Run:
    """Some records, ordered by time. Only `marks` and `begin` change, and what is kept for checkpoints and merges."""

    __slots__ = (
        "_base",
        "_index",
        "_marks_are_frozen",
        "_shift",
        "begin",
        "changes",
        "hashes",
        "lost",
        "marks",
        "nbytes",
        "order",
        "rows",
        "saved",
        "stored",
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
        self.nbytes = rows.nbytes
        self.stored = StoredRun((rows,))
        """The rows as checkpoints save them."""
        self.times = times
        self.hashes = hashes
        self.marks = marks
        self.saved = Saved()
        self.changes: list[tuple[Any, Marks]] | None = None
        """The marks that have changed since a merge of the run began; None: the run is not being merged."""
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
        firsts = self._places(probe.hashes, np.clip(probe.first, first, last))
        lasts = self._places(probe.hashes, np.clip(probe.last, first, last))
        if self._index.size < _LARGE_ROWS or hit.size < _MANY:
            begins, ends = np.searchsorted(self._index, firsts), np.searchsorted(self._index, lasts, side="right")
        else:
            # Searches for numbers that are nearly in order find what they need in the caches.
            by_hash = probe.by_hash
            begins, ends = np.empty(hit.size, np.int64), np.empty(hit.size, np.int64)
            begins[by_hash] = np.searchsorted(self._index, firsts[by_hash])
            ends[by_hash] = np.searchsorted(self._index, lasts[by_hash], side="right")
        return begins, np.where(hit, np.maximum(ends - begins, 0), 0)

    def last_upto(self, hashes: UInt32s, times: Int64s) -> Int64s:
        """For each hash and time: the last place in `order` of a record whose hash is that or less, and whose time, if
        the hashes are equal, is not later, or is later by less than the unit of times in the index. -1 if there is no
        such record."""
        places = self._places(hashes, np.clip(times, self._base, int(self.times[-1])))
        found = np.searchsorted(self._index, places, side="right") - 1
        return np.where(times >= self._base, found, -1)

    def between(self, first_hash: int, end_hash: int) -> Int64s:
        """The records whose hashes are in a range, in their order."""
        bounds = np.array([first_hash << 32, (end_hash << 32) - 1], np.uint64)
        begin, end = np.searchsorted(self._index, bounds[:1])[0], np.searchsorted(self._index, bounds[1:], "right")[0]
        return np.sort(self.order[begin:end])

    def mark(self, rows: Int64s, marks: int | Marks) -> None:
        """Set the marks of some records."""
        assert self.marks is not None
        if self._marks_are_frozen:
            self.marks, self._marks_are_frozen = self.marks.copy(), False
        self.marks[rows] = marks
        log = self.saved.log
        if log is None and self.changes is None:
            return
        given = np.full(rows.size, marks, self.marks.dtype) if isinstance(marks, int) else marks
        if self.changes is not None:
            self.changes.append((rows, given))
        if log is not None:
            log.add(rows, given)
            if log.is_useless(self.times.size):
                self.saved.log = self.saved.marks = None

    def freeze(self) -> Frozen:
        """The records that are not done, by reference."""
        marks = self.freeze_marks()
        return Frozen(self.rows.slice(self.begin), None if marks is None else marks[self.begin :])

    def freeze_marks(self) -> Marks | None:
        """All marks as they are now. Nothing changes what is returned."""
        self._marks_are_frozen = True
        return self.marks

    def keep_at(self, place: RunPlace) -> None:
        """Move the records and the index to a place."""
        builder = place.build()
        builder.add(self.rows)
        blocks, buffer = builder.end()
        if buffer is not None:
            self.rows = blocks[0]
            self.stored = StoredRun(blocks, buffer)
        self.keep_index_at(place)

    def adopt(self, rows: pa.RecordBatch, buffer: pa.Buffer) -> None:
        """The run was restored: its records lie in a file with these bytes."""
        self.rows, self.stored, self.saved.has_rows = rows, StoredRun((rows,), buffer), True

    def keep_index_at(self, place: RunPlace) -> None:
        """Move the index to a place."""
        builder = place.build()
        builder.add(pa.record_batch([self.times, self.hashes, self._index, self.order], names=list("thio")))
        blocks, buffer = builder.end()
        if buffer is not None:
            self.times, self.hashes, self._index, self.order = (each.to_numpy() for each in blocks[0].columns)

    def is_in_file(self, place: RunPlace) -> bool:
        """Whether the records take no memory."""
        return self.stored.buffer is not None and not isinstance(place, MemoryPlace)


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

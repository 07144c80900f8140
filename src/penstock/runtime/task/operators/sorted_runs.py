"""Runs whose rows are in the order of a time, and of the hash of the key at each time.

All runs of a state have the same order. So the rows of all runs up to some place in the order can be merged alone: they
are the heads of the runs, and no other row has one of their keys and times. Windows fire in such parts, and runs are
merged in such parts. No part is large, however large a window is.

    run 1   |---- taken ----|····· left ·····|
    run 2   |- taken -|········ left ········|        each part: the rows up to the same place of every run
    run 3   |--- taken ---|··· left ···|

Runs are merged by the rules of `run_merging`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import CorruptFile
from penstock.runtime.task.operators.dense import int64_values, order_of
from penstock.runtime.task.partitioning import key_hashes
from penstock.settings import StateSettings
from penstock.state.run_places import RunPlace, make_place
from penstock.state.runs import LiveRun, Run

KEY_HASH = "__key_hash"
"""The last column of a run: the hash of the key of each row."""
LAST_HASH = 2**31 - 1
_SPAN = 2**32
"""Times that lie closer together than this fit into one number with a hash."""
_MOST_UINT32 = 2**32
_CODE_BITS = 63
"""A number with more bits is not sorted together with the number of its row."""
_SEEK_ROWS = 4_096
"""To seek rows in a run takes about as long as to look at so many rows."""
_MARK_ROWS = 1_024
"""A run knows the places of rows that are so many rows apart."""
_SAMPLED_HASHES = 2**24
"""At each time the rows of so many hashes are in the sample of a run. The first of these hashes depends on the time."""
_MIXING = np.uint64(0x9E3779B185EBCA87)
_HINT = "restore the file from a copy, or restore the job from another checkpoint or savepoint"

Times = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """How large runs and pieces of work are, in rows unless the name says bytes."""

    run_rows: int = 65_536
    """Appended rows become a run when there are this many."""
    run_bytes: int = 4 * 1024 * 1024
    """Appended rows become a run when they have this many bytes, however few rows they are."""
    block_rows: int = 8_192
    """A block of a run has at most this many rows."""
    part_blocks: int = 4
    """A part that is merged or fired has about as many rows as this many blocks."""
    loop_rows: int = 65_536
    """Runs that have at most this many rows together are merged on the loop."""
    turn_rows: int = 524_288
    """About how many rows a piece of background work merges: other background work does not wait longer."""
    section_rows: int = 65_536
    """Small runs are saved with the index of a snapshot, up to this many rows."""
    file_bytes: int = 1024 * 1024
    """With the back end `rocksdb`, runs with at least this many bytes lie in files."""
    first_fanout: int = 16
    """So many runs of the smallest size are merged."""
    once_fanout: int = 256
    """The same, where every row is read once: there to merge runs costs more than to read many runs."""
    fanout: int = 8
    """So many runs of a larger size are merged."""
    most_bytes: int = 64 * 1024 * 1024
    """A run of a join does not grow beyond this size by merging."""


_FEW = 64
_LEAST_FEW = 512


def few(rows: int) -> int:
    """How many rows are few, in comparison with so many rows."""
    return max(rows // _FEW, _LEAST_FEW)


def lookup_limits(limits: RunLimits) -> RunLimits:
    """Limits for runs in which rows are looked up: a part is a single block, so that there are few blocks to look
    into."""
    return replace(limits, block_rows=limits.block_rows * limits.part_blocks, part_blocks=1)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a slot keeps runs."""

    limits: RunLimits = field(default_factory=RunLimits)
    make_place: Callable[[StateSettings], RunPlace] | None = None
    """Makes the place for runs. None: the place that the settings ask for."""

    def place(self, settings: StateSettings) -> RunPlace:
        """A place for the runs of one operator. Raises `HostError` if no folder can be made."""
        if self.make_place is not None:
            return self.make_place(settings)
        return make_place(settings, file_bytes=self.limits.file_bytes)


class Place(NamedTuple):
    """A place in the order of rows: behind the rows with this time and this hash."""

    time_us: int
    key_hash: int


class SortedRun(Run):
    """A run in the order of a column of times, and of `KEY_HASH`."""

    __slots__ = ("_counted", "_mark_keys", "_marks", "_ordered", "_rows_at", "_sample", "is_grouped", "time")

    def __init__(
        self,
        blocks: Sequence[pa.RecordBatch],
        time: str,
        buffer: pa.Buffer | None = None,
        *,
        is_grouped: bool = False,
    ) -> None:
        """`time` is the name of the column of times. `is_grouped`: no two rows have the same time and key."""
        super().__init__(blocks, buffer)
        self.time = time
        self.is_grouped = is_grouped
        self._ordered = [(int64_values(block.column(time)), block.column(KEY_HASH).to_numpy()) for block in self.blocks]
        self._marks: list[Place] = []
        self._rows_at: list[int] = []
        """How many rows are not behind each mark."""
        samples: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]] = []
        for start, (times, hashes) in zip(self.starts, self._ordered, strict=False):
            last = times.size - 1
            at = [*range(_MARK_ROWS - 1, last, _MARK_ROWS), last]
            self._marks += map(Place, times[at].tolist(), hashes[at].tolist())
            self._rows_at += [start + row + 1 for row in at]
            rows, mixed = _sampled(times, hashes)
            samples.append((rows + start, mixed))
        self._sample = tuple(map(np.concatenate, zip(*samples, strict=True)))
        self._mark_keys = tuple(np.array(each) for each in zip(*self._marks, strict=True))
        self._counted = (self._marks[-1], self.rows)
        """The place that was asked for last, and how many rows are not behind the place."""

    def first_time(self, row: int) -> int:
        """The time of a row."""
        number = bisect_right(self.starts, row) - 1
        return int(self._ordered[number][0][row - self.starts[number]])

    def marks_from(self, row: int, most: int) -> tuple[Times, Times]:
        """The times and the hashes of rows that are at most `_MARK_ROWS` rows apart, from a row on; of `most` rows."""
        number = bisect_right(self._rows_at, row)
        times, hashes = self._mark_keys
        return times[number : number + most], hashes[number : number + most]

    def sample_from(self, row: int) -> npt.NDArray[np.uint64]:
        """A number for each row from a row on that is in the sample. Rows with the same time and hash have the same
        number, and are in the samples of all runs or of none."""
        rows, mixed = self._sample
        return mixed[int(np.searchsorted(rows, row)) :]

    def count(self, place: Place) -> int:
        """How many rows are not behind a place."""
        place_counted, found = self._counted
        if place_counted != place:
            found = self._count(place)
            self._counted = (place, found)
        return found

    def _count(self, place: Place) -> int:
        mark = bisect_right(self._marks, place)
        if mark == len(self._marks):
            return self.rows
        begin, end = self._rows_at[mark - 1] if mark else 0, self._rows_at[mark]
        number = bisect_right(self.starts, begin) - 1
        times, hashes = self._ordered[number]
        at = begin - self.starts[number]
        times, hashes = times[at : end - self.starts[number]], hashes[at : end - self.starts[number]]
        if times[0] != times[-1] or times[0] != place.time_us:
            first = int(times.searchsorted(place.time_us, side="left"))
            hashes = hashes[first : int(times.searchsorted(place.time_us, side="right"))]
            begin += first
        return begin + int(hashes.searchsorted(np.int32(place.key_hash), side="right"))

    def rows_between(self, first: int, end: int) -> list[pa.RecordBatch]:
        """The rows from a row up to, and not including, another row."""
        found: list[pa.RecordBatch] = []
        number = bisect_right(self.starts, first) - 1
        while first < end:
            begin, behind = self.starts[number], min(end, self.starts[number + 1])
            found.append(self.blocks[number].slice(first - begin, behind - first))
            first, number = behind, number + 1
        return found


class LiveSorted(LiveRun):
    """What is left of a sorted run: all rows from `first` on."""

    run: SortedRun

    @property
    def table(self) -> pa.Table:
        """The rows that are left."""
        return pa.Table.from_batches(self.run.rows_between(self.first, self.run.rows)).drop_columns([KEY_HASH])


def without(live: LiveSorted, place: Place, *, trims: bool = True) -> LiveSorted | None:
    """What is left if the rows up to a place are removed; None if nothing is left. With `trims` a short rest becomes a
    run of its own."""
    run = live.run
    first = max(live.first, run.count(place))
    if first == run.rows:
        return None
    if first == live.first:
        return live
    if trims and run.buffer is None and 2 * first > run.rows:
        # The removed rows would stay in memory as long as the run.
        return LiveSorted(SortedRun(run.rows_between(first, run.rows), run.time, is_grouped=run.is_grouped))
    return LiveSorted(run, first)


def next_place(runs: Sequence[LiveSorted], until: Place, limits: RunLimits) -> Place:
    """Where a part ends that begins with the first rows of the runs: behind about as many rows as a part has, and not
    behind `until`. A part of many runs has more rows, because it takes time to look into a run."""
    if not runs:
        return until
    wanted = max(limits.part_blocks * limits.block_rows // min(_MARK_ROWS, limits.block_rows), len(runs))
    marks = [live.run.marks_from(live.first, wanted) for live in runs]
    times, hashes = (np.concatenate(each) for each in zip(*marks, strict=True))
    number = min(wanted, times.size) - 1
    if times.min() == times.max():
        return min(until, Place(int(times[0]), int(np.partition(hashes, number)[number])))
    last = np.lexsort((hashes, times))[number]
    return min(until, Place(int(times[last]), int(hashes[last])))


def heads(runs: Sequence[LiveSorted], place: Place) -> list[tuple[LiveSorted, list[pa.RecordBatch]]]:
    """The runs that have rows up to a place, each with these rows."""
    counts = [live.run.count(place) for live in runs]
    return [
        (live, live.run.rows_between(live.first, count))
        for live, count in zip(runs, counts, strict=True)
        if count > live.first
    ]


def rows_by_time(
    runs: Sequence[LiveSorted], last_us: int, first_us: int | None = None
) -> Iterator[tuple[Times, Times]]:
    """The times of the rows up to a time, from another time on if it is given; and how many rows have each time, block
    by block: a time may come again."""
    for live in runs:
        run, first, count = live.run, live.first, live.run.count(Place(last_us, LAST_HASH))
        if first_us is not None:
            first = max(first, run.count(Place(first_us, -1)))
        for block in run.rows_between(first, count):
            times = int64_values(block.column(run.time))
            if times[0] == times[-1]:
                yield times[:1], np.array([times.size])
            else:
                begins = np.flatnonzero(np.diff(times, prepend=times[0] - 1))
                yield times[begins], np.diff(begins, append=times.size)


def rows_within(runs: Sequence[LiveSorted], times: Times, hashes: tuple[int, int]) -> pa.Table | None:
    """The rows from the first to the last of some times, with hashes from one hash to another; None if there are no
    such rows. Between the first and the last no row has another time. The last column is `KEY_HASH`."""
    least, most = hashes
    first_us, last_us = int(times[0]), int(times[-1])
    spans = [((first_us, 0), (last_us, LAST_HASH))]
    is_part = (least, most) != (0, LAST_HASH)
    seeks = is_part and times.size * len(runs) * _SEEK_ROWS <= sum(live.rows for live in runs)
    if seeks:
        spans = [((time_us, least), (time_us, most)) for time_us in times.tolist()]
    found: list[pa.RecordBatch] = []
    for live in runs:
        for (from_us, from_hash), (to_us, to_hash) in spans:
            begin = max(live.first, live.run.count(Place(from_us, from_hash - 1)))
            found += live.run.rows_between(begin, live.run.count(Place(to_us, to_hash)))
    if is_part and not seeks:
        kept = [_in_range(block.column(KEY_HASH).to_numpy(), least, most) for block in found]
        found = [block.filter(pa.array(rows)) for block, rows in zip(found, kept, strict=True) if rows.any()]
    return pa.Table.from_batches(found).combine_chunks() if found else None


def _in_range(hashes: Hashes, least: int, most: int) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (hashes >= least) & (hashes <= most)
    return found


def in_blocks(rows: pa.Table, keys: Sequence[str], time: str, block_rows: int) -> Iterator[pa.RecordBatch]:
    """Rows in the order of runs, with their hashes, in blocks."""
    yield from ordered(with_hashes(rows, keys), time).to_batches(max_chunksize=block_rows)


def with_hashes(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Rows with the hashes of their keys, in one piece."""
    table = rows.combine_chunks()
    batches = table.to_batches()
    hashes = key_hashes(batches[0], keys) if batches else np.empty(0, np.int32)
    return table.append_column(KEY_HASH, pa.array(hashes))


def ordered(rows: pa.Table, time: str) -> pa.Table:
    """Rows that have hashes, in the order of runs, in one piece."""
    together = rows.combine_chunks()
    order = run_order(int64_values(together.column(time)), together.column(KEY_HASH).to_numpy())
    if order is None:
        return together
    picked: Any = pa.array(order.astype(np.uint32) if rows.num_rows < _MOST_UINT32 else order)
    return pc.take(together, picked, boundscheck=False).combine_chunks()


def repeated_share(rows: pa.Table, time: str) -> float:
    """Which share of the rows have the time and the hash of the row before. The rows are in the order of runs."""
    if rows.num_rows == 0:
        return 0.0
    times, hashes = int64_values(rows.column(time)), rows.column(KEY_HASH).to_numpy()
    same = (times[1:] == times[:-1]) & (hashes[1:] == hashes[:-1])
    return np.count_nonzero(same) / rows.num_rows


def distinct_share(runs: Sequence[LiveSorted]) -> float:
    """About which share of their rows the runs would have as one run without repeated times and keys. Estimated from
    samples of the rows. 1.0 if there is no sample."""
    sample = np.concatenate([live.run.sample_from(live.first) for live in runs])
    return np.unique(sample).size / sample.size if sample.size else 1.0


def _sampled(times: Times, hashes: Hashes) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]:
    """The rows that are in the sample, and a number for each of them. The rows are in the order of runs."""
    if times[0] == times[-1]:
        first = int(_first_sampled(times[:1])[0])
        bounds = np.array([first, first + _SAMPLED_HASHES], np.int32)
        rows = np.arange(*hashes.searchsorted(bounds).tolist())
    else:
        behind = hashes - _first_sampled(times)
        rows = np.flatnonzero((behind >= 0) & (behind < _SAMPLED_HASHES))
    return rows, times[rows].view(np.uint64) * _MIXING + hashes[rows].astype(np.uint64)


def _first_sampled(times: Times) -> npt.NDArray[np.int32]:
    mixed = times.view(np.uint64) * _MIXING >> np.uint64(33)
    return (mixed % np.uint64(LAST_HASH - _SAMPLED_HASHES)).astype(np.int32)


def run_order(times: Times, hashes: Hashes) -> npt.NDArray[np.intp] | None:
    """The order of rows; None if the rows are in order."""
    if times.size == 0:
        return None
    least, most = int(times.min()), int(times.max())
    if most - least >= _SPAN:
        return np.lexsort((hashes, times))
    since = times - least
    if least == most:
        codes = hashes.astype(np.int64)
        return None if (hashes[1:] >= hashes[:-1]).all() else order_of(codes)
    if (most - least).bit_length() + 31 + times.size.bit_length() > _CODE_BITS:
        # The numbers of the times take fewer bits than the times.
        since = np.unique(since, return_inverse=True)[1].reshape(-1)
    codes = (since << 31) | hashes
    return None if (codes[1:] >= codes[:-1]).all() else order_of(codes)


def check_sorted(blocks: Sequence[pa.RecordBatch], columns: Sequence[str], keys: Sequence[str], time: str) -> None:
    """Raise `CorruptFile` unless the blocks of a restored run have these columns, the right hashes and the right
    order."""
    before = Place(-(2**63), 0)
    for block in blocks:
        if block.schema.names != [*columns, KEY_HASH] or block.schema.field(KEY_HASH).type != pa.int32():
            raise CorruptFile("a run of windows has other columns than the step", hint=_HINT)
        hashes: Any = block.column(KEY_HASH)
        if not pa.types.is_timestamp(block.schema.field(time).type) or block.column(time).null_count:
            raise CorruptFile("a run of windows has windows whose times are not timestamps", hint=_HINT)
        if hashes.null_count or not np.array_equal(hashes.to_numpy(), key_hashes(block, keys)):
            raise CorruptFile("a run of windows has keys with wrong hashes", hint=_HINT)
        times, hashes = int64_values(block.column(time)), hashes.to_numpy()
        first = Place(int(times[0]), int(hashes[0]))
        later, same = times[1:] > times[:-1], times[1:] == times[:-1]
        if first < before or not (later | (same & (hashes[1:] >= hashes[:-1]))).all():
            raise CorruptFile("a run of windows is not in its order", hint=_HINT)
        before = Place(int(times[-1]), int(hashes[-1]))

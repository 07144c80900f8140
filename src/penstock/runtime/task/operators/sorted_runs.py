"""Runs whose rows are in the order of a time, and of the hash of the key at each time.

All runs of a state have the same order. So the rows of all runs up to some place in the order can be merged alone: they
are the heads of the runs, and no other row has one of their keys and times. Windows fire in such parts, and runs are
merged in such parts. No part is large, however large a window is.

    run 1   |---- taken ----|····· left ·····|
    run 2   |- taken -|········ left ········|        each part: the rows up to the same place of every run
    run 3   |--- taken ---|··· left ···|

Which runs are merged, and when, is told in `runs_to_merge`: a row is merged a few times only, and the runs together
have at most about twice the rows that they would have as one run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
_MOST_SEEKS = 512
"""Rows of a range of hashes are sought in at most so many places; in more places all rows are looked at."""
_HINT = "restore the file from a copy, or restore the job from another checkpoint or savepoint"

Times = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.int32]
Grouped = Callable[[pa.Table], pa.Table]
"""Merges the rows of equal keys and times. The columns stay the same."""


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """How large runs and pieces of work are, in rows unless the name says bytes."""

    run_rows: int = 16_384
    """Appended rows become a run when there are this many."""
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
    file_bytes: int = 4 * 1024 * 1024
    """With the back end `rocksdb`, runs with at least this many bytes lie in files."""
    first_fanout: int = 4
    """So many runs of the smallest size are merged."""
    fanout: int = 8
    """So many runs of a larger size are merged."""


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

    __slots__ = ("_ends", "time")

    def __init__(self, blocks: Sequence[pa.RecordBatch], time: str, buffer: pa.Buffer | None = None) -> None:
        """`time` is the name of the column of times."""
        super().__init__(blocks, buffer)
        self.time = time
        self._ends = [self._at(block, block.num_rows - 1) for block in self.blocks]

    def _at(self, block: pa.RecordBatch, row: int) -> Place:
        last = block.slice(row, 1)
        return Place(int(int64_values(last.column(self.time))[0]), last.column(KEY_HASH)[0].as_py())

    def first_time(self, row: int) -> int:
        """The time of a row."""
        number = bisect_right(self.starts, row) - 1
        return self._at(self.blocks[number], row - self.starts[number]).time_us

    def ends_from(self, row: int, most: int) -> list[Place]:
        """Where the block of a row ends, and where the blocks behind it end; `most` places."""
        number = bisect_right(self.starts, row) - 1
        return self._ends[number : number + most]

    def count(self, place: Place) -> int:
        """How many rows are not behind a place."""
        number = bisect_right(self._ends, place)
        if number == len(self.blocks):
            return self.rows
        block = self.blocks[number]
        times = int64_values(block.column(self.time))
        first = int(np.searchsorted(times, place.time_us, side="left"))
        last = int(np.searchsorted(times, place.time_us, side="right"))
        hashes = np.asarray(block.column(KEY_HASH).to_numpy())[first:last]
        return self.starts[number] + first + int(np.searchsorted(hashes, place.key_hash, side="right"))

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
        return LiveSorted(SortedRun(run.rows_between(first, run.rows), run.time))
    return LiveSorted(run, first)


def next_place(runs: Sequence[LiveSorted], until: Place, blocks: int) -> Place:
    """Where a part ends that begins with the first rows of the runs: behind about so many blocks, and not behind
    `until`."""
    ends = sorted(end for live in runs for end in live.run.ends_from(live.first, blocks))
    return min(until, ends[min(blocks, len(ends)) - 1]) if ends else until


def heads(runs: Sequence[LiveSorted], place: Place) -> list[list[pa.RecordBatch]]:
    """For each run that has rows up to a place, these rows."""
    counts = [live.run.count(place) for live in runs]
    return [
        live.run.rows_between(live.first, count) for live, count in zip(runs, counts, strict=True) if count > live.first
    ]


def rows_by_time(runs: Sequence[LiveSorted], last_us: int) -> Iterator[tuple[Times, Times]]:
    """The times of the rows up to a time, and how many rows have each time, block by block: a time may come again."""
    for live in runs:
        run, count = live.run, live.run.count(Place(last_us, LAST_HASH))
        for block in run.rows_between(live.first, count):
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
    seeks = is_part and times.size * len(runs) <= _MOST_SEEKS
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


def in_blocks(grouped: pa.Table, keys: Sequence[str], time: str, block_rows: int) -> Iterator[pa.RecordBatch]:
    """Rows in their order, with their hashes, in blocks."""
    table = grouped.combine_chunks()
    batches = table.to_batches()
    hashes = key_hashes(batches[0], keys) if batches else np.empty(0, np.int32)
    times = int64_values(table.column(time))
    order = _order(times, hashes)
    if order is not None:
        table, hashes = table.take(order), hashes[order]
    table = table.append_column(KEY_HASH, pa.array(hashes)).combine_chunks()
    yield from table.to_batches(max_chunksize=block_rows)


def _order(times: Times, hashes: Hashes) -> npt.NDArray[np.intp] | None:
    """The order of rows; None if the rows are in order."""
    if times.size == 0:
        return None
    least = int(times.min())
    if int(times.max()) - least < _SPAN:
        codes = ((times - least) << 31) | hashes
        return None if (codes[1:] >= codes[:-1]).all() else order_of(codes)
    return np.lexsort((hashes, times))


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


def runs_to_merge(sizes: Sequence[int], limits: RunLimits) -> int | None:
    """From which run on, of runs from the oldest to the newest, all runs are merged into one; None if no runs are
    merged. `sizes` are their rows.

    All runs are merged when the others together are as large as the largest. Otherwise the newest runs are merged, when
    there are enough of one size.
    """
    if len(sizes) < 2:
        return None
    if sum(sizes) >= 2 * max(sizes):
        return 0
    found, largest, count = None, -1, 0
    for number in range(len(sizes) - 1, -1, -1):
        size = _size_class(sizes[number], limits)
        if size > largest:
            largest, count = size, 0
        count += size == largest
        if count >= (limits.fanout if largest else limits.first_fanout):
            found = number
    return found


def _size_class(rows: int, limits: RunLimits) -> int:
    size, bound = 0, limits.run_rows * limits.first_fanout
    while rows >= bound:
        size, bound = size + 1, bound * limits.fanout
    return size


class Merge:
    """Merges runs into one run, part by part. The runs stay in use meanwhile."""

    def __init__(
        self,
        runs: Sequence[LiveSorted],
        grouped: Grouped,
        *,
        keys: Sequence[str],
        time: str,
        place: RunPlace,
        limits: RunLimits,
    ) -> None:
        self.inputs = {live.run.token: None for live in runs}
        self.dropped: Place | None = None
        """The rows of the state up to here were removed since the merge began."""
        self._left: list[LiveSorted] = list(runs)
        self._grouped = grouped
        self._keys = keys
        self._time = time
        self._limits = limits
        self._builder = place.build()

    def work(self) -> SortedRun | None:
        """Merge the next parts. Returns the run if the merge is done."""
        rows = 0
        while self._left and rows < self._limits.turn_rows:
            rows += self._part()
        if self._left:
            return None
        blocks, buffer = self._builder.end()
        return SortedRun(blocks, self._time, buffer)

    def _part(self) -> int:
        end = next_place(self._left, Place(2**63 - 1, LAST_HASH), self._limits.part_blocks)
        found = [batch for batches in heads(self._left, end) for batch in batches]
        table = pa.Table.from_batches(found).drop_columns([KEY_HASH])
        for block in in_blocks(self._grouped(table), self._keys, self._time, self._limits.block_rows):
            self._builder.add(block)
        kept = ((live, live.run.count(end)) for live in self._left)
        self._left = [LiveSorted(live.run, first) for live, first in kept if first < live.run.rows]
        return table.num_rows

    def give_up(self) -> None:
        """The run is not needed any more."""
        self._builder.give_up()

"""Finds rows of sorted runs by time and key, many at a time. Nothing but the order of the rows is needed: there is no
index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.sorted_runs import KEY_HASH, LAST_HASH, LiveSorted, Place

Times = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.int32]

_FEW_TIMES = 8
"""Rows of so many times are looked up time by time."""
HASH_BITS = 31
"""A hash has so many bits."""


def rows_like(runs: Sequence[LiveSorted], times: Times, hashes: Hashes) -> list[pa.RecordBatch]:
    """The rows with any of these times and hashes, which are in the order of runs, each once. The last column is
    `KEY_HASH`."""
    bounds = np.flatnonzero(np.diff(times, prepend=times[0] - 1, append=times[-1] + 1)) if times.size else times
    if bounds.size - 1 > _FEW_TIMES:
        return list(_of_many_times(runs, times[bounds[:-1]], times, hashes))
    found: list[pa.RecordBatch] = []
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        time_us, wanted = int(times[first]), hashes[first:end]
        for block in _blocks(runs, time_us, time_us):
            found += _picked(block, _hashes(block), wanted)
    return found


def _of_many_times(
    runs: Sequence[LiveSorted], distinct: Times, times: Times, hashes: Hashes
) -> Iterator[pa.RecordBatch]:
    wanted = (np.searchsorted(distinct, times) << HASH_BITS) | hashes
    for block in _blocks(runs, int(distinct[0]), int(distinct[-1])):
        of_rows = int64_values(block.column(_time_of(runs)))
        numbers = np.searchsorted(distinct, of_rows)
        rows = np.flatnonzero(distinct[np.minimum(numbers, distinct.size - 1)] == of_rows)
        if rows.size:
            yield from _picked(block, (numbers[rows] << HASH_BITS) | _hashes(block)[rows], wanted, rows)


def rows_of_hashes(runs: Sequence[LiveSorted], first_us: int, last_us: int, hashes: Hashes) -> Iterator[pa.RecordBatch]:
    """The rows from a time up to another time with any of these hashes, which are in order. Looks at every row between
    the times."""
    for block in _blocks(runs, first_us, last_us):
        of_rows = _hashes(block)
        numbers = np.minimum(np.searchsorted(hashes, of_rows), hashes.size - 1)
        kept = hashes[numbers] == of_rows
        if kept.any():
            yield block.filter(pa.array(kept))


def rows_between(runs: Sequence[LiveSorted], first_us: int, last_us: int) -> int:
    """How many rows are from a time up to another time."""
    return sum(max(0, end - first) for _, first, end in _ranges(runs, first_us, last_us))


def _ranges(runs: Sequence[LiveSorted], first_us: int, last_us: int) -> Iterator[tuple[LiveSorted, int, int]]:
    for live in runs:
        end = live.run.count(Place(last_us, LAST_HASH))
        if live.first < end:
            yield live, max(live.first, live.run.count(Place(first_us, -1))), end


def _blocks(runs: Sequence[LiveSorted], first_us: int, last_us: int) -> Iterator[pa.RecordBatch]:
    for live, first, end in _ranges(runs, first_us, last_us):
        yield from live.run.rows_between(first, end)


def _hashes(block: pa.RecordBatch) -> Hashes:
    column: Any = block.column(KEY_HASH)
    found: Hashes = column.to_numpy()
    return found


def _time_of(runs: Sequence[LiveSorted]) -> str:
    return runs[0].run.time


def _picked(
    block: pa.RecordBatch, codes: npt.NDArray[Any], wanted: npt.NDArray[Any], rows: npt.NDArray[np.intp] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a block whose codes are wanted. Both are in order. `codes` are those of `rows`, if given."""
    wanted = wanted[np.searchsorted(wanted, codes[0]) : np.searchsorted(wanted, codes[-1], side="right")]
    begins = np.searchsorted(codes, wanted, side="left")
    counts = np.searchsorted(codes, wanted, side="right") - begins
    total = int(counts.sum())
    if total:
        found = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(total)
        picked: Any = pa.array(found if rows is None else rows[found])
        yield block.take(picked)

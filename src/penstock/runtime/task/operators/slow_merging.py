"""Merges partial aggregates in slices, where an aggregate of the user's is called for every merge.

Such a merge may take microseconds or seconds, and tens of thousands of partials are merged at once. So the partials are
ordered by their groups, and merged a few at a time: as many as take some milliseconds. Nothing that is being merged
leaves the state before its merge is done. So a snapshot may be taken between two slices, and has the partials as they
were.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock.api.aggregate_kinds.base import Calculation
from penstock.api.aggregate_kinds.description import Aggregate
from penstock.api.windows import WindowType
from penstock.runtime.task.operators.aggregation import group
from penstock.runtime.task.operators.sessions import codes_of
from penstock.runtime.task.slices import Slice, Slices

Result = TypeVar("Result")

Merged = Generator[None, None, pa.Table]
"""Merges partials: stops after every slice, and returns the merged partials."""


def merges_by_row(aggregates: Iterable[Aggregate]) -> bool:
    """Whether an aggregate of the user's is called for every two partials that are merged."""
    return any(each.function is not None for each in aggregates)


def in_slices(steps: Generator[None, None, Result], *, may_snapshot: bool) -> Generator[bool, None, Result]:
    """Merging as work of an operator. `may_snapshot` says whether a snapshot may be taken between two slices."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        yield may_snapshot


class SlowMerging:
    """Merges the partials of one operator, and learns how long that takes."""

    def __init__(self, calculations: Sequence[Calculation], window: WindowType | None) -> None:
        self._calculations = calculations
        self._window = window
        self._rows = Slices()

    @property
    def rows(self) -> int:
        """About so many partials are merged in a few milliseconds."""
        return self._rows.rows

    def grouped(self, partials: pa.Table, keys: Sequence[str], slice_: Slice) -> Merged:
        """One row per key, with the columns of the partials."""
        if partials.num_rows == 0:
            return partials
        codes = codes_of(partials, keys)
        order = np.argsort(codes, kind="stable")
        codes, ordered = codes[order], partials.take(order).combine_chunks()
        begins = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
        none = ordered.slice(0, 0)
        done, open_group, begin = list[pa.Table](), none, 0
        while begin < codes.size:
            end, since_ms = min(codes.size, begin + self._rows.rows), slice_.now_ms()
            if open_group.num_rows and codes[begin] != codes[begin - 1]:
                done.append(open_group)
                open_group = none
            # The last group of the slice may go on behind the slice.
            last = int(begins[np.searchsorted(begins, end - 1, side="right") - 1])
            if last > begin:
                done.append(self._group(pa.concat_tables([open_group, ordered.slice(begin, last - begin)]), keys))
                open_group = none
            rows, first, begin = end - begin, max(begin, last), end
            open_group = self._group(pa.concat_tables([open_group, ordered.slice(first, end - first)]), keys)
            self._rows.took(rows, slice_.now_ms() - since_ms)
            if slice_.spend(rows) and end < codes.size:
                yield
        return pa.concat_tables([*done, open_group])

    def _group(self, partials: pa.Table, keys: Sequence[str]) -> pa.Table:
        grouped = group(partials, keys, self._calculations, window=self._window)
        return grouped.select(partials.schema.names).cast(partials.schema)

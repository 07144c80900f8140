"""Which runs of a table are merged, and how: part by part, so that the work can be done in pieces.

To merge runs whose rows are all different makes fewer runs, and no fewer rows. It costs as much as to make the runs. So
runs are merged for two reasons only:

* There are many of one size. So a row is merged a few times only, and there are few runs to look into.
* The runs would be much smaller as one run, because times and keys come again. How much smaller is estimated from
  samples of their rows. So the runs together have at most about `_MOST_WASTE` times the rows that they would have as
  one run, and runs of different keys are not merged in vain.

Small runs are merged as soon as the others together are as large as the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.runtime.task.operators.sorted_runs import (
    KEY_HASH,
    LAST_HASH,
    LiveSorted,
    Place,
    RunLimits,
    SortedRun,
    distinct_share,
    heads,
    in_blocks,
    next_place,
    ordered,
)
from penstock.state.run_places import RunPlace

Grouped = Callable[[pa.Table], pa.Table]
"""Merges the rows of equal keys and times. The columns stay the same."""

_MOST_WASTE = 3
_WORTH_GROUPING = 0.9
"""Rows are grouped while they are merged if a smaller share of them would be left. Otherwise rows of equal times and
keys stay beside each other."""


class Waste:
    """Says when the runs of a table would be much smaller as one run. The runs are looked at rarely: other keys never
    make the one run smaller, so it is known how many rows there must be first."""

    def __init__(self) -> None:
        self._look_at = 0
        """With so many rows the runs are looked at again."""

    def forget(self) -> None:
        """Rows were removed."""
        self._look_at = 0

    def is_great(self, runs: Sequence[LiveSorted]) -> bool:
        """Whether all runs should be merged."""
        rows = sum(live.rows for live in runs)
        if len(runs) < 2 or rows < self._look_at:
            return False
        alone = distinct_share(runs) * rows
        self._look_at = int(_MOST_WASTE * alone) + 1
        return rows >= _MOST_WASTE * alone


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
    return like_runs(sizes, limits, limits.first_fanout)


def like_runs(sizes: Sequence[int], limits: RunLimits, first_fanout: int) -> int | None:
    """From which run on there are enough of one size; None if there are few of each. `first_fanout` runs of the
    smallest size are enough."""
    found, largest, count = None, -1, 0
    for number in range(len(sizes) - 1, -1, -1):
        size = _size_class(sizes[number], limits, first_fanout)
        if size > largest:
            largest, count = size, 0
        count += size == largest
        if count >= (limits.fanout if largest else first_fanout):
            found = number
    return found


def _size_class(rows: int, limits: RunLimits, first_fanout: int) -> int:
    # The rows of merged runs may be fewer than the rows of the runs that they were made of.
    size, bound = 0, limits.run_rows * first_fanout // 2
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
        self.rows = sum(live.rows for live in runs)
        self.dropped: Place | None = None
        """The rows of the state up to here were removed since the merge began."""
        self._left: list[LiveSorted] = list(runs)
        self._grouped = grouped
        self._is_grouped = self.rows <= limits.loop_rows or distinct_share(runs) < _WORTH_GROUPING
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
        return SortedRun(blocks, self._time, buffer, is_grouped=self._is_grouped)

    def _part(self) -> int:
        limits = self._limits
        end = next_place(self._left, Place(2**63 - 1, LAST_HASH), limits)
        table = pa.Table.from_batches([batch for _, batches in heads(self._left, end) for batch in batches])
        if self._is_grouped:
            grouped = self._grouped(table.drop_columns([KEY_HASH]))
            blocks = list(in_blocks(grouped, self._keys, self._time, limits.block_rows))
        else:
            blocks = ordered(table, self._time).to_batches(max_chunksize=limits.block_rows)
        for block in blocks:
            self._builder.add(block)
        kept = ((live, live.run.count(end)) for live in self._left)
        self._left = [LiveSorted(live.run, first) for live, first in kept if first < live.run.rows]
        return table.num_rows

    def give_up(self) -> None:
        """The run is not needed any more."""
        self._builder.give_up()

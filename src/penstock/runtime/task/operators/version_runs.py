"""The versions of a versioned stream, in immutable runs.

A version of a key holds from its time on, until the time of the next version of the key. Runs are those of joins
(`join_runs`): all versions of a key lie next to each other in the index of a run, in the order of their times. Of two
versions with the same key and time the version that came later holds.

A version is *obsolete* when a later version of its key holds at the watermark: whatever asks from then on asks for a
later time. Obsolete versions are dropped when runs are merged, and all runs are merged when there are twice as many
versions as after the last time. If they are too large for one run, each of the new runs has the keys with some of the
hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from penstock.runtime.task.operators.join_columns import Pairs
from penstock.runtime.task.operators.join_merging import Trim
from penstock.runtime.task.operators.join_run import Bits, Int64s, Run, UInt32s
from penstock.runtime.task.operators.join_runs import JoinRuns

_LEAST_ROWS = 4_096
"""Runs are not merged to drop obsolete versions while there are fewer versions than this."""
_BEFORE_TIME = -(2**63)


class VersionRuns(JoinRuns):
    """All versions that may still be asked for."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        super().__init__(last_match=_for_ever)
        self._keys = keys
        self._passed = _BEFORE_TIME
        self._kept = 0
        """How many versions there were when all runs had been merged."""

    def _trim(self) -> Trim:
        return partial(_is_current, keys=self._keys, passed=self._passed)

    def forget(self, time_us: int) -> None:
        """Nobody asks for a time up to this time any more."""
        self._passed = max(self._passed, time_us)
        self._use_merged()
        if self.rows > max(_LEAST_ROWS, 2 * self._kept) and not self._under_way():
            self._merge(self.runs, sweeps=True)

    def _replaced(self, *, sweeps: bool) -> None:
        if sweeps:
            self._kept = self.rows

    def held(self, asked: pa.RecordBatch, keys: Sequence[str], times: Int64s, hashes: UInt32s) -> tuple[Int64s, Int64s]:
        """For each record that asks, by its key and its time: the number of the run with the version that holds, and
        the number of the version in the run. -1 if no version holds."""
        best, of_run = np.full(times.size, _BEFORE_TIME), np.full(times.size, -1)
        rows = np.full(times.size, -1)
        for number, run in enumerate(self.runs):
            found = self._in_run(run, asked, keys, times, hashes)
            # Of versions of the same time that in the newest run came last.
            better = (found >= 0) & (run.times[found] >= best)
            best[better], of_run[better], rows[better] = run.times[found[better]], number, found[better]
        return of_run, rows

    def _in_run(self, run: Run, asked: pa.RecordBatch, keys: Sequence[str], times: Int64s, hashes: UInt32s) -> Int64s:
        found = np.full(times.size, -1)
        places = run.last_upto(hashes, times)
        open_rows = np.flatnonzero(places >= 0)
        while open_rows.size:
            at = run.order[places[open_rows]]
            same_hash = run.hashes[at] == hashes[open_rows]
            open_rows, at = open_rows[same_hash], at[same_hash]
            holds = run.times[at] <= times[open_rows]
            pairs = Pairs(asked, open_rows, run.rows, at)
            for key, of_version in zip(keys, self._keys, strict=True):
                holds &= pairs.equal(key, of_version)
            found[open_rows[holds]] = at[holds]
            # Another key has the same hash, or the version is a little later than asked for: the one before may hold.
            open_rows = open_rows[~holds]
            places[open_rows] -= 1
            open_rows = open_rows[places[open_rows] >= 0]
        return found


def _for_ever(times: Int64s) -> Int64s:
    """Versions are not done by their times alone."""
    return np.full(times.size, 2**63 - 1)


def _is_current(run: Run, *, keys: Sequence[str], passed: int) -> Bits:
    """Which versions of a run are not obsolete. A version whose key shares its hash with another key may count as
    current longer than it is."""
    order = run.order
    hashes, times = run.hashes[order], run.times[order]
    followed = np.flatnonzero((hashes[1:] == hashes[:-1]) & (times[1:] <= passed))
    pairs = Pairs(run.rows, order[followed], run.rows, order[followed + 1])
    for key in keys:
        same = pairs.equal(key, key)
        followed, pairs = followed[same], pairs.of(same)
    current = np.ones(order.size, np.bool_)
    current[order[followed]] = False
    return current

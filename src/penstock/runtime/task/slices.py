"""Cuts work that takes long into slices, so that a barrier, a heartbeat or a cancel never waits long.

Rows are cut before they are handed to an operator: `Slices` learns how many rows take a few milliseconds. Timers that
are due, results of windows and rows that a function yields cannot be cut from outside. The operator cuts them as
`Work`: the work stops when the `Slice` of the chain is over, and goes on with `Work.go_on`.

An operator that computes with many rows at once looks at the clock between two *portions* of rows only. What a row
costs is not known before: the state of a key may be a number or a list of a million records. So `portions` learn, too,
how many rows an operator may take at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pyarrow as pa

SLICE_MS = 3.0
"""How long a slice should take."""
FIRST_ROWS = 16
"""The rows of the first slice. Few, because every attempt begins with a first slice, and a barrier may wait behind
it."""
LEAST_ROWS = 1
PORTION_MS = 15.0
"""How long a portion should take. Longer than a slice, because a portion of few rows costs more for each row."""
FIRST_PORTION = 1_024
MOST_ROWS = 65_536


class Slices:
    """Learns how many rows a task's functions process in `slice_ms`."""

    def __init__(self, slice_ms: float = SLICE_MS, most: int = MOST_ROWS, first: int = FIRST_ROWS) -> None:
        self._slice_ms = slice_ms
        self._most = most
        self.rows = min(first, most)

    def cut(self, batch: pa.RecordBatch, cost: int) -> tuple[pa.RecordBatch, pa.RecordBatch, int]:
        """The next slice, the rest, and the share of the cost that the rest keeps."""
        return cut(batch, self.rows, cost)

    def took(self, rows: int, took_ms: float) -> None:
        """Learn from `rows` rows that took `took_ms`. The size of a slice changes by a factor of two at most, because
        one slow row proves nothing. Few rows that were quick prove nothing either; few rows that were slow do."""
        if took_ms <= 0 or (rows < self.rows // 2 and took_ms <= self._slice_ms):
            return
        wanted = int(rows * self._slice_ms / took_ms)
        self.rows = max(LEAST_ROWS, self.rows // 2, min(wanted, self.rows * 2, self._most))


def portions(most: int) -> Slices:
    """Learns how many rows an operator may take at once, `most` at most."""
    return Slices(PORTION_MS, most, FIRST_PORTION)


def cut(batch: pa.RecordBatch, rows: int, cost: int) -> tuple[pa.RecordBatch, pa.RecordBatch, int]:
    """The first rows, the rest, and the share of the cost that the rest keeps."""
    rest = batch.slice(rows)
    return batch.slice(0, rows), rest, cost * rest.num_rows // batch.num_rows


class Slice:
    """How much the operators of a chain may do before their task looks for barriers and for room again.

    A slice without a clock never ends: it is for an operator that is in no chain.
    """

    __slots__ = ("_clock_ms", "_ended", "_left", "_most", "_until_ms", "spent")

    def __init__(self) -> None:
        self._clock_ms: Callable[[], float] | None = None
        self._most = self._left = MOST_ROWS
        self._until_ms = 0.0
        self._ended = False
        self.spent = 0
        """How many timers, results or rows have been counted since the slice began."""

    def run_by(self, clock_ms: Callable[[], float], most: int) -> None:
        """From here on slices end: by this clock, and after `most` timers, results or rows."""
        self._clock_ms = clock_ms
        self._most = most

    @property
    def most(self) -> int:
        """A slice never has more timers, results or rows than this."""
        return self._most

    def begin(self, most: int = MOST_ROWS) -> float:
        """Begin the next slice, with at most `most` timers, results or rows. Returns the time on the clock."""
        self._ended = False
        self._left = min(most, self._most)
        self.spent = 0
        now_ms = self.now_ms()
        self._until_ms = now_ms + SLICE_MS
        return now_ms

    @property
    def left(self) -> int:
        """How many timers, results or rows may still be done in this slice. At least one, so that the work goes on."""
        return MOST_ROWS if self._clock_ms is None else max(1, self._left)

    def spend(self, count: int = 1) -> bool:
        """Count timers, results or rows as done. Returns whether the slice is over."""
        self._left -= count
        self.spent += count
        return self.is_over

    def end(self) -> None:
        """End the slice early: an operator further down the chain has more work than fits into one slice."""
        self._ended = True

    @property
    def was_ended(self) -> bool:
        """Whether the slice was ended early."""
        return self._ended

    @property
    def is_over(self) -> bool:
        """Whether the slice is over: ended early, by its count, or by the clock."""
        clock_ms = self._clock_ms
        return clock_ms is not None and (self._ended or self._left <= 0 or clock_ms() >= self._until_ms)

    def now_ms(self) -> float:
        """The time on the clock; 0 without a clock."""
        return 0.0 if self._clock_ms is None else self._clock_ms()


Steps = Generator[bool, None, None]
"""A generator that does one slice of work for every value that it yields. The value says whether a snapshot may be
taken at that point: the effects of the work that is done are in the state, its results have been handed on, and the
work that is left is still in the state."""


class Work:
    """The rest of work that takes an operator more than one slice."""

    __slots__ = ("_steps", "may_snapshot")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.may_snapshot = False

    @classmethod
    def begin(cls, steps: Steps) -> Work | None:
        """Do the first slice. Returns None if no work is left."""
        work = cls(steps)
        return work if work.go_on() else None

    def go_on(self) -> bool:
        """Do the next slice. Returns whether work is left."""
        cut = next(self._steps, None)
        if cut is None:
            return False
        self.may_snapshot = cut
        return True

    def drop(self) -> None:
        """Give the work up. This closes generators of user code, which may raise."""
        self._steps.close()

"""What takes long, cut into slices, so that a barrier, a heartbeat or a cancel never waits long behind it.

Rows are cut before they are handed to an operator: `Slices` learns how many take a few milliseconds. What an operator
makes of them, or of the passing of time, cannot be cut from outside: timers that are due, results of windows, rows that
a function yields. The operator does it as `Work`: it stops when the `Slice` of its chain is over, and goes on when told
to.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pyarrow as pa

SLICE_MS = 3.0
"""How long a slice should take."""
FIRST_ROWS = 16
"""Few, for every attempt begins with them, and a barrier may wait behind the first slice already."""
LEAST_ROWS = 1
MOST_ROWS = 65_536


class Slices:
    """Learns how many rows a task's functions get through in `slice_ms`."""

    def __init__(self, slice_ms: float = SLICE_MS, most: int = MOST_ROWS) -> None:
        self._slice_ms = slice_ms
        self._most = most
        self.rows = min(FIRST_ROWS, most)

    def cut(self, batch: pa.RecordBatch, cost: int) -> tuple[pa.RecordBatch, pa.RecordBatch, int]:
        """The next slice, the rest, and the share of the cost that the rest keeps."""
        rest = batch.slice(self.rows)
        return batch.slice(0, self.rows), rest, cost * rest.num_rows // batch.num_rows

    def took(self, rows: int, took_ms: float) -> None:
        """So many rows took so long. The size changes by a factor of two at most: one slow row proves nothing."""
        if rows < self.rows // 2 or took_ms <= 0:
            return
        wanted = int(rows * self._slice_ms / took_ms)
        self.rows = max(LEAST_ROWS, self.rows // 2, min(wanted, self.rows * 2, self._most))


class Slice:
    """How much the operators of a chain may do before their task looks at the world again.

    Without a clock it never ends: that is for an operator that is in no chain.
    """

    __slots__ = ("_clock_ms", "_ended", "_left", "_most", "_until_ms", "spent")

    def __init__(self) -> None:
        self._clock_ms: Callable[[], float] | None = None
        self._most = self._left = MOST_ROWS
        self._until_ms = 0.0
        self._ended = False
        self.spent = 0
        """How many timers, results or rows have been counted since it was begun."""

    def run_by(self, clock_ms: Callable[[], float], most: int) -> None:
        """From now on it ends: by this clock, and after so many timers, results or rows."""
        self._clock_ms = clock_ms
        self._most = most

    @property
    def most(self) -> int:
        """It never has more than so many timers, results or rows."""
        return self._most

    def begin(self, most: int = MOST_ROWS) -> float:
        """Begin the next one, which may have at most so many timers, results or rows; the time on its clock."""
        self._ended = False
        self._left = min(most, self._most)
        self.spent = 0
        now_ms = self.now_ms()
        self._until_ms = now_ms + SLICE_MS
        return now_ms

    @property
    def left(self) -> int:
        """How many timers, results or rows may still be done: one at least, so that something is."""
        return MOST_ROWS if self._clock_ms is None else max(1, self._left)

    def spend(self, count: int = 1) -> bool:
        """So much has been done; whether that is enough."""
        self._left -= count
        self.spent += count
        return self.is_over

    def end(self) -> None:
        """End it before its time: an operator further on has more than it may do at once."""
        self._ended = True

    @property
    def was_ended(self) -> bool:
        """Whether it was ended before its time."""
        return self._ended

    @property
    def is_over(self) -> bool:
        """Whether enough has been done."""
        clock_ms = self._clock_ms
        return clock_ms is not None and (self._ended or self._left <= 0 or clock_ms() >= self._until_ms)

    def now_ms(self) -> float:
        """The time on its clock."""
        return 0.0 if self._clock_ms is None else self._clock_ms()


Steps = Generator[bool, None, None]
"""Does one slice for every value that it gives. The value says whether a snapshot may be taken there: what has been
done is in the state and has been handed on, and what has not been done is still in the state."""


class Work:
    """What is left of something that takes an operator more than one slice."""

    __slots__ = ("_steps", "may_snapshot")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.may_snapshot = False

    @classmethod
    def begin(cls, steps: Steps) -> Work | None:
        """Do the first slice; None if nothing is left then."""
        work = cls(steps)
        return work if work.go_on() else None

    def go_on(self) -> bool:
        """Do the next slice; whether something is left then."""
        cut = next(self._steps, None)
        if cut is None:
            return False
        self.may_snapshot = cut
        return True

    def drop(self) -> None:
        """It will not be gone on with. Generators of the user's are closed, and may raise."""
        self._steps.close()

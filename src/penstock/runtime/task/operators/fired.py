"""How far the windows of a subtask have fired, by key group.

Key groups differ only while they were restored from subtasks that had come to different times. So a single time is
enough most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.core.errors import CorruptFile
from penstock.runtime.task.operators.window_table import FiredRange

_NOT_BEGUN = -(2**63)
"""Stands for a key group of which no window has fired, where only integers fit."""

Groups = npt.NDArray[np.int32]


class Fired:
    """The time up to which the windows of each key group have fired. A window whose last time is not later than that
    time has fired."""

    def __init__(self) -> None:
        self._first = 0
        self._by_group = np.full(1, _NOT_BEGUN)
        """A single entry while all key groups have come to the same time."""

    def restore(self, ranges: Iterable[FiredRange], own: tuple[int, int]) -> None:
        """Begin where the key groups of this subtask, from the first to the last, had come to. Raises `CorruptFile`."""
        self._first = own[0]
        by_group = np.full(own[1] - own[0] + 1, _NOT_BEGUN)
        for entry in ranges:
            if entry.fired_us is not None:
                if not _NOT_BEGUN <= entry.fired_us < -_NOT_BEGUN:
                    raise CorruptFile(
                        f"a snapshot says that event time had come to {entry.fired_us}, which is no time",
                        hint="restore the job from another checkpoint or savepoint",
                    )
                by_group[entry.first_group - own[0] : entry.last_group - own[0] + 1] = entry.fired_us
        self._set(by_group)

    def advance(self, time_us: int) -> None:
        """Windows up to this time have fired. Key groups that have come further stay where they are."""
        self._set(np.maximum(self._by_group, time_us))

    @property
    def least(self) -> int:
        """The time that all key groups have come to. The least of 64 bits if a key group has not begun."""
        return int(self._by_group.min())

    @property
    def most(self) -> int:
        """The time that no key group has gone beyond."""
        return int(self._by_group.max())

    def of_rows(self, groups: Callable[[], Groups]) -> npt.NDArray[np.int64]:
        """For each row the time that its key group has come to, or a single time for all rows. `groups` computes the
        key group of each row."""
        return self._by_group if self._by_group.size == 1 else self._by_group[groups() - self._first]

    def late(self, last_times: npt.NDArray[np.int64], groups: Callable[[], Groups]) -> npt.NDArray[np.bool_] | None:
        """Which rows are late, given the last time in the window of each row; None if no row is late."""
        if last_times.size == 0 or self._by_group.max() == _NOT_BEGUN or last_times.min() > self._by_group.max():
            return None
        fired = self.of_rows(groups)
        late: npt.NDArray[np.bool_] = (fired != _NOT_BEGUN) & (last_times <= fired)
        return late

    def ranges(self, own: tuple[int, int]) -> tuple[FiredRange, ...]:
        """The same for a snapshot, in ranges of key groups that have come to the same time."""
        times = self._by_group.tolist()
        bounds = [0, *(i for i in range(1, len(times)) if times[i] != times[i - 1]), own[1] - own[0] + 1]
        return tuple(
            FiredRange(
                first_group=own[0] + begin,
                last_group=own[0] + end - 1,
                fired_us=None if times[begin] == _NOT_BEGUN else times[begin],
            )
            for begin, end in pairwise(bounds)
        )

    def _set(self, by_group: npt.NDArray[np.int64]) -> None:
        self._by_group = by_group[:1] if by_group.min() == by_group.max() else by_group

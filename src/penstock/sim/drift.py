"""Whether aligned sources read evenly: a split is read only if it is not too far ahead of the split that is furthest
behind.

The checker stands outside: it sees which records readers return, and computes event times from these records. It takes
a split for the split of the reader that was opened last; a reader of a slot that was given up may still read, and does
not count. What the group is told is old by the time that a message takes. So a split is held against the furthest that
the group has come lately: that is more than the present only if a split that is further behind has begun meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from penstock.core.alignment.times import Alignment

LATELY_MS = 1_000
"""Longer than it takes, in a world without faults, until a reader hears of a split that is further behind."""

LATELY_WITH_FAULTS_MS = 12_000
"""Longer than a slot that hears nothing goes on."""


class DriftChecker:
    """Watches the readers of a world whose sources are aligned."""

    def __init__(
        self, alignment: Alignment, *, has_faults: bool, now_ms: Callable[[], int], violate: Callable[[str], None]
    ) -> None:
        self._drift_us = alignment.drift_us
        self._lately_ms = LATELY_WITH_FAULTS_MS if has_faults else LATELY_MS
        self._now_ms = now_ms
        self._violate = violate
        self._readers: dict[int, object] = {}
        """By split: the reader that has the split."""
        self._times: dict[int, int] = {}
        """By split that has begun and has records left: its event time."""
        self._lately: deque[tuple[int, int]] = deque()
        """When the group had come how far, the furthest first; no entry is later and less far than another."""
        self.furthest_us = 0
        """The furthest that a split was ahead when it was read."""

    def opened(self, reader: object, splits: Sequence[int]) -> None:
        """A reader begins with these splits."""
        for split in splits:
            self._readers[split] = reader
            self._times.pop(split, None)

    def polled(self, reader: object, before_us: int | None, *, split: int, after_us: int, is_left: bool) -> None:
        """A reader has returned records of a split. `before_us` is the event time for which the reader could have been
        held; None if nothing that the reader could be held for had begun."""
        if self._readers.get(split) is not reader:
            return
        self._note()
        if before_us is not None and self._lately:
            ahead_us = before_us - self._lately[0][1]
            self.furthest_us = max(self.furthest_us, ahead_us)
            if ahead_us > self._drift_us:
                self._violate(f"split {split} was read while {ahead_us} us ahead, and {self._drift_us} us are allowed")
        if is_left:
            self._times[split] = after_us
        else:
            self._times.pop(split, None)

    def _note(self) -> None:
        """Remember how far the group has come."""
        now_ms = self._now_ms()
        while self._lately and self._lately[0][0] < now_ms - self._lately_ms and len(self._lately) > 1:
            self._lately.popleft()
        if not self._times:
            return
        least_us = min(self._times.values())
        while self._lately and self._lately[-1][1] <= least_us:
            self._lately.pop()
        self._lately.append((now_ms, least_us))

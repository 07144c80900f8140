"""How far one reader of a watermark group may read, and when the reader tells the group how far it has come.

Rules of this file
    * A split whose event time is more than the allowed drift above the event time of the group is not read.
    * A split that has not begun may be read: nobody knows its event time, and the group may be waiting for it.
    * Before the group has answered for the first time, a split is read until it has begun, and no further.

What the reader tells is what the group must know soon: that its event time has begun, has gone back, has come a good
part of the drift further, or does not count any more. Smaller steps are told once in an interval.

Nothing of this is state: after a restart the reader and the group begin anew.
"""

from __future__ import annotations

from penstock.core.alignment.events import GroupTimeTold, LeastSeen, ReaderEvent, TellTime
from penstock.core.alignment.times import NOT_BEGUN, LeastTime
from penstock.core.ids import Instant

TOLD_PARTS = 4
"""A reader tells its event time at once when it has come this part of the drift further."""


class ReaderAlignment:
    """Decides for one reader. `now` never goes back."""

    def __init__(self, *, drift_us: int, interval_ms: int) -> None:
        self._drift_us = drift_us
        self._interval_ms = interval_ms
        self._seen: LeastTime = NOT_BEGUN
        self._told: LeastTime = NOT_BEGUN
        """The group takes every reader for one that has not begun, until the reader says otherwise."""
        self._told_at: Instant | None = None
        self._has_answer = False
        self._limit_us: int | None = None

    def may_read(self, time_us: int) -> bool:
        """Whether a split at this event time may be read."""
        if time_us == NOT_BEGUN:
            return True
        return self._has_answer and (self._limit_us is None or time_us <= self._limit_us)

    def handle(self, event: ReaderEvent, now: Instant) -> list[TellTime]:
        """Take one event in."""
        match event:
            case LeastSeen():
                self._seen = event.time_us
            case GroupTimeTold():
                self._has_answer = True
                self._limit_us = None if event.time_us is None else event.time_us + self._drift_us
        return self._tell(now)

    def next_deadline(self) -> Instant | None:
        """When `LeastSeen` must be fed in at the latest, so that a small step is told; None if there is nothing to
        tell."""
        if self._seen == self._told or self._told_at is None:
            return None
        return Instant(self._told_at + self._interval_ms)

    def validate(self) -> None:
        """Nothing here can contradict itself."""

    def _tell(self, now: Instant) -> list[TellTime]:
        deadline = self.next_deadline()
        if not self._is_urgent() and (deadline is None or now < deadline):
            return []
        self._told, self._told_at = self._seen, now
        return [TellTime(time_us=self._seen)]

    def _is_urgent(self) -> bool:
        seen, told = self._seen, self._told
        if seen == told:
            return False
        if seen is None or told is None or NOT_BEGUN in (seen, told):
            return True
        return seen < told or (seen - told) * TOLD_PARTS >= self._drift_us

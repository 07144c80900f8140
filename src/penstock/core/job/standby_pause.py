"""How long a job waits before it asks for a standby again: a cluster without room for one must not be asked all the
time."""

from __future__ import annotations

from penstock.core.ids import Instant

STANDBY_PAUSE_MS = 1_000
"""Before a standby that was lost is asked for again; it doubles until one has called in."""

LONGEST_STANDBY_PAUSE_MS = 60_000


class StandbyPause:
    """Begins when a standby is lost. The next one is longer, unless a standby has called in meanwhile."""

    def __init__(self) -> None:
        self.until: Instant | None = None
        """When it is over; None if there is none."""
        self._next_ms = STANDBY_PAUSE_MS

    def begin(self, now: Instant) -> None:
        """A standby was lost."""
        self.until = Instant(now + self._next_ms)
        self._next_ms = min(2 * self._next_ms, LONGEST_STANDBY_PAUSE_MS)

    def lasts(self, now: Instant) -> bool:
        """Whether it is too early to ask."""
        return self.until is not None and now < self.until

    def reset(self) -> None:
        """A standby has called in."""
        self._next_ms = STANDBY_PAUSE_MS

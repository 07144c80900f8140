"""When a job asks for slots that stand by.

Spare slots stand by once the job runs. A standby that is up gets the place of a member that dies, at once; the next
standby is asked for when the job runs again, so that its start does not delay that. A standby that is lost is asked for
again after a pause: a cluster without room for it must not be asked all the time. A standby that comes up while a
member is missing gets its place: the cluster may have no core left for the member.
"""

from __future__ import annotations

from penstock.core.ids import Instant
from penstock.core.job.events import StartSlot
from penstock.core.job.slot_states import SlotStates

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

    def ask(self, slots: SlotStates, wanted: int, now: Instant) -> list[StartSlot]:
        """See that as many slots stand by as are wanted, unless it is too early to ask."""
        if self.lasts(now):
            return []
        self.until = None
        missing = wanted - len(slots.standbys)
        return [StartSlot(slot=slots.add_standby(now).slot) for _ in range(missing)]

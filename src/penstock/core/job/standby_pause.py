"""When a job asks for spare slots (standbys).

Standbys are asked for when the job runs. A standby that is up gets the place of a lost member at once. The next standby
is asked for when the job runs again, so that the start of the standby does not delay the restart of the job. A standby
that is lost is asked for again after a pause: a cluster without room for the standby must not be asked all the time. A
standby that comes up while a member is missing gets the member's place: the cluster may have no core left for the
member.
"""

from __future__ import annotations

from penstock.core.ids import Instant
from penstock.core.job.events import StartSlot
from penstock.core.job.slot_states import SlotStates

STANDBY_PAUSE_MS = 1_000
"""The pause before a lost standby is asked for again. The pause doubles until a standby has called in."""

LONGEST_STANDBY_PAUSE_MS = 60_000


class StandbyPause:
    """The pause that begins when a standby is lost. The next pause is longer, unless a standby has called in
    meanwhile."""

    def __init__(self) -> None:
        self.until: Instant | None = None
        """When the pause is over; None if no pause is on."""
        self._next_ms = STANDBY_PAUSE_MS

    def begin(self, now: Instant) -> None:
        """A standby was lost."""
        self.until = Instant(now + self._next_ms)
        self._next_ms = min(2 * self._next_ms, LONGEST_STANDBY_PAUSE_MS)

    def lasts(self, now: Instant) -> bool:
        """Whether the pause is not over yet."""
        return self.until is not None and now < self.until

    def reset(self) -> None:
        """A standby has called in."""
        self._next_ms = STANDBY_PAUSE_MS

    def ask(self, slots: SlotStates, wanted: int, now: Instant) -> list[StartSlot]:
        """Ask for standbys until there are `wanted` standbys, unless the pause lasts."""
        if self.lasts(now):
            return []
        self.until = None
        missing = wanted - len(slots.standbys)
        return [StartSlot(slot=slots.add_standby(now).slot) for _ in range(missing)]

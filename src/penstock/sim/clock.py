"""The clock of a simulated process: shows virtual time, unless a fault has set the clock."""

from __future__ import annotations

from penstock.core.ids import Instant
from penstock.sim.world import Actor


class SimClock:
    """`Clock` of one actor."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def now(self) -> Instant:
        """Milliseconds since 1970, virtual; does not move during a turn."""
        return self._actor.now()

    def precise_ms(self) -> float:
        """A finer clock, for durations; no fault sets this clock. Moves during a turn that has a slow step in it."""
        return (self._actor.world.now_us + self._actor.spent_us) / 1_000

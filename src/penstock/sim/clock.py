"""The clock of a simulated process: virtual time."""

from __future__ import annotations

from penstock.core.ids import Instant
from penstock.sim.world import World


class SimClock:
    """`Clock` of one actor. All clocks of a world agree."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> Instant:
        """Milliseconds since 1970, virtual; does not move during a turn."""
        return self._world.now()

    def precise_ms(self) -> float:
        """The same in fractions; moves during a turn that has a slow step in it."""
        acting = self._world.acting
        spent_us = acting.spent_us if acting is not None else 0
        return (self._world.now_us + spent_us) / 1_000

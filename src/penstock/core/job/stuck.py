"""A slot whose loop does not turn, although its process lives: user code there has not come back.

    turns ── says that it is stuck ──► stuck ── longer than the settings allow ──► given up
      ▲                                  │
      └───── its loop turns again ───────┘

Rules of this file:
* A slot that is stuck is alive: its process says so beside its loop. It is told to people instead of being replaced,
  since the same records would come to the same code again.
* People are told when it is first heard of, and then each time it has lasted twice as long.
"""

from __future__ import annotations


class Stuckness:
    """What is known of one slot."""

    def __init__(self) -> None:
        self._tell_from_ms = 0
        self._where: str | None = None

    def hear(self, stuck_ms: int, where: str) -> bool:
        """The slot says that it has been stuck for so long; whether people are to be told so now."""
        self._where = where
        is_due = stuck_ms >= self._tell_from_ms
        if is_due:
            self._tell_from_ms = 2 * stuck_ms
        return is_due

    def end(self) -> bool:
        """The slot's loop turns, or is no more; whether the slot was stuck."""
        was_stuck = self._where is not None
        self._tell_from_ms, self._where = 0, None
        return was_stuck

    @property
    def where(self) -> str:
        """What the slot is stuck in, to be put behind what else is wrong with it; empty if it turns."""
        return "" if self._where is None else f", being in {self._where}"

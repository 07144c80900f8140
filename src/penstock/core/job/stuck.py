"""A slot whose loop does not turn, although its process lives: a call of user code has not returned.

    turns ── says that it is stuck ──► stuck ── longer than the settings allow ──► given up
      ▲                                  │
      └───── its loop turns again ───────┘

Rules of this file:
* A slot is *mute* while native code holds Python's lock, so that no thread of the slot can say that the slot is stuck.
  The stacks that a native thread dumps say so in its place. A mute slot is alive, and is stuck when its loop has not
  turned for as long as other stuck slots. The other slots are told that the mute slot lives.
* A slot that is stuck is alive: its process says so from beside its loop. People are told of a stuck slot, and the slot
  is not replaced: the next slot would run the same code with the same records.
* People are told when a slot first says that it is stuck, and then each time the slot has been stuck for twice as long.
"""

from __future__ import annotations


class Stuckness:
    """Whether one slot is stuck, and in what."""

    def __init__(self) -> None:
        self._tell_from_ms = 0
        self._where: str | None = None

    def hear(self, stuck_ms: int, where: str) -> bool:
        """The slot says that it has been stuck for `stuck_ms`. Returns whether people are to be told now."""
        self._where = where
        is_due = stuck_ms >= self._tell_from_ms
        if is_due:
            self._tell_from_ms = 2 * stuck_ms
        return is_due

    def end(self) -> bool:
        """The slot's loop turns again, or the slot is gone. Returns whether the slot was stuck."""
        was_stuck = self._where is not None
        self._tell_from_ms, self._where = 0, None
        return was_stuck

    @property
    def where(self) -> str:
        """What the slot is stuck in, as the end of an error text; empty if the loop turns."""
        return "" if self._where is None else f"; the slot was in {self._where}"

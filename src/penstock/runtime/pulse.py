"""What a process does beside its loop: it says that it lives while the loop is in code that does not come back.

A loop that turns says so itself, and the pulse is still. When the loop has not turned for a second, the pulse sends the
keepalives that the loop owes; when it has not turned for longer than the settings allow, it has that reported, with
where the loop is. The shell calls `beat` from a thread of its own, so that a function of the user's cannot keep it from
being called. Only what keeps the whole process still does that: a process that is stopped, or code that holds Python's
global lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.ids import Epoch, Instant, SlotId
from penstock.core.messages import LoopStuck
from penstock.runtime.links import KEEPALIVE_MS, Links


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Where a loop is at one moment."""

    operator: str | None = None
    """The step that it is in, as people call it; None if it is in none."""
    subtask: int | None = None
    stack: str = ""
    """File, line and function of each call, the innermost last."""
    call: int = 0
    """The same as long as the step has not returned."""


NOWHERE = Whereabouts()


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """A loop that does not turn."""

    stuck_ms: int
    step_ms: int
    """How long it has been in the step where it is, as far as was seen."""
    at: Whereabouts

    def told_by(self, slot: SlotId, epoch: Epoch) -> LoopStuck:
        """What the slot with this loop tells the master."""
        return LoopStuck(
            slot=slot,
            epoch=epoch,
            stuck_ms=self.stuck_ms,
            operator=self.at.operator,
            subtask=self.at.subtask,
            step_ms=self.step_ms,
            stack=self.at.stack,
        )


class Pulse:
    """Of one process. `turned` belongs to the loop, `beat` to the thread beside it."""

    def __init__(
        self,
        links: Links,
        *,
        stuck_after_ms: int,
        whereabouts: Callable[[], Whereabouts],
        report: Callable[[Stuck], None],
    ) -> None:
        self._links = links
        self._stuck_after_ms = stuck_after_ms
        self._whereabouts = whereabouts
        self._report = report
        self._turned: Instant | None = None
        self._reported: Instant | None = None
        self._seen: tuple[Instant, int] | None = None
        """The turn and the call that the loop was in when it was last looked at."""
        self._in_call_since = Instant(0)

    def turned(self, now: Instant) -> None:
        """The loop begins a turn."""
        self._turned = now

    def beat(self, now: Instant) -> None:
        """Look at the loop, and say what it does not say itself. To be called several times in a second."""
        turned = self._turned
        if turned is None or now - turned < KEEPALIVE_MS:
            return
        at = self._whereabouts()
        if self._seen is None or self._seen[0] != turned:
            self._in_call_since = turned
        elif self._seen[1] != at.call:
            self._in_call_since = now
        self._seen = turned, at.call
        if now - turned >= self._stuck_after_ms and (self._reported is None or now - self._reported >= KEEPALIVE_MS):
            self._reported = now
            self._report(Stuck(stuck_ms=now - turned, step_ms=now - self._in_call_since, at=at))
        self._links.say_alive(now)

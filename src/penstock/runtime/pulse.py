"""The sign of life that a process gives beside its loop, while the loop is in code that does not return.

A loop that turns sends its keepalives itself, and the pulse does nothing. When the loop has not turned for a second,
the pulse sends the keepalives that the loop owes. When the loop has not turned for longer than the settings allow, the
pulse also reports where the loop is. The shell calls `beat` from a thread of its own, so that user code in the loop
cannot delay the calls. Only two things can delay the calls: the whole process is stopped, or code holds Python's global
lock. A shell that owns its process has another sign of life for code that holds the lock: see `Transport.dumped`.
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
    """The name of the step that the loop is in; None if the loop is in no step."""
    subtask: int | None = None
    doing: str = ""
    """What the step does while it is loaded, in words."""
    stack: str = ""
    """File, line and function of each call, the innermost call last."""
    call: int = 0
    """A number that stays the same until the step returns."""


NOWHERE = Whereabouts()


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """A loop that does not turn."""

    stuck_ms: int
    step_ms: int
    """How long the loop has been in the step that `at` names, as far as the pulse has seen."""
    at: Whereabouts

    def told_by(self, slot: SlotId, epoch: Epoch) -> LoopStuck:
        """The message by which a slot tells the master that the slot's loop does not turn."""
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
    """The pulse of one process. The loop calls `turned`, and a thread beside the loop calls `beat`."""

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
        """The turn and the call that the loop was in when `beat` last looked."""
        self._in_call_since = Instant(0)

    def turned(self, now: Instant) -> None:
        """The loop begins a turn."""
        self._turned = now

    def beat(self, now: Instant) -> None:
        """Look at the loop. If the loop does not turn, send keepalives, and report the loop when it is stuck for too
        long. To be called several times a second."""
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

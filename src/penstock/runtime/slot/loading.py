"""Tells the master what a slot does whose tasks take long to start: which step loads its state, or is in `open()`.

Tasks are loaded on a thread beside the loop, so the loop turns meanwhile, and the slot is not stuck. The master gives
up a slot that is not ready in time, unless the slot says that it is at work.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.ids import Epoch, Instant, SlotId
from penstock.core.messages import TasksLoading
from penstock.runtime.links import KEEPALIVE_MS
from penstock.runtime.pulse import Whereabouts
from penstock.settings import SlotSettings


class Loading:
    """The load that is under way in a slot, if there is one. Used by the loop only."""

    def __init__(self, slot: SlotId, settings: SlotSettings, whereabouts: Callable[[], Whereabouts]) -> None:
        """`whereabouts` says where the thread is that loads."""
        self._slot = slot
        # Before the time-out of the deployment, so that the master knows what the slot does when the time is over.
        self._tell_after_ms = min(settings.stuck_after_ms, settings.deploy_timeout_ms // 2)
        self._whereabouts = whereabouts
        self._epoch: Epoch | None = None
        self._begun = Instant(0)
        self._told: Instant | None = None
        self._seen = Whereabouts()
        self._in_call_since = Instant(0)

    def begin(self, epoch: Epoch, now: Instant) -> None:
        """Tasks of this epoch begin to load."""
        self._epoch, self._begun, self._told = epoch, now, None
        self._seen, self._in_call_since = Whereabouts(), now

    def end(self, epoch: Epoch) -> None:
        """The tasks of this epoch have loaded, or could not be loaded. Nothing happens if tasks of a later epoch have
        begun to load."""
        if self._epoch == epoch:
            self._epoch = None

    def report(self, now: Instant) -> TasksLoading | None:
        """What to tell the master now; None if nothing loads, or has not loaded for long."""
        if self._epoch is None or now - self._begun < self._tell_after_ms:
            return None
        if self._told is not None and now - self._told < KEEPALIVE_MS:
            return None
        at = self._whereabouts()
        if self._told is not None and at.call != self._seen.call:
            self._in_call_since = now
        self._told, self._seen = now, at
        return TasksLoading(
            slot=self._slot,
            epoch=self._epoch,
            loading_ms=now - self._begun,
            operator=at.operator,
            subtask=at.subtask,
            doing=at.doing,
            step_ms=now - self._in_call_since,
            stack=at.stack,
        )

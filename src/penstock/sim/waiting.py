"""Whether checkpoints that are due begin: nothing that a job does for long may keep its checkpoints waiting.

A request waits for its turn while another checkpoint is under way, while tasks restart, while too much is being
deleted, and while a task that has nothing left to do ends. While no fault strikes, none of these takes long, except the
first: a checkpoint that is under way may take up to its time-out.

A slot that died in silence disturbs the job until the master misses that slot, which takes as long as a slot may be
silent. Until then the job may wait for a task of the dead slot that wants to end, or was told to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.core.ids import SlotId
from penstock.core.job.events import JobState
from penstock.core.views import CheckpointStatus
from penstock.runtime.views import JobView
from penstock.sim.rules import Rule
from penstock.sim.world import World

LONGEST_MS = 4_000
"""Longer than a deletion that failed takes to be tried again, and than two slots take to answer each other."""

LOOK_EVERY_MS = 100


class WaitChecker:
    """Looks at the job whenever a message is sent, which slots do all the time."""

    def __init__(
        self,
        world: World,
        *,
        calm_from_ms: int,
        view: Callable[[], JobView | None],
        living: Callable[[], Iterable[SlotId]],
    ) -> None:
        """`living` are the slots whose processes live, whatever the master knows of them."""
        self._world = world
        self._calm_from_ms = calm_from_ms
        self._view = view
        self._living = living
        self._looked_ms = 0
        self._waiting_since_ms: int | None = None

    def __call__(self, sender: str, receiver: str, frames: list[bytes]) -> None:  # noqa: ARG002
        """Look at the job, unless the last look was less than `LOOK_EVERY_MS` ago."""
        now_ms = self._world.now_ms
        if now_ms < self._calm_from_ms or now_ms - self._looked_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        view = self._view()
        if view is None or not _waits_for_nothing(view) or self._has_lost_slots(view):
            self._waiting_since_ms = None
        elif self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        elif now_ms - self._waiting_since_ms > LONGEST_MS:
            text = f"{view.checkpoints.waiting} requests wait, and no checkpoint has begun for {LONGEST_MS} ms"
            self._world.violate(Rule.NO_STARVATION, text)

    def _has_lost_slots(self, view: JobView) -> bool:
        """Whether the master counts on a slot that is dead."""
        living = {(slot.number, slot.incarnation) for slot in self._living()}
        return any((slot.number, slot.incarnation) not in living for slot in view.slots)


def _waits_for_nothing(view: JobView) -> bool:
    checkpoints = view.checkpoints
    under_way = any(checkpoint.status is CheckpointStatus.IN_PROGRESS for checkpoint in checkpoints.history)
    return view.state is JobState.RUNNING and checkpoints.waiting > 0 and not under_way

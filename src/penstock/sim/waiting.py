"""Whether checkpoints that are due begin: nothing that a job does for long may keep its checkpoints waiting.

A request waits for its turn while another checkpoint is under way, while tasks restart, while too much is being
deleted, and while a task that has nothing left to do ends. While no fault strikes, none of these takes long, except the
first: a checkpoint that is under way may take up to its time-out.
"""

from __future__ import annotations

from collections.abc import Callable

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

    def __init__(self, world: World, *, calm_from_ms: int, view: Callable[[], JobView | None]) -> None:
        self._world = world
        self._calm_from_ms = calm_from_ms
        self._view = view
        self._looked_ms = 0
        self._waiting_since_ms: int | None = None

    def __call__(self, sender: str, receiver: str, frames: list[bytes]) -> None:  # noqa: ARG002
        """Look at the job, unless the last look was less than `LOOK_EVERY_MS` ago."""
        now_ms = self._world.now_ms
        if now_ms < self._calm_from_ms or now_ms - self._looked_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        view = self._view()
        if view is None or not _waits_for_nothing(view):
            self._waiting_since_ms = None
        elif self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        elif now_ms - self._waiting_since_ms > LONGEST_MS:
            text = f"{view.checkpoints.waiting} requests wait, and no checkpoint has begun for {LONGEST_MS} ms"
            self._world.violate(Rule.NO_STARVATION, text)


def _waits_for_nothing(view: JobView) -> bool:
    checkpoints = view.checkpoints
    under_way = any(checkpoint.status is CheckpointStatus.IN_PROGRESS for checkpoint in checkpoints.history)
    return view.state is JobState.RUNNING and checkpoints.waiting > 0 and not under_way

"""Killing workers at moments that nobody chose.

After each kill comes either a patient one or a hasty one, by the draw. A patient one waits until the job has got over
the kill before it and has completed a checkpoint since, and then some time more. A hasty one does not wait for
anything: it may hit a job that is just being put together again. There are never two hasty ones in a row, so that the
job gets somewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.core.job.events import JobState
from penstock.runtime.views import JobView, SlotView

HASTY_SHARE = 0.25
MOST_WAIT_MS = 1_500


class RandomKills:
    """Does up to `count` kills by calling `kill` with a process id; whether that process was there is returned."""

    def __init__(self, draws: random.Random, *, count: int, kill: Callable[[int], bool]) -> None:
        self._draws = draws
        self._count = count
        self._kill = kill
        self._killed: set[int] = set()
        self._epoch = 0
        """Of the attempt that was hit last."""
        self._completed = 0
        """Checkpoints when the job had got over that."""
        self._killed_at_ms: int | None = None
        """When the job was hit that has not got over it yet."""
        self._hasty = False
        self._due_ms: int | None = None
        self.is_over = False
        """Whether all kills are done and the job has got over them."""
        self.done = 0
        self.recoveries_ms: list[int] = []
        """From each kill to an attempt in which all tasks run; one for several kills if they came too fast."""

    def look(self, view: JobView, now_ms: int) -> list[str]:
        """Kill if it is time to; a sentence for each thing that happened."""
        notes = self._check_recovery(view, now_ms)
        if self.done >= self._count:
            self.is_over = self.is_over or self._has_got_over(view)
            return notes
        if self._due_ms is None:
            if not self._hasty and not self._has_got_over(view):
                return notes
            self._due_ms = now_ms + self._draws.randrange(MOST_WAIT_MS)
        if now_ms < self._due_ms:
            return notes
        return notes + self._hit(view, now_ms)

    def _has_got_over(self, view: JobView) -> bool:
        """Whether a later attempt than the one that was hit has completed a checkpoint."""
        running = view.state is JobState.RUNNING and view.epoch > self._epoch
        return running and self._killed_at_ms is None and view.checkpoints.counts.completed > self._completed

    def _check_recovery(self, view: JobView, now_ms: int) -> list[str]:
        if self._killed_at_ms is None or view.epoch <= self._epoch or view.state is not JobState.RUNNING:
            return []
        took_ms = now_ms - self._killed_at_ms
        self._killed_at_ms = None
        self._completed = view.checkpoints.counts.completed
        self.recoveries_ms.append(took_ms)
        return [f"running again after {took_ms / 1_000:.1f} s, {_restored(view)}"]

    def _hit(self, view: JobView, now_ms: int) -> list[str]:
        victims = [slot for slot in view.slots if slot.pid is not None and slot.pid not in self._killed]
        if not victims:
            # All are being replaced; it is somebody's turn when one has called in.
            return []
        victim = self._draws.choice(victims)
        if victim.pid is None or not self._kill(victim.pid):
            return []
        self._killed.add(victim.pid)
        self.done += 1
        self._due_ms = None
        self._hasty = not self._hasty and self._draws.random() < HASTY_SHARE
        self._epoch = view.epoch
        if self._killed_at_ms is None:
            self._killed_at_ms = now_ms
        return [f"kill {self.done} of {self._count}: {_described(victim, view)}"]


def _described(victim: SlotView, view: JobView) -> str:
    counts = view.checkpoints.counts
    under_way = ", a checkpoint under way" if counts.in_progress else ""
    return (
        f"pid {victim.pid} of slot {victim.number} (SIGKILL), "
        f"attempt {view.epoch} {view.state.value}{under_way}, {counts.completed} completed"
    )


def _restored(view: JobView) -> str:
    if view.restored_checkpoint is None:
        return "from the beginning"
    return f"restored from checkpoint {view.restored_checkpoint}"

"""Kills of workers at random moments.

A kill is patient or hasty, at random. A patient kill waits until the job has recovered from the kill before and has
completed a checkpoint since, and then for a random time. A hasty kill waits only for a random time: it may hit a job
that is being restarted. Two hasty kills never follow each other, so that the job makes progress.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.core.job.events import JobState
from penstock.runtime.views import JobView, SlotView

HASTY_SHARE = 0.25
MOST_WAIT_MS = 1_500


class RandomKills:
    """Kills up to `count` workers, by calling `kill` with the process id of a worker. `kill` returns whether that
    process existed."""

    def __init__(self, draws: random.Random, *, count: int, kill: Callable[[int], bool]) -> None:
        self._draws = draws
        self._count = count
        self._kill = kill
        self._killed: set[int] = set()
        self._epoch = 0
        """The epoch of the attempt in which the last worker was killed."""
        self._completed = 0
        """How many checkpoints had been completed when the job had recovered from the last kill."""
        self._killed_at_ms: int | None = None
        """When the first worker was killed since the job last recovered; None if the job has recovered."""
        self._hasty = False
        self._due_ms: int | None = None
        self.is_over = False
        """Whether all kills are done, and the job has recovered and completed a checkpoint since."""
        self.done = 0
        self.recoveries_ms: list[int] = []
        """For each kill: the time until all tasks of a later attempt run. If further workers are killed before the job
        has recovered, the recovery counts once, from the first kill."""

    def look(self, view: JobView, now_ms: int) -> list[str]:
        """Kill a worker if a kill is due. Returns a sentence for each kill and each recovery."""
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
        """Whether a later attempt than the attempt of the last kill runs and has completed a checkpoint."""
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
            # All slots are being replaced. The kill is done when a slot has a process again.
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

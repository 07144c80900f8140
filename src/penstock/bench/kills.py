"""Kills of workers, and the time that the job takes to recover from each kill.

Kills are spread evenly over the run. A kill waits until the job has recovered from the kill before, and until a
checkpoint has completed in the present attempt, so that there is something to restore. The slots are killed in turn.

    waiting ── share of the events read, checkpoint completed ──► SIGKILL ── attempt runs and reads ──► waiting
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.errors import InvariantError
from penstock.core.job.events import JobState
from penstock.runtime.views import JobView


@dataclass(frozen=True, kw_only=True)
class _Wound:
    at_ms: int
    epoch: int


class Kills:
    """Kills up to `count` workers, by calling `kill` with the process id of a worker."""

    def __init__(self, *, count: int, events: int, kill: Callable[[int], None]) -> None:
        self._count = count
        self._events = events
        self._kill = kill
        self._wound: _Wound | None = None
        self._completed_before = 0
        """How many checkpoints had been completed when the present attempt began to run."""
        self.done = 0
        self.recoveries_ms: list[int] = []
        """For each kill: the time until all tasks of a later attempt run and the sources have read records."""

    def look(self, view: JobView, *, events_read: int, now_ms: int) -> list[str]:
        """Kill a worker if a kill is due. Returns a sentence for each kill and each recovery."""
        if self._wound is not None:
            return self._check_recovery(self._wound, view, now_ms)
        if not self._is_due(view, events_read):
            return []
        slot = view.slots[self.done % len(view.slots)]
        if slot.pid is None:
            raise InvariantError(f"slot {slot.number} runs and has no process id")
        self._kill(slot.pid)
        self._wound = _Wound(at_ms=now_ms, epoch=view.epoch)
        self.done += 1
        return [f"killed worker pid {slot.pid} of slot {slot.number} (SIGKILL)"]

    def _is_due(self, view: JobView, events_read: int) -> bool:
        return (
            self.done < self._count
            and view.state is JobState.RUNNING
            and events_read >= self._events * (self.done + 1) // (self._count + 1)
            and view.checkpoints.counts.completed > self._completed_before
        )

    def _check_recovery(self, wound: _Wound, view: JobView, now_ms: int) -> list[str]:
        if view.epoch <= wound.epoch or view.state is not JobState.RUNNING or not view.rows_in:
            return []
        self._wound = None
        self._completed_before = view.checkpoints.counts.completed
        self.recoveries_ms.append(now_ms - wound.at_ms)
        return [f"running again after {(now_ms - wound.at_ms) / 1_000:.1f} s"]

"""What the time of a task goes to, and the running totals of the task, for people to look at.

All tasks of a slot share one loop, so that at any moment at most one of them is at work. The time of a task has four
parts, which add up to the time that has passed:

    busy      the loop was in a step of the task
    waiting   the task had something to do, and the loop was in the steps of other tasks
    blocked   the task had no room for more output: back-pressure
    idle      the task had nothing to do

The busy time is measured: the clock is read once for each step, and a step takes a whole batch. What the rest of the
time goes to is sampled, a hundred times a second at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

LOOK_EVERY_MS = 10.0


@dataclass(slots=True)
class TaskCounters:
    """Running totals of one task."""

    batches_in: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    """Bytes of the batches that came in through channels."""
    watermark_us: int | None = None
    """How far event time has come; None if no watermark has come."""
    busy_ms: float = 0.0
    waiting_ms: float = 0.0
    blocked_ms: float = 0.0
    idle_ms: float = 0.0
    accounted_ms: float = 0.0
    """The busy time at the last look."""


class Metered(Protocol):
    """The part of a task that is looked at."""

    counters: TaskCounters

    @property
    def has_room(self) -> bool:
        """Whether the task may make more output."""
        ...

    @property
    def wants_step(self) -> bool:
        """Whether the task has something to do."""
        ...


class LoopMeter:
    """Accounts for the time of the tasks of one slot."""

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self._clock_ms = clock_ms
        self._looked_ms: float | None = None
        self.at_ms = 0.0
        """When the clock was read last."""

    def begin(self) -> float:
        """The loop begins to let tasks make steps. Returns the time."""
        self.at_ms = self._clock_ms()
        return self.at_ms

    def spent(self, task: Metered) -> None:
        """The loop comes out of a step of this task."""
        now_ms = self._clock_ms()
        task.counters.busy_ms += now_ms - self.at_ms
        self.at_ms = now_ms

    def look(self, tasks: Iterable[Metered]) -> None:
        """See what the tasks do that are not at work, unless the last look was a moment ago."""
        before = self._looked_ms
        if before is not None and self.at_ms - before < LOOK_EVERY_MS:
            return
        self._looked_ms = self.at_ms
        for task in tasks:
            counters = task.counters
            busy_ms, counters.accounted_ms = counters.busy_ms - counters.accounted_ms, counters.busy_ms
            rest_ms = 0.0 if before is None else max(0.0, self.at_ms - before - busy_ms)
            if not task.has_room:
                counters.blocked_ms += rest_ms
            elif task.wants_step:
                counters.waiting_ms += rest_ms
            else:
                counters.idle_ms += rest_ms

"""The last work of a job: its steps of cleaning up. Each step is tried by itself, and perhaps more than once.

A step that failed and may succeed later is tried again, after a pause that doubles. When every step has succeeded or
been given up, the job has ended.
"""

from __future__ import annotations

from penstock.core.ids import Instant


class CleanUp:
    """Steps, by number from 0. `begin` and `due` return the steps to do now. `ended` must be called for each returned
    step."""

    def __init__(self, steps: int, *, tries: int, retry_ms: int) -> None:
        self._steps = steps
        self._tries = tries
        self._retry_ms = retry_ms
        self._failures: dict[int, int] = {}
        self._waiting: dict[int, Instant] = {}
        self._open = 0

    def begin(self) -> list[int]:
        """Every step, in order."""
        self._open = self._steps
        return list(range(self._steps))

    def due(self, now: Instant) -> list[int]:
        """Steps to do again, in order."""
        found = sorted(step for step, at in self._waiting.items() if now >= at)
        for step in found:
            del self._waiting[step]
        return found

    def ended(self, step: int, now: Instant, *, may_succeed_later: bool) -> bool:
        """A step has ended; `may_succeed_later` is False if the step has succeeded. Returns whether the step will be
        done again."""
        failures = self._failures[step] = self._failures.get(step, 0) + 1
        if may_succeed_later and failures < self._tries:
            self._waiting[step] = Instant(now + (self._retry_ms << (failures - 1)))
            return True
        self._open -= 1
        return False

    def next_deadline(self) -> Instant | None:
        """When `due` must be called; None if no step waits."""
        return min(self._waiting.values(), default=None)

    @property
    def is_over(self) -> bool:
        """Whether every step has come to its end."""
        return self._open == 0

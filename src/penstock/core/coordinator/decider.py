"""Which request becomes a checkpoint, and when.

Requests wait in one line: savepoints first, then forced ones, then those of users, then the oldest. At most one is let
through at a time, and none

* while another checkpoint is being triggered,
* while more checkpoints than may run at once are being deleted (a slow storage must not be fed faster than it cleans),
* while as many checkpoints as may run at once do run, unless the first in line is forced,
* while a task is about to end: it could not take part,
* while the job is being stopped with a savepoint, except that savepoint.

A periodic request that comes before the minimum pause is over is dropped, not kept: the schedule makes a new one when
the pause ends. A line that is too long loses its last entry; if that is a user's, the newcomer is turned away instead.
"""

from __future__ import annotations

from bisect import insort

import msgspec

from penstock.core.coordinator.requests import Request
from penstock.core.ids import Instant
from penstock.core.reasons import CheckpointFailure


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A request that left the line without becoming a checkpoint."""

    request: Request
    reason: CheckpointFailure
    retry_after_ms: int | None = None
    """Set if the periodic schedule is to try again after that long."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator is busy with."""

    is_triggering: bool = False
    is_stopping: bool = False
    is_task_leaving: bool = False
    num_pending: int = 0
    num_cleaning: int = 0
    last_completion: Instant | None = None


class RequestDecider:
    """The line of waiting requests."""

    def __init__(self, *, max_concurrent: int, min_pause_ms: int, queue_limit: int) -> None:
        self._max_concurrent = max_concurrent
        self._min_pause_ms = min_pause_ms
        self._queue_limit = queue_limit
        self._line: list[Request] = []

    def __len__(self) -> int:
        return len(self._line)

    def submit(self, request: Request) -> Dropped | None:
        """Get in line. Returns what had to leave it, which may be the newcomer."""
        if len(self._line) >= self._queue_limit and not self._line[-1].periodic:
            return Dropped(request=request, reason=CheckpointFailure.TOO_MANY_REQUESTS)
        insort(self._line, request, key=lambda r: r.rank)
        if len(self._line) > self._queue_limit:
            return Dropped(request=self._line.pop(), reason=CheckpointFailure.TOO_MANY_REQUESTS)
        return None

    def choose(self, load: Load, now: Instant) -> Request | Dropped | None:
        """Take the request that may start now out of the line, or the one that must leave it; None: all wait."""
        if load.is_triggering or load.is_task_leaving or not self._line:
            return None
        if load.num_cleaning > self._max_concurrent:
            return None
        first = self._line[0]
        if load.is_stopping and not first.kind.is_synchronous:
            return None
        if load.num_pending >= self._max_concurrent:
            return self._line.pop(0) if first.forced else None
        if first.periodic and not first.forced and load.last_completion is not None:
            early_ms = load.last_completion + self._min_pause_ms - now
            if early_ms > 0:
                return Dropped(
                    request=self._line.pop(0), reason=CheckpointFailure.MINIMUM_PAUSE, retry_after_ms=early_ms
                )
        return self._line.pop(0)

    def clear(self) -> list[Request]:
        """Everybody leaves."""
        line, self._line = self._line, []
        return line

"""Which request becomes a checkpoint, and when.

Requests wait in one line: savepoints first, then the checkpoints that users asked for and the last checkpoint of a job,
then periodic checkpoints; among equals, the oldest first. A savepoint of a job without unaligned checkpoints is forced:
it need not wait until fewer checkpoints are under way. At most one request at a time becomes a checkpoint, and no
request becomes a checkpoint

* while another checkpoint is being triggered,
* while more checkpoints than may run at once are being deleted: a slow storage must not get files faster than it
  deletes files,
* while as many checkpoints as may run at once are under way, unless the first request in line is forced,
* while a task wants to end: that task could not take part in a checkpoint that begins now (see `tasks`),
* while the job is being stopped with a savepoint, except the request for that savepoint.

A periodic request that comes before the minimum pause is over is dropped, not kept: the schedule makes another request
when the pause ends. A line that is too long loses its last request. If the last request is not periodic, the new
request is refused instead.
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
    """Set if the periodic schedule is to make another request after this time."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator is busy with when a request is chosen."""

    is_triggering: bool = False
    is_stopping: bool = False
    is_task_leaving: bool = False
    """Whether a task asks to end, or was told to end and has not ended yet."""
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
        """Put the request into the line. Returns the request that had to leave the line, which may be `request`
        itself."""
        if len(self._line) >= self._queue_limit and not self._line[-1].periodic:
            return Dropped(request=request, reason=CheckpointFailure.TOO_MANY_REQUESTS)
        insort(self._line, request, key=lambda r: r.rank)
        if len(self._line) > self._queue_limit:
            return Dropped(request=self._line.pop(), reason=CheckpointFailure.TOO_MANY_REQUESTS)
        return None

    def choose(self, load: Load, now: Instant) -> Request | Dropped | None:
        """Take out of the line the request that may start now, or a request that must be dropped; None: all requests
        wait."""
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

    def clear_unasked(self) -> list[Request]:
        """Remove, and return, the requests whose answer nobody waits for."""
        gone = [request for request in self._line if request.answer_to is None]
        self._line = [request for request in self._line if request.answer_to is not None]
        return gone

    def clear(self) -> list[Request]:
        """Remove, and return, all requests."""
        line, self._line = self._line, []
        return line

"""The queue of one output channel: data and elements that wait to be sent, and how a barrier overtakes data.

    add_data, add_element          behind everything
    add_barrier   aligned          behind everything
                  unaligned        before everything; the data that the barrier overtook belongs to the checkpoint
                  may time out     behind everything; `time_out` takes the barrier to the front, if it still waits

Only data that was overtaken is saved: elements are made anew after a restore. At most one barrier in the queue can
still time out: when a newer barrier that may time out is queued, the older barrier stays aligned.

The queue holds data of any type (`T`), with a cost; elements cost nothing. Every call is O(1), except that overtaking
looks at all data that was overtaken.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import msgspec

from penstock.core.elements import AnyElement, Barrier, Watermark
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId

T = TypeVar("T")


class OutputQueue(Generic[T]):
    """Data and elements that wait in one output channel."""

    def __init__(self) -> None:
        self._queue: deque[tuple[T | AnyElement, int]] = deque()
        self._priority: deque[Barrier] = deque()
        self._waiting: CheckpointId | None = None
        """The checkpoint whose barrier waits in the queue and may still time out."""
        self.queued_bytes = 0

    def __len__(self) -> int:
        return len(self._priority) + len(self._queue)

    @property
    def waiting(self) -> CheckpointId | None:
        """The checkpoint whose barrier waits in the queue and may still overtake data; None if there is no such
        checkpoint."""
        return self._waiting

    def add_data(self, item: T, cost: int) -> None:
        """Queue data behind everything."""
        if cost < 1:
            raise InvariantError(
                f"data was queued with a cost of {cost}: data must cost at least 1, because elements cost 0"
            )
        self._queue.append((item, cost))
        self.queued_bytes += cost

    def add_element(self, element: AnyElement) -> None:
        """Queue an element behind everything. A watermark directly behind another watermark takes the place of that
        watermark. Otherwise watermarks would gather without end before a reader that stands still, because elements
        need no credit."""
        if isinstance(element, Watermark) and self._queue:
            last, _ = self._queue[-1]
            if isinstance(last, Watermark):
                merged = Watermark(time_us=max(last.time_us, element.time_us), idle=element.idle)
                self._queue[-1] = (merged, 0)
                return
        self._queue.append((element, 0))

    def add_barrier(self, barrier: Barrier) -> list[T]:
        """Queue a barrier where its options say. Returns the data that the barrier overtook, oldest first."""
        options = barrier.options
        if options.overtakes:
            self._priority.append(barrier)
            return [item for item, cost in self._queue if cost]  # type: ignore[misc]  # only data has a cost
        self._queue.append((barrier, 0))
        if options.timeoutable:
            self._waiting = barrier.checkpoint
        return []

    def time_out(self, checkpoint: CheckpointId) -> list[T] | None:
        """The barrier of `checkpoint` is too old to stay aligned: the barrier goes to the front and turns unaligned.
        Returns the data that the barrier overtook, oldest first; None if the barrier has been sent, or a newer barrier
        that may time out has been queued."""
        if self._waiting != checkpoint:
            return None
        self._waiting = None
        overtaken: list[T] = []
        for place, (item, cost) in enumerate(self._queue):  # noqa: B007  # where it stopped is used below
            if cost:
                overtaken.append(item)  # type: ignore[arg-type]  # only data has a cost
            elif isinstance(item, Barrier) and item.checkpoint == checkpoint:
                break
        else:
            raise InvariantError(f"the barrier of checkpoint {checkpoint} is to time out, and is not in the queue")
        del self._queue[place]
        options = msgspec.structs.replace(item.options, unaligned=True, aligned_timeout_ms=None)
        self._priority.append(msgspec.structs.replace(item, options=options))
        return overtaken

    def peek(self) -> tuple[T | AnyElement, int] | None:
        """The data or element that goes next, with its cost; None if the queue is empty."""
        if self._priority:
            return self._priority[0], 0
        return self._queue[0] if self._queue else None

    def pop(self) -> None:
        """What `peek` showed has been sent."""
        if self._priority:
            self._priority.popleft()
            return
        item, cost = self._queue.popleft()
        self.queued_bytes -= cost
        if cost == 0 and self._waiting is not None and _is_barrier_of(item, self._waiting):
            # The barrier has left in its turn, and has overtaken nothing.
            self._waiting = None


def _is_barrier_of(item: object, checkpoint: CheckpointId) -> bool:
    return isinstance(item, Barrier) and item.checkpoint == checkpoint

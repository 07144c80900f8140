"""The queue of one output channel: what waits to be sent, and how a barrier overtakes it.

    add_data, add_element          behind everything
    add_barrier   aligned          behind everything
                  unaligned        before everything; the data it overtook belongs to the checkpoint
                  may time out     behind everything; `time_out` takes it to the front, if it still waits

Only data that was overtaken is saved: other elements are made anew after a restore. At most one barrier that may time
out waits at a time; a newer one ends the wait for the older, which then stays aligned.

The queue holds whatever its user calls data (`T`), with a cost; elements cost nothing. Every call is O(1), except that
overtaking looks at what was overtaken.
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
    """What waits in one output channel."""

    def __init__(self) -> None:
        self._queue: deque[tuple[T | AnyElement, int]] = deque()
        self._priority: deque[Barrier] = deque()
        self._waiting: CheckpointId | None = None
        """The checkpoint whose barrier waits in the queue and may still overtake."""
        self.queued_bytes = 0

    def __len__(self) -> int:
        return len(self._priority) + len(self._queue)

    @property
    def waiting(self) -> CheckpointId | None:
        """The checkpoint of which it is not known yet what its barrier will have overtaken here."""
        return self._waiting

    def add_data(self, item: T, cost: int) -> None:
        """Queue data behind everything."""
        if cost < 1:
            raise InvariantError(f"data that costs {cost} cannot be told from an element")
        self._queue.append((item, cost))
        self.queued_bytes += cost

    def add_element(self, element: AnyElement) -> None:
        """Queue an element behind everything; a watermark takes the place of one that it follows. Elements need no
        credit: without this a reader that stands still would have watermarks gather without end."""
        if isinstance(element, Watermark) and self._queue:
            last, _ = self._queue[-1]
            if isinstance(last, Watermark):
                merged = Watermark(time_us=max(last.time_us, element.time_us), idle=element.idle)
                self._queue[-1] = (merged, 0)
                return
        self._queue.append((element, 0))

    def add_barrier(self, barrier: Barrier) -> list[T]:
        """Queue a barrier where its options want it. Returns the data that it overtook, oldest first."""
        options = barrier.options
        if options.overtakes:
            self._priority.append(barrier)
            return [item for item, cost in self._queue if cost]  # type: ignore[misc]  # only data has a cost
        self._queue.append((barrier, 0))
        if options.timeoutable:
            self._waiting = barrier.checkpoint
        return []

    def time_out(self, checkpoint: CheckpointId) -> list[T] | None:
        """The barrier of `checkpoint` is too old to stay aligned: it goes to the front and turns unaligned. Returns the
        data that it overtook, oldest first; None if it does not wait here any more."""
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
            raise InvariantError(f"the barrier of checkpoint {checkpoint} is not where it waits")
        del self._queue[place]
        options = msgspec.structs.replace(item.options, unaligned=True, aligned_timeout_ms=None)
        self._priority.append(msgspec.structs.replace(item, options=options))
        return overtaken

    def peek(self) -> tuple[T | AnyElement, int] | None:
        """What goes next, with its cost; None if nothing waits."""
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
            # It left in its turn: it has overtaken nothing.
            self._waiting = None


def _is_barrier_of(item: object, checkpoint: CheckpointId) -> bool:
    return isinstance(item, Barrier) and item.checkpoint == checkpoint

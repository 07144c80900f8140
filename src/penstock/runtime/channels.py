"""The two ends of a channel: what waits to be sent, and what waits to be read.

A channel joins one upstream subtask to one downstream subtask; batches and elements keep their order in it. Batches
need credit, which the receiving end grants in bytes; elements do not, but nothing at all is sent before the first grant
has come, which says that the other end is there. Of watermarks that follow each other only the last is kept: they need
no credit, so a reader that stands still would otherwise gather them without end.

What the other end does wrong is a `MalformedMessage`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from penstock.core.elements import AnyElement, Watermark
from penstock.core.errors import MalformedMessage
from penstock.core.flow import CreditReceiver, CreditSender
from penstock.core.ids import ChannelIndex

Item = pa.RecordBatch | AnyElement


class ChannelKey(NamedTuple):
    """Names a channel in the whole job."""

    edge: int
    upstream: int
    downstream: int


class Subpartition:
    """The sending end: queues until there is credit, merging what waits."""

    def __init__(
        self,
        key: ChannelKey,
        *,
        deliver: Callable[[ChannelKey, Item, int], None],
        batch_bytes: int,
        window_bytes: int,
    ) -> None:
        self.key = key
        self.queued_bytes = 0
        self._deliver = deliver
        self._batch_bytes = min(batch_bytes, window_bytes)
        self._credit = CreditSender(window_bytes)
        self._open = False
        self._queue: deque[tuple[Item, int]] = deque()

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Queue records behind all that waits; large batches are cut to what a channel can carry."""
        size = batch.nbytes
        if size <= self._batch_bytes or batch.num_rows <= 1:
            self._append(batch, size)
            return
        # Columns of views share their text: cutting rows off does not make that part smaller.
        fixed = batch.slice(0, 0).nbytes
        pieces = -(-(size - fixed) // self._batch_bytes)
        if pieces <= 1:
            self._append(batch, size)
            return
        rows = max(1, batch.num_rows // pieces)
        for start in range(0, batch.num_rows, rows):
            # Rows differ in size, so a piece may have to be cut again.
            self.add_batch(batch.slice(start, rows))

    def _append(self, batch: pa.RecordBatch, size: int) -> None:
        # What cannot be cut may be larger than a batch should be; it then costs the whole window at most.
        cost = max(1, min(size, self._credit.window_bytes))
        self._queue.append((batch, cost))
        self.queued_bytes += cost

    def add_element(self, element: AnyElement) -> None:
        """Queue an element behind all that waits."""
        _put(self._queue, element, 0)

    def grant(self, bytes_granted: int) -> None:
        """The receiving end has room for more."""
        credit = self._credit
        if not 0 < bytes_granted <= credit.window_bytes - credit.available:
            raise MalformedMessage(
                f"credit of {bytes_granted} bytes on top of {credit.available} for channel {self.key}, "
                f"whose window is {credit.window_bytes}"
            )
        self._open = True
        credit.granted(bytes_granted)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._queue

    def flush(self) -> None:
        """Send what may be sent."""
        queue = self._queue
        if not self._open:
            return
        while queue:
            item, cost = queue[0]
            if not isinstance(item, pa.RecordBatch):
                queue.popleft()
                self._deliver(self.key, item, 0)
                continue
            if not self._credit.may_send(cost):
                return
            queue.popleft()
            merged, total = self._merge(item, cost)
            self._credit.spend(total)
            self.queued_bytes -= total
            self._deliver(self.key, merged, total)

    def _merge(self, first: pa.RecordBatch, cost: int) -> tuple[pa.RecordBatch, int]:
        """Put together the batches at the head, as far as they fit a batch and the credit."""
        queue, parts, total = self._queue, [first], cost
        while queue:
            item, more = queue[0]
            if not isinstance(item, pa.RecordBatch) or total + more > self._batch_bytes:
                break
            if not self._credit.may_send(total + more):
                break
            queue.popleft()
            parts.append(item)
            total += more
        return (_concatenated(parts) if len(parts) > 1 else first), total


class InputChannel:
    """The receiving end: a queue, and the credit that is owed for what was read from it."""

    def __init__(self, key: ChannelKey, *, window_bytes: int, grant: Callable[[ChannelKey, int], None]) -> None:
        self.key = key
        self.queue: deque[tuple[Item, int]] = deque()
        self.blocked = False
        self.ended = False
        self._grant = grant
        self._credit = CreditReceiver(window_bytes)

    def open(self) -> None:
        """Let the other end begin."""
        self._grant(self.key, self._credit.open())

    def consumed(self, cost: int) -> None:
        """A batch has been processed: its room is free again."""
        owed = self._credit.consumed(cost, queue_empty=not self.queue)
        if owed:
            self._grant(self.key, owed)


class InputGate:
    """All input channels of a task, read in turn."""

    def __init__(self, channels: list[InputChannel]) -> None:
        self.channels = channels
        self._index = {channel.key: ChannelIndex(i) for i, channel in enumerate(channels)}
        self._ready: deque[ChannelIndex] = deque()

    def push(self, key: ChannelKey, item: Item, cost: int) -> None:
        """Something arrived."""
        index = self._index[key]
        channel = self.channels[index]
        if channel.ended:
            raise MalformedMessage(f"channel {key} went on after its end")
        was_empty = not channel.queue
        _put(channel.queue, item, cost)
        if was_empty and not channel.blocked:
            self._ready.append(index)

    def next(self) -> tuple[ChannelIndex, Item, int] | None:
        """The next thing to process, channels taking turns; None if all are empty or blocked."""
        ready = self._ready
        while ready:
            index = ready.popleft()
            channel = self.channels[index]
            if channel.blocked or not channel.queue:
                continue
            item, cost = channel.queue.popleft()
            if channel.queue:
                ready.append(index)
            return index, item, cost
        return None

    def block(self, index: ChannelIndex) -> None:
        """Read nothing more from a channel for now."""
        self.channels[index].blocked = True

    def resume(self, index: ChannelIndex) -> None:
        """Go on reading from a channel."""
        channel = self.channels[index]
        if channel.blocked:
            channel.blocked = False
            if channel.queue and index not in self._ready:
                self._ready.append(index)

    @property
    def has_work(self) -> bool:
        """Whether `next` may return something."""
        return bool(self._ready)


def _put(queue: deque[tuple[Item, int]], item: Item, cost: int) -> None:
    """Append to a queue; a watermark takes the place of one that it follows."""
    if isinstance(item, Watermark) and queue:
        last, _ = queue[-1]
        if isinstance(last, Watermark):
            queue[-1] = (Watermark(time_us=max(last.time_us, item.time_us), idle=item.idle), 0)
            return
    queue.append((item, cost))


def _concatenated(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(parts)  # type: ignore[attr-defined,no-any-return]  # missing from the stubs

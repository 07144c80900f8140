"""The two ends of a channel: what waits to be sent, and what waits to be read.

A channel joins one upstream subtask to one downstream subtask; batches and elements keep their order in it. Batches
need credit, which the receiving end grants in bytes; elements do not, but nothing at all is sent before the first grant
has come, which says that the other end is there. Of watermarks that follow each other only the last is kept: they need
no credit, so a reader that stands still would otherwise gather them without end.

What the other end does wrong is a `MalformedMessage`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.core.barrier.persister import ChannelPersister
from penstock.core.elements import AnyElement, Barrier, CancelMarker, EndOfData, EndOfPartition, Watermark
from penstock.core.errors import MalformedMessage
from penstock.core.flow import CreditReceiver, CreditSender
from penstock.core.ids import ChannelIndex, CheckpointId
from penstock.core.task.output import OutputQueue

Item = pa.RecordBatch | AnyElement

RoomlessElement = Barrier | CancelMarker | EndOfPartition


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
        self._deliver = deliver
        self._batch_bytes = min(batch_bytes, window_bytes)
        self._credit = CreditSender(window_bytes)
        self._open = False
        self._end_sent = False
        self.is_taken = False
        """Whether the receiving end has processed all data, to the end of the data."""
        self._queue: OutputQueue[pa.RecordBatch] = OutputQueue()

    @property
    def queued_bytes(self) -> int:
        """What waits to be sent."""
        return self._queue.queued_bytes

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
        self._queue.add_data(batch, max(1, min(size, self._credit.window_bytes)))

    def add_element(self, element: AnyElement) -> None:
        """Queue an element behind all that waits."""
        self._queue.add_element(element)

    def add_barrier(self, barrier: Barrier) -> list[pa.RecordBatch]:
        """Queue a barrier where its options want it; the batches that it overtook, oldest first."""
        return self._queue.add_barrier(barrier)

    def time_out(self, checkpoint: CheckpointId) -> list[pa.RecordBatch]:
        """The barrier of `checkpoint`, if it still waits, overtakes; the batches that it overtook, oldest first."""
        return self._queue.time_out(checkpoint) or []

    @property
    def waiting(self) -> CheckpointId | None:
        """The checkpoint of which it is not known yet what its barrier will have overtaken here."""
        return self._queue.waiting

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

    def data_taken(self) -> None:
        """The receiving end has processed all data."""
        if not self._end_sent:
            raise MalformedMessage(f"all data of channel {self.key} was taken before its end was sent")
        self.is_taken = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return len(self._queue) == 0

    def flush(self) -> None:
        """Send what may be sent."""
        queue = self._queue
        if not self._open:
            return
        while (head := queue.peek()) is not None:
            item, cost = head
            if not isinstance(item, pa.RecordBatch):
                queue.pop()
                self._end_sent = self._end_sent or isinstance(item, EndOfData)
                self._deliver(self.key, item, 0)
                continue
            if not self._credit.may_send(cost):
                return
            queue.pop()
            merged, total = self._merge(item, cost)
            self._credit.spend(total)
            self._deliver(self.key, merged, total)

    def _merge(self, first: pa.RecordBatch, cost: int) -> tuple[pa.RecordBatch, int]:
        """Put together the batches at the head, as far as they fit a batch and the credit."""
        queue, parts, total = self._queue, [first], cost
        while (head := queue.peek()) is not None:
            item, more = head
            if not isinstance(item, pa.RecordBatch) or total + more > self._batch_bytes:
                break
            if not self._credit.may_send(total + more):
                break
            queue.pop()
            parts.append(item)
            total += more
        return (_concatenated(parts) if len(parts) > 1 else first), total


class InputChannel:
    """The receiving end: a queue, and the credit that is owed for what was read from it."""

    def __init__(
        self,
        key: ChannelKey,
        *,
        window_bytes: int,
        grant: Callable[[ChannelKey, int], None],
        data_taken: Callable[[ChannelKey], None],
        input_number: int = 0,
    ) -> None:
        self.key = key
        self.input_number = input_number
        """Which input of the task's first operator it feeds."""
        self.queue: deque[tuple[Item, int, int]] = deque()
        """What waits, with its cost and its number; numbers follow the order of arrival."""
        self.blocked = False
        self.is_held = False
        """Whether its batches are to wait unread, as far as what stands behind them allows it."""
        self.ended = False
        self.persister = ChannelPersister()
        self.arrived = 0
        self.last_read = 0
        """The number of what was read last."""
        self._grant = grant
        self._data_taken = data_taken
        self._credit = CreditReceiver(window_bytes)

    @property
    def has_news(self) -> bool:
        """Whether a barrier or an end waits in it: these must not wait, and so nothing that stands before them."""
        return any(not isinstance(item, pa.RecordBatch | Watermark) for item, _, _ in self.queue)

    def reserve(self, batches: Sequence[pa.RecordBatch]) -> list[int]:
        """Before the channel opens: what each of these restored batches costs."""
        return self._credit.reserve([batch.nbytes for batch in batches])

    def open(self) -> None:
        """Let the other end begin."""
        self._grant(self.key, self._credit.open())

    def data_processed(self) -> None:
        """All data has been processed, to its end: the other end may end."""
        self._data_taken(self.key)

    def consumed(self, cost: int) -> None:
        """A batch has been processed: its room is free again."""
        owed = self._credit.consumed(cost, queue_empty=not self.queue)
        if owed:
            self._grant(self.key, owed)


class InputGate:
    """All input channels of a task, read in turn; barriers that overtake are read first."""

    def __init__(self, channels: list[InputChannel]) -> None:
        self.channels = channels
        self.on_announced: Callable[[ChannelIndex, Barrier, int], None] | None = None
        """Told of barriers that may time out, with their number, when they have to wait behind something."""
        self._index = {channel.key: ChannelIndex(i) for i, channel in enumerate(channels)}
        self._ready: deque[ChannelIndex] = deque()
        self._save: Callable[[ChannelKey, pa.RecordBatch], None] | None = None
        self._lets_through = False
        """Whether held channels are read all the same."""

    def push(self, key: ChannelKey, item: Item, cost: int) -> None:
        """Something arrived."""
        index = self._index[key]
        channel = self.channels[index]
        if channel.ended:
            raise MalformedMessage(f"channel {key} went on after its end")
        channel.arrived += 1
        number = channel.arrived
        if isinstance(item, Barrier):
            self._push_barrier(index, item, number)
            return
        if self._save is not None and isinstance(item, pa.RecordBatch) and channel.persister.saves(number):
            self._save(key, item)
        was_empty = not channel.queue
        if isinstance(item, Watermark) and not was_empty and isinstance(last := channel.queue[-1][0], Watermark):
            merged = Watermark(time_us=max(last.time_us, item.time_us), idle=item.idle)
            channel.queue[-1] = (merged, 0, number)
            return
        channel.queue.append((item, cost, number))
        if (was_empty or channel.is_held) and not channel.blocked and index not in self._ready:
            self._ready.append(index)

    def restore(self, key: ChannelKey, batches: Sequence[pa.RecordBatch]) -> None:
        """Put back what was in flight on a channel when the checkpoint was taken, before anything new."""
        costs = self.channels[self._index[key]].reserve(batches)
        for batch, cost in zip(batches, costs, strict=True):
            self.push(key, batch, cost)

    def restore_all_first(self, restored: Mapping[ChannelKey, Sequence[pa.RecordBatch]]) -> None:
        """Put in what was in flight elsewhere. It takes no room: nothing may come, on any channel, before all of it has
        been read, so no channel is opened before `is_drained`."""
        for key, batches in restored.items():
            for batch in batches:
                self.push(key, batch, 0)

    @property
    def is_drained(self) -> bool:
        """Whether nothing at all waits to be read."""
        return not any(channel.queue for channel in self.channels)

    def _push_barrier(self, index: ChannelIndex, barrier: Barrier, number: int) -> None:
        channel = self.channels[index]
        channel.persister.barrier_arrived(barrier.checkpoint, number)
        if barrier.options.overtakes:
            channel.queue.appendleft((barrier, 0, number))
            self._hurry(index)
            return
        channel.queue.append((barrier, 0, number))
        if (len(channel.queue) == 1 or channel.is_held) and not channel.blocked and index not in self._ready:
            self._ready.append(index)
        if barrier.options.timeoutable and self.on_announced is not None:
            self.on_announced(index, barrier, number)

    def prioritize(self, index: ChannelIndex, number: int) -> None:
        """Take the barrier with this number to the head of its channel's queue; nothing if it has been read."""
        queue = self.channels[index].queue
        for place, (item, _, found) in enumerate(queue):
            if found == number and isinstance(item, Barrier):
                del queue[place]
                queue.appendleft((item, 0, number))
                self._hurry(index)
                return

    def _hurry(self, index: ChannelIndex) -> None:
        """Read from this channel next."""
        if self.channels[index].blocked:
            return
        if index in self._ready:
            self._ready.remove(index)
        self._ready.appendleft(index)

    def next(self) -> tuple[ChannelIndex, Item, int] | None:
        """The next thing to process, channels taking turns; None if all are empty or blocked."""
        ready = self._ready
        while ready:
            index = ready.popleft()
            channel = self.channels[index]
            if not self._is_readable(channel):
                continue
            item, cost, channel.last_read = channel.queue.popleft()
            if channel.queue:
                ready.append(index)
            return index, item, cost
        return None

    def next_without_room(self) -> tuple[ChannelIndex, RoomlessElement] | None:
        """The next thing to process that makes no output but elements: what a task without room may read. Whoever waits
        for a checkpoint waits for these, and not for room."""
        for index in self._ready:
            channel = self.channels[index]
            if channel.blocked or not channel.queue:
                continue
            item, _, number = channel.queue[0]
            if isinstance(item, RoomlessElement):
                channel.queue.popleft()
                channel.last_read = number
                self._ready.remove(index)
                if channel.queue:
                    self._ready.append(index)
                return index, item
        return None

    @property
    def has_without_room(self) -> bool:
        """Whether `next_without_room` would return something."""
        heads = (self.channels[index] for index in self._ready)
        return any(c.queue and not c.blocked and isinstance(c.queue[0][0], RoomlessElement) for c in heads)

    def give_back(self, index: ChannelIndex, rest: pa.RecordBatch, cost: int) -> None:
        """Only the beginning of what was read last is processed now; the rest is the next to be read."""
        channel = self.channels[index]
        was_empty = not channel.queue
        channel.queue.appendleft((rest, cost, channel.last_read))
        if was_empty and not channel.blocked:
            self._ready.append(index)

    # --- in-flight data -------------------------------------------------------------------

    def start_saving(self, checkpoint: CheckpointId, save: Callable[[ChannelKey, pa.RecordBatch], None]) -> bool:
        """Hand every batch that is ahead of the checkpoint's barrier and not read to `save`: those that wait now, and
        those that arrive until `stop_saving`. False if a newer checkpoint's barrier is in the way."""
        if not all(channel.persister.start(checkpoint) for channel in self.channels):
            self.stop_saving(checkpoint)
            return False
        for channel in self.channels:
            for item, _, number in channel.queue:
                if isinstance(item, pa.RecordBatch) and channel.persister.saves(number):
                    save(channel.key, item)
        self._save = save
        return True

    def stop_saving(self, checkpoint: CheckpointId) -> None:
        """All barriers of the checkpoint are in, or it is over."""
        self._save = None
        for channel in self.channels:
            channel.persister.stop(checkpoint)

    def hold(self, input_number: int) -> None:
        """Leave the batches of an input unread, as far as barriers and ends allow it."""
        for channel in self.channels:
            channel.is_held = channel.input_number == input_number

    def release(self) -> None:
        """Go on reading from all channels that were held."""
        for index, channel in enumerate(self.channels):
            if channel.is_held:
                channel.is_held = False
                self._look_at(ChannelIndex(index))

    def let_through(self, *, barriers_are_due: bool) -> None:
        """While a barrier has come on one channel and not on all: a barrier may be behind what is held, at its sender,
        and nothing that the records wait for comes before it."""
        if barriers_are_due != self._lets_through:
            self._lets_through = barriers_are_due
            for index, channel in enumerate(self.channels):
                if channel.is_held:
                    self._look_at(ChannelIndex(index))

    def _is_readable(self, channel: InputChannel) -> bool:
        if channel.blocked or not channel.queue:
            return False
        return not channel.is_held or self._lets_through or channel.has_news

    def _look_at(self, index: ChannelIndex) -> None:
        if self._is_readable(self.channels[index]) and index not in self._ready:
            self._ready.append(index)

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


def _concatenated(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(parts)  # type: ignore[attr-defined,no-any-return]  # missing from the stubs

"""The two ends of a channel: what waits to be sent, and what waits to be read.

A channel joins one upstream subtask to one downstream subtask. Batches and elements keep their order in the channel.
Batches need credit, which the receiving end grants in bytes. Elements need no credit. But nothing at all is sent before
the first grant, because the first grant shows that the receiving end exists. Of watermarks that follow each other only
the last watermark is kept: watermarks need no credit, so they would otherwise pile up without limit in front of a task
that reads nothing.

If the other end breaks these rules, `MalformedMessage` is raised.
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
"""Elements that a task may read without room in its output queues."""


class ChannelKey(NamedTuple):
    """Names a channel in the whole job."""

    edge: int
    upstream: int
    downstream: int


class Subpartition:
    """The sending end of a channel: queues batches until there is credit, and merges batches that wait."""

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
        """Whether the receiving end has processed all data, the end of the data included."""
        self.bytes_added = 0
        """The bytes of all batches that were ever queued."""
        self._queue: OutputQueue[pa.RecordBatch] = OutputQueue()

    @property
    def queued_bytes(self) -> int:
        """How many bytes wait to be sent."""
        return self._queue.queued_bytes

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Queue records behind everything that waits. A large batch is cut into batches that a channel can carry."""
        size = batch.nbytes
        if size <= self._batch_bytes or batch.num_rows <= 1:
            self._append(batch, size)
            return
        # Columns of views share their text: a slice with fewer rows still has all of the text.
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
        self.bytes_added += size
        # A batch that cannot be cut may be larger than the window. Such a batch costs the whole window, and not more.
        self._queue.add_data(batch, max(1, min(size, self._credit.window_bytes)))

    def add_element(self, element: AnyElement) -> None:
        """Queue an element behind everything that waits."""
        self._queue.add_element(element)

    def add_barrier(self, barrier: Barrier) -> list[pa.RecordBatch]:
        """Queue a barrier, at the place that its options ask for. Returns the batches that the barrier overtook, oldest
        first."""
        return self._queue.add_barrier(barrier)

    def time_out(self, checkpoint: CheckpointId) -> list[pa.RecordBatch]:
        """If the barrier of `checkpoint` still waits, the barrier overtakes. Returns the batches that the barrier
        overtook, oldest first."""
        return self._queue.time_out(checkpoint) or []

    @property
    def waiting(self) -> CheckpointId | None:
        """The checkpoint whose barrier waits here and may still overtake; None if there is none."""
        return self._queue.waiting

    def grant(self, bytes_granted: int) -> None:
        """The receiving end has room for this many more bytes."""
        credit = self._credit
        if not 0 < bytes_granted <= credit.window_bytes - credit.available:
            raise MalformedMessage(
                f"channel {self.key} was granted a credit of {bytes_granted} bytes on top of {credit.available}, "
                f"but its window is {credit.window_bytes} bytes"
            )
        self._open = True
        credit.granted(bytes_granted)

    def data_taken(self) -> None:
        """The receiving end has processed all data, the end of the data included."""
        if not self._end_sent:
            raise MalformedMessage(
                f"all data of channel {self.key} was said to be processed before the end of the data was sent"
            )
        self.is_taken = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be sent."""
        return len(self._queue) == 0

    def flush(self) -> None:
        """Send everything that the credit allows."""
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
        """Put the first batches of the queue together, as many as fit into one batch and into the credit."""
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
    """The receiving end of a channel: a queue, and the credit that is owed for batches that were processed."""

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
        """The number of the input of the task's first operator that the channel feeds."""
        self.queue: deque[tuple[Item, int, int]] = deque()
        """The items that wait, each with its cost and its number. Items are numbered in the order of arrival."""
        self.blocked = False
        self.is_held = False
        """Whether the batches of the channel wait unread, unless a barrier or an end stands behind them."""
        self.ended = False
        self.persister = ChannelPersister()
        self.arrived = 0
        self.last_read = 0
        """The number of the item that was read last."""
        self._grant = grant
        self._data_taken = data_taken
        self._credit = CreditReceiver(window_bytes)

    @property
    def has_news(self) -> bool:
        """Whether a barrier, a cancel marker or an end waits in the queue. Such an element must not be held, and so
        everything that stands before it must be read."""
        return any(not isinstance(item, pa.RecordBatch | Watermark) for item, _, _ in self.queue)

    def reserve(self, batches: Sequence[pa.RecordBatch]) -> list[int]:
        """Before the channel opens: take room in the window for restored batches. Returns the cost of each batch."""
        return self._credit.reserve([batch.nbytes for batch in batches])

    def open(self) -> None:
        """Grant the first credit, so that the sending end may send."""
        self._grant(self.key, self._credit.open())

    def data_processed(self) -> None:
        """Tell the sending end that all data has been processed, the end of the data included."""
        self._data_taken(self.key)

    def consumed(self, cost: int) -> None:
        """A batch of this cost has been processed: grant the cost again, at once or later together with other costs."""
        owed = self._credit.consumed(cost, queue_empty=not self.queue)
        if owed:
            self._grant(self.key, owed)


class InputGate:
    """All input channels of a task, read in turn; barriers that overtake are read first."""

    def __init__(self, channels: list[InputChannel]) -> None:
        self.channels = channels
        self.on_announced: Callable[[ChannelIndex, Barrier, int], None] | None = None
        """Called when a barrier that may time out has arrived, with its channel and its number."""
        self._index = {channel.key: ChannelIndex(i) for i, channel in enumerate(channels)}
        self._ready: deque[ChannelIndex] = deque()
        self._save: Callable[[ChannelKey, pa.RecordBatch], None] | None = None
        self._lets_through = False
        """Whether held channels are read nevertheless."""

    def push(self, key: ChannelKey, item: Item, cost: int) -> None:
        """An item has arrived."""
        index = self._index[key]
        channel = self.channels[index]
        if channel.ended:
            raise MalformedMessage(f"an item came in channel {key} after the end of the channel")
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
        """Put back the batches that were in flight on a channel in the restored checkpoint, before upstream may
        send."""
        costs = self.channels[self._index[key]].reserve(batches)
        for batch, cost in zip(batches, costs, strict=True):
            self.push(key, batch, cost)

    def restore_all_first(self, restored: Mapping[ChannelKey, Sequence[pa.RecordBatch]]) -> None:
        """Put in batches that were in flight at another parallelism. These batches take no room in the windows. So no
        channel may be opened before all of them have been read (`is_drained`)."""
        for key, batches in restored.items():
            for batch in batches:
                self.push(key, batch, 0)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait to be read on all channels together, for people to look at."""
        return sum(cost for channel in self.channels for _, cost, _ in channel.queue)

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits to be read, on any channel."""
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
        """Move the barrier with this number to the head of its channel's queue, unless the barrier has been read."""
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
        """The next item to process, with its channel and its cost. Channels take turns. None if no channel has an item
        that may be read."""
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
        """The next element, with its channel, that a task may process without room in its output queues. A checkpoint
        waits for such elements, so they must not wait for room."""
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
        """Put back the rest of the batch that was read last, of which only the beginning is processed now. The rest is
        the next item of the channel."""
        channel = self.channels[index]
        was_empty = not channel.queue
        channel.queue.appendleft((rest, cost, channel.last_read))
        if was_empty and not channel.blocked:
            self._ready.append(index)

    # --- in-flight data -------------------------------------------------------------------

    def start_saving(self, checkpoint: CheckpointId, save: Callable[[ChannelKey, pa.RecordBatch], None]) -> bool:
        """Hand every unread batch that is ahead of the checkpoint's barrier to `save`: the batches that wait, and the
        batches that arrive before `stop_saving`. Returns False, and saves nothing, if the barrier of a newer checkpoint
        has arrived."""
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
        """Save no more batches: all barriers of the checkpoint have come in, or the checkpoint is over."""
        self._save = None
        for channel in self.channels:
            channel.persister.stop(checkpoint)

    def hold(self, input_number: int) -> None:
        """Leave the batches of an input unread, unless a barrier or an end stands behind them."""
        for channel in self.channels:
            channel.is_held = channel.input_number == input_number

    def release(self) -> None:
        """Go on reading from all channels that were held."""
        for index, channel in enumerate(self.channels):
            if channel.is_held:
                channel.is_held = False
                self._look_at(ChannelIndex(index))

    def let_through(self, *, barriers_are_due: bool) -> None:
        """Read held channels while barriers are due: a barrier has come on one channel, and not on all channels. A
        barrier that is missing may stand behind held records, still at the sender. The input that the records wait for
        may be blocked until that barrier has come."""
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
        """Read nothing from a channel until `resume`."""
        self.channels[index].blocked = True

    def resume(self, index: ChannelIndex) -> None:
        """Read again from a channel that was blocked."""
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

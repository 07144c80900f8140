"""Two ways to drive a barrier handler.

`bench` feeds it a story in a short notation and tells what it wants done, one line per effect:

    B1@0  barrier 1, aligned, on channel 0       A1@0#7  announcement of T1, waiting as number 7
    U1@0  unaligned                              X1@0    cancel marker
    T1@0  aligned until its time-out             E@0     end of partition
    F1@0  forced to stay aligned                 D@0     data: nobody asks the handler about it
    M1    triggered by the master (MU1, MT1)     +5      five milliseconds pass
                                                 tick    the deadline, or just time

`model_task` puts real queues in front of it: items arrive, overtake and are read, batches are saved.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

import pytest

from penstock.core.barrier.events import (
    AbortSnapshot,
    AlignmentMetrics,
    AllBarriersIn,
    BarrierAnnounced,
    BarrierReceived,
    BlockChannel,
    CancelReceived,
    ChannelEnded,
    CorruptInput,
    HandlerEffect,
    HandlerEvent,
    InputConsumed,
    PrioritizeBarrier,
    ResumeChannel,
    StartPersisting,
    StopPersisting,
    TriggeredByMaster,
    TriggerSnapshot,
)
from penstock.core.barrier.persister import ChannelPersister
from penstock.core.barrier.select import BarrierHandler
from penstock.core.effects import Ticked
from penstock.core.elements import Barrier, CancelMarker, CheckpointOptions, EndOfPartition
from penstock.core.ids import ChannelIndex, CheckpointId, Instant
from penstock.core.reasons import CheckpointFailure

START = Instant(1_000)
"""When a story begins."""

REASONS = {
    CheckpointFailure.DECLINED_SUBSUMED: "subsumed",
    CheckpointFailure.DECLINED_ON_CANCELLATION: "cancelled",
    CheckpointFailure.DECLINED_INPUT_END_OF_STREAM: "ended",
}

WORD = re.compile(r"(?P<kind>M?[BUTFAX]?)(?P<id>\d+)(@(?P<channel>\d+)(#(?P<sequence>\d+))?)?")


def line_of(effect: HandlerEffect) -> str:
    """An effect as one line of a story."""
    match effect:
        case BlockChannel():
            return f"block {effect.channel}"
        case ResumeChannel():
            return f"resume {effect.channel}"
        case PrioritizeBarrier():
            return f"prioritize {effect.channel}#{effect.sequence}"
        case StartPersisting():
            return f"persist {effect.checkpoint} on {list(effect.channels)}"
        case StopPersisting():
            return f"stop persisting {effect.checkpoint}" + (", aborted" if effect.aborted else "")
        case TriggerSnapshot():
            return f"trigger {effect.barrier.checkpoint}" + (" unaligned" if effect.barrier.options.unaligned else "")
        case AllBarriersIn():
            return f"all in {effect.checkpoint}"
        case AbortSnapshot():
            return f"abort {effect.checkpoint} {REASONS[effect.reason]}"
        case CorruptInput():
            return f"corrupt: {effect.text}"


class Bench:
    """Feeds a handler, keeps its books, and checks after every event what must always hold."""

    def __init__(self, handler: BarrierHandler, *, timeout_ms: int = 10) -> None:
        self.handler = handler
        self.timeout_ms = timeout_ms
        self.now = START
        self.created_at = START
        """The timestamp of barriers fed in."""
        self.blocked: set[int] = set()
        self.triggered: list[int] = []
        self.aborted: list[int] = []
        self.metrics: list[AlignmentMetrics] = []
        self.barriers: list[Barrier] = []
        """Of triggered snapshots."""

    def feed(self, story: str) -> list[str]:
        """Feed in a story, one event after the other; what the handler wants done."""
        return [line_of(effect) for word in story.split() for effect in self._word(word)]

    def handle(self, event: HandlerEvent) -> list[HandlerEffect]:
        """Feed in one event."""
        effects = self.handler.handle(event, self.now)
        for effect in effects:
            self._book(effect)
        self.handler.validate()
        assert not self.blocked or self.handler.pending is not None, "a channel is blocked with nothing pending"
        deadline = self.handler.next_deadline()
        if isinstance(event, Ticked):
            assert deadline is None or deadline > self.now
        return effects

    def barrier(self, kind: str, checkpoint: int) -> Barrier:
        """A barrier of one of the kinds of the notation."""
        options = {
            "B": CheckpointOptions(),
            "U": CheckpointOptions(unaligned=True),
            "T": CheckpointOptions(aligned_timeout_ms=self.timeout_ms),
            "F": CheckpointOptions(aligned_timeout_ms=self.timeout_ms, forced_aligned=True),
        }[kind]
        return Barrier(checkpoint=CheckpointId(checkpoint), timestamp=self.created_at, options=options)

    def _word(self, word: str) -> list[HandlerEffect]:
        if word == "tick":
            return self.handle(Ticked())
        if word.startswith("+"):
            self.now = Instant(self.now + int(word[1:]))
            return []
        if word.startswith("D@"):
            return []
        if word.startswith("E@"):
            return self.handle(ChannelEnded(channel=ChannelIndex(int(word[2:]))))
        found = WORD.fullmatch(word)
        assert found is not None, f"{word!r} is not in the notation"
        kind, number, channel = found["kind"], CheckpointId(int(found["id"])), ChannelIndex(int(found["channel"] or 0))
        if kind.startswith("M"):
            return self.handle(TriggeredByMaster(barrier=self.barrier(kind[1:] or "B", number)))
        if kind == "X":
            return self.handle(CancelReceived(channel=channel, checkpoint=number))
        if kind == "A":
            barrier, sequence = self.barrier("T", number), int(found["sequence"] or 0)
            return self.handle(BarrierAnnounced(channel=channel, barrier=barrier, sequence=sequence))
        return self.handle(BarrierReceived(channel=channel, barrier=self.barrier(kind, number)))

    def _book(self, effect: HandlerEffect) -> None:
        match effect:
            case BlockChannel():
                self.blocked.add(effect.channel)
            case ResumeChannel():
                self.blocked.discard(effect.channel)
            case TriggerSnapshot():
                self.triggered.append(effect.barrier.checkpoint)
                self.barriers.append(effect.barrier)
                self.metrics.append(effect.metrics)
            case AllBarriersIn():
                self.metrics.append(effect.metrics)
            case AbortSnapshot():
                self.aborted.append(effect.checkpoint)
            case _:
                pass


@pytest.fixture(scope="session")
def bench() -> type[Bench]:
    return Bench


# --- a task with queues ----------------------------------------------------------------------------------------------

Item = int | Barrier | CancelMarker | EndOfPartition
"""What is in a channel; a batch is just a number."""


@dataclass
class ModelChannel:
    """The receiving end of a channel: a queue of numbered items, at whose head barriers may be that overtook."""

    queue: deque[tuple[int, Item]] = field(default_factory=deque)
    overtaking: int = 0
    """How many items at the head of the queue have overtaken."""
    persister: ChannelPersister = field(default_factory=ChannelPersister)
    numbered: int = 0
    blocked: bool = False
    received: list[int] = field(default_factory=list)
    """Batches that have arrived."""
    processed: list[int] = field(default_factory=list)
    """Batches that have been read."""
    barrier_after: dict[int, int] = field(default_factory=dict)
    """Checkpoint -> how many batches were sent ahead of its barrier."""
    ended: bool = False
    """The end of partition has been read."""


@dataclass
class Snapshot:
    """What a triggered checkpoint holds."""

    unaligned: bool
    processed: list[list[int]]
    """By channel, what had been read when it was triggered."""
    saved: list[list[int]]
    """By channel, the in-flight batches."""
    complete: bool
    """Its input is complete."""
    aborted: bool = False
    refused: bool = False
    """A channel could not save its part: a newer barrier had arrived there."""


class ModelTask:
    """Performs the effects of a handler as a task does."""

    def __init__(self, handler: BarrierHandler, *, channels: int, announces: bool = True) -> None:
        self.handler = handler
        self.now = START
        self.channels = [ModelChannel() for _ in range(channels)]
        self.announces = announces
        self.output: list[int] = []
        """Batches in the order they were processed."""
        self.snapshots: dict[int, Snapshot] = {}
        self.triggered: list[int] = []
        self.aborted: list[int] = []
        self.corrupt: list[str] = []
        self.ever_blocked = False
        self._persisting: int | None = None

    # --- what happens to a task ----------------------------------------------------------

    def arrive(self, index: int, item: Item) -> None:
        """Something was sent."""
        channel = self.channels[index]
        sequence = channel.numbered
        channel.numbered += 1
        if isinstance(item, Barrier):
            channel.barrier_after[item.checkpoint] = len(channel.received)
            channel.persister.barrier_arrived(item.checkpoint, sequence)
            if item.options.unaligned:
                channel.queue.insert(channel.overtaking, (sequence, item))
                channel.overtaking += 1
                return
        elif isinstance(item, int):
            channel.received.append(item)
            if self._persisting is not None and channel.persister.saves(sequence):
                self.snapshots[self._persisting].saved[index].append(item)
        channel.queue.append((sequence, item))
        if isinstance(item, Barrier) and item.options.timeoutable and self.announces:
            self._feed(BarrierAnnounced(channel=ChannelIndex(index), barrier=item, sequence=sequence))

    def can_read(self, index: int) -> bool:
        """Whether something can be read; what has overtaken can even be read from a blocked channel."""
        channel = self.channels[index]
        return channel.overtaking > 0 or (bool(channel.queue) and not channel.blocked)

    def read(self, index: int) -> None:
        """Take what is at the head of a queue."""
        channel = self.channels[index]
        _, item = channel.queue.popleft()
        channel.overtaking = max(0, channel.overtaking - 1)
        at = ChannelIndex(index)
        match item:
            case int():
                channel.processed.append(item)
                self.output.append(item)
                if self.handler.pending is not None:
                    self._feed(InputConsumed(bytes_processed=1))
            case Barrier():
                self._feed(BarrierReceived(channel=at, barrier=item))
            case CancelMarker():
                self._feed(CancelReceived(channel=at, checkpoint=item.checkpoint))
            case EndOfPartition():
                channel.ended = True
                self._feed(ChannelEnded(channel=at))

    def pass_time(self, milliseconds: int) -> None:
        """The clock moves; the deadline is obeyed if it has come."""
        self.now = Instant(self.now + milliseconds)
        deadline = self.handler.next_deadline()
        if deadline is not None and self.now >= deadline:
            self._feed(Ticked())
            deadline = self.handler.next_deadline()
            assert deadline is None or deadline > self.now

    # --- what the handler wants ----------------------------------------------------------

    def _feed(self, event: HandlerEvent) -> None:
        for effect in self.handler.handle(event, self.now):
            self._perform(effect)
        self.handler.validate()
        blocked = [channel.blocked for channel in self.channels]
        assert not any(blocked) or self.handler.pending is not None, "a channel is blocked with nothing pending"
        self.ever_blocked = self.ever_blocked or any(blocked)

    def _perform(self, effect: HandlerEffect) -> None:
        match effect:
            case BlockChannel():
                self.channels[effect.channel].blocked = True
            case ResumeChannel():
                self.channels[effect.channel].blocked = False
            case PrioritizeBarrier():
                self._prioritize(self.channels[effect.channel], effect.sequence)
            case StartPersisting():
                self._start(effect.checkpoint)
            case StopPersisting():
                assert self._persisting == effect.checkpoint
                self._persisting = None
                for channel in self.channels:
                    channel.persister.stop(effect.checkpoint)
            case TriggerSnapshot():
                self._trigger(effect.barrier)
            case AllBarriersIn():
                assert not self.snapshots[effect.checkpoint].complete
                self.snapshots[effect.checkpoint].complete = True
            case AbortSnapshot():
                self.aborted.append(effect.checkpoint)
                if effect.checkpoint in self.snapshots:
                    self.snapshots[effect.checkpoint].aborted = True
            case CorruptInput():
                self.corrupt.append(effect.text)

    def _prioritize(self, channel: ModelChannel, sequence: int) -> None:
        (moved,) = [entry for entry in channel.queue if entry[0] == sequence]
        assert isinstance(moved[1], Barrier)
        channel.queue.remove(moved)
        channel.queue.insert(channel.overtaking, moved)
        channel.overtaking += 1

    def _start(self, checkpoint: int) -> None:
        assert self._persisting is None
        self._persisting = checkpoint
        snapshot = Snapshot(
            unaligned=True,
            processed=[list(channel.processed) for channel in self.channels],
            saved=[[] for _ in self.channels],
            complete=False,
        )
        for channel, saved in zip(self.channels, snapshot.saved, strict=True):
            if not channel.persister.start(CheckpointId(checkpoint)):
                snapshot.refused = True
            saved += [
                item for number, item in channel.queue if isinstance(item, int) and channel.persister.saves(number)
            ]
        self.snapshots[checkpoint] = snapshot

    def _trigger(self, barrier: Barrier) -> None:
        checkpoint = barrier.checkpoint
        self.triggered.append(checkpoint)
        if barrier.options.unaligned:
            assert self._persisting == checkpoint, "saving starts before the snapshot is triggered"
            return
        self.snapshots[checkpoint] = Snapshot(
            unaligned=False,
            processed=[list(channel.processed) for channel in self.channels],
            saved=[[] for _ in self.channels],
            complete=True,
        )


@pytest.fixture(scope="session")
def model_task() -> type[ModelTask]:
    return ModelTask

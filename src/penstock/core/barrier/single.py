"""The handler of exactly-once inputs: one checkpoint at a time. The states have what differs between the modes.

    nothing pending ──first barrier, or its announcement──► pending ──every channel is in──► nothing pending
                                                              │
                        cancel marker, newer checkpoint, end  └──────► aborted: nothing pending

Rules of this file:

* A channel is *in* when its barrier has been read, or when the channel has ended.
* A checkpoint waits for the channels that are open when the checkpoint begins. A channel that ends later counts as in;
  the number of channels to wait for stays the same.
* Ids only grow. A checkpoint that is complete or aborted is over: later barriers and markers of that checkpoint change
  nothing, except that an aligned barrier resumes its channel, because a sender may stop sending after an aligned
  barrier.
* A cancel marker of a checkpoint that has not begun here aborts the checkpoint before its beginning.
* A checkpoint is over when every channel is in. An unaligned checkpoint triggers its snapshot earlier and can still be
  aborted after the trigger.
* A snapshot that was triggered unaligned is always followed by `AllBarriersIn` or `AbortSnapshot`.

The handler counts. The handler's state decides what a barrier, an end or a time-out does, and returns the next state.
Not handled here: data, and what a task does about an effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, assert_never

import msgspec

from penstock.core.barrier.alignment import Alignment, OpenChannels
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
from penstock.core.effects import Ticked
from penstock.core.elements import Barrier
from penstock.core.errors import InvariantError
from penstock.core.ids import ChannelIndex, CheckpointId, Instant
from penstock.core.reasons import CheckpointFailure


def as_unaligned(barrier: Barrier) -> Barrier:
    """The same barrier, turned unaligned for good."""
    options = msgspec.structs.replace(barrier.options, unaligned=True, aligned_timeout_ms=None, forced_aligned=False)
    return msgspec.structs.replace(barrier, options=options)


def timeout_of(barrier: Barrier) -> int | None:
    """How old the barrier may become, in milliseconds, before the barrier turns unaligned; None if it never turns."""
    return barrier.options.aligned_timeout_ms if barrier.options.timeoutable else None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A barrier that counts for a channel."""

    channel: ChannelIndex
    barrier: Barrier
    from_channel: bool = True
    """False if the trigger of the master counts as the channel's barrier. The channel is not blocked then."""


class Inputs:
    """The input channels for the states, and the effects of the states."""

    def __init__(self, channels: int) -> None:
        self.open = OpenChannels(channels)
        self.now = Instant(0)
        self.effects: list[HandlerEffect] = []
        self.target = 0
        """How many channels the pending checkpoint waits for, the channels that are in included."""
        self.arrived: dict[ChannelIndex, None] = {}
        """Channels that are in: the barrier was read, or the channel has ended."""
        self.held: dict[ChannelIndex, None] = {}
        """Channels that are blocked until the checkpoint is over or turns unaligned."""
        self.announced: dict[ChannelIndex, int] = {}
        """By channel: where the barrier waits that was announced and not read yet."""
        self.alignment: Alignment | None = None
        self.persisting: CheckpointId | None = None
        """The unaligned checkpoint whose snapshot was triggered and whose in-flight data is not complete."""

    @property
    def all_in(self) -> bool:
        """Whether the pending checkpoint waits for no channel."""
        return len(self.arrived) == self.target

    def is_late(self, barrier: Barrier) -> bool:
        """Whether the barrier is older than its time-out and must turn unaligned."""
        timeout_ms = timeout_of(barrier)
        return timeout_ms is not None and self.now - barrier.timestamp > timeout_ms

    # --- what states want done -----------------------------------------------------------

    def hold(self, arrival: Arrival) -> None:
        """Block the channel of an aligned barrier: read nothing behind the barrier."""
        if arrival.from_channel:
            self.held[arrival.channel] = None
            self.effects.append(BlockChannel(channel=arrival.channel))

    def release(self) -> None:
        """Go on reading from every blocked channel."""
        self.effects += [ResumeChannel(channel=channel) for channel in self.held]
        self.held.clear()

    def let_pass(self, arrival: Arrival) -> None:
        """Resume the channel of an aligned barrier whose checkpoint is over or has turned unaligned."""
        if arrival.from_channel and not arrival.barrier.options.overtakes and arrival.channel not in self.held:
            self.effects.append(ResumeChannel(channel=arrival.channel))

    def prioritize(self, channel: ChannelIndex, sequence: int) -> None:
        """Let an announced barrier overtake data."""
        self.effects.append(PrioritizeBarrier(channel=channel, sequence=sequence))

    def prioritize_announced(self) -> None:
        """Let every announced barrier overtake data."""
        for channel, sequence in self.announced.items():
            self.prioritize(channel, sequence)

    def trigger(self, barrier: Barrier) -> None:
        """Trigger the snapshot: all data before the barrier has been read, and no data behind the barrier."""
        self.effects.append(TriggerSnapshot(barrier=barrier, metrics=self._metrics(unaligned=False)))

    def trigger_unaligned(self, barrier: Barrier) -> None:
        """Trigger the snapshot now, and save the data that was sent before the barrier and has not been read."""
        self.persisting = barrier.checkpoint
        missing = tuple(channel for channel in self.open if channel not in self.arrived)
        self.effects.append(StartPersisting(checkpoint=barrier.checkpoint, channels=missing))
        self.effects.append(TriggerSnapshot(barrier=as_unaligned(barrier), metrics=self._metrics(unaligned=True)))

    def complete_unaligned(self) -> None:
        """Every barrier has come: the in-flight data of the snapshot is complete."""
        checkpoint = self._stop_persisting(aborted=False)
        self.effects.append(AllBarriersIn(checkpoint=checkpoint, metrics=self._metrics(unaligned=True)))

    def drop_unaligned(self) -> None:
        """The checkpoint was aborted: the rest of the in-flight data is not saved."""
        self._stop_persisting(aborted=True)

    def _stop_persisting(self, *, aborted: bool) -> CheckpointId:
        if self.persisting is None:
            raise InvariantError("saving of in-flight data is to stop, but no in-flight data is being saved")
        checkpoint, self.persisting = self.persisting, None
        self.effects.append(StopPersisting(checkpoint=checkpoint, aborted=aborted))
        return checkpoint

    def _metrics(self, *, unaligned: bool) -> AlignmentMetrics:
        if self.alignment is None:
            raise InvariantError("a snapshot is to be triggered, but no barrier has come on any channel")
        return self.alignment.metrics(self.now, unaligned=unaligned)


class State(ABC):
    """How far a handler is with its checkpoint. Every method returns the next state."""

    @abstractmethod
    def announced(self, inputs: Inputs, channel: ChannelIndex, sequence: int) -> State:
        """A barrier of the pending checkpoint waits in the queue of a channel."""

    @abstractmethod
    def barrier(self, inputs: Inputs, arrival: Arrival) -> State:
        """A barrier of the pending checkpoint has come."""

    @abstractmethod
    def ended(self, inputs: Inputs, barrier: Barrier) -> State:
        """A channel has ended and counts as in. `barrier` is the first barrier of the pending checkpoint."""

    @abstractmethod
    def timed_out(self, inputs: Inputs, barrier: Barrier) -> State:
        """The pending checkpoint is to go on unaligned."""

    @abstractmethod
    def aborted(self, inputs: Inputs) -> State:
        """The pending checkpoint, if there is one, is over."""


class SingleCheckpointHandler:
    """Collects the barriers of one checkpoint at a time."""

    turns_unaligned: ClassVar[bool]
    """Whether this handler turns a checkpoint unaligned when the checkpoint's time-out has passed."""

    def __init__(self, first: State, *, channels: int, after_tasks_finish: bool) -> None:
        self._inputs = Inputs(channels)
        self._state = first
        self._after_tasks_finish = after_tasks_finish
        self._newest = CheckpointId(0)
        """The newest checkpoint that began or was cancelled here. Ids start at 1."""
        self._barrier: Barrier | None = None
        """The first barrier of the pending checkpoint. None if no checkpoint is pending: then the newest checkpoint is
        over."""
        self._deadline: Instant | None = None

    # --- the machine's contract ----------------------------------------------------------

    def handle(self, event: HandlerEvent, now: Instant) -> list[HandlerEffect]:
        """Take one event in and return the effects to perform."""
        inputs = self._inputs
        if now < inputs.now:
            raise InvariantError(f"time went back from {inputs.now} to {now}")
        inputs.now = now
        match event:
            case BarrierReceived():
                self._handle_barrier(event)
            case BarrierAnnounced():
                self._handle_announcement(event)
            case CancelReceived():
                self._handle_cancel(event)
            case ChannelEnded():
                self._handle_end(event.channel)
            case TriggeredByMaster():
                self._handle_master(event.barrier)
            case InputConsumed():
                if inputs.alignment is not None:
                    inputs.alignment.consumed(event.bytes_processed)
            case Ticked():
                self._handle_tick()
            case _:
                assert_never(event)
        effects, inputs.effects = inputs.effects, []
        return effects

    def next_deadline(self) -> Instant | None:
        """When the pending checkpoint turns unaligned; None if the checkpoint does not turn."""
        return self._deadline

    @property
    def pending(self) -> CheckpointId | None:
        """The checkpoint whose barriers are being collected."""
        return None if self._barrier is None else self._barrier.checkpoint

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's own state contradicts itself."""
        inputs = self._inputs
        if inputs.effects:
            raise InvariantError(f"{len(inputs.effects)} effects were left behind")
        if self._barrier is None:
            left = {
                "held": inputs.held,
                "arrived": inputs.arrived,
                "announced": inputs.announced,
                "persisting": inputs.persisting,
                "deadline": self._deadline,
            }
            for name, value in left.items():
                if value:
                    raise InvariantError(f"nothing is pending after checkpoint {self._newest}, and {name} is {value}")
        elif self._barrier.checkpoint != self._newest:
            raise InvariantError(f"checkpoint {self._barrier.checkpoint} is pending, and {self._newest} is newer")
        elif inputs.all_in:
            raise InvariantError(f"checkpoint {self._newest} is pending, and waits for no channel")
        elif inputs.persisting is not None and inputs.held:
            raise InvariantError(f"checkpoint {self._newest} is unaligned, and channels {list(inputs.held)} are held")

    # --- events --------------------------------------------------------------------------

    def _handle_barrier(self, event: BarrierReceived) -> None:
        channel, barrier = event.channel, event.barrier
        if not self._is_open(channel, f"the barrier of checkpoint {barrier.checkpoint}"):
            return
        arrival = Arrival(channel, barrier)
        if self._is_over(barrier.checkpoint):
            self._inputs.let_pass(arrival)
            return
        if barrier.checkpoint == self.pending and channel in self._inputs.arrived:
            self._corrupt(f"channel {channel} sent the barrier of checkpoint {barrier.checkpoint} twice")
            return
        self._begin(barrier)
        self._take_in(arrival)

    def _handle_announcement(self, event: BarrierAnnounced) -> None:
        channel, barrier = event.channel, event.barrier
        if not self._is_open(channel, f"an announcement of checkpoint {barrier.checkpoint}"):
            return
        if self._is_over(barrier.checkpoint):
            return
        self._begin(barrier)
        # If the channel is in, its barrier has been read and does not wait in the queue any more.
        if channel not in self._inputs.arrived:
            self._state = self._state.announced(self._inputs, channel, event.sequence)

    def _handle_cancel(self, event: CancelReceived) -> None:
        checkpoint = event.checkpoint
        if not self._is_open(event.channel, f"a cancel marker of checkpoint {checkpoint}"):
            return
        if not self._is_over(checkpoint):
            self._abort(checkpoint, CheckpointFailure.DECLINED_ON_CANCELLATION)

    def _handle_end(self, channel: ChannelIndex) -> None:
        if not self._is_open(channel, "an end of partition"):
            return
        inputs, barrier = self._inputs, self._barrier
        inputs.open.close(channel)
        if barrier is None:
            return
        if not self._after_tasks_finish:
            self._abort(barrier.checkpoint, CheckpointFailure.DECLINED_INPUT_END_OF_STREAM)
            return
        self._mark_in(channel, barrier)
        self._state = self._state.ended(inputs, barrier)
        if inputs.all_in:
            self._end_pending()

    def _handle_master(self, barrier: Barrier) -> None:
        if self._is_over(barrier.checkpoint):
            return
        self._begin(barrier)
        inputs = self._inputs
        if not inputs.open:
            inputs.alignment = Alignment(barrier, inputs.now)
            self._state = self._state.ended(inputs, barrier)
            self._end_pending()
            return
        for channel in [c for c in inputs.open if c not in inputs.arrived]:
            self._take_in(Arrival(channel, barrier, from_channel=False))

    def _handle_tick(self) -> None:
        if self._barrier is not None and self._deadline is not None and self._inputs.now >= self._deadline:
            self._deadline = None
            self._state = self._state.timed_out(self._inputs, self._barrier)

    # --- the life of a checkpoint --------------------------------------------------------

    def _is_over(self, checkpoint: CheckpointId) -> bool:
        """Whether a checkpoint is complete, aborted, or older than the newest checkpoint seen."""
        return checkpoint < self._newest or (checkpoint == self._newest and self._barrier is None)

    def _begin(self, barrier: Barrier) -> None:
        """Make the barrier's checkpoint the pending checkpoint, if the barrier's checkpoint is newer."""
        if barrier.checkpoint == self._newest:
            return
        if self._barrier is not None:
            self._abort(self._barrier.checkpoint, CheckpointFailure.DECLINED_SUBSUMED)
        inputs = self._inputs
        self._newest = barrier.checkpoint
        self._barrier = barrier
        inputs.target = len(inputs.open)
        timeout_ms = timeout_of(barrier)
        if self.turns_unaligned and timeout_ms is not None:
            self._deadline = Instant(max(inputs.now, barrier.timestamp + timeout_ms))

    def _take_in(self, arrival: Arrival) -> None:
        self._mark_in(arrival.channel, arrival.barrier)
        self._state = self._state.barrier(self._inputs, arrival)
        if self._inputs.all_in:
            self._end_pending()

    def _mark_in(self, channel: ChannelIndex, barrier: Barrier) -> None:
        inputs = self._inputs
        inputs.arrived[channel] = None
        inputs.announced.pop(channel, None)
        if inputs.alignment is None:
            inputs.alignment = Alignment(barrier, inputs.now)

    def _abort(self, checkpoint: CheckpointId, reason: CheckpointFailure) -> None:
        """End a checkpoint that has begun, or prevent a checkpoint that has not begun."""
        inputs = self._inputs
        triggered = inputs.persisting
        self._newest = checkpoint
        self._end_pending()
        self._state = self._state.aborted(inputs)
        # An older checkpoint that was not triggered here needs no `AbortSnapshot`: the sender of a newer checkpoint's
        # marker has skipped the older checkpoint, so that sender has declined it. An older checkpoint that was
        # triggered here waits for input that never comes, so it is aborted, too.
        if triggered is not None and triggered != checkpoint:
            inputs.effects.append(AbortSnapshot(checkpoint=triggered, reason=reason))
        inputs.effects.append(AbortSnapshot(checkpoint=checkpoint, reason=reason))

    def _end_pending(self) -> None:
        inputs = self._inputs
        self._barrier = None
        self._deadline = None
        inputs.target = 0
        inputs.arrived.clear()
        inputs.announced.clear()
        inputs.alignment = None

    # --- input that the protocol forbids -------------------------------------------------

    def _is_open(self, channel: ChannelIndex, what: str) -> bool:
        if self._inputs.open.has(channel):
            return True
        self._corrupt(f"channel {channel} sent {what} after its end")
        return False

    def _corrupt(self, text: str) -> None:
        self._inputs.effects.append(CorruptInput(text=text))

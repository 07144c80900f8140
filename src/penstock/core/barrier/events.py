"""What a task's barrier handler is told, and what it wants done.

Data does not pass through a handler. The task feeds it what its input channels deliver besides data, and performs the
effects in order.
"""

from __future__ import annotations

from penstock.core.effects import Effect, Event, Ticked
from penstock.core.elements import Barrier
from penstock.core.ids import ChannelIndex, CheckpointId
from penstock.core.reasons import CheckpointFailure

# --- events ----------------------------------------------------------------------


class BarrierReceived(Event, frozen=True, kw_only=True):
    """The task has read a barrier from a channel."""

    channel: ChannelIndex
    barrier: Barrier


class BarrierAnnounced(Event, frozen=True, kw_only=True):
    """A barrier that may turn unaligned waits in a channel's queue; it has not been read yet."""

    channel: ChannelIndex
    barrier: Barrier
    sequence: int
    """Where it waits: the number by which `PrioritizeBarrier` names it."""


class CancelReceived(Event, frozen=True, kw_only=True):
    """The task has read a cancel marker from a channel."""

    channel: ChannelIndex
    checkpoint: CheckpointId


class ChannelEnded(Event, frozen=True, kw_only=True):
    """The task has read the end of partition of a channel: nothing more comes from it."""

    channel: ChannelIndex


class TriggeredByMaster(Event, frozen=True, kw_only=True):
    """The master triggers a task whose upstream tasks have all finished or cannot send the barrier: it counts as a
    barrier on every channel that is still open, and blocks none."""

    barrier: Barrier


class InputConsumed(Event, frozen=True, kw_only=True):
    """The task has processed so many bytes of input since the last time it said so. Fed in only while a checkpoint is
    pending, for the metrics."""

    bytes_processed: int


HandlerEvent = (
    BarrierReceived | BarrierAnnounced | CancelReceived | ChannelEnded | TriggeredByMaster | InputConsumed | Ticked
)

# --- effects ---------------------------------------------------------------------


class BlockChannel(Effect, frozen=True, kw_only=True):
    """Read nothing more from a channel."""

    channel: ChannelIndex


class ResumeChannel(Effect, frozen=True, kw_only=True):
    """Go on reading from a channel. Resuming one that is not blocked does nothing."""

    channel: ChannelIndex


class PrioritizeBarrier(Effect, frozen=True, kw_only=True):
    """Move an announced barrier to the head of its channel's queue."""

    channel: ChannelIndex
    sequence: int


class StartPersisting(Effect, frozen=True, kw_only=True):
    """From now on save the in-flight data: in every channel what waits in the queue and was sent ahead of the barrier,
    which may have overtaken it, and in `channels` also what arrives until the barrier does. `ChannelPersister` tells
    for each batch."""

    checkpoint: CheckpointId
    channels: tuple[ChannelIndex, ...]
    """The channels whose barrier is not in yet."""


class StopPersisting(Effect, frozen=True, kw_only=True):
    """Save no more: all barriers are in, or the checkpoint was aborted."""

    checkpoint: CheckpointId
    aborted: bool


class AlignmentMetrics(Effect, frozen=True, kw_only=True):
    """How the barriers of a checkpoint came in. A part of `TriggerSnapshot`, and of `AllBarriersIn`."""

    start_delay_ms: int = 0
    alignment_ms: int = 0
    bytes_processed: int = 0
    unaligned: bool = False


class TriggerSnapshot(Effect, frozen=True, kw_only=True):
    """The task takes its snapshot for this barrier now, before it reads anything else."""

    barrier: Barrier
    """With the options as they are by now: unaligned if it has turned so."""
    metrics: AlignmentMetrics


class AllBarriersIn(Effect, frozen=True, kw_only=True):
    """The barrier of an unaligned checkpoint has come on every channel: its input state is complete."""

    checkpoint: CheckpointId
    metrics: AlignmentMetrics


class AbortSnapshot(Effect, frozen=True, kw_only=True):
    """The checkpoint cannot be taken here: the task declines it and tells everything downstream."""

    checkpoint: CheckpointId
    reason: CheckpointFailure


class CorruptInput(Effect, frozen=True, kw_only=True):
    """What came in cannot be: the task fails."""

    text: str


HandlerEffect = (
    BlockChannel
    | ResumeChannel
    | PrioritizeBarrier
    | StartPersisting
    | StopPersisting
    | TriggerSnapshot
    | AllBarriersIn
    | AbortSnapshot
    | CorruptInput
)

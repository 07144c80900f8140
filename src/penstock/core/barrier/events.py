"""The events and the effects of a task's barrier handler.

Data does not pass through a barrier handler. The task feeds the handler the elements of its input channels that are not
data, and performs the effects in order.
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
    """A barrier that may turn unaligned waits in a channel's queue. The task has not read the barrier yet."""

    channel: ChannelIndex
    barrier: Barrier
    sequence: int
    """Where the barrier waits: the number by which `PrioritizeBarrier` names the barrier."""


class CancelReceived(Event, frozen=True, kw_only=True):
    """The task has read a cancel marker from a channel."""

    channel: ChannelIndex
    checkpoint: CheckpointId


class ChannelEnded(Event, frozen=True, kw_only=True):
    """The task has read the end of partition of a channel: nothing more comes from the channel."""

    channel: ChannelIndex


class TriggeredByMaster(Event, frozen=True, kw_only=True):
    """The master triggers a task whose upstream tasks have all finished or cannot send the barrier. The trigger counts
    as a barrier on every channel that is still open, and blocks no channel."""

    barrier: Barrier


class InputConsumed(Event, frozen=True, kw_only=True):
    """The task has processed this many bytes of input since the last `InputConsumed`. Fed in only while a checkpoint is
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
    """Go on reading from a channel. If the channel is not blocked, nothing happens."""

    channel: ChannelIndex


class PrioritizeBarrier(Effect, frozen=True, kw_only=True):
    """Move an announced barrier to the head of its channel's queue."""

    channel: ChannelIndex
    sequence: int


class StartPersisting(Effect, frozen=True, kw_only=True):
    """From now on save the in-flight data. In every channel: the batches in the queue that were sent before the
    barrier, also if the barrier has overtaken them. In `channels` also: the batches that arrive before the barrier
    arrives. `ChannelPersister` decides for each batch."""

    checkpoint: CheckpointId
    channels: tuple[ChannelIndex, ...]
    """The channels whose barrier has not come yet."""


class StopPersisting(Effect, frozen=True, kw_only=True):
    """Save no more in-flight data: all barriers have come, or the checkpoint was aborted."""

    checkpoint: CheckpointId
    aborted: bool


class AlignmentMetrics(Effect, frozen=True, kw_only=True):
    """Times and sizes of the alignment of a checkpoint. A part of `TriggerSnapshot`, and of `AllBarriersIn`."""

    start_delay_ms: int = 0
    alignment_ms: int = 0
    bytes_processed: int = 0
    unaligned: bool = False
    last_channel: ChannelIndex | None = None
    """The channel whose barrier came last, if the task had to wait for several."""
    rows_in: int = 0
    """How many records the task of a source had read at the barrier, in this attempt."""


class TriggerSnapshot(Effect, frozen=True, kw_only=True):
    """The task takes its snapshot for this barrier now, before the task reads anything else."""

    barrier: Barrier
    """The barrier with its present options: unaligned if the checkpoint has turned unaligned."""
    metrics: AlignmentMetrics


class AllBarriersIn(Effect, frozen=True, kw_only=True):
    """The barrier of an unaligned checkpoint has come on every channel: the saved in-flight data is complete."""

    checkpoint: CheckpointId
    metrics: AlignmentMetrics


class AbortSnapshot(Effect, frozen=True, kw_only=True):
    """The task cannot take part in the checkpoint: the task declines the checkpoint and tells all tasks downstream."""

    checkpoint: CheckpointId
    reason: CheckpointFailure


class CorruptInput(Effect, frozen=True, kw_only=True):
    """A channel sent an element that the protocol forbids: the task fails."""

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

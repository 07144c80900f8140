"""Exactly once without waiting, or with waiting up to a time-out: aligned and unaligned checkpoints in one job.

    Waiting ───────aligned barrier────────► Collecting
       │ ▲ ▲                                 │  │
       │ │ └──────── all in: trigger ────────┘  │
       │ │                                      │ time-out, or an unaligned barrier: trigger
       │ └─────── all in ───────┐               ▼
       │                  CollectingUnaligned ◄─┘
       │ time-out, or           ▲
       │ an unaligned barrier   │ first barrier: trigger
       └──► WaitingUnaligned ───┘

Each barrier says how its checkpoint is taken: aligned (savepoints), unaligned at once, or aligned until the barrier is
older than its time-out. The time-out counts from the barrier's creation, so that all tasks turn unaligned at about the
same moment. The time-out is noticed in two ways: by the deadline, once, and by the age of each barrier that is read,
because a busy task may read barriers before the task looks at its deadline.

While the checkpoint is aligned, a channel whose barrier has come is blocked. Once the checkpoint is unaligned, no
channel is blocked: the snapshot has been triggered, and the data that was sent before a barrier and not read yet is
saved until that barrier has come. From that moment on announced barriers overtake data. An abort leads back to
`Waiting` from every state.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.core.barrier.single import Arrival, Inputs, SingleCheckpointHandler, State
from penstock.core.elements import Barrier
from penstock.core.ids import ChannelIndex


class _Aligned(State):
    """What the two aligned states have in common."""

    def announced(self, inputs: Inputs, channel: ChannelIndex, sequence: int) -> State:
        """Remember where the barrier waits, because the barrier may have to overtake data later."""
        inputs.announced[channel] = sequence
        return self

    def barrier(self, inputs: Inputs, arrival: Arrival) -> State:
        """Block the barrier's channel, unless the barrier is late or has turned unaligned upstream."""
        barrier = arrival.barrier
        if barrier.options.overtakes or (inputs.is_late(barrier) and not inputs.all_in):
            return self.timed_out(inputs, barrier).barrier(inputs, arrival)
        inputs.hold(arrival)
        if inputs.all_in:
            return _finish(inputs, barrier)
        return Collecting()


class Waiting(_Aligned):
    """No barrier has come. Some barriers may be announced."""

    def ended(self, inputs: Inputs, barrier: Barrier) -> State:
        """A channel has ended. Trigger the snapshot only if all channels have ended, because no barrier can come
        then."""
        if not inputs.all_in:
            return self
        if barrier.options.overtakes:
            return self.timed_out(inputs, barrier).ended(inputs, barrier)
        return _finish(inputs, barrier)

    def timed_out(self, inputs: Inputs, barrier: Barrier) -> State:  # noqa: ARG002
        """Let announced barriers overtake data. The first barrier that is read triggers the snapshot."""
        inputs.prioritize_announced()
        return WaitingUnaligned()

    def aborted(self, inputs: Inputs) -> State:  # noqa: ARG002
        """No channel is blocked, so there is nothing to undo."""
        return self


class Collecting(_Aligned):
    """Some channels are in, and the checkpoint is aligned. The channels whose barrier has come are blocked."""

    def ended(self, inputs: Inputs, barrier: Barrier) -> State:
        """A channel has ended; trigger the snapshot if all channels are in, or if the barrier is late."""
        if inputs.all_in:
            return _finish(inputs, barrier)
        if inputs.is_late(barrier):
            return self.timed_out(inputs, barrier).ended(inputs, barrier)
        return self

    def timed_out(self, inputs: Inputs, barrier: Barrier) -> State:
        """Trigger the snapshot now. After that the data behind the barriers that have come may be read."""
        inputs.prioritize_announced()
        inputs.trigger_unaligned(barrier)
        inputs.release()
        return CollectingUnaligned()

    def aborted(self, inputs: Inputs) -> State:
        """Go on reading from all channels."""
        inputs.release()
        return Waiting()


class _Unaligned(State):
    """What the two unaligned states have in common."""

    def announced(self, inputs: Inputs, channel: ChannelIndex, sequence: int) -> State:
        """The barrier overtakes data at once."""
        inputs.prioritize(channel, sequence)
        return self

    def timed_out(self, inputs: Inputs, barrier: Barrier) -> State:  # noqa: ARG002
        """Nothing to do: the checkpoint is already unaligned."""
        return self


class WaitingUnaligned(_Unaligned):
    """No barrier has come. The first barrier triggers the snapshot."""

    def barrier(self, inputs: Inputs, arrival: Arrival) -> State:
        """Trigger the snapshot."""
        inputs.trigger_unaligned(arrival.barrier)
        return CollectingUnaligned().barrier(inputs, arrival)

    def ended(self, inputs: Inputs, barrier: Barrier) -> State:
        """A channel has ended. Trigger the snapshot only if all channels have ended, because no barrier can come
        then."""
        if not inputs.all_in:
            return self
        inputs.trigger_unaligned(barrier)
        return CollectingUnaligned().ended(inputs, barrier)

    def aborted(self, inputs: Inputs) -> State:  # noqa: ARG002
        """Nothing to undo: a barrier that has overtaken data stays where it is in the queue."""
        return Waiting()


class CollectingUnaligned(_Unaligned):
    """The snapshot was triggered. The input of a channel is saved until the channel's barrier has come."""

    def barrier(self, inputs: Inputs, arrival: Arrival) -> State:
        """The input of this channel is not saved any more. The channel is not blocked behind the barrier."""
        inputs.let_pass(arrival)
        return self.ended(inputs, arrival.barrier)

    def ended(self, inputs: Inputs, barrier: Barrier) -> State:  # noqa: ARG002
        """The input of a channel is complete; if all channels are in, the whole input of the snapshot is complete."""
        if not inputs.all_in:
            return self
        inputs.complete_unaligned()
        return Waiting()

    def aborted(self, inputs: Inputs) -> State:
        """Save no more input."""
        inputs.drop_unaligned()
        return Waiting()


def _finish(inputs: Inputs, barrier: Barrier) -> State:
    inputs.trigger(barrier)
    inputs.release()
    return Waiting()


class AlternatingHandler(SingleCheckpointHandler):
    """Triggers a snapshot when the barrier has come on every channel, or when the checkpoint turns unaligned."""

    turns_unaligned: ClassVar[bool] = True

    def __init__(self, *, channels: int, after_tasks_finish: bool) -> None:
        super().__init__(Waiting(), channels=channels, after_tasks_finish=after_tasks_finish)

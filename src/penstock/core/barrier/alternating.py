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

Each barrier says what it wants: to be aligned (savepoints), unaligned at once, or aligned until it is older than its
time-out. The time-out counts from the barrier's creation, so that all tasks turn at about the same moment. It is
noticed in two ways: by the deadline, once, and by the age of each barrier that is read, for a busy task may get to its
barriers before it gets to its deadline.

While aligned, a channel whose barrier is in is blocked. Once unaligned nothing is: the snapshot has been triggered, and
all that was sent before a barrier and not read by then is saved until that barrier is in. Announced barriers overtake
from that moment on. An abort leads back to `Waiting` from everywhere.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.core.barrier.single import Arrival, Inputs, SingleCheckpointHandler, State
from penstock.core.elements import Barrier
from penstock.core.ids import ChannelIndex


class _Aligned(State):
    """What the two aligned states have in common."""

    def announced(self, inputs: Inputs, channel: ChannelIndex, sequence: int) -> State:
        """Remember where the barrier waits, should it have to overtake."""
        inputs.announced[channel] = sequence
        return self

    def barrier(self, inputs: Inputs, arrival: Arrival) -> State:
        """Block its channel, unless it is late or has turned unaligned upstream."""
        barrier = arrival.barrier
        if barrier.options.overtakes or (inputs.is_late(barrier) and not inputs.all_in):
            return self.timed_out(inputs, barrier).barrier(inputs, arrival)
        inputs.hold(arrival)
        if inputs.all_in:
            return _finish(inputs, barrier)
        return Collecting()


class Waiting(_Aligned):
    """No barrier is in; some may be announced."""

    def ended(self, inputs: Inputs, barrier: Barrier) -> State:
        """The snapshot is triggered by a barrier, unless no channel is left to bring one."""
        if not inputs.all_in:
            return self
        if barrier.options.overtakes:
            return self.timed_out(inputs, barrier).ended(inputs, barrier)
        return _finish(inputs, barrier)

    def timed_out(self, inputs: Inputs, barrier: Barrier) -> State:  # noqa: ARG002
        """Let announced barriers overtake; the first one that is read triggers the snapshot."""
        inputs.prioritize_announced()
        return WaitingUnaligned()

    def aborted(self, inputs: Inputs) -> State:  # noqa: ARG002
        """Nothing has been done that is to be undone."""
        return self


class Collecting(_Aligned):
    """Some channels are in, aligned; those with a barrier are blocked."""

    def ended(self, inputs: Inputs, barrier: Barrier) -> State:
        """One channel less to wait for."""
        if inputs.all_in:
            return _finish(inputs, barrier)
        if inputs.is_late(barrier):
            return self.timed_out(inputs, barrier).ended(inputs, barrier)
        return self

    def timed_out(self, inputs: Inputs, barrier: Barrier) -> State:
        """Trigger the snapshot now. What is behind the barriers that are in may then be read."""
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
        """It overtakes at once."""
        inputs.prioritize(channel, sequence)
        return self

    def timed_out(self, inputs: Inputs, barrier: Barrier) -> State:  # noqa: ARG002
        """It has turned unaligned before."""
        return self


class WaitingUnaligned(_Unaligned):
    """No barrier is in; the first one triggers the snapshot."""

    def barrier(self, inputs: Inputs, arrival: Arrival) -> State:
        """Trigger the snapshot."""
        inputs.trigger_unaligned(arrival.barrier)
        return CollectingUnaligned().barrier(inputs, arrival)

    def ended(self, inputs: Inputs, barrier: Barrier) -> State:
        """The snapshot is triggered by a barrier, unless no channel is left to bring one."""
        if not inputs.all_in:
            return self
        inputs.trigger_unaligned(barrier)
        return CollectingUnaligned().ended(inputs, barrier)

    def aborted(self, inputs: Inputs) -> State:  # noqa: ARG002
        """Nothing has been done that is to be undone: a barrier that was moved is read where it is."""
        return Waiting()


class CollectingUnaligned(_Unaligned):
    """The snapshot was triggered; input is saved until its barrier is in."""

    def barrier(self, inputs: Inputs, arrival: Arrival) -> State:
        """One channel less to save; nothing is held behind the barrier."""
        inputs.let_pass(arrival)
        return self.ended(inputs, arrival.barrier)

    def ended(self, inputs: Inputs, barrier: Barrier) -> State:  # noqa: ARG002
        """One channel less to save."""
        if not inputs.all_in:
            return self
        inputs.complete_unaligned()
        return Waiting()

    def aborted(self, inputs: Inputs) -> State:
        """Save no more."""
        inputs.drop_unaligned()
        return Waiting()


def _finish(inputs: Inputs, barrier: Barrier) -> State:
    inputs.trigger(barrier)
    inputs.release()
    return Waiting()


class AlternatingHandler(SingleCheckpointHandler):
    """Triggers a snapshot when the barrier has come on every channel, or when it need not wait for that any longer."""

    turns_unaligned: ClassVar[bool] = True

    def __init__(self, *, channels: int, after_tasks_finish: bool) -> None:
        super().__init__(Waiting(), channels=channels, after_tasks_finish=after_tasks_finish)

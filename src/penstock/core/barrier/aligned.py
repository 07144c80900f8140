"""Exactly once by waiting: a channel whose barrier has come is blocked until the barrier has come on all channels.

    WaitingForFirstBarrier ──barrier: block its channel──► CollectingBarriers ◄─┐ barrier: block its channel
              ▲                                             │  │  └─────────────┘
              └──────── all in: trigger, resume all ────────┘  │
              └──────── aborted: resume all ───────────────────┘

A barrier, or a channel, is *in* when the barrier has been read from the channel. For a task with a single channel the
first barrier goes through both states at once. Nothing here depends on time.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.core.barrier.single import Arrival, Inputs, SingleCheckpointHandler, State
from penstock.core.elements import Barrier
from penstock.core.errors import InvariantError
from penstock.core.ids import ChannelIndex


class _Aligned(State):
    """What the two states have in common."""

    def announced(self, inputs: Inputs, channel: ChannelIndex, sequence: int) -> State:  # noqa: ARG002
        """No barrier overtakes here: the announced barrier is read in its turn."""
        return self

    def barrier(self, inputs: Inputs, arrival: Arrival) -> State:
        """Block the barrier's channel."""
        inputs.hold(arrival)
        return self.ended(inputs, arrival.barrier)

    def ended(self, inputs: Inputs, barrier: Barrier) -> State:
        """A channel is in; if all channels are in, trigger the snapshot and resume all channels."""
        if not inputs.all_in:
            return CollectingBarriers()
        inputs.trigger(barrier)
        inputs.release()
        return WaitingForFirstBarrier()

    def timed_out(self, inputs: Inputs, barrier: Barrier) -> State:  # noqa: ARG002
        """Never called: this handler sets no deadline."""
        raise InvariantError(f"aligned checkpoint {barrier.checkpoint} cannot time out")


class WaitingForFirstBarrier(_Aligned):
    """No barrier is in, and no channel is blocked."""

    def aborted(self, inputs: Inputs) -> State:  # noqa: ARG002
        """No channel is blocked, so there is nothing to undo."""
        return self


class CollectingBarriers(_Aligned):
    """Some channels are in. The channels whose barrier has come are blocked."""

    def aborted(self, inputs: Inputs) -> State:
        """Go on reading from all channels."""
        inputs.release()
        return WaitingForFirstBarrier()


class AlignedHandler(SingleCheckpointHandler):
    """Triggers a snapshot when the barrier has come on every channel."""

    turns_unaligned: ClassVar[bool] = False

    def __init__(self, *, channels: int, after_tasks_finish: bool) -> None:
        super().__init__(WaitingForFirstBarrier(), channels=channels, after_tasks_finish=after_tasks_finish)

"""At least once: barriers are counted, nothing is blocked, and several checkpoints may be under way.

Rules of this file:

* A snapshot is triggered when the checkpoint's barrier has come on every channel that was open when its first barrier
  came. A channel that ends counts as in. Data that came behind a barrier meanwhile is in the snapshot, and comes again
  after a restore.
* The trigger of a checkpoint drops all older checkpoints without an `AbortSnapshot`: their remaining barriers can only
  come later.
* A cancel marker aborts its checkpoint and all older checkpoints, each once. The barriers and markers of an aborted
  checkpoint are still counted, so that the checkpoint is forgotten when the last of them has come.
* Ids only grow: the first barrier of a checkpoint that is not newer than all other checkpoints is ignored.
* No more than `MOST_TRACKED` checkpoints are remembered; the oldest checkpoint is dropped first.
"""

from __future__ import annotations

from typing import assert_never

from penstock.core.barrier.alignment import Alignment, OpenChannels
from penstock.core.barrier.events import (
    AbortSnapshot,
    BarrierAnnounced,
    BarrierReceived,
    CancelReceived,
    ChannelEnded,
    CorruptInput,
    HandlerEffect,
    HandlerEvent,
    InputConsumed,
    TriggeredByMaster,
    TriggerSnapshot,
)
from penstock.core.effects import Ticked
from penstock.core.elements import Barrier
from penstock.core.errors import InvariantError
from penstock.core.ids import ChannelIndex, CheckpointId, Instant
from penstock.core.reasons import CheckpointFailure

MOST_TRACKED = 50
"""How many checkpoints may be under way before the oldest is forgotten."""


class _Tracked:
    """A checkpoint that waits for channels."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.arrived: dict[ChannelIndex, None] = {}
        self.begun: tuple[Barrier, Alignment] | None = None
        """The checkpoint's first barrier and its alignment. None: a cancel marker came first."""
        self.aborted = False

    @property
    def all_in(self) -> bool:
        return len(self.arrived) == self.target


class BarrierTracker:
    """Triggers a snapshot when the barrier has come on every channel, and blocks no channel meanwhile."""

    def __init__(self, *, channels: int, after_tasks_finish: bool) -> None:
        self._open = OpenChannels(channels)
        self._after_tasks_finish = after_tasks_finish
        self._tracked: dict[CheckpointId, _Tracked] = {}
        """Oldest checkpoint first, which is also the order of the ids."""
        self._newest = CheckpointId(0)
        """The newest checkpoint of which a barrier or a cancel marker has come. Ids start at 1."""
        self._now = Instant(0)

    # --- the machine's contract ----------------------------------------------------------

    def handle(self, event: HandlerEvent, now: Instant) -> list[HandlerEffect]:
        """Take one event in and return the effects to perform."""
        if now < self._now:
            raise InvariantError(f"time went back from {self._now} to {now}")
        self._now = now
        match event:
            case BarrierReceived():
                return self._handle_barrier(event)
            case CancelReceived():
                return self._handle_cancel(event)
            case ChannelEnded():
                return self._handle_end(event.channel)
            case TriggeredByMaster():
                return self._handle_master(event.barrier)
            case InputConsumed():
                for tracked in self._tracked.values():
                    if tracked.begun is not None:
                        tracked.begun[1].consumed(event.bytes_processed)
                return []
            case BarrierAnnounced() | Ticked():
                # No barrier overtakes data here, and nothing depends on time.
                return []
            case _:
                assert_never(event)

    def next_deadline(self) -> Instant | None:
        """Only events move this machine."""
        return None

    @property
    def pending(self) -> CheckpointId | None:
        """The newest checkpoint that waits for channels and is not aborted."""
        return max((c for c, tracked in self._tracked.items() if not tracked.aborted), default=None)

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's own state contradicts itself."""
        if list(self._tracked) != sorted(self._tracked):
            raise InvariantError(f"tracked checkpoints are out of order: {list(self._tracked)}")
        if len(self._tracked) > MOST_TRACKED:
            raise InvariantError(f"{len(self._tracked)} checkpoints are tracked, at most {MOST_TRACKED} may be")
        for checkpoint, tracked in self._tracked.items():
            if checkpoint > self._newest:
                raise InvariantError(f"checkpoint {checkpoint} is tracked, and the newest is {self._newest}")
            if tracked.all_in:
                raise InvariantError(f"checkpoint {checkpoint} is tracked, and waits for no channel")

    # --- events --------------------------------------------------------------------------

    def _handle_barrier(self, event: BarrierReceived) -> list[HandlerEffect]:
        channel, barrier = event.channel, event.barrier
        if not self._open.has(channel):
            return [_after_end(channel, f"the barrier of checkpoint {barrier.checkpoint}")]
        return self._count_barrier(channel, barrier)

    def _count_barrier(self, channel: ChannelIndex, barrier: Barrier) -> list[HandlerEffect]:
        checkpoint = barrier.checkpoint
        if checkpoint > self._newest:
            self._newest = checkpoint
            if len(self._open) == 1:
                # There is no other channel to wait for, so the checkpoint need not be remembered.
                return self._trigger(barrier, Alignment(barrier, self._now))
            self._track(checkpoint)
        tracked = self._tracked.get(checkpoint)
        if tracked is None:
            # Late: the checkpoint was triggered, aborted, or dropped for a newer checkpoint.
            return []
        if tracked.begun is None:
            tracked.begun = (barrier, Alignment(barrier, self._now))
        return self._count_in(channel, checkpoint, tracked)

    def _handle_cancel(self, event: CancelReceived) -> list[HandlerEffect]:
        channel, checkpoint = event.channel, event.checkpoint
        if not self._open.has(channel):
            return [_after_end(channel, f"a cancel marker of checkpoint {checkpoint}")]
        reason = CheckpointFailure.DECLINED_ON_CANCELLATION
        effects: list[HandlerEffect] = []
        for older in [c for c in self._tracked if c < checkpoint]:
            effects += self._abort(older, reason)
            del self._tracked[older]
        if checkpoint > self._newest:
            self._newest = checkpoint
            self._track(checkpoint)
        tracked = self._tracked.get(checkpoint)
        if tracked is None:
            # Late: the checkpoint is over, and every channel sends a cancel marker for it.
            return effects
        effects += self._abort(checkpoint, reason)
        return effects + self._count_in(channel, checkpoint, tracked)

    def _handle_end(self, channel: ChannelIndex) -> list[HandlerEffect]:
        if not self._open.has(channel):
            return [_after_end(channel, "an end of partition")]
        self._open.close(channel)
        effects: list[HandlerEffect] = []
        if not self._after_tasks_finish:
            for checkpoint in self._tracked:
                effects += self._abort(checkpoint, CheckpointFailure.DECLINED_INPUT_END_OF_STREAM)
            self._tracked.clear()
            return effects
        # Newest first: a checkpoint that is complete drops all older checkpoints.
        for checkpoint in sorted(self._tracked, reverse=True):
            tracked = self._tracked.get(checkpoint)
            if tracked is not None:
                effects += self._count_in(channel, checkpoint, tracked)
        return effects

    def _handle_master(self, barrier: Barrier) -> list[HandlerEffect]:
        if not self._open:
            if barrier.checkpoint <= self._newest:
                return []
            self._newest = barrier.checkpoint
            return self._trigger(barrier, Alignment(barrier, self._now))
        return [effect for channel in list(self._open) for effect in self._count_barrier(channel, barrier)]

    # --- the life of a checkpoint --------------------------------------------------------

    def _track(self, checkpoint: CheckpointId) -> None:
        self._tracked[checkpoint] = _Tracked(len(self._open))
        if len(self._tracked) > MOST_TRACKED:
            del self._tracked[min(self._tracked)]

    def _count_in(self, channel: ChannelIndex, checkpoint: CheckpointId, tracked: _Tracked) -> list[HandlerEffect]:
        tracked.arrived[channel] = None
        if not tracked.all_in:
            return []
        if tracked.aborted or tracked.begun is None:
            del self._tracked[checkpoint]
            return []
        barrier, alignment = tracked.begun
        return self._trigger(barrier, alignment)

    def _trigger(self, barrier: Barrier, alignment: Alignment) -> list[HandlerEffect]:
        for over in [c for c in self._tracked if c <= barrier.checkpoint]:
            del self._tracked[over]
        return [TriggerSnapshot(barrier=barrier, metrics=alignment.metrics(self._now, unaligned=False))]

    def _abort(self, checkpoint: CheckpointId, reason: CheckpointFailure) -> list[HandlerEffect]:
        tracked = self._tracked[checkpoint]
        if tracked.aborted:
            return []
        tracked.aborted = True
        return [AbortSnapshot(checkpoint=checkpoint, reason=reason)]


def _after_end(channel: ChannelIndex, what: str) -> CorruptInput:
    return CorruptInput(text=f"channel {channel} sent {what} after its end")

"""Which batches of one input channel belong to an unaligned checkpoint: the batches that were sent before its barrier.

The elements of a channel are numbered in the order in which they were sent. A barrier keeps its number when the barrier
overtakes batches. The rule is the same for batches that wait in the queue when saving starts and for batches that
arrive while saving goes on.

    COMPLETED ──────── start ───────► BARRIER_PENDING      every batch is in flight
        ▲  │                             │    │
        │  └─ barrier arrives ─┐  barrier│    │stop
        │                      ▼ arrives ▼    │
        ├─────── stop ──── BARRIER_RECEIVED   │            batches ahead of the barrier are in flight
        └─────────────────────────────────────┘

Rules of this file: a barrier arrives before it is read, and possibly before saving starts. A barrier of a checkpoint
older than the newest checkpoint seen is ignored, and so is an order to stop for such a checkpoint.
"""

from __future__ import annotations

from enum import Enum

from penstock.core.ids import CheckpointId


class PersistStatus(Enum):
    """How far a channel is with the newest checkpoint that the channel has seen."""

    COMPLETED = "completed"
    BARRIER_PENDING = "barrier pending"
    BARRIER_RECEIVED = "barrier received"


class ChannelPersister:
    """Decides for one channel which batches are saved. The driver tells the persister of every barrier that arrives,
    and asks about batches only from `StartPersisting` to `StopPersisting`."""

    def __init__(self) -> None:
        self.status = PersistStatus.COMPLETED
        self._last = CheckpointId(0)
        """The newest checkpoint that the persister was told of. Ids start at 1."""
        self._barrier_at = 0
        """The number of the barrier, if the barrier has been received."""

    def barrier_arrived(self, checkpoint: CheckpointId, sequence: int) -> bool:
        """A barrier, aligned or not, has arrived in the queue as number `sequence`. Returns False if the barrier is
        ignored: its checkpoint is older than the newest checkpoint seen, or saving for its checkpoint has stopped."""
        completed = self.status is PersistStatus.COMPLETED
        if checkpoint < self._last or (completed and checkpoint == self._last):
            return False
        self.status = PersistStatus.BARRIER_RECEIVED
        self._last = checkpoint
        self._barrier_at = sequence
        return True

    def start(self, checkpoint: CheckpointId) -> bool:
        """`StartPersisting`. Called for every open channel, also for a channel whose barrier has come, because that
        barrier may have overtaken batches.

        Returns False if the barrier of a newer checkpoint has arrived. Only the place of the newer barrier is known
        then, and not the place of the older barrier. So the older checkpoint cannot be saved here: the task declines it
        as subsumed.
        """
        if self.status is PersistStatus.BARRIER_RECEIVED and self._last > checkpoint:
            return False
        if self._last < checkpoint:
            self.status = PersistStatus.BARRIER_PENDING
            self._last = checkpoint
        return True

    def saves(self, sequence: int) -> bool:
        """Whether the batch with this number is in flight and must be saved. The batch waits in the queue when saving
        starts, or arrives later."""
        if self.status is PersistStatus.BARRIER_RECEIVED:
            return sequence < self._barrier_at
        return self.status is PersistStatus.BARRIER_PENDING

    def stop(self, checkpoint: CheckpointId) -> None:
        """`StopPersisting`. Called for every channel."""
        if checkpoint >= self._last:
            self.status = PersistStatus.COMPLETED
            self._last = checkpoint

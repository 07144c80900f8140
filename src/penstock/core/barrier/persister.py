"""Which batches of one input channel belong to an unaligned checkpoint: those ahead of its barrier.

What arrives in a channel is numbered in the order it was sent; a barrier keeps its number when it overtakes. Batches
that wait in the queue when saving starts, and batches that arrive while it goes on, are asked about alike.

    COMPLETED ──────── start ───────► BARRIER_PENDING      every batch is in flight
        ▲  │                             │    │
        │  └─ barrier arrives ─┐  barrier│    │stop
        │                      ▼ arrives ▼    │
        ├─────── stop ──── BARRIER_RECEIVED   │            batches ahead of the barrier are in flight
        └─────────────────────────────────────┘

Rules of this file: a barrier arrives before it is read, and possibly before saving starts. Barriers older than the
newest one seen are ignored, and so is an order to stop for a checkpoint older than that.
"""

from __future__ import annotations

from enum import Enum

from penstock.core.ids import CheckpointId


class PersistStatus(Enum):
    """Where a channel is with the newest checkpoint it has seen."""

    COMPLETED = "completed"
    BARRIER_PENDING = "barrier pending"
    BARRIER_RECEIVED = "barrier received"


class ChannelPersister:
    """Decides for one channel. The driver tells it of every barrier that arrives, and asks about batches only from
    `StartPersisting` to `StopPersisting`."""

    def __init__(self) -> None:
        self.status = PersistStatus.COMPLETED
        self._last = CheckpointId(0)
        """The newest checkpoint it was told of. Ids start at 1."""
        self._barrier_at = 0
        """The number of the barrier, if it has been received."""

    def barrier_arrived(self, checkpoint: CheckpointId, sequence: int) -> bool:
        """A barrier, aligned or not, has arrived in the queue as number `sequence`. Whether it counts."""
        completed = self.status is PersistStatus.COMPLETED
        if checkpoint < self._last or (completed and checkpoint == self._last):
            return False
        self.status = PersistStatus.BARRIER_RECEIVED
        self._last = checkpoint
        self._barrier_at = sequence
        return True

    def start(self, checkpoint: CheckpointId) -> bool:
        """`StartPersisting`, for every channel that is open: a barrier that is in may have overtaken.

        False if the barrier of a newer checkpoint has arrived. Its place is known and the older one's is not, so the
        older checkpoint cannot be saved here: the task refuses it as subsumed.
        """
        if self.status is PersistStatus.BARRIER_RECEIVED and self._last > checkpoint:
            return False
        if self._last < checkpoint:
            self.status = PersistStatus.BARRIER_PENDING
            self._last = checkpoint
        return True

    def saves(self, sequence: int) -> bool:
        """Whether the batch with this number is in flight: it waits in the queue when saving starts, or it arrives."""
        if self.status is PersistStatus.BARRIER_RECEIVED:
            return sequence < self._barrier_at
        return self.status is PersistStatus.BARRIER_PENDING

    def stop(self, checkpoint: CheckpointId) -> None:
        """`StopPersisting`, for every channel."""
        if checkpoint >= self._last:
            self.status = PersistStatus.COMPLETED
            self._last = checkpoint

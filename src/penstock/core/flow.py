"""Credits: how much may be on its way in a channel, in bytes.

The receiving end owns a window. The receiving end grants the whole window once, when it is ready, and afterwards grants
the bytes again that were consumed. The sending end never sends more than was granted, so a stalled receiver holds at
most one window.

Restored in-flight data takes its room in the window as if the data had been sent. Otherwise every failure under
back-pressure would add one more window of data to the channel, and the next checkpoint would save all of that data.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.errors import InvariantError

GRANT_SHARE = 4
"""Consumed bytes are granted again in steps of a quarter of the window, to keep the number of grants small."""


class CreditSender:
    """How many bytes the sending end of a channel may still send."""

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.available = 0

    def granted(self, bytes_granted: int) -> None:
        """The receiver has room for more."""
        if bytes_granted < 0 or self.available + bytes_granted > self.window_bytes:
            raise InvariantError(
                f"credit of {bytes_granted} bytes on top of {self.available} exceeds the window of {self.window_bytes}"
            )
        self.available += bytes_granted

    def may_send(self, cost: int) -> bool:
        """Whether a batch of this cost may go now."""
        if cost > self.window_bytes:
            raise InvariantError(f"a batch of {cost} bytes can never be sent in a window of {self.window_bytes} bytes")
        return cost <= self.available

    def spend(self, cost: int) -> None:
        """A batch of this cost is sent."""
        if not self.may_send(cost):
            raise InvariantError(f"{cost} bytes sent with a credit of {self.available}")
        self.available -= cost


class CreditReceiver:
    """How many bytes the receiving end of a channel has granted, and how many it still has to grant again."""

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._step = max(1, window_bytes // GRANT_SHARE)
        self._owed = 0
        self._reserved = 0
        self._opened = False

    def reserve(self, sizes: Sequence[int]) -> list[int]:
        """Before the channel opens: take room for restored batches of these sizes. Returns the cost of each batch.

        The sizes are in the order in which the batches will be read. If the batches are larger than the window, the
        last batches are charged and the first batches cost nothing, so that nothing is granted before the first batches
        have been read. One byte is always left to be granted: nothing, not even a barrier, goes through a channel
        before the first grant.
        """
        if self._opened:
            raise InvariantError("data is restored into a channel that has been opened")
        costs: list[int] = []
        for size in reversed(sizes):
            cost = min(size, self._window_bytes - 1 - self._reserved)
            self._reserved += cost
            costs.append(cost)
        return costs[::-1]

    def open(self) -> int:
        """The first grant: the whole window without the reserved bytes."""
        if self._opened:
            raise InvariantError("a channel was opened twice")
        self._opened = True
        return self._window_bytes - self._reserved

    def consumed(self, cost: int, *, queue_empty: bool) -> int:
        """A batch of this cost has been processed. Returns the bytes to grant now; 0 means that the grant waits.

        If the queue is empty, the sender may be waiting for exactly this credit, so all owed bytes are granted at once.
        """
        self._owed += cost
        if self._owed < self._step and not queue_empty:
            return 0
        owed, self._owed = self._owed, 0
        return owed

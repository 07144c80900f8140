"""Credits: how much may be on its way in a channel, in bytes.

The receiving end owns a window. It grants the whole window once, when it is ready, and afterwards grants again what was
consumed. The sending end never has more out than was granted, so a stalled receiver holds at most one window.

In-flight data that was restored takes its room in the window as if it had been sent. Otherwise every failure under
back-pressure would leave a window more in the channel, and the next checkpoint would save it all.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.errors import InvariantError

GRANT_SHARE = 4
"""Consumed bytes are granted again in steps of a quarter of the window, to keep the number of grants small."""


class CreditSender:
    """What the sending end may still send."""

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
        """A batch goes."""
        if not self.may_send(cost):
            raise InvariantError(f"{cost} bytes sent with a credit of {self.available}")
        self.available -= cost


class CreditReceiver:
    """What the receiving end has granted, and owes."""

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._step = max(1, window_bytes // GRANT_SHARE)
        self._owed = 0
        self._reserved = 0
        self._opened = False

    def reserve(self, sizes: Sequence[int]) -> list[int]:
        """Before it opens: room for data that was restored, in the order in which it will be read; what each costs.

        Of data that is more than the window the last part is charged, so that nothing is granted before the rest has
        been read. One byte is left to be granted: nothing goes through a channel, not even a barrier, before that.
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
        """The first grant: the whole window, but for what is reserved."""
        if self._opened:
            raise InvariantError("a channel was opened twice")
        self._opened = True
        return self._window_bytes - self._reserved

    def consumed(self, cost: int, *, queue_empty: bool) -> int:
        """A batch of this cost has been processed; returns the bytes to grant now, 0 to wait.

        With an empty queue the sender may be waiting for just this credit, so nothing is held back.
        """
        self._owed += cost
        if self._owed < self._step and not queue_empty:
            return 0
        owed, self._owed = self._owed, 0
        return owed

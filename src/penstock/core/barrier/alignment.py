"""What every barrier handler counts: the channels that are still open, and how long barriers take to come in."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.barrier.events import AlignmentMetrics
from penstock.core.elements import Barrier
from penstock.core.errors import InvariantError
from penstock.core.ids import ChannelIndex, Instant


class OpenChannels:
    """The input channels that may still deliver something, in order."""

    def __init__(self, channels: int) -> None:
        if channels < 0:
            raise InvariantError(f"a task cannot have {channels} input channels")
        self._channels = channels
        self._open = {ChannelIndex(i): None for i in range(channels)}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ChannelIndex]:
        return iter(self._open)

    def has(self, channel: ChannelIndex) -> bool:
        """Whether the channel has not ended. Asking for a channel that the task does not have is a bug of the
        caller."""
        if not 0 <= channel < self._channels:
            raise InvariantError(f"channel {channel} of a task with {self._channels} input channels")
        return channel in self._open

    def close(self, channel: ChannelIndex) -> None:
        """Nothing more comes from the channel."""
        del self._open[channel]


class Alignment:
    """The numbers of one alignment: from the first barrier of a checkpoint to the last barrier."""

    def __init__(self, barrier: Barrier, now: Instant) -> None:
        self._begun_at = now
        # Clocks of two hosts may disagree by a little; a delay is never negative.
        self._start_delay_ms = max(0, now - barrier.timestamp)
        self._bytes_processed = 0

    def consumed(self, bytes_processed: int) -> None:
        """The task has processed this many more bytes of input since the first barrier came."""
        self._bytes_processed += bytes_processed

    def metrics(self, now: Instant, *, unaligned: bool) -> AlignmentMetrics:
        """The numbers of the alignment so far."""
        return AlignmentMetrics(
            start_delay_ms=self._start_delay_ms,
            alignment_ms=now - self._begun_at,
            bytes_processed=self._bytes_processed,
            unaligned=unaligned,
        )

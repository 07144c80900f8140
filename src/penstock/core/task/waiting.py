"""Whether the records of one input still have to wait for another input.

A subtask waits until every channel of the other input has come to its end, or to a point of event time; or until a time
has passed since the subtask began. A channel that has ended, or that is idle, is waited for no longer.
"""

from __future__ import annotations

import msgspec

from penstock.core.ids import ChannelIndex, Instant


class WaitFor(msgspec.Struct, frozen=True, kw_only=True):
    """What is waited for: the end of the other input, unless one of these is given."""

    watermark_us: int | None = None
    """Event time of the other input must have come so far."""
    time_ms: int | None = None
    """So much time must have passed."""


class InputWait:
    """Follows the channels of the other input."""

    def __init__(self, wanted: WaitFor) -> None:
        self._wanted = wanted
        self._missing: dict[ChannelIndex, None] = {}
        self._until: Instant | None = None

    def begin(self, channels: tuple[ChannelIndex, ...], now: Instant) -> None:
        """The subtask begins; these are the channels of the other input."""
        self._missing = dict.fromkeys(channels)
        if self._wanted.time_ms is not None:
            self._until = Instant(now + self._wanted.time_ms)

    def ended(self, channel: ChannelIndex) -> None:
        """The data of a channel has ended."""
        self._missing.pop(channel, None)

    def advanced(self, channel: ChannelIndex, time_us: int, *, idle: bool) -> None:
        """Event time of a channel has come to `time_us`."""
        wanted_us = self._wanted.watermark_us
        if wanted_us is not None and (idle or time_us >= wanted_us):
            self._missing.pop(channel, None)

    def is_over(self, now: Instant) -> bool:
        """Whether there is nothing left to wait for."""
        return not self._missing or (self._until is not None and now >= self._until)

    def next_deadline(self) -> Instant | None:
        """When to look again, if nothing is heard before."""
        return self._until

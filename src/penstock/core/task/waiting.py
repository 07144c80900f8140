"""Whether the records of one input still have to wait for another input.

A subtask waits until every channel of the other input has come to its end, or to a point of event time; or until a time
has passed since the subtask began. A channel that has ended is not waited for any more, and a channel that is idle is
not waited for if the wait is for a point of event time.
"""

from __future__ import annotations

import msgspec

from penstock.core.ids import ChannelIndex, Instant


class WaitFor(msgspec.Struct, frozen=True, kw_only=True):
    """What ends the wait: the end of the other input, or, if it is given and comes first, an event time or a passed
    time."""

    watermark_us: int | None = None
    """The event time that every channel of the other input must have reached."""
    time_ms: int | None = None
    """The time that must have passed since the subtask began."""


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
        """Whether the wait is over."""
        return not self._missing or (self._until is not None and now >= self._until)

    def next_deadline(self) -> Instant | None:
        """When the time of the wait is over; None if the wait has no time."""
        return self._until

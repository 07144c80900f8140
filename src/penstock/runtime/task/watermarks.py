"""The event time of a task with several input channels: the least event time of the channels that are not idle.

A channel whose data has ended does not hold event time back. Nor does such a channel advance event time: records may
still come in an idle channel, and must not be late because another channel has ended. A channel that a stop with drain
took to the end of event time holds event time where the channel was, until all channels have ended: after a restore the
data of the channel goes on from there.
"""

from __future__ import annotations

from penstock.core.elements import MAX_WATERMARK, Watermark

BEFORE_TIME = -(2**63)


class WatermarkValve:
    """Merges the watermarks of all input channels into one watermark, which never goes back."""

    def __init__(self, channels: int) -> None:
        self._times = [BEFORE_TIME] * channels
        self._idle = [False] * channels
        self._ended = [False] * channels
        self._at_end = [False] * channels
        """The channels whose watermark says that event time is at its end. What that means is known when the data of
        the channel has ended."""
        self._stopped = [False] * channels
        self._emitted = BEFORE_TIME
        self._emitted_idle = False

    def advance(self, channel: int, watermark: Watermark) -> Watermark | None:
        """Take in the watermark of a channel. Returns the watermark of the task if it has changed, otherwise None."""
        if watermark.time_us == MAX_WATERMARK:
            self._at_end[channel] = True
            return None
        before, was_idle = self._times[channel], self._idle[channel]
        self._times[channel] = max(before, watermark.time_us)
        self._idle[channel] = watermark.idle
        if before > self._emitted and watermark.idle == was_idle:
            # Another channel is further behind, and still holds event time where it is.
            return None
        return self._merged()

    def end(self, channel: int, *, stopped: bool = False) -> Watermark | None:
        """The data of a channel has ended, by itself or because a stop with drain ended it (`stopped`). Returns the
        watermark of the task if it has changed, otherwise None."""
        self._ended[channel] = True
        self._stopped[channel] = stopped
        return self._merged()

    def _merged(self) -> Watermark | None:
        channels = list(zip(self._times, self._idle, self._ended, self._stopped, strict=True))
        active = [time for time, idle, ended, stopped in channels if not idle and (stopped or not ended)]
        waiting = [time for time, idle, ended, _ in channels if idle and not ended]
        if all(self._ended):
            furthest = MAX_WATERMARK if any(self._at_end) else max(self._times)
            return self._tell(furthest, idle=False)
        # When all channels are idle, nothing holds event time back: event time goes as far as the furthest channel is.
        return self._tell(min(active) if active else max(waiting), idle=not active)

    def _tell(self, time_us: int, *, idle: bool) -> Watermark | None:
        time_us = max(self._emitted, time_us)
        if time_us == self._emitted and idle == self._emitted_idle:
            return None
        self._emitted, self._emitted_idle = time_us, idle
        return Watermark(time_us=time_us, idle=idle)

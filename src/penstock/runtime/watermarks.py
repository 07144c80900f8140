"""Event time at a task with several input channels: the least of the channels that are not idle.

A channel at the end of event time, or of its data, holds nobody back. It does not push anybody on either: while another
channel is only idle, records may still come there, and must not be late because of the one that has ended.
"""

from __future__ import annotations

from penstock.core.elements import MAX_WATERMARK, Watermark

BEFORE_TIME = -(2**63)


class WatermarkValve:
    """Merges the watermarks of all input channels into one that never goes back."""

    def __init__(self, channels: int) -> None:
        self._times = [BEFORE_TIME] * channels
        self._idle = [False] * channels
        self._ended = [False] * channels
        self._emitted = BEFORE_TIME
        self._emitted_idle = False

    def advance(self, channel: int, watermark: Watermark) -> Watermark | None:
        """Take in what a channel said; returns what the task must hear, if anything changed."""
        before, was_idle = self._times[channel], self._idle[channel]
        self._times[channel] = max(before, watermark.time_us)
        self._idle[channel] = watermark.idle
        if watermark.time_us == MAX_WATERMARK:
            self._ended[channel] = True
        elif before > self._emitted and watermark.idle == was_idle:
            # Another channel is further behind, and still holds event time where it is.
            return None
        return self._merged()

    def end(self, channel: int) -> Watermark | None:
        """A channel has ended: it does not hold event time back any more."""
        self._ended[channel] = True
        return self._merged()

    def _merged(self) -> Watermark | None:
        channels = list(zip(self._times, self._idle, self._ended, strict=True))
        active = [time for time, idle, ended in channels if not idle and not ended]
        waiting = [time for time, idle, ended in channels if idle and not ended]
        # When all are idle nothing holds time back: it goes as far as the furthest channel had come.
        time_us = max(self._emitted, min(active) if active else max(waiting or self._times))
        idle = bool(waiting) and not active
        if time_us == self._emitted and idle == self._emitted_idle:
            return None
        self._emitted, self._emitted_idle = time_us, idle
        return Watermark(time_us=time_us, idle=idle)

"""Event time at a task with several input channels: the least of the channels that are not idle."""

from __future__ import annotations

from penstock.core.elements import Watermark

BEFORE_TIME = -(2**63)


class WatermarkValve:
    """Merges the watermarks of all input channels into one that never goes back."""

    def __init__(self, channels: int) -> None:
        self._times = [BEFORE_TIME] * channels
        self._idle = [False] * channels
        self._emitted = BEFORE_TIME
        self._emitted_idle = False

    def advance(self, channel: int, watermark: Watermark) -> Watermark | None:
        """Take in what a channel said; returns what the task must hear, if anything changed."""
        self._idle[channel] = watermark.idle
        self._times[channel] = max(self._times[channel], watermark.time_us)
        return self._merged()

    def end(self, channel: int) -> Watermark | None:
        """A channel has ended: it does not hold event time back any more."""
        self._idle[channel] = True
        return self._merged()

    def _merged(self) -> Watermark | None:
        active = [t for t, idle in zip(self._times, self._idle, strict=True) if not idle]
        # When all are idle nothing holds time back: it goes as far as the furthest channel had come.
        time_us = max(self._emitted, min(active) if active else max(self._times))
        idle = not active
        if time_us == self._emitted and idle == self._emitted_idle:
            return None
        self._emitted, self._emitted_idle = time_us, idle
        return Watermark(time_us=time_us, idle=idle)

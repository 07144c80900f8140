"""Event time at a task with several input channels: the least of the channels that are not idle.

A channel at the end of its data holds nobody back. It does not push anybody on either: while another channel is only
idle, records may still come there, and must not be late because of the one that has ended. Nor does a channel that a
stop with drain took to the end of event time: after a restore its data goes on from where it was, so it holds event
time there until all channels have ended.
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
        self._at_end = [False] * channels
        """Those that said that event time is at its end. What that means is known when their data has ended."""
        self._stopped = [False] * channels
        self._emitted = BEFORE_TIME
        self._emitted_idle = False

    def advance(self, channel: int, watermark: Watermark) -> Watermark | None:
        """Take in what a channel said; returns what the task must hear, if anything changed."""
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
        """The data of a channel has ended, by itself or because it was `stopped`."""
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
        # When all are idle nothing holds time back: it goes as far as the furthest channel had come.
        return self._tell(min(active) if active else max(waiting), idle=not active)

    def _tell(self, time_us: int, *, idle: bool) -> Watermark | None:
        time_us = max(self._emitted, time_us)
        if time_us == self._emitted and idle == self._emitted_idle:
            return None
        self._emitted, self._emitted_idle = time_us, idle
        return Watermark(time_us=time_us, idle=idle)

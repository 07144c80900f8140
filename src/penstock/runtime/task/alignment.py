"""Keeps the reader of a source task from reading too far ahead of its watermark group.

The machine of the core decides. This file looks how far the splits have come, has the reader hold the splits that are
too far ahead, and tells the master.

A reader that can hold single splits is told which. Any other reader is held as a whole, once its split that is furthest
behind is too far ahead. The source of a held task still takes part in checkpoints, and still ends when the job is
stopped: only polling waits.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from penstock.api.alignment import Alignment
from penstock.core.alignment.events import GroupTimeTold, LeastSeen, TellTime
from penstock.core.alignment.reader import ReaderAlignment
from penstock.core.ids import Instant
from penstock.runtime.task.operators.source import SourceOperator
from penstock.runtime.task.operators.watermark import WatermarkOperator


class SourceAlignment:
    """The alignment of one source task."""

    def __init__(self, alignment: Alignment, source: SourceOperator, watermark: WatermarkOperator) -> None:
        self.is_held = False
        """Whether the reader must not be polled."""
        self._source = source
        self._watermark = watermark
        self._machine = ReaderAlignment(drift_us=alignment.drift_us, interval_ms=alignment.interval_ms)
        self._held: Collection[Hashable] = ()
        """The splits that the reader was told to hold."""

    def look(self, now: Instant) -> None:
        """See how far the splits have come. To be called before every poll, and when time has passed."""
        times, least_us = self._watermark.split_times()
        self._perform(self._machine.handle(LeastSeen(time_us=least_us), now))
        ahead = [split for split, time_us in times.items() if not self._machine.may_read(time_us)]
        if self._source.holds_splits:
            if ahead != self._held:
                self._source.hold(ahead)
        else:
            self.is_held = least_us is not None and not self._machine.may_read(least_us)
            ahead = ahead if self.is_held else []
        self._held = self._watermark.held = ahead

    def told(self, time_us: int | None, now: Instant) -> None:
        """The master says how far the group has come."""
        self._perform(self._machine.handle(GroupTimeTold(time_us=time_us), now))
        self.look(now)

    def next_deadline(self) -> Instant | None:
        """When `look` must be called at the latest."""
        return self._machine.next_deadline()

    def _perform(self, effects: list[TellTime]) -> None:
        for effect in effects:
            self._watermark.context.event_time_reached(effect.time_us)

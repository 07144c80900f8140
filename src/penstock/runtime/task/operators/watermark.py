"""Makes watermarks from a time column: how far event time has come, as far as this subtask can tell.

Behind a source event time is kept for each split, and the watermark is the event time of the split that is furthest
behind. So it makes no difference in which order a reader takes its splits, or how far apart the splits are when another
number of subtasks goes on with them: the records that are still to be read have times above every watermark that was
sent, and above the watermarks that a restored checkpoint remembers. A split that has not begun holds event time back. A
split that has ended, or has been idle for long enough, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.alignment import Alignment
from penstock.api.connector import SplitProgress
from penstock.api.functions import time_in_us
from penstock.api.steps import WatermarkStep
from penstock.core.alignment.times import NOT_BEGUN, LeastTime
from penstock.core.elements import MAX_WATERMARK
from penstock.core.ids import Instant
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output
from penstock.runtime.task.operators.user_code import guarded

MIN_WATERMARK = NOT_BEGUN
"""Event time has not begun."""

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_ALL_IN_ONE = SplitProgress(current=None, open=(None,))
"""The progress of an input that does not tell its splits apart."""


class WatermarkOperator(Operator):
    """The event time of a split is the latest time seen, less the delay and one microsecond; or the time that a
    function of the program tells. The watermark is the least event time of all open splits, and never goes back.

    Watermarks from upstream are ignored, except that the end of event time is handed on. After `idle_after_ms` without
    a record a split is left out until its next record. When all splits are left out, the output is declared idle.
    """

    def __init__(self, step: WatermarkStep) -> None:
        self.progress: Callable[[], SplitProgress | None] = lambda: None
        """How far the source has come with its splits; set by the chain."""
        self._step = step
        self._times: dict[Hashable, int] = {}
        self._last_records: dict[Hashable, Instant] = {}
        self._idle_splits: dict[Hashable, None] = {}
        self._open = 0
        """How many splits were open when their times were last compared."""
        self._current = MIN_WATERMARK
        self._idle = False
        self.held: Collection[Hashable] = ()
        """The splits that are too far ahead of the watermark group to be read; set by the alignment of the task. Such a
        split is silent because it is held, and is not idle."""
        self._looked = Instant(0)
        """The time from which the silence of a split counts that is seen for the first time."""

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start. The silence of splits counts from here."""
        super().open(context, output)
        self._looked = context.now()

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand the records on, then the watermark if the records moved the watermark. Null times do not count."""
        if batch.num_rows == 0:
            return
        self.output.emit(batch)
        progress = self.progress() or _ALL_IN_ONE
        split = progress.current
        self._last_records[split] = self.context.now()
        self._idle_splits.pop(split, None)
        reached = self._reached(batch)
        before = self._times.get(split, MIN_WATERMARK)
        if reached is not None and reached > before:
            self._times[split] = reached
        if before > self._current and len(progress.open) == self._open and not self._idle:
            # Another split is further behind, and still holds event time where it is.
            return
        self._compare(progress)

    def _reached(self, batch: pa.RecordBatch) -> int | None:
        """How far event time has come on the split of a batch; None if the batch does not say."""
        function = self._step.function
        if function is None:
            latest = _latest(batch.column(self._step.column))
            return None if latest is None else latest - self._step.delay_us - 1
        told = guarded(lambda: function(batch), self.context)
        if told is None:
            return None
        return int(guarded(lambda: time_in_us(told, of="a watermark"), self.context))

    def watermark(self, time_us: int, *, idle: bool = False) -> None:  # noqa: ARG002
        """Hand on only the end of event time."""
        if time_us == MAX_WATERMARK:
            self._tell(MAX_WATERMARK, idle=False)

    def tick(self, now: Instant) -> Instant | None:
        """Leave out the splits that have been silent for long enough. Returns when to look again."""
        if self._current == MAX_WATERMARK:
            return None
        after_ms = self._step.idle_after_ms
        progress = self.progress() or _ALL_IN_ONE
        due: list[Instant] = []
        if after_ms is not None:
            # Further splits may be found. Until then the last split is silent, and must not hold event time back.
            for split in progress.open or (progress.current,):
                is_ready = split in progress.ready or split in self.held
                last = now if is_ready else self._last_records.get(split, self._looked)
                self._last_records[split] = last
                if now < last + after_ms:
                    self._idle_splits.pop(split, None)
                    due.append(Instant(last + after_ms))
                else:
                    self._idle_splits[split] = None
        self._looked = now
        self._compare(progress)
        if after_ms is None:
            return None
        # Records may come in the meantime, and then silence again.
        return min(due, default=Instant(now + max(after_ms, 1)))

    @property
    def align(self) -> Alignment | None:
        """How far the source may read ahead of other sources; None: as far as it likes."""
        return self._step.align

    def split_times(self) -> tuple[dict[Hashable, int], LeastTime]:
        """The event time of each open split that has begun and is not idle; and the event time that holds other readers
        of a watermark group back. A split that has not begun does not count beside a split that has."""
        progress = self.progress() or _ALL_IN_ONE
        counting = [split for split in progress.open if split not in self._idle_splits]
        times = {split: self._times[split] for split in counting if split in self._times}
        return times, min(times.values()) if times else NOT_BEGUN if counting else None

    def _compare(self, progress: SplitProgress) -> None:
        """Tell how far event time has come, if that has changed."""
        if self._current == MAX_WATERMARK:
            return
        # When the last split has ended, the event time of the last split counts.
        splits = progress.open or (progress.current,)
        if len(splits) != self._open:
            self._open = len(splits)
            self._forget_all_but(splits)
        active = [self._times.get(split, MIN_WATERMARK) for split in splits if split not in self._idle_splits]
        # When all splits are idle, nothing holds event time back: event time goes as far as the furthest split is.
        time_us = min(active) if active else max(self._times.get(split, MIN_WATERMARK) for split in splits)
        self._tell(max(time_us, self._current), idle=not active)

    def _forget_all_but(self, splits: Any) -> None:
        for kept in (self._times, self._last_records, self._idle_splits):
            for split in [split for split in kept if split not in splits]:
                del kept[split]

    def _tell(self, time_us: int, *, idle: bool) -> None:
        if time_us != self._current or idle != self._idle:
            self._current, self._idle = time_us, idle
            self.output.watermark(time_us, idle=idle)


def _latest(times: Any) -> int | None:
    value: int | None = pc.max(times).value
    if value is None:
        return None
    factor = _MICROSECONDS.get(times.type.unit)
    # Seconds and milliseconds go further than microseconds. A time that does not fit becomes the last time before the
    # end of event time.
    return value // 1_000 if factor is None else min(value * factor, MAX_WATERMARK - 1)

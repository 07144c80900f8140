"""Watermarks from a time column: how far event time has come, as far as this subtask can tell."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.steps import WatermarkStep
from penstock.core.elements import MAX_WATERMARK
from penstock.core.ids import Instant
from penstock.runtime.operators.base import Operator, OperatorContext, Output

MIN_WATERMARK = -(2**63)
"""Event time has not begun."""

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


class WatermarkOperator(Operator):
    """The latest time seen, less the delay and one microsecond; never goes back.

    Watermarks from upstream are ignored, except that the end of event time is handed on. After `idle_after_ms` without
    a record the output is declared idle, until the next record.
    """

    def __init__(self, step: WatermarkStep) -> None:
        self._step = step
        self._current = MIN_WATERMARK
        self._idle = False
        self._last_record: Instant | None = None

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start; silence counts from here."""
        super().open(context, output)
        self._last_record = context.now()

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand the records on, then the watermark if they moved it. Null times do not count."""
        if batch.num_rows == 0:
            return
        self.output.emit(batch)
        self._last_record = self.context.now()
        latest = _latest(batch.column(self._step.column))
        grown = latest is not None and latest - self._step.delay_us - 1 > self._current
        if latest is not None and grown:
            self._current = latest - self._step.delay_us - 1
        if (grown or self._idle) and self._current != MAX_WATERMARK:
            self._idle = False
            self.output.watermark(self._current)

    def watermark(self, time_us: int, *, idle: bool = False) -> None:  # noqa: ARG002
        """Hand on only the end of event time."""
        if time_us == MAX_WATERMARK and self._current != MAX_WATERMARK:
            self._current = MAX_WATERMARK
            self._idle = False
            self.output.watermark(MAX_WATERMARK)

    def tick(self, now: Instant) -> Instant | None:
        """Declare the output idle when it is time; say when to look again."""
        after_ms = self._step.idle_after_ms
        if after_ms is None or self._last_record is None or self._current == MAX_WATERMARK:
            return None
        due = Instant(self._last_record + after_ms)
        if now < due:
            return due
        if not self._idle:
            self._idle = True
            self.output.watermark(self._current, idle=True)
        # Records may come in the meantime, and then silence again.
        return Instant(now + max(after_ms, 1))


def _latest(times: Any) -> int | None:
    value: int | None = pc.max(times).value
    if value is None:
        return None
    factor = _MICROSECONDS.get(times.type.unit)
    return value // 1_000 if factor is None else value * factor

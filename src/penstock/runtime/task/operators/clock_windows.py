"""Windows of processing time: the clock says in which window a record is, when the record comes to the window.

The clock is read behind the exchange, so that no record comes too late for its window. A partial aggregate has all
records of a key in a batch, and is put into a window as a whole. Everything else is the work of the operators for event
time, which are told the time on the clock in place of a watermark.

After a restore the clock of another machine may be behind. Then records are in the first window that has not fired.
At the end of event time all windows fire, so that a job over bounded data has all its results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.pane_windows import PaneWindow
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.api.windows import SessionWindow, TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.core.ids import Instant
from penstock.runtime.task.operators.base import OperatorContext, Output
from penstock.runtime.task.operators.pane_windows import PaneWindowOperator
from penstock.runtime.task.operators.session_windows import SessionWindowOperator
from penstock.runtime.task.operators.windows import WindowOperator
from penstock.runtime.task.slices import Work

_MS = 1_000
"""Microseconds."""


class ClockWindowOperator(WindowOperator):
    """Tumbling windows of processing time."""

    _due: Instant | None = None
    """When a window is complete next."""

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start. Restored windows may be complete already."""
        super().open(context, output)
        self._wake(context.now())

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Put partials into the window of this moment."""
        now = self.context.now()
        work = super().process(self._stamped(batch, max(now * _MS, self._fired.most + 1)))
        self._wake(now)
        return work

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Event time has nothing to do with these windows, except that they fire at its end."""
        if time_us == MAX_WATERMARK:
            return super().watermark(time_us, idle=idle)
        self.output.watermark(time_us, idle=idle)
        return None

    def fire(self, now: Instant) -> Work | None:
        """Fire the windows that are complete."""
        if self._due is None or now < self._due:
            return None
        return super().watermark(now * _MS - 1)

    def tick(self, now: Instant) -> Instant | None:
        """Returns when a window is complete next."""
        # Windows that are being handed on are still in the state.
        self._wake(Instant(now + 1))
        return self._due

    def _wake(self, least: Instant) -> None:
        end_us = self._next_end_us()
        due = None if end_us is None else Instant(max(least, -(-end_us // _MS)))
        if due is not None and due != self._due:
            self.context.wake_at(due)
        self._due = due

    def _next_end_us(self) -> int | None:
        """The time from which on a window is complete; None if there are no windows."""
        earliest, window = self._table.earliest, self._step.window
        assert isinstance(window, TumblingWindow)
        return None if earliest is None else earliest + window.size_us

    def _stamped(self, batch: pa.RecordBatch, time_us: int) -> pa.RecordBatch:
        """The partials in the window of a time."""
        window = self._step.window
        assert isinstance(window, TumblingWindow | PaneWindow)
        (start,) = window.panes.assign(np.array([time_us])).tolist()
        return _with_times(batch, {WINDOW_START: start})

    def _hand_on_watermark(self, time_us: int, *, idle: bool) -> None:
        # The time on the clock is no event time.
        if time_us == MAX_WATERMARK:
            self.output.watermark(time_us, idle=idle)


class ClockPaneOperator(ClockWindowOperator, PaneWindowOperator):
    """Sliding windows of processing time."""

    def _next_end_us(self) -> int | None:
        earliest, window = self._table.earliest, self._window
        if self._restored is not None:
            return 0
        if earliest is None:
            return None
        bounds = np.array([earliest + window.panes.size_us - 1, self._fired.least + 1])
        return int(window.end_after(bounds).max())


class ClockSessionOperator(ClockWindowOperator, SessionWindowOperator):
    """Sessions of processing time."""

    def _next_end_us(self) -> int | None:
        earliest = self._table.earliest
        return None if earliest is None else earliest + 1

    def _stamped(self, batch: pa.RecordBatch, time_us: int) -> pa.RecordBatch:
        window = self._step.window
        assert isinstance(window, SessionWindow)
        return _with_times(batch, {WINDOW_START: time_us, WINDOW_END: time_us + window.gap_us})


def _with_times(batch: pa.RecordBatch, times: dict[str, int]) -> pa.RecordBatch:
    for name, time_us in times.items():
        place = batch.schema.get_field_index(name)
        filled: Any = pa.array(np.full(batch.num_rows, time_us)).view(batch.schema.field(name).type)
        batch = batch.set_column(place, batch.schema.field(name), filled)
    return batch

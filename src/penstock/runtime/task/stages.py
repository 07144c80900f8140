"""The place of an operator in a chain: the work that the operator has left, and the records that wait for the operator.

A stage is the output of the operator in front. As long as its own operator has no work left, the stage hands on what it
gets. When its own operator has work left, the stage ends the slice of the chain, so that the operators in front stop
soon. What these operators still emit waits in the stage, in order.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from penstock.core.elements import Watermark
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.slices import SLICE_MS, Slice, Slices, Work


class Stage:
    """One operator in a chain, with the work that the operator has left, and the batches and watermarks that wait for
    the operator."""

    def __init__(self, operator: Operator, slice_: Slice) -> None:
        self.operator = operator
        self._slice = slice_
        self._rows: Slices | None = None
        self._work: Work | None = None
        self._waiting: deque[pa.RecordBatch | Watermark] = deque()

    def cut_rows(self) -> None:
        """Cut the batches for the operator, if the operator calls user code for every row: the operators in front may
        make any number of rows."""
        if self.operator.is_row_wise:
            # The task cuts batches by the time that the whole chain takes. Only batches that have grown in the chain
            # are cut again here.
            self._rows = Slices(2 * SLICE_MS, self._slice.most)

    @property
    def is_busy(self) -> bool:
        """Whether the operator has work left, or something waits for the operator."""
        return self._work is not None or bool(self._waiting)

    @property
    def may_snapshot(self) -> bool:
        """Whether a snapshot of the operator lacks nothing: no batch and no watermark waits for the operator, and the
        work that the operator has left, if any, is in the operator's state."""
        return not self._waiting and (self._work is None or self._work.may_snapshot)

    def emit(self, batch: pa.RecordBatch) -> None:
        """Hand records to the operator, or let the records wait for the operator."""
        rows = self._rows
        if self._work is None and not self._waiting and (rows is None or batch.num_rows <= rows.rows):
            self.left(self.operator.process(batch))
        else:
            self._wait(batch)

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Hand a watermark to the operator, or let the watermark wait for the operator."""
        if self._work is None and not self._waiting:
            self.left(self.operator.watermark(time_us, idle=idle))
        else:
            self._wait(Watermark(time_us=time_us, idle=idle))

    def _wait(self, item: pa.RecordBatch | Watermark) -> None:
        self._waiting.append(item)
        self._slice.end()

    def left(self, work: Work | None) -> None:
        """Take the work that a call of the operator has left; None if no work is left."""
        if work is not None:
            self._work = work
            self._slice.end()

    def go_on(self) -> None:
        """Do the work that is left, then hand on what waits, until the slice is over."""
        while True:
            if self._work is not None:
                if self._work.go_on():
                    return
                self._work = None
            elif self._waiting:
                self._take(self._waiting.popleft())
            else:
                return
            if self._slice.is_over:
                return

    def _take(self, item: pa.RecordBatch | Watermark) -> None:
        operator, rows = self.operator, self._rows
        if isinstance(item, Watermark):
            self.left(operator.watermark(item.time_us, idle=item.idle))
            return
        if rows is None:
            self.left(operator.process(item))
            return
        if item.num_rows > rows.rows:
            item, rest, _ = rows.cut(item, 0)
            self._waiting.appendleft(rest)
        begun_ms = self._slice.now_ms()
        self.left(operator.process(item))
        if self._work is None:
            rows.took(item.num_rows, self._slice.now_ms() - begun_ms)

    def drop(self) -> None:
        """Give up the work that is left and everything that waits."""
        self._waiting.clear()
        work, self._work = self._work, None
        if work is not None:
            work.drop()

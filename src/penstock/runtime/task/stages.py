"""An operator at its place in a chain: what it has left to do, and what waits in front of it meanwhile.

A stage is the output of the operator before it. As long as its own operator has nothing left to do, it only hands on.
When its operator does, the slice of the chain is ended, so that the operators before it stop soon; what they still hand
on waits here, in its order.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from penstock.core.elements import Watermark
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.slices import SLICE_MS, Slice, Slices, Work


class Stage:
    """The place of one operator."""

    def __init__(self, operator: Operator, slice_: Slice) -> None:
        self.operator = operator
        self._slice = slice_
        self._rows: Slices | None = None
        self._work: Work | None = None
        self._waiting: deque[pa.RecordBatch | Watermark] = deque()

    def cut_rows(self) -> None:
        """Cut what is handed to the operator, if it may be slow for a row: operators before it make as many as they
        like."""
        if self.operator.is_row_wise:
            # The task cuts by what the whole chain takes; here only what has become more on the way is cut again.
            self._rows = Slices(2 * SLICE_MS, self._slice.most)

    @property
    def is_busy(self) -> bool:
        """Whether something is left to do."""
        return self._work is not None or bool(self._waiting)

    @property
    def may_snapshot(self) -> bool:
        """Whether all that is left to do is in the operator's state."""
        return not self._waiting and (self._work is None or self._work.may_snapshot)

    def emit(self, batch: pa.RecordBatch) -> None:
        """Hand records to the operator, or let them wait for it."""
        rows = self._rows
        if self._work is None and not self._waiting and (rows is None or batch.num_rows <= rows.rows):
            self.left(self.operator.process(batch))
        else:
            self._wait(batch)

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Hand a watermark to the operator, or let it wait for it."""
        if self._work is None and not self._waiting:
            self.left(self.operator.watermark(time_us, idle=idle))
        else:
            self._wait(Watermark(time_us=time_us, idle=idle))

    def _wait(self, item: pa.RecordBatch | Watermark) -> None:
        self._waiting.append(item)
        self._slice.end()

    def left(self, work: Work | None) -> None:
        """The operator was told something; this is what it has left to do."""
        if work is not None:
            self._work = work
            self._slice.end()

    def go_on(self) -> None:
        """Do what is left and what waits, until the slice is over."""
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
        """Nothing of what is left will be done."""
        self._waiting.clear()
        work, self._work = self._work, None
        if work is not None:
            work.drop()

"""Windows whose late records are read: the operator gets records, and combines the records that are not late.

A record is late if all its windows have fired. A record of which only some windows have fired is not late: the record
counts in its other windows. The state is that of `WindowOperator`, so a program may begin or cease to read late records
when the program goes on from a snapshot.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.steps import LATE, CombineStep, WindowStep
from penstock.api.window_schema import completing_column
from penstock.runtime.task.operators.base import OperatorContext, Output
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.windows import CombineOperator, WindowOperator


class LateWindowOperator(WindowOperator):
    """Takes records in, and hands late records to the stream of late records."""

    def __init__(self, step: WindowStep, combine: CombineStep) -> None:
        super().__init__(step)
        self._time_column = combine.time_column
        self._window = combine.window
        self._keys = list(combine.keys)
        self._times = combine.window.times()
        self._combining = CombineOperator(combine)

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start."""
        super().open(context, output)
        self._combining.open(context, _Partials(self))

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand late records on, and take the other records in."""
        late = self._late_records(batch)
        if late is not None and late.any():
            if LATE in self.sides:
                self.sides[LATE].emit(batch.filter(pa.array(late)))
            batch = batch.filter(pa.array(~late))
        self._combining.process(batch)
        # Records that are held back would be in no snapshot of this operator.
        self._combining.before_barrier()

    def take_partials(self, partials: pa.RecordBatch) -> None:
        """Take in the partial aggregates of records that are not late. Partials of windows that have fired are dropped
        and counted: their records count in other windows."""
        super().process(partials)

    def _late_records(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """Which records are late; None if no record is late. Records without a time, and records whose windows do not
        fit into 64 bits, are not late: they belong to no window, and are counted where records are combined."""
        times: Any = batch.column(self._time_column)
        instants = int64_values(times.fill_null(0) if times.null_count else times)
        has_window = (instants >= self._times[0]) & (instants <= self._times[1])
        if times.null_count:
            has_window &= times.is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(has_window)
        if places.size == 0:
            return None
        rows, starts, ends = self._window.assign(instants[places])
        if rows is not None:
            places = places[rows]
        completing: Any = pa.array(starts if ends is None else ends).view(times.type)
        entries = batch.select(self._keys).take(places)
        late = self._late(entries.append_column(completing_column(self._window), completing))
        if late is None:
            return None
        found = np.zeros(batch.num_rows, np.bool_)
        found[places] = True
        found[places[~late]] = False
        return found

    def metrics(self) -> dict[str, float]:
        """What windows and the combining of records count."""
        return {**super().metrics(), **self._combining.metrics()}


class _Partials:
    """Where the combined records of a late window operator go."""

    def __init__(self, window: LateWindowOperator) -> None:
        self.emit = window.take_partials

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Watermarks do not go through the combining of records."""

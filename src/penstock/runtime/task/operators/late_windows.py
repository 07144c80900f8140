"""Windows whose late records are read: the operator gets records, and combines the records that are not late.

A record is late if all its windows have fired. A record of which only some windows have fired is not late: the record
counts in its other windows. A record that joins an open session is not late. The state is that of the operator for
windows whose late records are not read, so a program may begin or cease to read late records when the program goes on
from a snapshot.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.pane_windows import PaneWindow
from penstock.api.steps import LATE, CombineStep, WindowStep
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.api.windows import SessionWindow, TumblingWindow
from penstock.runtime.task.operators.aggregation import normal_keys
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.pane_windows import PaneWindowOperator
from penstock.runtime.task.operators.record_values import adds_by_row
from penstock.runtime.task.operators.session_windows import SessionCombineOperator, SessionWindowOperator
from penstock.runtime.task.operators.updating_panes import UpdatingPaneOperator
from penstock.runtime.task.operators.updating_sessions import UpdatingSessionOperator
from penstock.runtime.task.operators.windows import CombineOperator, WindowOperator
from penstock.runtime.task.slices import Steps, Work

Times = npt.NDArray[np.int64]


class LateRecordsOperator(Operator):
    """Takes records in, and hands late records to the stream of late records. The operator behind this class takes the
    combined records in."""

    def __init__(self, step: WindowStep, combine: CombineStep) -> None:
        self._init_window(step)
        self._combine = combine
        self._times = combine.window.times()
        self._combining = self._make_combining()
        self._taken: list[pa.RecordBatch] = []

    def _init_window(self, step: WindowStep) -> None:
        super().__init__(step)  # type: ignore[call-arg]  # the operator behind this class takes the step

    def _make_combining(self) -> CombineOperator:
        return CombineOperator(self._combine)

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start."""
        super().open(context, output)
        self._combining.open(context, _Partials(self._taken))

    @property
    def is_row_wise(self) -> bool:
        """Whether an aggregate of the user's is called with every record."""
        return adds_by_row(self._combine.aggregates)

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand late records on, and take the other records in."""
        late = self._late_records(batch)
        if late is not None and late.any():
            if LATE in self.sides:
                self.sides[LATE].emit(batch.filter(pa.array(late)))
            batch = batch.filter(pa.array(~late))
        self._combining.process(batch)
        # Records that are held back would be in no snapshot of this operator.
        self._combining.before_barrier()
        taken = self._taken.copy()
        self._taken.clear()
        return Work.begin(self._take_in(taken))

    def _take_in(self, taken: list[pa.RecordBatch]) -> Steps:
        """Take in the partial aggregates of records that are not late."""
        for number, partials in enumerate(taken):
            work = super().process(partials)  # type: ignore[safe-super]  # of the operator behind this class
            is_last = number + 1 == len(taken)
            while work is not None:
                # Partials that are not taken in yet are in no state.
                yield work.may_snapshot and is_last
                work = work if work.go_on() else None

    def _late_records(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """Which records are late; None if no record is late. Records without a time, and records whose windows do not
        fit into 64 bits, are not late: they belong to no window, and are counted where records are combined."""
        combine = self._combine
        assert combine.time_column is not None
        times: Any = batch.column(combine.time_column)
        instants = int64_values(times.fill_null(0) if times.null_count else times) + combine.time_offset_us
        has_window = (instants >= self._times[0]) & (instants <= self._times[1])
        if times.null_count:
            has_window &= times.is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(has_window)
        if places.size == 0:
            return None
        columns: dict[str, Any] = {key: normal_keys(batch.column(key).take(places)) for key in combine.keys}
        for name, bounds in self._bounds(instants[places]).items():
            columns[name] = pa.array(bounds).view(times.type)
        # In the types of partials, because open sessions are compared with these rows.
        schema = pa.schema([combine.schema.field(name) for name in columns])
        late: npt.NDArray[np.bool_] | None
        # Of the operator behind this class.
        late = self._late(pa.record_batch(list(columns.values()), schema=schema))  # type: ignore[attr-defined]
        if late is None:
            return None
        found = np.zeros(batch.num_rows, np.bool_)
        found[places[late]] = True
        return found

    def _bounds(self, instants: Times) -> dict[str, Times]:
        """The columns that tell in which windows each of these times is: the start of its pane."""
        window = self._combine.window
        assert isinstance(window, TumblingWindow | PaneWindow)
        return {WINDOW_START: window.panes.assign(instants)}

    def metrics(self) -> dict[str, float]:
        """What windows and the combining of records count."""
        return {**super().metrics(), **self._combining.metrics()}


class LateWindowOperator(LateRecordsOperator, WindowOperator):
    """Tumbling windows whose late records are read."""


class LatePaneWindowOperator(LateRecordsOperator, PaneWindowOperator):
    """Sliding and cumulative windows whose late records are read. All records of a pane are in the same windows, so the
    pane of a record tells whether the record is late."""


class LateSessionRecordsOperator(LateRecordsOperator):
    """Each record is a session of its own, until the session touches other sessions: the records of a batch are
    compared with each other and with the open sessions."""

    def _make_combining(self) -> CombineOperator:
        return SessionCombineOperator(self._combine)

    def _bounds(self, instants: Times) -> dict[str, Times]:
        window = self._combine.window
        assert isinstance(window, SessionWindow)
        return {WINDOW_START: instants, WINDOW_END: instants + window.gap_us}


class LateSessionWindowOperator(LateSessionRecordsOperator, SessionWindowOperator):
    """Session windows whose late records are read."""


class LateUpdatingPaneOperator(LateRecordsOperator, UpdatingPaneOperator):
    """Windows that show updates, and whose late records are read."""


class LateUpdatingSessionOperator(LateSessionRecordsOperator, UpdatingSessionOperator):
    """Session windows that show updates, and whose late records are read."""


class _Partials:
    """Where the combined records of a late window operator go."""

    def __init__(self, taken: list[pa.RecordBatch]) -> None:
        self.emit = taken.append

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Watermarks do not go through the combining of records."""

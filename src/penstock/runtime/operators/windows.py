"""Tumbling event-time windows, in two halves: partial aggregates before the exchange by key, merged ones behind it.

A window [start, end) is due when the watermark has reached end - 1. Partials of a window that has fired are late: they
are dropped and counted. That a window has fired is state, by key group: after a restore, at whatever parallelism, it
does not fire again even though event time starts anew.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.steps import CombineStep, WindowStep
from penstock.api.window_schema import WINDOW_START
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.keys import key_groups
from penstock.runtime.operators.aggregation import (
    group,
    normal_keys,
    of_records,
    results,
    value_name,
    window_starts,
)
from penstock.runtime.operators.base import Operator, OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.operators.dense import int64_values
from penstock.runtime.operators.window_table import FiredRange, Header, Layout, WindowTable, decode, start_times

_NOT_BEGUN = -(2**63)
"""Stands for a key group none of whose windows has fired, where only integers fit."""
_RESULT_ROWS = 65_536
"""Results are handed on in batches of at most this many rows."""


class CombineOperator(Operator):
    """Partial aggregates of each batch. Holds no state."""

    def __init__(self, step: CombineStep) -> None:
        self._step = step
        self._values = {a.column for a in step.aggregates if a.column is not None}
        self._calculations = of_records(step.aggregates)
        self.timeless_dropped = 0
        """Records without a time: they belong to no window."""

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on one row per key and window of the batch."""
        step = self._step
        times: Any = batch.column(step.time_column)
        if times.null_count:
            batch = batch.filter(times.is_valid())
            self.timeless_dropped += len(times) - batch.num_rows
            times = batch.column(step.time_column)
        if batch.num_rows == 0:
            return
        instants = int64_values(times)
        first, last = window_starts(np.array([instants.min(), instants.max()]), step.window).tolist()
        columns: dict[str, Any] = {key: normal_keys(batch.column(key)) for key in step.keys}
        columns.update({value_name(column): batch.column(column) for column in sorted(self._values)})
        if first == last:
            partials = group(pa.table(columns), step.keys, self._calculations, window=step.window)
            starts: Any = pa.array(np.full(partials.num_rows, first)).view(times.type)
            partials = partials.append_column(WINDOW_START, starts)
        else:
            columns[WINDOW_START] = pa.array(window_starts(instants, step.window)).view(times.type)
            keys = [*step.keys, WINDOW_START]
            partials = group(pa.table(columns), keys, self._calculations, window=step.window)
        partials = partials.select(step.schema.names)
        if not partials.schema.equals(step.schema):
            partials = partials.cast(step.schema)
        for part in partials.combine_chunks().to_batches():
            self.output.emit(part)

    def metrics(self) -> dict[str, float]:
        """Records that had no time and so belong to no window."""
        return {"timeless_dropped": self.timeless_dropped}


class WindowOperator(Operator):
    """Aggregates per key and window, from partials; emitted when the watermark passes."""

    def __init__(self, step: WindowStep) -> None:
        self._step = step
        self._table = WindowTable(step)
        self._fired_us: int | None = None
        self._fired_by_group: npt.NDArray[np.int64] | None = None
        """Only while key groups differ: restored from subtasks that had come to different times."""
        self.late_dropped = 0
        """Partial aggregates of windows that had fired already."""

    def load(self, context: OperatorContext) -> None:
        """Restore the rows of the own key groups and how far their windows have fired."""
        if context.fresh or not context.restored:
            return
        first, last = context.key_groups
        fired = np.full(last - first + 1, _NOT_BEGUN)
        for state in context.restored:
            for file in state.keyed:
                rows, header = decode(context.reader.get(file), context.key_groups)
                self._check_layout(header.layout, context)
                self._table.append(rows)
                for entry in header.fired:
                    if entry.fired_us is not None:
                        fired[entry.first_group - first : entry.last_group - first + 1] = entry.fired_us
        self._set_fired(fired)

    def process(self, batch: pa.RecordBatch) -> None:
        """Take partials in, late ones aside."""
        late = self._late(batch)
        if late is not None and late.any():
            self.late_dropped += int(late.sum())
            batch = batch.filter(pa.array(~late))
        self._table.append(pa.Table.from_batches([batch]))

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Fire the windows that are due, then hand the watermark on."""
        step = self._step
        due = self._table.take_due(time_us + 1 - step.window.size_us)
        if time_us == MAX_WATERMARK:
            # After a stop with drain the data goes on, should the job be started from its savepoint: nothing is late
            # because of that stop.
            pass
        elif self._fired_by_group is not None:
            self._set_fired(np.maximum(self._fired_by_group, time_us))
        elif self._fired_us is None or time_us > self._fired_us:
            self._fired_us = time_us
        if due is not None:
            fired = results(
                due, keys=step.keys, window=step.window, aggregates=step.aggregates, schema=step.schema
            ).combine_chunks()
            for batch in fired.to_batches(max_chunksize=_RESULT_ROWS):
                self.output.emit(batch)
        self.output.watermark(time_us, idle=idle)

    def metrics(self) -> dict[str, float]:
        """Partial results whose window had closed when they came."""
        return {"late_dropped": self.late_dropped}

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:  # noqa: ARG002
        """Freeze by reference; the work merges, orders by key group and writes."""
        table, frozen, context = self._table, self._table.freeze(), self.context
        header = Header(layout=Layout.of(self._step), fired=tuple(self._fired_ranges()))

        def write(writer: StateWriter) -> OperatorState:
            data = table.encode(frozen, header=header, groups=context.max_parallelism)
            return OperatorState(
                operator=OperatorId(context.operator), keyed=(writer.put(data),), key_groups=context.key_groups
            )

        return write

    def _late(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """Which rows are late; None if none can be."""
        starts = start_times(batch)
        if self._fired_by_group is not None:
            groups = key_groups(batch, self._step.keys, self.context.max_parallelism) - self.context.key_groups[0]
            begun = self._fired_by_group != _NOT_BEGUN
            last_starts = np.where(begun, self._fired_by_group, 0) + (1 - self._step.window.size_us)
            late: npt.NDArray[np.bool_] = begun[groups] & (starts <= last_starts[groups])
            return late
        if self._fired_us is None or starts.size == 0:
            return None
        last_start = self._fired_us + 1 - self._step.window.size_us
        return None if int(starts.min()) > last_start else starts <= last_start

    def _set_fired(self, by_group: npt.NDArray[np.int64]) -> None:
        least = int(by_group.min())
        self._fired_us = None if least == _NOT_BEGUN else least
        self._fired_by_group = None if least == int(by_group.max()) else by_group

    def _fired_ranges(self) -> list[FiredRange]:
        first, last = self.context.key_groups
        if self._fired_by_group is None:
            return [FiredRange(first_group=first, last_group=last, fired_us=self._fired_us)]
        times = self._fired_by_group.tolist()
        bounds = [0, *(i for i in range(1, len(times)) if times[i] != times[i - 1]), len(times)]
        return [
            FiredRange(
                first_group=first + begin,
                last_group=first + end - 1,
                fired_us=None if times[begin] == _NOT_BEGUN else times[begin],
            )
            for begin, end in pairwise(bounds)
        ]

    def _check_layout(self, found: Layout, context: OperatorContext) -> None:
        expected = Layout.of(self._step)
        if found != expected:
            raise UsageError(
                f"the state of {context.name!r} is of {found}; the program has {expected}",
                hint="give the changed window another name, so that it starts without state",
            )

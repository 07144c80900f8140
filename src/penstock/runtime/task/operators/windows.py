"""Windows of event time, of any type that does not merge. A window step has two halves: partial aggregates before the
exchange by key, and merged aggregates behind the exchange.

A window [start, end) is due when the watermark has reached end - 1. Partials of a window that has fired are late: they
are dropped and counted. Up to which time windows have fired is state, by key group. So after a restore, at any
parallelism, a window that has fired does not fire again, even though event time starts anew.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.connector import UserCodeRaised
from penstock.api.steps import CombineStep, WindowStep
from penstock.api.window_schema import WINDOW_END, WINDOW_START, kept_columns
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.aggregation import (
    group,
    in_order,
    normal_keys,
    of_partials,
    of_records,
    results,
)
from penstock.runtime.task.operators.base import Operator, OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.record_values import record_values
from penstock.runtime.task.operators.user_code import expression_error, user_code_raised
from penstock.runtime.task.operators.window_table import FiredRange, Header, Layout, WindowTable, decode
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Steps, Work

_NOT_BEGUN = -(2**63)
"""Stands for a key group of which no window has fired, where only integers fit."""
_RESULT_ROWS = 65_536
"""Results are handed on in batches of at most this many rows."""
_HELD_ROWS = 4_096
"""Partials are held back to be merged while they have fewer rows than this."""


class CombineOperator(Operator):
    """Makes partial aggregates of the batches between two watermarks, or of fewer batches. No window fires before the
    watermark moves. So partials that are held back delay no result, and fewer partials cross the exchange. All held
    partials are handed on before a barrier: the operator has no state."""

    def __init__(self, step: CombineStep) -> None:
        self._step = step
        self._calculations = of_records(step.aggregates)
        self._merging = of_partials(step.aggregates)
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self.timeless_dropped = 0
        """How many records had no time: such records belong to no window."""
        self._windows = kept_columns(step.window)
        self._earliest, self._latest = step.window.times()
        self.beyond_time_dropped = 0
        """How many records had a time so near to the limits of 64 bits that the start or the end of the window does not
        fit."""

    def process(self, batch: pa.RecordBatch) -> None:
        """Make one row per key and window of the batch."""
        step = self._step
        times: Any = batch.column(step.time_column)
        if times.null_count:
            batch = batch.filter(times.is_valid())
            self.timeless_dropped += len(times) - batch.num_rows
            times = batch.column(step.time_column)
        if batch.num_rows == 0:
            return
        instants = int64_values(times)
        if instants.min() < self._earliest or instants.max() > self._latest:
            inside = (instants >= self._earliest) & (instants <= self._latest)
            self.beyond_time_dropped += batch.num_rows - int(inside.sum())
            batch, instants = batch.filter(pa.array(inside)), instants[inside]
            if batch.num_rows == 0:
                return
        columns: dict[str, Any] = {key: normal_keys(batch.column(key)) for key in step.keys}
        columns.update(self._record_values(batch))
        single = self._only_window(instants)
        if single is not None:
            partials = group(pa.table(columns), step.keys, self._calculations, window=step.window)
            for name, time_us in zip(self._windows, single, strict=False):
                filled: Any = pa.array(np.full(partials.num_rows, time_us)).view(times.type)
                partials = partials.append_column(name, filled)
        else:
            table = self._with_windows(pa.table(columns), instants, times.type)
            partials = group(table, [*step.keys, *self._windows], self._calculations, window=step.window)
        partials = partials.select(step.schema.names)
        if not partials.schema.equals(step.schema):
            partials = partials.cast(step.schema)
        self._held.append(partials)
        self._held_rows += partials.num_rows
        if self._held_rows >= _HELD_ROWS:
            self.before_barrier()

    def _record_values(self, batch: pa.RecordBatch) -> dict[str, Any]:
        try:
            return record_values(batch, self._step.aggregates)
        except Exception as error:
            raise expression_error(error, self.context) from error

    def _only_window(self, instants: npt.NDArray[np.int64]) -> tuple[int, ...] | None:
        """The start of the window that all records of a batch are in, and the end if windows differ in length. Most
        batches have only one window. None if the batch has several windows."""
        window = self._step.window
        if window.overlaps:
            return None
        _, starts, ends = window.assign(np.array([instants.min(), instants.max()]))
        bounds = [starts] if ends is None else [starts, ends]
        same = all(first == last for first, last in bounds)
        return tuple(int(first) for first, _ in bounds) if same else None

    def _with_windows(self, table: pa.Table, instants: npt.NDArray[np.int64], time_type: Any) -> pa.Table:
        rows, starts, ends = self._step.window.assign(instants)
        if rows is not None:
            table = table.take(rows)
        table = table.append_column(WINDOW_START, pa.array(starts).view(time_type))
        return table if ends is None else table.append_column(WINDOW_END, pa.array(ends).view(time_type))

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Hand on the partials that are held, then the watermark."""
        self.before_barrier()
        self.output.watermark(time_us, idle=idle)

    def before_barrier(self) -> None:
        """Hand on the partials that are held."""
        held, self._held, self._held_rows = self._held, [], 0
        if not held:
            return
        partials = held[0] if len(held) == 1 else self._merged(pa.concat_tables(held))
        for part in partials.combine_chunks().to_batches():
            self.output.emit(part)

    def finish(self) -> None:
        """All data has been seen: hand on the partials that are held."""
        self.before_barrier()

    def _merged(self, partials: pa.Table) -> pa.Table:
        step = self._step
        merged = group(partials, [*step.keys, *self._windows], self._merging, window=step.window)
        return merged.select(step.schema.names).cast(step.schema)

    def metrics(self) -> dict[str, float]:
        """How many records belong to no window: they had no time, or a time whose window does not fit into 64 bits."""
        return {"timeless_dropped": self.timeless_dropped, "beyond_time_dropped": self.beyond_time_dropped}


class WindowOperator(Operator):
    """Merges partials per key and window. The results of a window are emitted when the watermark passes the window."""

    def __init__(self, step: WindowStep) -> None:
        self._step = step
        self._table = WindowTable(step)
        self._fired_us: int | None = None
        self._fired_by_group: npt.NDArray[np.int64] | None = None
        """Set only while key groups differ, because they were restored from subtasks that had come to different
        times."""
        self._leaving: pa.Table | None = None
        """Partials of windows that fire, whose results have not been handed on."""
        self.late_dropped = 0
        """How many partials came after their windows had fired."""

    def load(self, context: OperatorContext) -> None:
        """Restore the rows of this subtask's key groups, and how far the windows of these key groups have fired."""
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
        """Take partials in. Late partials are dropped and counted."""
        late = self._late(batch)
        if late is not None and late.any():
            self.late_dropped += int(late.sum())
            batch = batch.filter(pa.array(~late))
        self._table.append(pa.Table.from_batches([batch]))

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Fire the windows that are due, then hand the watermark on."""
        if time_us == MAX_WATERMARK:
            # After a stop with drain the data goes on if a job starts from the savepoint. So no record may be late
            # because of the stop.
            pass
        elif self._fired_by_group is not None:
            self._set_fired(np.maximum(self._fired_by_group, time_us))
        elif self._fired_us is None or time_us > self._fired_us:
            self._fired_us = time_us
        return Work.begin(self._to_watermark(time_us, idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        """Partials that are due are in the state until their results are handed on, so a snapshot may be taken between
        two batches of results. After a restore these partials are not late, although their window has fired: they are
        in the restored table."""
        step = self._step
        for last in self._table.due_parts(step.window.last_complete(time_us)):
            due = self._table.take_due(last)
            self._leaving = None if due is None else in_order(due, kept_columns(step.window), step.keys)
            while self._leaving is not None:
                rows = min(_RESULT_ROWS, self.slice.left)
                batch, rest = self._leaving.slice(0, rows), self._leaving.slice(rows)
                made = results(
                    batch, keys=step.keys, window=step.window, aggregates=step.aggregates, schema=step.schema
                )
                self._leaving = rest if rest.num_rows else None
                for piece in made.combine_chunks().to_batches():
                    self.output.emit(piece)
                if self.slice.spend(made.num_rows):
                    yield True
        self.output.watermark(time_us, idle=idle)

    def metrics(self) -> dict[str, float]:
        """How many partials came after their windows had fired."""
        return {"late_dropped": self.late_dropped}

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:  # noqa: ARG002
        """Freeze the tables by reference. The returned work merges the partials, orders them by key group and writes
        them."""
        leaving = () if self._leaving is None else (self._leaving,)
        table, frozen, context = self._table, (*self._table.freeze(), *leaving), self.context
        header = Header(layout=Layout.of(self._step), fired=tuple(self._fired_ranges()))

        def write(writer: StateWriter) -> OperatorState:
            try:
                data = table.encode(frozen, header=header, groups=context.max_parallelism)
            except UserCodeRaised as error:
                # Off the loop, where nothing else says which step the code belongs to.
                raise user_code_raised(error, context) from error
            return OperatorState(
                operator=OperatorId(context.operator), keyed=(writer.put(data),), key_groups=context.key_groups
            )

        return write

    def _late(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """Which rows are late; None if no row is late."""
        times, window = self._table.completing_times(batch), self._step.window
        if self._fired_by_group is not None:
            groups = key_groups(batch, self._step.keys, self.context.max_parallelism) - self.context.key_groups[0]
            begun = self._fired_by_group != _NOT_BEGUN
            # Raised to a time before which no window can have ended: otherwise the subtraction of the length would wrap
            # around.
            fired = np.maximum(self._fired_by_group, _NOT_BEGUN + (window.length_us or 0))
            last_complete = np.where(begun, fired, 0) + window.last_complete(0)
            late: npt.NDArray[np.bool_] = begun[groups] & (times <= last_complete[groups])
            return late
        if self._fired_us is None or times.size == 0:
            return None
        last = window.last_complete(self._fired_us)
        return None if int(times.min()) > last else times <= last

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
                f"the state of {context.name!r} is of {found}; the step in the program has {expected}",
                hint="give the changed window another name, so that it starts without state",
            )

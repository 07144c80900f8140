"""Windows that show updates: results that may still change, and every change of them.

The results make up a table: one row for each window that is *shown*. By default a window is shown once the watermark
has passed its end, as long as records may still come within the allowed lateness. With early results every window is
shown that has a record. Changes of the table are handed on as inserts, updates and deletes.

    partials ─► late? ─► (early results: wait until they are due) ─► find the rows of their keys, merge ─► what changed
    watermark ─► which windows are shown now ─► inserts                                                   └─► changes

State is one row per key and pane (per session), until the lateness of its last window is over. Which windows are shown
is no part of the rows: it follows from the time that the watermark has reached, by key group. With early results the
windows of all rows are shown, and partials that were not shown wait in rows of their own.

At the end of event time everything is shown, and the rows stay: after a drain, records of the same windows update them.
Changes that have not been handed on are part of the state. So a snapshot may be taken between any two slices.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.changelog import ROW_KIND, UPDATE_BEFORE, without_row_kind
from penstock.api.connector import UserCodeRaised
from penstock.api.pane_windows import PaneWindow, SlidingWindow
from penstock.api.steps import ROW_COUNT, Updates, WindowStep
from penstock.api.window_schema import WINDOW_END, WINDOW_START, window_columns
from penstock.api.windows import SessionWindow, TumblingWindow
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators import window_table
from penstock.runtime.task.operators.aggregation import group, in_order, of_partials, results
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork, StateWriter
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.keyed_rows import KeyedRows, rows_of
from penstock.runtime.task.operators.pane_windows import parts_of
from penstock.runtime.task.operators.sessions import codes_of, find_sessions, merge_sessions
from penstock.runtime.task.operators.slow_merging import SlowMerging, in_slices, merges_by_row
from penstock.runtime.task.operators.user_code import user_code_raised
from penstock.runtime.task.operators.window_changes import (
    add_panes,
    changes_of_panes,
    changes_of_sessions,
    inserts,
    repeated,
)
from penstock.runtime.task.operators.window_table import FiredRange, Header, Layout, check_layout, decode, encode_rows
from penstock.runtime.task.operators.windows import RESULT_ROWS, settled_us
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Steps, Work
from penstock.state.restore_bounds import check_named_once

Times = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]

ROWS, WAITING, CHANGES = "rows", "waiting", "changes"
"""The parts of a snapshot: merged partials, partials that are not shown, and changes that were not handed on."""


class UpdatingWindowOperator(Operator):
    """Merges partials, and hands on how the results change."""

    def __init__(self, step: WindowStep) -> None:
        assert step.updates is not None
        assert step.partials is not None
        self._step = step
        self._updates: Updates = step.updates
        self._keys: Sequence[str] = step.keys
        self._partials = step.partials
        self._schema = without_row_kind(step.schema)
        self._calculations = of_partials(step.aggregates)
        self._slow = SlowMerging(self._calculations, step.window) if merges_by_row(step.aggregates) else None
        self._table = KeyedRows(step.partials, step.keys, self._settling_times)
        self._waiting = KeyedRows(step.partials, step.keys, self._completing_times)
        """Partials that are not shown yet, because early results are not due."""
        self._settled = Fired()
        """Up to which time the lateness is over."""
        self._shown = Fired()
        """Up to which time windows are shown, without early results."""
        self._leaving: pa.Table | None = None
        """Changes that have not been handed on."""
        self._due: Instant | None = None
        """When early results are due next."""
        self.late_dropped = 0

    # --- what differs from type to type --------------------------------------------------

    @abstractmethod
    def _settling_times(self, rows: pa.Table) -> Times:
        """For each row the last time in its last window."""

    @abstractmethod
    def _completing_times(self, rows: pa.Table) -> Times:
        """For each row the last time in its first window."""

    @abstractmethod
    def _late(self, batch: pa.RecordBatch) -> Bits | None:
        """Which rows are late; None if no row is late."""

    @abstractmethod
    def _change(self, added: pa.Table) -> pa.Table | None:
        """Merge partials into the table. Returns how the results that are shown change; None if none of them does."""

    @abstractmethod
    def _merged(self, there: pa.Table, added: pa.Table) -> tuple[Bits, pa.Table]:
        """Which of the waiting rows are replaced when partials are added, and the rows that take their place."""

    @abstractmethod
    def _show(self, time_us: int) -> Steps:
        """Hand on the results that are shown from this time on."""

    @property
    def is_row_wise(self) -> bool:
        """Whether an aggregate of the user's is called for every partial that comes."""
        return merges_by_row(self._step.aggregates)

    # --- records and time ----------------------------------------------------------------

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start. What waits for early results waits anew."""
        super().open(context, output)
        self._wait()

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Take partials in. Late partials are dropped and counted."""
        late = self._late(batch)
        if late is not None and late.any():
            self.late_dropped += int(late.sum())
            batch = batch.filter(pa.array(~late))
        if batch.num_rows == 0:
            return None
        added = pa.Table.from_batches([batch])
        if self._updates.waits:
            due = self._wait_with(added)
            if due is None:
                return None
            added = due
        self._leave(self._change(added))
        return Work.begin(self._hand_on())

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Show the windows that are due, forget the windows whose lateness is over, then hand the watermark on."""
        return Work.begin(self._to_watermark(time_us, idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        if self._updates.is_early:
            # Windows that are complete do not wait.
            due = self._waiting.take(time_us)
            if due is not None:
                self._leave(self._change(due))
            yield from self._hand_on()
        else:
            yield from self._hand_on()
            yield from self._show(time_us)
        if time_us != MAX_WATERMARK:
            settled = settled_us(time_us, self._step.lateness_us)
            self._settled.advance(settled)
            self._table.take(settled)
        self.output.watermark(time_us, idle=idle)

    def fire(self, now: Instant) -> Work | None:
        """Show what has changed, if early results are due."""
        if self._due is None or now < self._due:
            return None
        self._due = None
        due = self._waiting.take(MAX_WATERMARK)
        if due is not None:
            self._leave(self._change(due))
        return Work.begin(self._hand_on())

    def tick(self, now: Instant) -> Instant | None:  # noqa: ARG002
        """Returns when early results are due next."""
        return self._due

    def _wait(self) -> None:
        """See to it that waiting rows are shown in time."""
        every_ms = self._updates.every_ms
        if every_ms is not None and self._due is None and self._waiting.rows:
            self._due = Instant(self.context.now() + every_ms)
            self.context.wake_at(self._due)

    def _wait_with(self, added: pa.Table) -> pa.Table | None:
        """Let partials wait. Returns the rows that wait no longer, because there are enough records; None if there are
        no such rows."""
        found = self._waiting.find(added)
        gone, merged = self._merged(found.rows, added)
        most = self._updates.every_rows
        if most is None:
            self._waiting.remove(found, gone)
            self._waiting.append(merged)
            self._wait()
            return None
        rows = pa.concat_tables([found.rows.filter(pa.array(~gone)), merged])
        self._waiting.remove(found, np.ones(gone.size, np.bool_))
        counts = int64_values(rows.column(ROW_COUNT))
        if isinstance(self._step.window, PaneWindow):
            # The windows of a key overlap: they are counted together.
            _, of_key = np.unique(
                codes_of(rows, self._keys) if self._keys else np.zeros(counts.size), return_inverse=True
            )
            counts = np.bincount(of_key, weights=counts)[of_key].astype(np.int64)
        due = counts >= most
        self._waiting.append(rows.filter(pa.array(~due)))
        return rows.filter(pa.array(due)) if due.any() else None

    # --- results -------------------------------------------------------------------------

    def _leave(self, changes: pa.Table | None) -> None:
        if changes is not None and changes.num_rows:
            self._leaving = changes if self._leaving is None else pa.concat_tables([self._leaving, changes])

    def _hand_on(self) -> Steps:
        """Hand on the changes, in slices. A slice does not end between the two halves of an update."""
        step = self._step
        while self._leaving is not None:
            rows = min(RESULT_ROWS, self.slice.left, self._leaving.num_rows)
            if self._leaving.column(ROW_KIND)[rows - 1].as_py() == UPDATE_BEFORE:
                rows += 1
            part, rest = self._leaving.slice(0, rows), self._leaving.slice(rows)
            made = results(
                part, keys=step.keys, window=step.window, aggregates=step.aggregates, schema=self._schema
            ).append_column(step.schema.field(ROW_KIND), part.column(ROW_KIND))
            self._leaving = rest if rest.num_rows else None
            for piece in made.combine_chunks().to_batches():
                self.output.emit(piece)
            if self.slice.spend(made.num_rows):
                yield True

    def metrics(self) -> dict[str, float]:
        """How many partials came after their windows could no longer change."""
        return {"late_dropped": self.late_dropped}

    def _groups(self, rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int32]:
        batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
        parts = [key_groups(batch, self._keys, self.context.max_parallelism) for batch in batches]
        return np.concatenate([np.empty(0, np.int32), *parts])

    # --- state ---------------------------------------------------------------------------

    def load(self, context: OperatorContext) -> None:
        """Restore the rows of this subtask's key groups, and how far these key groups have come."""
        if context.fresh or not context.restored:
            return
        settled, shown = list[FiredRange](), list[FiredRange]()
        check_named_once((file for state in context.restored for file in state.keyed), what="the state of the window")
        for state in context.restored:
            for file in state.keyed:
                rows, header = decode(context.reader.get(file), context.key_groups)
                check_layout(header.layout, self._step, context.name)
                if header.part == CHANGES:
                    shown += header.fired
                    self._leave(rows)
                    continue
                settled += header.fired if header.part == ROWS else ()
                if rows.num_rows:
                    there = self._waiting if header.part == WAITING else self._table
                    there.append(rows.select(self._partials.names).cast(self._partials))
        self._settled.restore(settled, context.key_groups)
        self._shown.restore(shown, context.key_groups)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:  # noqa: ARG002
        """Freeze the rows by reference. The returned work writes them, by key group."""
        context, keys, schema = self.context, self._keys, self._partials
        frozen, waiting, leaving = self._table.freeze(), self._waiting.freeze(), self._leaving
        layout = Layout.of(self._step)
        settled, shown = (each.ranges(context.key_groups) for each in (self._settled, self._shown))

        def write(writer: StateWriter) -> OperatorState:
            parts = [
                (ROWS, rows_of(frozen, schema), settled),
                (CHANGES, pa.table({}) if leaving is None else leaving, shown),
            ]
            if waiting:
                parts.append((WAITING, rows_of(waiting, schema), settled))
            try:
                files = [
                    encode_rows(
                        rows,
                        keys=keys,
                        header=Header(
                            layout=layout, fired=fired, part=part, leaving=msgspec.UNSET if part == ROWS else True
                        ),
                        groups=context.max_parallelism,
                    )
                    for part, rows, fired in parts
                ]
            except UserCodeRaised as error:
                raise user_code_raised(error, context) from error
            return OperatorState(
                operator=OperatorId(context.operator),
                keyed=tuple(writer.put(data) for data in files),
                key_groups=context.key_groups,
            )

        return write


class UpdatingPaneOperator(UpdatingWindowOperator):
    """Windows that are made of panes: tumbling windows, each of which is a pane, sliding and cumulative windows."""

    def __init__(self, step: WindowStep) -> None:
        self._window = _of_panes(step.window)
        super().__init__(step)

    def _settling_times(self, rows: pa.Table) -> Times:
        return self._window.last_end(int64_values(rows.column(WINDOW_START))) - 1

    def _completing_times(self, rows: pa.Table) -> Times:
        return self._window.first_end(int64_values(rows.column(WINDOW_START))) - 1

    def _late(self, batch: pa.RecordBatch) -> Bits | None:
        last_times = self._window.last_end(int64_values(batch.column(WINDOW_START))) - 1
        return self._settled.late(last_times, lambda: self._groups(batch))

    def _merged(self, there: pa.Table, added: pa.Table) -> tuple[Bits, pa.Table]:
        return add_panes(there, added, self._keys, self._calculations, window=self._window)

    def _change(self, added: pa.Table) -> pa.Table | None:
        found, window = self._table.find(added), self._window
        there, changes = found.rows, None
        of_added = self._shown_windows(added)
        if of_added.num_rows:
            changes = changes_of_panes(
                self._shown_windows(there), of_added, self._keys, self._calculations, window=window
            )
        gone, merged = add_panes(there, added, self._keys, self._calculations, window=window)
        self._table.remove(found, gone)
        self._table.append(merged)
        return changes

    def _shown_windows(self, rows: pa.Table) -> pa.Table:
        """Each row once for every window that is shown and may change."""
        window, panes = self._window, int64_values(rows.column(WINDOW_START))
        settled = self._settled.of_rows(lambda: self._groups(rows))
        first = np.maximum(window.first_end(panes), window.end_after(settled + 1))
        last = window.last_end(panes)
        if not self._updates.is_early:
            last = np.minimum(last, self._last_shown(self._shown.of_rows(lambda: self._groups(rows))))
        return repeated(rows, window, first, last)

    def _last_shown(self, times: Times) -> Times:
        """The last end of a window that is shown at these times."""
        return self._window.end_after(times + 1) - self._window.spacing_us

    def _show(self, time_us: int) -> Steps:
        window, is_end = self._window, time_us == MAX_WATERMARK
        if not is_end and int(self._last_shown(np.array([time_us]))[0]) - 1 <= self._shown.least:
            return
        rows = self._table.after(self._shown.least)
        if rows.num_rows:
            panes = int64_values(rows.column(WINDOW_START))
            shown = self._shown.of_rows(lambda: self._groups(rows))
            first = np.maximum(window.first_end(panes), window.end_after(shown + 1))
            last = window.last_end(panes)
            if not is_end:
                last = np.minimum(last, self._last_shown(np.array([time_us])))
            done = int(first.min()) - window.spacing_us
            for end in parts_of(first, last, window.spacing_us, most=window_table.PART_ROWS):
                merged = yield from self._put_together(
                    rows, np.maximum(first, done + window.spacing_us), np.minimum(last, end)
                )
                done = end
                self._leave(inserts(in_order(merged, window_columns(window), self._keys)))
                self._shown.advance(end - 1)
                yield from self._hand_on()
        if not is_end:
            self._shown.advance(time_us)

    def _put_together(self, rows: pa.Table, first: Times, last: Times) -> Generator[bool, None, pa.Table]:
        window, keys = self._window, self._keys
        panes = repeated(rows, window, first, last)
        if self._slow is None:
            merged = group(panes, [*keys, WINDOW_END], self._calculations, window=window)
        else:
            # The panes stay in the table, and the windows count as not shown, until they are merged.
            merged = yield from in_slices(self._slow.grouped(panes, [*keys, WINDOW_END], self.slice), may_snapshot=True)
        ends = merged.column(WINDOW_END)
        starts = pa.array(window.starts_of(int64_values(ends))).view(ends.type)
        merged = merged.append_column(WINDOW_START, starts)
        return merged.select([*keys, *window_columns(window), *(c.name for c in self._calculations)])


class UpdatingSessionOperator(UpdatingWindowOperator):
    """Sessions. A session that is shown and then grows is deleted, and is inserted again when it is shown again."""

    def _settling_times(self, rows: pa.Table) -> Times:
        return int64_values(rows.column(WINDOW_END))

    def _completing_times(self, rows: pa.Table) -> Times:
        return int64_values(rows.column(WINDOW_END))

    def _late(self, batch: pa.RecordBatch) -> Bits | None:
        late = self._settled.late(int64_values(batch.column(WINDOW_END)), lambda: self._groups(batch))
        if late is None or not late.any():
            return None
        given = pa.Table.from_batches([batch]).select([*self._keys, WINDOW_START, WINDOW_END])
        there = [each.find(given).rows.select(given.schema.names) for each in (self._table, self._waiting)]
        found = find_sessions(pa.concat_tables([given, *(each.cast(given.schema) for each in there)]), self._keys)
        return self._settled.late(found.ends[found.of_row[: batch.num_rows]], lambda: self._groups(batch))

    def _merged(self, there: pa.Table, added: pa.Table) -> tuple[Bits, pa.Table]:
        rows = pa.concat_tables([there, added])
        merged = merge_sessions(rows, self._keys, self._calculations, window=self._step.window)
        return np.ones(there.num_rows, np.bool_), merged.select(there.schema.names).cast(there.schema)

    def _change(self, added: pa.Table) -> pa.Table | None:
        found = self._table.find(added)
        rows = pa.concat_tables([found.rows.select(self._keys), added.select(self._keys)])
        shown = None
        if not self._updates.is_early:
            times = self._shown.of_rows(lambda: self._groups(rows))
            shown = np.broadcast_to(times, (rows.num_rows,))
        (gone, merged), changes = changes_of_sessions(
            found.rows, added, self._keys, self._calculations, window=self._step.window, shown=shown
        )
        self._table.remove(found, gone)
        self._table.append(merged)
        return changes

    def _show(self, time_us: int) -> Steps:
        rows = self._table.after(self._shown.least)
        ends = int64_values(rows.column(WINDOW_END))
        due = (ends <= time_us) & (ends > self._shown.of_rows(lambda: self._groups(rows)))
        if due.any():
            assert isinstance(self._step.window, SessionWindow)
            leaving = in_order(rows.filter(pa.array(due)), window_columns(self._step.window), self._keys)
            self._leave(inserts(leaving))
        # At the end of event time, sessions that follow a drain are shown when their time has come.
        self._shown.advance(int(ends.max()) if time_us == MAX_WATERMARK and ends.size else min(time_us, _LAST_TIME))
        yield from self._hand_on()


_LAST_TIME = MAX_WATERMARK - 1


def _of_panes(window: object) -> PaneWindow:
    """The windows as windows that are made of panes."""
    if isinstance(window, TumblingWindow):
        return SlidingWindow(size_us=window.size_us, slide_us=window.size_us, offset_us=window.offset_us)
    assert isinstance(window, PaneWindow)
    return window

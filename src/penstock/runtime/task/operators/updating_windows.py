"""Windows that show updates: results that may still change, and every change of them.

The results make up a table: one row for each window that is *shown*. By default a window is shown once the watermark
has passed its end, as long as records may still come within the allowed lateness. With early results every window is
shown that has a record. Changes of the table are handed on as inserts, updates and deletes.

    partials ─► late? ─► (early results: wait until they are due) ─► add them; what was shown before? ─► what changed
    watermark ─► which windows are shown now ─► inserts                                                  └─► changes

State has rows per key and pane (per session), until the lateness of their last window is over. Which windows are shown
is no part of the rows: it follows from the time that the watermark has reached, by key group. With early results the
windows of all rows are shown, and partials that were not shown wait in rows of their own.

At the end of event time everything is shown, and the rows stay: after a drain, records of the same windows update them.
Changes that have not been handed on are part of the state, as are windows that count as shown and have not been put
together. So a snapshot may be taken between any two slices.

What panes and sessions do differently is in `operators/updating_panes.py` and `operators/updating_sessions.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.changelog import ROW_KIND, UPDATE_BEFORE, without_row_kind
from penstock.api.pane_windows import PaneWindow
from penstock.api.steps import ROW_COUNT, Updates, WindowStep
from penstock.api.window_schema import kept_columns, window_columns
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId, Instant
from penstock.runtime.task.operators import window_table
from penstock.runtime.task.operators.aggregation import in_order, of_partials, results
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.keyed_rows import KeyedRows
from penstock.runtime.task.operators.sessions import codes_of
from penstock.runtime.task.operators.slow_merging import merges_by_row
from penstock.runtime.task.operators.table_state import ROWS, Loose, SavedTable, TableState
from penstock.runtime.task.operators.window_changes import inserts
from penstock.runtime.task.operators.window_table import FiredRange, Header, Layout
from penstock.runtime.task.operators.windows import RESULT_ROWS, settled_us
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Steps, Work

Bits = npt.NDArray[np.bool_]
Windows = Callable[[], pa.Table | None]
"""Gives windows. Reads nothing that changes."""

WAITING, CHANGES = "waiting", "changes"
"""Parts of a snapshot, beside the merged partials: partials that are not shown, and changes that were not handed
on."""


class UpdatingTable(SavedTable, Protocol):
    """What the operator does with the rows of its windows, whatever type the windows have."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        ...

    def append(self, rows: pa.Table) -> None:
        """Take rows in."""
        ...


class UpdatingWindowOperator(Operator):
    """Merges partials, and hands on how the results change."""

    _table: UpdatingTable

    def __init__(self, step: WindowStep) -> None:
        assert step.updates is not None
        assert step.partials is not None
        self._step = step
        self._updates: Updates = step.updates
        self._keys: Sequence[str] = step.keys
        self._partials = step.partials
        self._schema = without_row_kind(step.schema)
        self._calculations = of_partials(step.aggregates)
        self._waiting = KeyedRows(step.partials, step.keys, kept_columns(step.window)[-1])
        """Partials that are not shown yet, because early results are not due."""
        self._settled = Fired()
        """Up to which time the lateness is over."""
        self._shown = Fired()
        """Up to which time windows are shown, without early results."""
        self._leaving: pa.Table | None = None
        """Changes that have not been handed on."""
        self._pieces: list[Windows] = []
        """Windows that count as shown and have not been put together."""
        self._due: Instant | None = None
        """When early results are due next."""
        self._state: TableState | None = None
        self.late_dropped = 0

    # --- what differs from type to type --------------------------------------------------

    @property
    @abstractmethod
    def _windows_per_row(self) -> int:
        """In how many windows a row is, at most."""

    @abstractmethod
    def _completing_until(self, time_us: int) -> int:
        """The time up to which waiting rows have a window that is complete at a time."""

    def _before_settling(self, settled_us: int) -> Steps:  # noqa: ARG002
        """Hand on waiting rows that belong to rows that are about to be forgotten."""
        yield from ()

    @abstractmethod
    def _settle(self, settled_us: int) -> None:
        """Forget the rows of which all windows have settled."""

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
        if self._state is not None:
            self._state.begin()
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
        return Work.begin(self._add_parts(added))

    def _add_parts(self, added: pa.Table) -> Steps:
        """Take partials in, some at a time, and hand on what changes."""
        most = max(1, window_table.PART_ROWS // self._windows_per_row)
        for first in range(0, added.num_rows, most):
            self._leave(self._change(added.slice(first, most)))
            is_last = first + most >= added.num_rows
            for _ in self._hand_on():
                # Partials that are not taken in yet are in no state.
                yield is_last
        yield from self._hand_on()

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Show the windows that are due, forget the windows whose lateness is over, then hand the watermark on."""
        return Work.begin(self._to_watermark(time_us, idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        yield from self._hand_on()
        if self._updates.is_early:
            # Windows that are complete do not wait.
            yield from self._show_waiting(self._completing_until(time_us))
        else:
            yield from self._show(time_us)
        if time_us != MAX_WATERMARK:
            settled = settled_us(time_us, self._step.lateness_us)
            if self._waiting.rows:
                yield from self._before_settling(settled)
            self._settled.advance(settled)
            self._settle(settled)
        self.output.watermark(time_us, idle=idle)

    def _show_waiting(self, last_us: int) -> Steps:
        while (due := self._waiting.take_due(last_us)) is not None:
            yield from self._add_parts(due)

    def fire(self, now: Instant) -> Work | None:
        """Show what has changed, if early results are due."""
        if self._due is None or now < self._due:
            return None
        self._due = None
        return Work.begin(self._fire())

    def _fire(self) -> Steps:
        yield from self._hand_on()
        yield from self._show_waiting(MAX_WATERMARK)

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

    def _show_pieces(self) -> Steps:
        """Hand on the windows that count as shown, piece by piece."""
        while self._pieces:
            # A piece that is put together in slices is in the state until that is done.
            windows = yield from self._done(self._pieces[0])
            del self._pieces[0]
            self._leave(self._inserted(windows))
            yield from self._hand_on()

    def _done(self, piece: Windows) -> Generator[bool, None, pa.Table | None]:
        """The windows of a piece."""
        yield from ()
        return piece()

    def _inserted(self, windows: pa.Table | None) -> pa.Table | None:
        if windows is None:
            return None
        return inserts(in_order(windows, window_columns(self._step.window), self._keys))

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
        self._state = TableState({ROWS: self._table, WAITING: self._waiting}, self._step, context)
        if context.fresh or not context.restored:
            return
        settled, shown = list[FiredRange](), list[FiredRange]()

        def take(rows: pa.Table, header: Header) -> None:
            if header.part == CHANGES:
                shown.extend(header.fired)
                self._leave(rows)
                return
            settled.extend(header.fired if header.part == ROWS else ())
            if rows.num_rows:
                there = self._waiting if header.part == WAITING else self._table
                there.append(rows.select(self._partials.names).cast(self._partials))

        self._state.load(take)
        self._settled.restore(settled, context.key_groups)
        self._shown.restore(shown, context.key_groups)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the rows by reference. The returned work writes what no completed checkpoint has."""
        assert self._state is not None
        layout = Layout.of(self._step)
        settled, shown = (each.ranges(self.context.key_groups) for each in (self._settled, self._shown))
        headers = {ROWS: Header(layout=layout, fired=settled, part=ROWS)}
        if self._waiting.rows:
            headers[WAITING] = Header(layout=layout, fired=settled, part=WAITING, leaving=True)
        changes = Loose(
            Header(layout=layout, fired=shown, part=CHANGES, leaving=True),
            partial(self._changes, self._leaving, tuple(self._pieces)),
        )
        return self._state.snapshot(checkpoint, options, headers=headers, loose=[changes])

    def _changes(self, leaving: pa.Table | None, pieces: Sequence[Windows]) -> pa.Table:
        """The changes that were not handed on. Runs off the loop, and reads nothing that changes."""
        found = [leaving, *(self._inserted(piece()) for piece in pieces)]
        there = [rows for rows in found if rows is not None and rows.num_rows]
        return pa.concat_tables(there) if there else pa.table({})

    def completed(self, checkpoint: CheckpointId) -> None:
        """Later checkpoints may refer to the files of this checkpoint."""
        if self._state is not None:
            self._state.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """No checkpoint may refer to the files of this checkpoint."""
        if self._state is not None:
            self._state.aborted(checkpoint)

    def close(self) -> None:
        """Let go of the rows."""
        state, self._state = self._state, None
        if state is not None:
            state.close()

"""Windows of a number of records.

Records are numbered by key, in the order in which they come. A window is a range of numbers, and its state is one row
per key and pane, as for windows that share panes: the number of the first record of the pane is kept where other
windows keep a time. A window gives its result with its last record. Panes that no further window needs are forgotten,
so a key whose windows do not overlap, and whose last window is full, has no state.

The number of a key's next record follows from its panes: the first number of the newest pane, and how many records the
pane has. Where nothing is kept, the numbers begin at 0 again.

Which records are in a window depends on their order. So records are sent to the window as they are, and are combined
here. Results that have not been handed on are part of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.other_windows import CountWindow
from penstock.api.steps import ROW_COUNT, WindowStep
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators import window_table
from penstock.runtime.task.operators.aggregation import group, normal_keys, of_partials, of_records, results
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.keyed_rows import KeyedRows
from penstock.runtime.task.operators.record_values import record_values
from penstock.runtime.task.operators.sessions import codes_of
from penstock.runtime.task.operators.slow_merging import merges_by_row
from penstock.runtime.task.operators.table_state import ROWS, Loose, TableState
from penstock.runtime.task.operators.user_code import expression_error
from penstock.runtime.task.operators.window_changes import repeated
from penstock.runtime.task.operators.window_table import Header, Layout
from penstock.runtime.task.operators.windows import RESULT_ROWS
from penstock.runtime.task.slices import Steps, Work

Numbers = npt.NDArray[np.int64]

_KEY = "\0key"
"""The column with the number of each row's key."""


class CountWindowOperator(Operator):
    """Numbers records by key, and hands on the results of full windows."""

    def __init__(self, step: WindowStep) -> None:
        assert isinstance(step.window, CountWindow)
        assert step.partials is not None
        self._step = step
        self._count = step.window
        self._window = step.window.positions
        self._keys: Sequence[str] = step.keys
        self._partials = step.partials
        self._adding = of_records(step.aggregates)
        self._merging = of_partials(step.aggregates)
        self._table = KeyedRows(step.partials, step.keys, WINDOW_START)
        self._leaving: pa.Table | None = None
        """Partials of full windows, whose results have not been handed on."""
        self._state: TableState | None = None

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start."""
        super().open(context, output)
        if self._state is not None:
            self._state.begin()

    @property
    def is_row_wise(self) -> bool:
        """Whether an aggregate of the user's is called for every record."""
        return merges_by_row(self._step.aggregates)

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Take records in."""
        return Work.begin(self._take_in(batch))

    def _take_in(self, batch: pa.RecordBatch) -> Steps:
        # Each record is repeated for every window that is put together.
        most = max(1, window_table.PART_ROWS * self._count.pane // self._count.size)
        for first in range(0, batch.num_rows, most):
            self._add(batch.slice(first, most))
            is_last = first + most >= batch.num_rows
            for _ in self._hand_on():
                # Records that are not taken in yet are in no state.
                yield is_last
        yield from self._hand_on()

    def _add(self, batch: pa.RecordBatch) -> None:
        """Add records to the panes of their keys, and put full windows together."""
        names = list(self._keys)
        columns: dict[str, Any] = {key: normal_keys(batch.column(key)) for key in names}
        # Without keys a column of any name gives the table its height.
        given = pa.table(columns or {"": np.zeros(batch.num_rows)})
        found = self._table.find(given)
        keys = pa.concat_tables([found.rows.select(names), given.select(names).cast(found.rows.select(names).schema)])
        numbers = np.zeros(found.rows.num_rows + batch.num_rows, np.int64)
        if names:
            numbers = np.unique(codes_of(keys, names), return_inverse=True)[1]
        of_rows, of_batch = numbers[: found.rows.num_rows], numbers[found.rows.num_rows :]
        places = np.unique(numbers, return_index=True)[1]
        before = _next_positions(found.rows, of_rows, places.size)
        there = found.rows.drop_columns(names).append_column(_KEY, pa.array(of_rows))
        added = self._combined(batch, of_batch, _positions(of_batch, before))
        both = pa.concat_tables([there, added.select(there.schema.names).cast(there.schema)])
        rows = group(both, [_KEY, WINDOW_START], self._merging, window=self._window.panes)
        of_keys = int64_values(rows.column(_KEY))
        after = _next_positions(rows, of_keys, places.size)
        full = self._full_windows(rows, before[of_keys], after[of_keys])

        def with_keys(table: pa.Table) -> pa.Table:
            for name in names:
                column: Any = keys.column(name).take(places[int64_values(table.column(_KEY))])
                table = table.append_column(name, column)
            return table.select(self._partials.names).cast(self._partials)

        self._leave(with_keys(full))
        self._table.remove(found, np.ones(found.rows.num_rows, np.bool_))
        self._table.append(with_keys(self._needed(rows, after[of_keys])))

    def _combined(self, batch: pa.RecordBatch, numbers: Numbers, positions: Numbers) -> pa.Table:
        """One row per key and pane."""
        try:
            columns = record_values(batch, self._step.aggregates)
        except Exception as error:
            raise expression_error(error, self.context) from error
        panes: Any = pa.array(positions // self._count.pane * self._count.pane)
        columns |= {_KEY: pa.array(numbers), WINDOW_START: panes.view(self._partials.field(WINDOW_START).type)}
        return group(pa.table(columns), [_KEY, WINDOW_START], self._adding, window=self._window.panes)

    def _full_windows(self, rows: pa.Table, before: Numbers, after: Numbers) -> pa.Table:
        """The windows that have got their last record. `before` and `after` are the numbers of the next record."""
        window, panes = self._window, int64_values(rows.column(WINDOW_START))
        first = np.maximum(window.first_end(panes), window.end_after(before))
        last = np.minimum(window.last_end(panes), after // self._count.slide * self._count.slide)
        merged = group(repeated(rows, window, first, last), [_KEY, WINDOW_END], self._merging, window=window).sort_by(
            [(WINDOW_END, "ascending"), (_KEY, "ascending")]
        )
        place = merged.schema.get_field_index(WINDOW_END)
        return merged.set_column(place, WINDOW_START, merged.column(WINDOW_END))

    def _needed(self, rows: pa.Table, after: Numbers) -> pa.Table:
        """The panes that further windows have."""
        next_end = after // self._count.slide * self._count.slide + self._count.slide
        kept = int64_values(rows.column(WINDOW_START)) >= next_end - self._count.size
        return rows.filter(pa.array(kept))

    def _leave(self, full: pa.Table) -> None:
        if full.num_rows:
            self._leaving = full if self._leaving is None else pa.concat_tables([self._leaving, full])

    def _hand_on(self) -> Steps:
        step = self._step
        while self._leaving is not None:
            rows = min(RESULT_ROWS, self.slice.left)
            part, rest = self._leaving.slice(0, rows), self._leaving.slice(rows)
            made = results(part, keys=step.keys, window=step.window, aggregates=step.aggregates, schema=step.schema)
            self._leaving = rest if rest.num_rows else None
            for piece in made.combine_chunks().to_batches():
                self.output.emit(piece)
            if self.slice.spend(made.num_rows):
                yield True

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Hand on what a snapshot had, then the watermark."""
        return Work.begin(self._to_watermark(time_us, idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        yield from self._hand_on()
        self.output.watermark(time_us, idle=idle)

    # --- state ---------------------------------------------------------------------------

    def load(self, context: OperatorContext) -> None:
        """Restore the rows of this subtask's key groups."""
        self._state = TableState({ROWS: self._table}, self._step, context)
        if context.fresh or not context.restored:
            return

        def take(rows: pa.Table, header: Header) -> None:
            if rows.num_rows:
                take_in = self._leave if header.leaving is True else self._table.append
                take_in(rows.select(self._partials.names).cast(self._partials))

        self._state.load(take)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the rows by reference. The returned work writes what no completed checkpoint has."""
        assert self._state is not None
        header, leaving = Header(layout=Layout.of(self._step), fired=()), self._leaving
        loose = []
        if leaving is not None:
            rows = leaving
            loose.append(Loose(msgspec.structs.replace(header, leaving=True), lambda: rows))
        return self._state.snapshot(checkpoint, options, headers={ROWS: header}, loose=loose)

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


def _next_positions(rows: pa.Table, of_keys: Numbers, keys: int) -> Numbers:
    """For each key the number of its next record."""
    found = np.zeros(keys, np.int64)
    if rows.num_rows:
        ends = int64_values(rows.column(WINDOW_START)) + int64_values(rows.column(ROW_COUNT))
        np.maximum.at(found, of_keys, ends)
    return found


def _positions(of_batch: Numbers, before: Numbers) -> Numbers:
    """The number of each record among the records of its key, which begin at `before` of the key."""
    counts = np.bincount(of_batch, minlength=before.size)
    order = np.argsort(of_batch, kind="stable")
    begins = np.cumsum(counts) - counts
    positions = np.empty(of_batch.size, np.int64)
    positions[order] = np.arange(of_batch.size) - begins[of_batch[order]] + before[of_batch[order]]
    return positions

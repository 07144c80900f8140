"""Session windows: windows of a key that grow with their records, and become one window where they touch.

A session is partial before the exchange, as every other window: the sessions of a batch are found first, and only these
sessions cross the exchange. Behind the exchange a session is open until the watermark has reached its end. Then no
record can join the session any more.

    records ─► sessions of the batch ═key═► merged with the open sessions ─► results of the sessions that are complete

A record whose own window has fired is late only if the record joins no open session. The watermark is handed on one
microsecond behind: the event time of a result is the last time before the end of its session, and the watermark that
completes the session has reached the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.steps import WindowStep
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.api.windows import SessionWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.run_table import MOST_APPENDED, Frozen
from penstock.runtime.task.operators.sessions import find_sessions, merge_sessions
from penstock.runtime.task.operators.window_table import WindowTable
from penstock.runtime.task.operators.windows import CombineOperator, WindowOperator
from penstock.runtime.task.partitioning import key_groups

_FIRST_TIME = -(2**63)
_PLACES = 1 << 20
"""Keys are hashed to this many places, to find the sessions of a key in a run."""


class SessionCombineOperator(CombineOperator):
    """Makes partial sessions of the batches between two watermarks, or of fewer batches."""

    def _partials(self, columns: dict[str, Any], instants: npt.NDArray[np.int64], time_type: Any) -> pa.Table:
        window = self._step.window
        assert isinstance(window, SessionWindow)
        starts: Any = pa.array(instants).view(time_type)
        ends: Any = pa.array(instants + window.gap_us).view(time_type)
        table = pa.table({**columns, WINDOW_START: starts, WINDOW_END: ends})
        return merge_sessions(table, self._step.keys, self._calculations, window=window)

    def _merged(self, partials: pa.Table) -> pa.Table:
        step = self._step
        merged = merge_sessions(partials, step.keys, self._merging, window=step.window)
        return merged.select(step.schema.names).cast(step.schema)


class SessionTable(WindowTable):
    """Open sessions. No two sessions in tables of merged sessions touch, whichever tables they are in: when appended
    sessions are merged, all sessions of their keys are taken out of the tables and merged with them. So the sessions
    that are due are the heads of the tables, and most sessions are not looked at when others grow."""

    def __init__(self, step: WindowStep) -> None:
        super().__init__(step)
        self._merged_tables: list[pa.Table] = []

    @property
    def rows(self) -> int:
        """How many rows are held, merged or not."""
        return sum(table.num_rows for table in self._merged_tables) + self._appended_rows

    def append(self, rows: pa.Table) -> None:
        """Take sessions in."""
        if rows.num_rows == 0:
            return
        self._begins_at(int(self.completing_times(rows).min()))
        self._appended.append(rows)
        self._appended_rows += rows.num_rows
        newest = self._merged_tables[-1].num_rows if self._merged_tables else 0
        if self._appended_rows >= max(self.limits.run_rows, newest) or len(self._appended) >= MOST_APPENDED:
            self._flush()

    def take_due(self, last_us: int) -> pa.Table | None:
        """Remove the first sessions up to `last_us`."""
        if self._earliest is None or last_us < self._earliest:
            return None
        # Merged sessions may end later than the sessions that they were made of.
        self._flush()
        times = [self.completing_times(table) for table in self._merged_tables]
        counts = [int(np.searchsorted(each, last_us, side="right")) for each in times]
        most = self.limits.part_blocks * self.limits.block_rows
        if sum(counts) > most:
            found = np.concatenate([each[:count] for each, count in zip(times, counts, strict=True)])
            last_us = int(np.partition(found, most - 1)[most - 1])
            counts = [int(np.searchsorted(each, last_us, side="right")) for each in times]
        pairs = list(zip(self._merged_tables, counts, strict=True))
        due = [table.slice(0, count) for table, count in pairs if count]
        self._merged_tables = [_rest(table, count) for table, count in pairs if count < table.num_rows]
        self._set_earliest()
        return pa.concat_tables(due).combine_chunks() if due else None

    def freeze(self) -> Frozen:
        """All sessions, by reference."""
        return Frozen(tables=(*self._merged_tables, *self._appended))

    def _flush(self) -> None:
        if not self._appended:
            return
        merged = self._grouped(self._appended)
        # Keys that share a place with a key of the appended sessions are taken out in vain, and stay as they are.
        grows = np.zeros(_PLACES, np.bool_)
        grows[self._places(merged)] = True
        found, tables = [merged], []
        for table in self._merged_tables:
            growing = grows[self._places(table)]
            if growing.any():
                found.append(table.filter(pa.array(growing)))
            if not growing.all():
                tables.append(table.filter(pa.array(~growing)) if growing.any() else table)
        table = merged if len(found) == 1 else self._grouped(found)
        while tables and tables[-1].num_rows <= 2 * table.num_rows:
            table = pa.concat_tables([tables.pop(), table]).combine_chunks()
        order = np.argsort(self.completing_times(table), kind="stable")
        self._merged_tables = [*tables, table.take(order)]
        self._appended, self._appended_rows = [], 0
        self._set_earliest()

    def _set_earliest(self) -> None:
        firsts = (int(self.completing_times(table.slice(0, 1))[0]) for table in self._merged_tables)
        self._earliest = min(firsts, default=None)

    def _places(self, sessions: pa.Table) -> npt.NDArray[np.int32]:
        return np.concatenate([key_groups(batch, self.keys, _PLACES) for batch in sessions.to_batches()])

    def touching(self, sessions: pa.Table) -> pa.Table:
        """The keys and the times of all open sessions whose time touches the time of any of these sessions, merged or
        not."""
        first = int(int64_values(sessions.column(WINDOW_START)).min())
        last = int(int64_values(sessions.column(WINDOW_END)).max())
        names, found = sessions.schema.names, [sessions.slice(0, 0)]
        for table in self.freeze().tables:
            starts, ends = int64_values(table.column(WINDOW_START)), int64_values(table.column(WINDOW_END))
            found.append(table.select(names).filter(pa.array((starts <= last) & (ends >= first))))
        return pa.concat_tables(found)

    def _grouped(self, parts: Sequence[pa.Table]) -> pa.Table:
        return merge_sessions(pa.concat_tables(parts), self.keys, self._calculations, window=self._window)


def _rest(table: pa.Table, count: int) -> pa.Table:
    left = table.slice(count)
    # A slice keeps the memory of the whole table. So the rest is copied when it is less than half of the table.
    return left.take(np.arange(left.num_rows)) if left.num_rows < count else left


class SessionWindowOperator(WindowOperator):
    """Merges partial sessions. The results of a session are emitted when the watermark has reached its end."""

    _table: SessionTable

    def _make_table(self, step: WindowStep) -> WindowTable:
        return SessionTable(step)

    def _late(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        late = self._fired.late(int64_values(batch.column(WINDOW_END)), lambda: self._groups(batch))
        if late is None or not late.any():
            return None
        keys = self._step.keys
        given = pa.Table.from_batches([batch]).select([*keys, WINDOW_START, WINDOW_END])
        is_open = self._table.touching(given.filter(pa.array(late)))
        found = find_sessions(pa.concat_tables([given, is_open]), keys)
        return self._fired.late(found.ends[found.of_row[: batch.num_rows]], lambda: self._groups(batch))

    def _hand_on_watermark(self, time_us: int, *, idle: bool) -> None:
        is_limit = time_us in (MAX_WATERMARK, _FIRST_TIME)
        self.output.watermark(time_us if is_limit else time_us - 1, idle=idle)

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
    """Open sessions. No two sessions in runs touch, whichever runs they are in: when appended sessions are merged, all
    sessions of their keys are taken out of the runs and merged with them. So the sessions that are due are the heads of
    the runs, and most sessions are not looked at when others grow."""

    def due_parts(self, last_us: int) -> list[int]:
        """The parts in which to take every session up to `last_us`."""
        if self.earliest is None or last_us < self.earliest:
            return []
        # Merged sessions may end later than the sessions that they were made of.
        self._merge()
        return super().due_parts(last_us)

    def _merge(self) -> None:
        if not self._appended:
            return
        merged = self._grouped(self._appended)
        # Keys that share a place with a key of the appended sessions are taken out in vain, and stay as they are.
        grows = np.zeros(_PLACES, np.bool_)
        grows[self._places(merged)] = True
        found, runs = [merged], []
        for run in self._runs:
            growing = grows[self._places(run)]
            if growing.any():
                found.append(run.filter(pa.array(growing)))
            if not growing.all():
                runs.append(run.filter(pa.array(~growing)) if growing.any() else run)
        run = merged if len(found) == 1 else self._grouped(found)
        while runs and runs[-1].num_rows <= 2 * run.num_rows:
            run = pa.concat_tables([runs.pop(), run]).combine_chunks()
        self._runs = [*runs, self._ordered(run)]
        self._appended, self._appended_rows = [], 0
        self._earliest = min(int(self.completing_times(each.slice(0, 1))[0]) for each in self._runs)

    def _places(self, sessions: pa.Table) -> npt.NDArray[np.int32]:
        return np.concatenate([key_groups(batch, self._keys, _PLACES) for batch in sessions.to_batches()])

    def touching(self, sessions: pa.Table) -> pa.Table:
        """The keys and the times of all open sessions whose time touches the time of any of these sessions, merged or
        not."""
        first = int(int64_values(sessions.column(WINDOW_START)).min())
        last = int(int64_values(sessions.column(WINDOW_END)).max())
        names, found = sessions.schema.names, [sessions.slice(0, 0)]
        for table in self.freeze():
            starts, ends = int64_values(table.column(WINDOW_START)), int64_values(table.column(WINDOW_END))
            found.append(table.select(names).filter(pa.array((starts <= last) & (ends >= first))))
        return pa.concat_tables(found)

    def _grouped(self, parts: Sequence[pa.Table]) -> pa.Table:
        return merge_sessions(pa.concat_tables(parts), self._keys, self._calculations, window=self._window)


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

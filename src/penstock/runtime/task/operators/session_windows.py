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

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.steps import WindowStep
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.api.windows import SessionWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.run_merging import runs_to_merge
from penstock.runtime.task.operators.run_table import MOST_APPENDED, Frozen
from penstock.runtime.task.operators.sessions import SESSION, find_sessions, merge_sessions, sessions_of, values_of
from penstock.runtime.task.operators.slow_merging import Merged
from penstock.runtime.task.operators.sorted_runs import KEY_HASH, SortedRun, in_blocks
from penstock.runtime.task.operators.window_table import WindowTable
from penstock.runtime.task.operators.windows import CombineOperator, WindowOperator
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Slice

Bits = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int32]

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


class LiveSessions:
    """What is left of a run of sessions. A run loses its first sessions when they are complete, and other sessions when
    they grow."""

    def __init__(self, run: SortedRun, rows: pa.Table, places: Places) -> None:
        self.run = run
        self.table = rows
        """The sessions that are left."""
        self._places = places
        """The place of each of these sessions in the run."""

    @property
    def rows(self) -> int:
        """How many sessions are left."""
        return self.table.num_rows

    @property
    def first(self) -> int:
        """All sessions before this place are gone."""
        return int(self._places[0])

    @property
    def gone(self) -> Bits | None:
        """For each session of the run whether it is gone; None if no session behind `first` is gone. Takes a time that
        grows with the run."""
        if self._places.size == self.run.rows - self.first:
            return None
        found = np.ones(self.run.rows, np.bool_)
        found[self._places] = False
        return found

    def behind(self, count: int) -> LiveSessions | None:
        """Without the first sessions; None if no session is left."""
        if count == self.rows:
            return None
        return LiveSessions(self.run, self.table.slice(count), self._places[count:]) if count else self

    def only(self, kept: Bits) -> LiveSessions | None:
        """With only some of the sessions; None if no session is left."""
        if kept.all():
            return self
        return LiveSessions(self.run, self.table.filter(pa.array(kept)), self._places[kept]) if kept.any() else None


class SessionTable(WindowTable):
    """Open sessions. No two sessions in runs touch, whichever runs they are in: when appended sessions are merged, all
    sessions of their keys are taken out of the runs and merged with them. So the sessions that are due are the heads of
    the runs, and most sessions are not looked at when others grow."""

    def __init__(self, step: WindowStep) -> None:
        super().__init__(step)
        self._live: list[LiveSessions] = []

    @property
    def rows(self) -> int:
        """How many rows are held, merged or not."""
        return sum(live.rows for live in self._live) + self._appended_rows

    def append(self, rows: pa.Table) -> None:
        """Take sessions in."""
        if rows.num_rows == 0:
            return
        self._begins_at(int(self.completing_times(rows).min()))
        self._appended.append(rows)
        self._appended_rows += rows.num_rows
        if self.slow is None and self._are_many_appended:
            self._flush()

    @property
    def _are_many_appended(self) -> bool:
        newest = self._live[-1].rows if self._live else 0
        return self._appended_rows >= max(self.limits.run_rows, newest) or len(self._appended) >= MOST_APPENDED

    def take_in(
        self, blocks: Sequence[pa.RecordBatch], buffer: pa.Buffer | None, first: int, gone: Bits | None = None
    ) -> SortedRun:
        """Take a run in that was restored, of which the rows before `first` are gone."""
        assert gone is None
        run = SortedRun(blocks, self.time, buffer)
        if (live := _live(run).behind(first)) is not None:
            self._live.append(live)
            self._set_earliest()
        return run

    def take_due(self, last_us: int) -> pa.Table | None:
        """Remove the first sessions up to `last_us`."""
        if self._earliest is None or last_us < self._earliest:
            return None
        # Merged sessions may end later than the sessions that they were made of.
        self._flush()
        return self._first_due(last_us)

    def take_due_in_slices(self, last_us: int, slice_: Slice) -> Generator[None, None, pa.Table | None]:
        """As `take_due`. Open sessions are merged in slices."""
        if self._earliest is None or last_us < self._earliest:
            return None
        if self.slow is not None:
            yield from self.flush_in_slices(slice_)
        return self.take_due(last_us)

    def _first_due(self, last_us: int) -> pa.Table | None:
        times = [self.completing_times(live.table) for live in self._live]
        counts = [int(np.searchsorted(each, last_us, side="right")) for each in times]
        most = self.limits.part_blocks * self.limits.block_rows
        if sum(counts) > most:
            found = np.concatenate([each[:count] for each, count in zip(times, counts, strict=True)])
            last_us = int(np.partition(found, most - 1)[most - 1])
            counts = [int(np.searchsorted(each, last_us, side="right")) for each in times]
        pairs = list(zip(self._live, counts, strict=True))
        due = [live.table.slice(0, count) for live, count in pairs if count]
        self._set_live([live.behind(count) for live, count in pairs])
        return pa.concat_tables(due).combine_chunks() if due else None

    def freeze(self) -> Frozen:
        """All sessions, by reference."""
        return Frozen(runs=tuple(self._live), tables=tuple(self._appended))

    def _flush(self) -> None:
        if not self._appended:
            return
        merged = self._grouped(self._appended)
        found, left = self._growing(merged)
        self._keep(merged if len(found) == 1 else self._grouped(found), left)

    def settle(self, slice_: Slice) -> Generator[None, None, None]:
        """Merge the appended sessions if they are many. A snapshot may be taken between two slices."""
        if self.slow is not None and self._are_many_appended:
            yield from self.flush_in_slices(slice_)

    def flush_in_slices(self, slice_: Slice) -> Generator[None, None, None]:
        """Merge the appended sessions. Meanwhile nothing may be appended."""
        if self._appended:
            merged = yield from self._merged_in_slices(self._appended, slice_)
            found, left = self._growing(merged)
            if len(found) > 1:
                merged = yield from self._merged_in_slices(found, slice_)
            self._keep(merged, left)

    def _merged_in_slices(self, parts: Sequence[pa.Table], slice_: Slice) -> Merged:
        assert self.slow is not None
        table = pa.concat_tables(parts)
        sessions = find_sessions(table, self.keys)
        grouped = yield from self.slow.grouped(values_of(table, self.keys, sessions), [SESSION], slice_)
        return sessions_of(table, self.keys, sessions, grouped).select(self.row_columns)

    def _growing(self, merged: pa.Table) -> tuple[list[pa.Table], list[LiveSessions | None]]:
        """Merged sessions and the open sessions that may touch them, and what is left of the runs without these."""
        # Keys that share a place with a key of the appended sessions are taken out in vain, and stay as they are.
        grows = np.zeros(_PLACES, np.bool_)
        grows[self._places(merged)] = True
        found, left = [merged], list[LiveSessions | None]()
        for live in self._live:
            growing = grows[self._places(live.table)]
            if growing.any():
                found.append(live.table.filter(pa.array(growing)))
            left.append(live.only(~growing))
        return found, left

    def _keep(self, merged: pa.Table, left: Sequence[LiveSessions | None]) -> None:
        """The merged sessions take the place of the appended sessions and of what is taken out of the runs."""
        tables = [merged]
        self._appended, self._appended_rows = [], 0
        older = [live for live in left if live is not None]
        first = runs_to_merge([*(live.rows for live in older), tables[0].num_rows], self.limits)
        if first is not None:
            # The sessions of different runs do not touch.
            tables += [live.table for live in older[first:]]
            del older[first:]
        self._set_live([*older, self._made_run(tables)])

    def _made_run(self, tables: Sequence[pa.Table]) -> LiveSessions:
        rows = pa.concat_tables(tables)
        builder = self._place.build()
        for block in in_blocks(rows, self.keys, self.time, self.limits.block_rows):
            builder.add(block)
        blocks, buffer = builder.end()
        return _live(SortedRun(blocks, self.time, buffer))

    def _set_live(self, left: Sequence[LiveSessions | None]) -> None:
        """Keep what is left of runs. A run that has lost half of its sessions is made anew, because what it has lost
        stays in memory."""
        kept = [live for live in left if live is not None]
        self._live = [live if 2 * live.rows >= live.run.rows else self._made_run([live.table]) for live in kept]
        self._set_earliest()

    def _set_earliest(self) -> None:
        firsts = (int(self.completing_times(live.table.slice(0, 1))[0]) for live in self._live)
        self._earliest = min(firsts, default=None)

    def _places(self, sessions: pa.Table) -> npt.NDArray[np.int32]:
        return np.concatenate([key_groups(batch, self.keys, _PLACES) for batch in sessions.to_batches()])

    def touching(self, sessions: pa.Table) -> pa.Table:
        """The keys and the times of all open sessions whose time touches the time of any of these sessions."""
        # An appended session may join these sessions to a session that these sessions do not touch themselves. After
        # the merge no such session is left.
        self._flush()
        first = int(int64_values(sessions.column(WINDOW_START)).min())
        last = int(int64_values(sessions.column(WINDOW_END)).max())
        names, found = sessions.schema.names, [sessions.slice(0, 0)]
        for table in (live.table for live in self._live):
            starts, ends = int64_values(table.column(WINDOW_START)), int64_values(table.column(WINDOW_END))
            found.append(table.select(names).filter(pa.array((starts <= last) & (ends >= first))))
        return pa.concat_tables(found)

    def _grouped(self, parts: Sequence[pa.Table]) -> pa.Table:
        return merge_sessions(pa.concat_tables(parts), self.keys, self._calculations, window=self._window)


def _live(run: SortedRun) -> LiveSessions:
    rows = pa.Table.from_batches(run.blocks).drop_columns([KEY_HASH])
    return LiveSessions(run, rows, np.arange(run.rows, dtype=np.int32))


class SessionWindowOperator(WindowOperator):
    """Merges partial sessions. The results of a session are emitted when the watermark has reached its end."""

    _table: SessionTable

    def _make_table(self, step: WindowStep) -> WindowTable:
        return SessionTable(step)

    def _before_append(self, batch: pa.RecordBatch) -> Generator[None, None, None]:
        # Sessions that may be late are compared with the open sessions.
        late = self._fired.late(int64_values(batch.column(WINDOW_END)), lambda: self._groups(batch))
        if late is not None and late.any():
            yield from self._table.flush_in_slices(self.slice)

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

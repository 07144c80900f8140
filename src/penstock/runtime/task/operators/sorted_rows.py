"""Rows that wait for event time, in runs ordered by their time.

Rows are appended as they come. When the first rows are asked for, and when there are enough of them, the appended rows
become a run in the order of `sorted_runs`. Small runs are merged; large runs are not, because every row leaves once,
from the head of its run. So a row is sorted a few times, and the rows that are due are the heads of all runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.run_merging import runs_to_merge
from penstock.runtime.task.operators.run_table import MOST_APPENDED, Frozen
from penstock.runtime.task.operators.sorted_runs import (
    KEY_HASH,
    LAST_HASH,
    LiveSorted,
    Place,
    RunLimits,
    SortedRun,
    heads,
    in_blocks,
    next_place,
    ordered,
    without,
)
from penstock.runtime.task.operators.window_table import Header, encode_rows
from penstock.state.run_places import MemoryPlace, RunPlace


class SortedRows:
    """Rows by time. `keys` are the key columns, `time` is the name of the column of times."""

    def __init__(self, keys: Sequence[str], time: str, schema: pa.Schema) -> None:
        self.keys = tuple(keys)
        self.time = time
        self.row_columns = tuple(schema.names)
        """The columns of the rows."""
        self.limits = RunLimits()
        # Rows of different batches must have one schema: whether a column may be null differs from sender to sender.
        self._schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        self._runs: list[LiveSorted] = []
        self._appended: list[pa.Table] = []
        self._appended_rows = 0
        self._appended_bytes = 0
        self._earliest: int | None = None
        self._place: RunPlace = MemoryPlace()

    def keep_at(self, place: RunPlace, limits: RunLimits) -> None:
        """From here on runs are kept at this place, within these limits. The table closes the place."""
        self._place, self.limits = place, limits

    def close(self) -> None:
        """The rows are not needed any more."""
        self._place.close()

    @property
    def rows(self) -> int:
        """How many rows wait."""
        return sum(live.rows for live in self._runs) + self._appended_rows

    def append(self, rows: pa.Table) -> None:
        """Take rows in. No time is null."""
        if rows.num_rows == 0:
            return
        rows = rows.cast(self._schema)
        self._begins_at(int(int64_values(rows.column(self.time)).min()))
        self._appended.append(rows)
        self._appended_rows += rows.num_rows
        self._appended_bytes += rows.nbytes
        limits = self.limits
        is_large = self._appended_rows >= limits.run_rows or self._appended_bytes >= limits.run_bytes
        if is_large or len(self._appended) >= MOST_APPENDED:
            self._flush()

    def take_in(self, blocks: Sequence[pa.RecordBatch], buffer: pa.Buffer | None, first: int) -> SortedRun:
        """Take a run in that was restored, of which the rows before `first` are gone."""
        run = SortedRun(blocks, self.time, buffer)
        if first < run.rows:
            self._begins_at(run.first_time(first))
            self._runs.append(LiveSorted(run, first))
        return run

    def take_in_rows(self, blocks: Sequence[pa.RecordBatch]) -> None:
        """Take in rows of a run that was restored."""
        if blocks:
            builder = self._place.build()
            for block in blocks:
                builder.add(block)
            self.take_in(*builder.end(), 0)

    def take_due(self, last_us: int) -> pa.Table | None:
        """Remove the first rows up to a time, at most about as many as a part has; all rows of a key and a time at
        once. The rows are in no order. None if there is no row up to that time."""
        if self._earliest is None or last_us < self._earliest:
            return None
        self._flush()
        end = next_place(self._runs, Place(last_us, LAST_HASH), self.limits)
        due = [batch for _, batches in heads(self._runs, end) for batch in batches]
        left = (without(live, end) for live in self._runs)
        self._runs = [live for live in left if live is not None]
        self._earliest = min((live.run.first_time(live.first) for live in self._runs), default=None)
        return pa.Table.from_batches(due).drop_columns([KEY_HASH])

    def freeze(self) -> Frozen:
        """All rows, by reference. Later changes replace runs and tables, and do not change them."""
        return Frozen(runs=tuple(self._runs), tables=tuple(self._appended))

    def encode(self, frozen: Frozen, *, header: Header, groups: int) -> bytes:
        """The bytes of a snapshot in one file. Reads nothing that changes, and may run off the loop."""
        parts = frozen.parts
        rows = pa.concat_tables(parts) if parts else pa.table({})
        return encode_rows(rows, keys=self.keys, header=header, groups=groups)

    def _begins_at(self, time_us: int) -> None:
        self._earliest = time_us if self._earliest is None else min(self._earliest, time_us)

    def _flush(self) -> None:
        """Make a run of the appended rows, and merge small runs."""
        if not self._appended:
            return
        rows = pa.concat_tables(self._appended)
        self._appended, self._appended_rows, self._appended_bytes = [], 0, 0
        self._add_run(list(in_blocks(rows, self.keys, self.time, self.limits.block_rows)))
        small = len(self._runs)
        while small and self._is_small(self._runs[small - 1]):
            small -= 1
        first = runs_to_merge([live.rows for live in self._runs[small:]], self.limits)
        if first is not None:
            merged = self._runs[small + first :]
            del self._runs[small + first :]
            blocks = [block for live in merged for block in live.run.rows_between(live.first, live.run.rows)]
            together = ordered(pa.Table.from_batches(blocks), self.time)
            self._add_run(together.to_batches(max_chunksize=self.limits.block_rows))

    def _is_small(self, live: LiveSorted) -> bool:
        limits = self.limits
        if live.run.rows >= limits.run_rows:
            return False
        return sum(block.nbytes for block in live.run.blocks) < limits.run_bytes

    def _add_run(self, blocks: Sequence[pa.RecordBatch]) -> None:
        builder = self._place.build()
        for block in blocks:
            builder.add(block)
        kept, buffer = builder.end()
        self._runs.append(LiveSorted(SortedRun(kept, self.time, buffer)))

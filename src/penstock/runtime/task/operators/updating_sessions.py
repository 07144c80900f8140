"""Sessions that show updates. A session that is shown and then grows is deleted, and is inserted again when it is shown
again.

Sessions are found by key, because any session of a key may grow or merge (`operators/keyed_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.steps import WindowStep
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.keyed_rows import KeyedRows
from penstock.runtime.task.operators.sessions import find_sessions, merge_sessions
from penstock.runtime.task.operators.updating_windows import UpdatingWindowOperator
from penstock.runtime.task.operators.window_changes import changes_of_sessions
from penstock.runtime.task.slices import Steps

Bits = npt.NDArray[np.bool_]

FIRST_TIME = -(2**63)


class UpdatingSessionOperator(UpdatingWindowOperator):
    """Sessions."""

    _table: KeyedRows

    def __init__(self, step: WindowStep) -> None:
        super().__init__(step)
        self._table = KeyedRows(self._partials, step.keys, WINDOW_END)

    @property
    def _windows_per_row(self) -> int:
        return 1

    def _completing_until(self, time_us: int) -> int:
        return time_us

    def _before_settling(self, settled_us: int) -> Steps:
        # A session that waits may belong to a session that is shown and ends first. Both are one session that ends
        # later.
        for part in self._table.between(FIRST_TIME, settled_us):
            found = self._waiting.find(part().select(self._keys))
            touching = int64_values(found.rows.column(WINDOW_START)) <= settled_us
            if touching.any():
                self._waiting.remove(found, touching)
                yield from self._add_parts(found.rows.filter(pa.array(touching)))

    def _settle(self, settled_us: int) -> None:
        self._table.drop(settled_us)

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
            shown = np.broadcast_to(times, (found.rows.num_rows + added.num_rows,))
        (gone, merged), changes = changes_of_sessions(
            found.rows, added, self._keys, self._calculations, window=self._step.window, shown=shown
        )
        self._table.remove(found, gone)
        self._table.append(merged)
        return changes

    def _show(self, time_us: int) -> Steps:
        shown = copy(self._shown)
        self._pieces = [partial(self._newly, part, shown) for part in self._table.between(shown.least, time_us)]
        if time_us != MAX_WATERMARK:
            self._shown.advance(time_us)
        elif (latest := self._table.latest) is not None:
            # Sessions that follow a drain are shown when their time has come.
            self._shown.advance(latest)
        yield from self._show_pieces()

    def _newly(self, part: Callable[[], pa.Table], shown: Fired) -> pa.Table:
        """The sessions of a part that had not been shown."""
        rows = part()
        if shown.least == shown.most:
            return rows
        ends = int64_values(rows.column(WINDOW_END))
        return rows.filter(pa.array(ends > shown.of_rows(lambda: self._groups(rows))))

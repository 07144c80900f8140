"""Running aggregates in memory as a table: the rows of one subtask, the newest of each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.core.messages import StateFile
from penstock.runtime.task.operators.running_files import KEY_GROUP, RunningSnapshot, latest_rows
from penstock.runtime.task.operators.running_table import GONE, WRITTEN
from penstock.state.backend import StateReader


class RunningRows:
    """The rows of one subtask. Raises `CorruptFile` if the files cannot be read."""

    def __init__(self, index: bytes, files: Sequence[StateFile], reader: StateReader, *, what: str) -> None:
        self._snapshot = RunningSnapshot(index, files, what=what)
        self._reader = reader
        self.keys = self._snapshot.header.layout.keys
        self.size_bytes = self._snapshot.size_bytes

    @cached_property
    def _rows(self) -> pa.Table:
        tables = list(self._snapshot.segments(self._reader))
        rows = latest_rows(pa.concat_tables(tables).combine_chunks(), self.keys) if tables else pa.table({})
        kept: Any = pa.array([not gone for gone in rows.column(GONE).to_pylist()], pa.bool_())
        return rows.filter(kept)

    def iterate(self, groups: tuple[int, int]) -> Iterator[pa.Table]:
        """The rows of a range of key groups: the key group, the keys, the partial columns and, if rows expire, when a
        row was written."""
        numbers = self._rows.column(KEY_GROUP).to_numpy()
        own: Any = pa.array((numbers >= groups[0]) & (numbers <= groups[1]))
        yield self.table.filter(own)

    @property
    def table(self) -> pa.Table:
        """All rows."""
        expire = self._snapshot.header.ttl_ms is not None
        own = (GONE, WRITTEN, KEY_GROUP)
        columns = self._rows.schema.names[: -len(own)]
        return self._rows.select([KEY_GROUP, *columns, *([WRITTEN] if expire else [])])

"""A table of a world that changes all the time, and the step that checks which versions records have met.

Each row of the table has the number of its version. The rows of a key are the same in every version. So which rows a
record meets is known, and which version it meets is not. But no record may meet an earlier version than the record of
its key before it, whatever fails meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from penstock.api.functions import KeyedContext, KeyedFunction
from penstock.api.state_declarations import value_state
from penstock.api.static_tables import RefreshedTable, TableVersion
from penstock.sim.external import system_of
from penstock.sim.joining import NOTHING, TABLE_ROWS, TABLE_SCHEMA

VERSION = "version"
_CHANGES_EVERY_MS = 100


class ChangingTable(RefreshedTable):
    """The table of a world, with another version every now and then."""

    every_ms = 1_000

    def __init__(self, world: int) -> None:
        self._world = world

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, and the version."""
        return TABLE_SCHEMA.append(pa.field(VERSION, pa.int64()))

    def read_anew(self) -> TableVersion:
        """Nobody reads this table: it changes by itself."""
        return self.newest()

    def newest(self) -> TableVersion:
        """The version of the moment."""
        now_ms = system_of(self._world).elapsed_ms
        return TableVersion(now_ms // _CHANGES_EVERY_MS + 1, now_ms)

    def batches_of(self, version: TableVersion) -> Iterable[pa.RecordBatch]:
        """The rows, each with the version."""
        keys, numbers = zip(*TABLE_ROWS, strict=True)
        columns = [pa.array(each, pa.int64()) for each in (keys, numbers, [version.number] * len(keys))]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return [batch.slice(0, 20), batch.slice(20)]


class NotOlder(KeyedFunction):
    """Hands records on without their versions, and changes a record that has met an earlier version than the record of
    its key before it."""

    last = value_state("last", "bigint", default=0)

    def on_row(self, row: dict[str, Any], context: KeyedContext) -> dict[str, Any]:  # noqa: ARG002
        """The record. The number of a record with an earlier version is a number that no row of the table has."""
        version = row.pop(VERSION)
        if version != NOTHING:
            if version < self.last.get():
                row["number"] += 1_000
            self.last.set(version)
        return row

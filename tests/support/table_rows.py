"""Rows of a savepoint that is written, from a table in memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.savepoints.rows import groups_of
from penstock.savepoints.tables import column_names
from penstock.state.format import KEY_GROUP


class TableRows:
    """Rows that are in memory."""

    def __init__(self, table: pa.Table, keys: pa.Schema, groups: int) -> None:
        (name,) = column_names([KEY_GROUP], keys.names)
        if name in table.schema.names:
            table = table.drop_columns([name])
        whole = table.combine_chunks()
        numbers = [groups_of(batch, keys, groups) for batch in whole.to_batches()]
        self._table = whole.append_column(name, pa.chunked_array(numbers, pa.int32()))
        self._name = name

    def of_groups(self, first: int, last: int) -> pa.Table:
        """The rows of these key groups."""
        numbers: Any = self._table.column(self._name).to_numpy()
        return self._table.filter(pa.array((numbers >= first) & (numbers <= last)))

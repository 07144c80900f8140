"""Grouping by addressing instead of hashing, for keys that lie close together.

A single integer key, with or without a window, is often dense: ids are handed out in turn, and a batch has the newest
ids. Then every possible (window, key) gets a cell of a table, and the cell of a record is found by arithmetic.
Addressing is several times as fast as hashing, and is not tried if there would be many more cells than rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import Calculation as Calculation
from penstock.api.window_schema import WINDOW_END, WINDOW_START

_CELLS_PER_ROW = 4
_FREE_CELLS = 4_096

_INT64 = np.iinfo(np.int64)
_FUNCTIONS = ("count", "sum", "min", "max")
"""The functions that are computed by addressing."""


def group_dense(
    table: pa.Table, keys: Sequence[str], calculations: Sequence[Calculation], *, spacing_us: int | None
) -> pa.Table | None:
    """One row per distinct key, ordered by window and key; None if the table cannot be grouped in this way.

    The key is one int64 column. `WINDOW_START` or `WINDOW_END` may be a second key column; its times are whole
    multiples of `spacing_us` apart. Values are int64 without nulls. The caller knows that the sums fit into int64.
    """
    windowed = len(keys) == 2 and keys[1] in (WINDOW_START, WINDOW_END)
    if table.num_rows == 0 or not (windowed or len(keys) == 1):
        return None
    if not all(c.function in _FUNCTIONS for c in calculations):
        return None
    needed = {keys[0], *(c.column for c in calculations if c.column is not None)}
    if not all(_is_plain(table.column(name)) for name in needed):
        return None
    key = int64_values(table.column(keys[0]))
    least = int(key.min())
    span = int(key.max()) - least + 1
    first, windows, spacing = 0, 1, 1
    if windowed:
        if spacing_us is None:
            return None
        spacing = spacing_us
        starts = int64_values(table.column(keys[1]))
        first = int(starts.min())
        windows = (int(starts.max()) - first) // spacing + 1
    cells = windows * span
    if cells > _CELLS_PER_ROW * table.num_rows + _FREE_CELLS:
        return None
    where = key - least
    if windows > 1:
        where += (starts - first) // spacing * span
    counts = np.bincount(where, minlength=cells)
    found = np.flatnonzero(counts)
    columns: dict[str, Any] = {keys[0]: pa.array(found % span + least if windows > 1 else found + least)}
    if windowed:
        times = found // span * spacing + first if windows > 1 else np.full(found.size, first)
        columns[keys[1]] = pa.array(times).view(table.schema.field(keys[1]).type)
    for calculation in calculations:
        if calculation.function == "count":
            columns[calculation.name] = pa.array(counts[found])
        else:
            values = int64_values(table.column(str(calculation.column)))
            columns[calculation.name] = pa.array(_reduced(str(calculation.function), values, where, cells)[found])
    return pa.table(columns)


def _reduced(
    function: str, values: npt.NDArray[np.int64], where: npt.NDArray[np.int64], cells: int
) -> npt.NDArray[np.int64]:
    if function == "sum":
        reduced = np.zeros(cells, np.int64)
        np.add.at(reduced, where, values)
    elif function == "max":
        reduced = np.full(cells, _INT64.min)
        np.maximum.at(reduced, where, values)
    else:
        reduced = np.full(cells, _INT64.max)
        np.minimum.at(reduced, where, values)
    return reduced


def int64_values(column: Any) -> npt.NDArray[np.int64]:
    """A column of 64-bit values without nulls (int64, timestamps), as a numpy array. The values are copied only if the
    column has several chunks."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.asarray(column.view(pa.int64()).to_numpy())


def _is_plain(column: Any) -> bool:
    return pt.is_int64(column.type) and column.null_count == 0

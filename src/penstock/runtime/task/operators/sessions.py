"""Which rows belong to one session, for whole tables at once.

Every row has a key and a time from `window_start` to `window_end`: a record lasts for the gap, a partial session from
its first record to the gap after its last record. Rows of one key whose times touch belong to one session. All
functions here are pure. Sessions may be merged in any order with the same result, except for the last bits of sums of
floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.api.windows import WindowType
from penstock.runtime.task.operators.aggregation import group
from penstock.runtime.task.operators.dense import Calculation, int64_values

Times = npt.NDArray[np.int64]

SESSION = "\0session"
"""The column with the number of each row's session, while rows are grouped."""
_LARGEST = 2**62
_DENSE = 2**32
"""Whole numbers that lie closer together than this stand for themselves."""


class Sessions(NamedTuple):
    """The sessions of a table's rows."""

    of_row: npt.NDArray[np.int64]
    """The number of each row's session."""
    rows: npt.NDArray[np.intp]
    """For each session one of its rows, which has the key of the session."""
    starts: Times
    ends: Times


def find_sessions(table: pa.Table, keys: Sequence[str]) -> Sessions:
    """The sessions of the rows of a table that has at least one row."""
    codes = codes_of(table, keys)
    starts, ends = int64_values(table.column(WINDOW_START)), int64_values(table.column(WINDOW_END))
    order = _order(codes, starts)
    codes, starts, ends = codes[order], starts[order], ends[order]
    begins = np.ones(codes.size, np.bool_)
    begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] > _reached(codes, starts, ends)[:-1])
    first = np.flatnonzero(begins)
    of_row = np.empty(codes.size, np.int64)
    of_row[order] = np.cumsum(begins) - 1
    return Sessions(of_row, order[first], starts[first], np.maximum.reduceat(ends, first))


def merge_sessions(
    table: pa.Table, keys: Sequence[str], calculations: Sequence[Calculation], *, window: WindowType
) -> pa.Table:
    """One row per session: the keys, `window_start`, `window_end`, then the calculations. Raises `UsageError` if a sum
    does not fit into int64."""
    found = find_sessions(table, keys)
    return sessions_of(table, keys, found, group(values_of(table, keys, found), [SESSION], calculations, window=window))


def values_of(table: pa.Table, keys: Sequence[str], found: Sessions) -> pa.Table:
    """The rows with the numbers of their sessions in place of keys and times."""
    # A calculation may read columns that it does not name here.
    others = [name for name in table.schema.names if name not in (*keys, WINDOW_START, WINDOW_END)]
    return pa.table({SESSION: pa.array(found.of_row), **{name: table.column(name) for name in others}})


def sessions_of(table: pa.Table, keys: Sequence[str], found: Sessions, grouped: pa.Table) -> pa.Table:
    """The sessions of a table, whose rows `values_of` gave, from one row per number of a session."""
    time_type = table.schema.field(WINDOW_START).type
    numbers = int64_values(grouped.column(SESSION))
    rows = found.rows[numbers]
    merged: dict[str, Any] = {key: table.column(key).take(rows) for key in keys}
    for name, times in ((WINDOW_START, found.starts), (WINDOW_END, found.ends)):
        merged[name] = pa.array(times[numbers]).view(time_type)
    merged.update({name: grouped.column(name) for name in grouped.schema.names if name != SESSION})
    return pa.table(merged)


def codes_of(table: pa.Table, keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """A number for each row: equal numbers for equal keys, whatever the types of the key columns."""
    codes = np.zeros(table.num_rows, np.int64)
    for number, key in enumerate(keys):
        column: Any = table.column(key)
        if len(keys) == 1 and pa.types.is_int64(column.type) and column.null_count == 0:
            values = int64_values(column)
            least = int(values.min())
            if int(values.max()) - least < _DENSE:
                return values - least
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        encoded = column.dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
        # Numbered anew after each column, so that the product fits into 64 bits.
        codes = encoded if number == 0 else _numbered(codes * table.num_rows + encoded)
    return codes


def _numbered(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    encoded: Any = pa.array(values).dictionary_encode()
    return np.asarray(encoded.indices.to_numpy()).astype(np.int64)


def _order(codes: npt.NDArray[np.int64], starts: Times) -> npt.NDArray[np.intp]:
    """The rows by key and start."""
    first = int(starts.min())
    span = int(starts.max()) - first + 1
    if (int(codes.max()) + 1) * span < _LARGEST:
        return np.argsort(codes * span + (starts - first))
    return np.lexsort((starts, codes))


def _reached(codes: npt.NDArray[np.int64], starts: Times, ends: Times) -> Times:
    """For each row the latest end of the row and of all rows of its key before the row. Rows are in order."""
    lengths = ends - starts
    if lengths.min() == lengths.max():
        return ends
    by_end = np.argsort(ends)
    ranks = np.empty(ends.size, np.int64)
    ranks[by_end] = np.arange(ends.size)
    # With the key in front, the greatest value so far never is a value of the key before.
    keyed = _keys_before(codes) * ends.size
    latest: Times = ends[by_end[np.maximum.accumulate(keyed + ranks) - keyed]]
    return latest


def _keys_before(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The number of distinct keys before each row. Rows are in order."""
    return np.concatenate([[0], np.cumsum(codes[1:] != codes[:-1])])

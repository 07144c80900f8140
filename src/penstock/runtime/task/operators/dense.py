"""Grouping by arithmetic instead of hashing, for a single integer key with or without a window.

Every possible (window, key) has a number, its *cell*. The cell of a record is found by arithmetic. If there are about
as many cells as records, every cell gets a place in an array, and records are *addressed*: ids are often handed out in
turn, and a batch has the newest ids. Otherwise the records are *sorted* by cell: vector instructions sort numbers
several times as fast as records are hashed, most of all when a hash table would be larger than the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import Calculation as Calculation
from penstock.api.window_schema import WINDOW_END, WINDOW_START

_CELLS_PER_ROW = 1
_FREE_CELLS = 4_096
"""With this many cells for each row, and this many more, records are addressed."""
_MOST_CELLS = 1 << 20
"""With more cells the array would be larger than the cache, and sorting is faster."""
_MOST_BITS = 63
_PIECE_ROWS = 32_768

_INT64 = np.iinfo(np.int64)
_FUNCTIONS = ("count", "sum", "min", "max")
"""The functions that are computed by arithmetic."""

Int64s = npt.NDArray[np.int64]


class _Cells(NamedTuple):
    """The cells of the rows of a table. The cells of a window follow each other in the order of the keys."""

    of_row: Int64s
    total: int
    """How many cells there are."""
    least: int
    """The least key."""
    span: int
    """How many cells a window has."""
    first_us: int
    """The time of the first window."""
    spacing_us: int

    def keys(self, cells: Int64s) -> Int64s:
        """The keys of some cells."""
        return (cells if self.span == self.total else cells % self.span) + self.least

    def times(self, cells: Int64s) -> Int64s:
        """The times of the windows of some cells."""
        if self.span == self.total:
            return np.full(cells.size, self.first_us)
        return cells // self.span * self.spacing_us + self.first_us


def group_dense(
    table: pa.Table, keys: Sequence[str], calculations: Sequence[Calculation], *, spacing_us: int | None
) -> pa.Table | None:
    """One row per distinct key, ordered by window and key; None if the table cannot be grouped in this way.

    The key is one int64 column. `WINDOW_START` or `WINDOW_END` may be a second key column; its times are whole
    multiples of `spacing_us` apart. Values are int64 without nulls. The caller knows that the sums fit into int64.
    """
    windowed = len(keys) == 2 and keys[1] in (WINDOW_START, WINDOW_END)
    if table.num_rows == 0 or not (windowed or len(keys) == 1) or (windowed and spacing_us is None):
        return None
    if not all(c.function in _FUNCTIONS for c in calculations):
        return None
    needed = {keys[0], *(c.column for c in calculations if c.column is not None)}
    if not all(_is_plain(table.column(name)) for name in needed):
        return None
    cells = _cells(table, keys, spacing_us or 1)
    if cells.total <= min(_CELLS_PER_ROW * table.num_rows + _FREE_CELLS, _MOST_CELLS):
        found, values = _addressed(table, calculations, cells)
    elif cells.total.bit_length() + table.num_rows.bit_length() <= _MOST_BITS:
        found, values = _sorted(table, calculations, cells)
    else:
        return None
    columns: dict[str, Any] = {keys[0]: pa.array(cells.keys(found))}
    if windowed:
        columns[keys[1]] = pa.array(cells.times(found)).view(table.schema.field(keys[1]).type)
    for calculation, reduced in zip(calculations, values, strict=True):
        columns[calculation.name] = pa.array(reduced)
    return pa.table(columns)


def ungrouped(table: pa.Table, keys: Sequence[str], calculations: Sequence[Calculation]) -> pa.Table | None:
    """One row for each row, as if all keys were different; None if the table cannot be treated in this way.

    Values are int64 without nulls. Keys are of any type.
    """
    if not all(c.function in _FUNCTIONS for c in calculations):
        return None
    if not all(_is_plain(table.column(c.column)) for c in calculations if c.column is not None):
        return None
    columns: dict[str, Any] = {key: table.column(key) for key in keys}
    for calculation in calculations:
        is_count = calculation.function == "count"
        ones = np.ones(table.num_rows if is_count else 0, np.int64)
        columns[calculation.name] = ones if is_count else table.column(str(calculation.column))
    return pa.table(columns)


def _cells(table: pa.Table, keys: Sequence[str], spacing_us: int) -> _Cells:
    key = int64_values(table.column(keys[0]))
    least = int(key.min())
    span = int(key.max()) - least + 1
    first_us, windows = 0, 1
    if len(keys) == 2:
        starts = int64_values(table.column(keys[1]))
        first_us = int(starts.min())
        windows = (int(starts.max()) - first_us) // spacing_us + 1
    count = windows * span
    if count > _INT64.max:
        # The caller refuses so many cells, and the numbers of the cells would not fit.
        return _Cells(key, count, least, span, first_us, spacing_us)
    where = key - least
    if windows > 1:
        where += (starts - first_us) // spacing_us * span
    return _Cells(where, count, least, span, first_us, spacing_us)


def _addressed(table: pa.Table, calculations: Sequence[Calculation], cells: _Cells) -> tuple[Int64s, list[Int64s]]:
    """The cells that have records, and the values of each calculation: every cell has a place in an array."""
    counts = np.bincount(cells.of_row, minlength=cells.total)
    found = np.flatnonzero(counts)
    made: list[Int64s] = []
    for calculation in calculations:
        if calculation.function == "count":
            made.append(counts[found])
        else:
            values = int64_values(table.column(str(calculation.column)))
            made.append(_reduced(str(calculation.function), values, cells.of_row, cells.total)[found])
    return found, made


def _reduced(function: str, values: Int64s, where: Int64s, cells: int) -> Int64s:
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


def _sorted(table: pa.Table, calculations: Sequence[Calculation], cells: _Cells) -> tuple[Int64s, list[Int64s]]:
    """The cells that have records, and the values of each calculation: the records are sorted by cell.

    A cell and the number of a row are sorted as one number. This takes a third of the time that numpy needs to find out
    the order of the cells. What follows is done in pieces that stay in the cache, because memory that is touched for
    the first time costs more than the work."""
    bits = table.num_rows.bit_length()
    packed = _packed(cells.of_row, bits)
    packed.sort()
    # A piece ends where the records of a cell end.
    middles = packed[_PIECE_ROWS::_PIECE_ROWS] >> bits << bits
    ends = [*dict.fromkeys(np.searchsorted(packed, middles).tolist()), packed.size]
    columns = [None if c.function == "count" else int64_values(table.column(str(c.column))) for c in calculations]
    found: list[Int64s] = []
    made: list[list[Int64s]] = [[] for _ in calculations]
    for start, end in itertools.pairwise([0, *(end for end in ends if end)]):
        piece = packed[start:end]
        first, of_cells = _firsts(piece >> bits)
        found.append(of_cells)
        rows = piece & ((1 << bits) - 1)
        for calculation, column, reduced in zip(calculations, columns, made, strict=True):
            if column is None:
                reduced.append(np.diff(first, append=piece.size))
                continue
            values = column.take(rows)
            # If every cell has a single record, there is nothing to reduce.
            is_reduced = first.size == piece.size
            reduced.append(values if is_reduced else _REDUCING[str(calculation.function)].reduceat(values, first))
    return _joined(found), [_joined(parts) for parts in made]


def order_of(codes: Int64s) -> Int64s:
    """The order of numbers that are not negative. Equal numbers may come in any order."""
    bits = codes.size.bit_length()
    if codes.size == 0 or int(codes.max()).bit_length() + bits > _MOST_BITS:
        return np.argsort(codes)
    packed = _packed(codes, bits)
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def _packed(of_row: Int64s, bits: int) -> Int64s:
    """The cell of each row, and behind the cell the number of the row."""
    packed = of_row << bits
    numbers = np.arange(min(_PIECE_ROWS, packed.size))
    for start in range(0, packed.size, _PIECE_ROWS):
        piece = packed[start : start + _PIECE_ROWS]
        piece += numbers[: piece.size]
        piece += start
    return packed


def _firsts(cells: Int64s) -> tuple[npt.NDArray[np.intp], Int64s]:
    """The first place of each cell in sorted cells, and the cells."""
    begins = np.empty(cells.size, np.bool_)
    begins[0] = True
    np.not_equal(cells[1:], cells[:-1], out=begins[1:])
    first = np.flatnonzero(begins)
    return first, cells.take(first)


def _joined(parts: list[Int64s]) -> Int64s:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


_REDUCING: dict[str, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def int64_values(column: Any) -> npt.NDArray[np.int64]:
    """A column of 64-bit values without nulls (int64, timestamps), as a numpy array. The values are copied only if the
    column has several chunks."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.asarray(column.view(pa.int64()).to_numpy())


def _is_plain(column: Any) -> bool:
    return pt.is_int64(column.type) and column.null_count == 0

"""Rows in columns that can be changed in place, until they are frozen.

A segment has some thousands of rows. Rows are appended to it and replaced in it, many at a time. A snapshot freezes a
segment, in no time: from then on the segment is never changed. So the work that writes a snapshot reads frozen
segments while other segments change.

Values of a fixed width lie in numpy arrays. Other values are in Arrow arrays that are never changed: for each row the
segment knows where its value is. A value that is replaced stays in its array until there are more such values than
rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import one_array

Rows = npt.NDArray[np.intp]
Column = Any
"""An Arrow array."""

SEGMENT_ROWS = 1 << 17
"""A segment has at most so many rows."""
_FIRST_ROWS = 1_024


class Segment:
    """Rows of one schema."""

    def __init__(self, number: int, schema: pa.Schema) -> None:
        self.number = number
        """Segments are numbered in the order in which they were begun."""
        self.schema = schema
        self.rows = 0
        self.live = 0
        """How many rows have not been replaced by rows of other segments. Counted by the table."""
        self.frozen = False
        self.token = object()
        """Stands for the segment where its rows must not be kept in memory."""
        self._columns = [_column(field.type) for field in schema]

    def append(self, columns: list[Column]) -> None:
        """Add rows at the end."""
        added = len(columns[0])
        for column, values in zip(self._columns, columns, strict=True):
            column.append(values, self.rows)
        self.rows += added

    def put(self, where: Rows, columns: list[Column]) -> None:
        """Replace the rows at some places, each place once."""
        for column, values in zip(self._columns, columns, strict=True):
            column.put(where, values, self.rows)

    def take(self, where: Rows, columns: list[int]) -> list[Column]:
        """The values of some rows, in some columns."""
        return [self._columns[number].take(where) for number in columns]

    def table(self) -> pa.Table:
        """All rows."""
        where = np.arange(self.rows)
        return pa.table(self.take(where, list(range(len(self._columns)))), schema=self.schema)


def _column(kind: pa.DataType) -> _Fixed | _Varying:
    physical = _physical(kind)
    return _Varying(kind) if physical is None else _Fixed(kind, physical)


def _physical(kind: pa.DataType) -> Any:
    """The type of the numbers that the values of a type are; None if they are no numbers of a fixed width."""
    if pt.is_boolean(kind):
        return pa.uint8()
    if pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind):
        return kind
    if pt.is_temporal(kind) and not pt.is_interval(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    return None


class _Fixed:
    """Values of a fixed width."""

    def __init__(self, kind: pa.DataType, physical: pa.DataType) -> None:
        self._kind = kind
        self._physical = physical
        self._values: npt.NDArray[Any] = np.zeros(_FIRST_ROWS, physical.to_pandas_dtype())
        self._valid: npt.NDArray[np.bool_] | None = None
        """None: no value is null."""

    def append(self, column: Column, rows: int) -> None:
        last = rows + len(column)
        if last > len(self._values):
            size = min(max(2 * len(self._values), last), SEGMENT_ROWS)
            self._values = _enlarged(self._values, rows, size)
            if self._valid is not None:
                self._valid = _enlarged(self._valid, rows, size)
        self.put(np.arange(rows, last), column, rows)

    def put(self, where: Rows, column: Column, rows: int) -> None:
        nulls = column.null_count
        if nulls and self._valid is None:
            self._valid = np.zeros(len(self._values), np.bool_)
            self._valid[:rows] = True
        if self._valid is not None:
            self._valid[where] = column.is_valid().to_numpy(zero_copy_only=False) if nulls else True
        self._values[where] = self._numbers(column)

    def _numbers(self, column: Column) -> npt.NDArray[Any]:
        if pt.is_boolean(self._kind):
            column = column.cast(pa.uint8())
        elif self._physical != self._kind:
            column = column.view(self._physical)
        return (column.fill_null(0) if column.null_count else column).to_numpy()  # type: ignore[no-any-return]

    def take(self, where: Rows) -> Column:
        mask = None if self._valid is None else ~self._valid[where]
        found = pa.array(self._values[where], self._physical, mask=mask)
        if pt.is_boolean(self._kind):
            return found.cast(pa.bool_())
        return found if self._physical == self._kind else found.view(self._kind)


class _Varying:
    """Values of any width."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._arrays: list[Column] = []
        self._total = 0
        self._refs = np.zeros(_FIRST_ROWS, np.int64)

    def append(self, column: Column, rows: int) -> None:
        last = rows + len(column)
        if last > len(self._refs):
            self._refs = _enlarged(self._refs, rows, min(max(2 * len(self._refs), last), SEGMENT_ROWS))
        self._add(np.arange(rows, last), column)

    def put(self, where: Rows, column: Column, rows: int) -> None:
        self._add(where, column)
        if self._total > 2 * rows + _FIRST_ROWS:
            self._arrays = [self.take(np.arange(rows))]
            self._refs[:rows] = np.arange(rows)
            self._total = rows

    def _add(self, where: Rows, column: Column) -> None:
        self._refs[where] = np.arange(self._total, self._total + len(column))
        self._total += len(column)
        self._arrays.append(column)
        # Arrays of like size become one array, so that there are few of them, and each value is copied a few times.
        while len(self._arrays) > 1 and len(self._arrays[-2]) <= 2 * len(self._arrays[-1]):
            newer, older = self._arrays.pop(), self._arrays.pop()
            self._arrays.append(pa.concat_arrays([older, newer]))

    def take(self, where: Rows) -> Column:
        refs: Any = pa.array(self._refs[where])
        if len(self._arrays) == 1:
            return self._arrays[0].take(refs)
        if not self._arrays:
            return pa.array([], self._kind)
        return one_array(pa.chunked_array(self._arrays).take(refs))


def _enlarged(values: npt.NDArray[Any], rows: int, size: int) -> npt.NDArray[Any]:
    larger = np.zeros(size, values.dtype)
    larger[:rows] = values[:rows]
    return larger

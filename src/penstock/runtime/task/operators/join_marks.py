"""The marks of the records of a run of a join, as checkpoints save them.

A mark is a number for each record: whether the record has matched, how many records it has matched, or that it is gone.
The records of a run never change. Marks do, a few at a time. So marks lie in a file of their own, and a checkpoint has
beside that file only the marks that have changed since the file was written. When these are many, the next checkpoint
writes all marks of the run anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.runs import Run

MARK = "__mark"
_MOST_PARTS = 4_096
"""With more parts a log is long, however few marks have changed."""
_MOST_SHARE = 16
"""A log is long when it has more than one mark for so many records of the run. A mark in a log takes five bytes, and a
mark in a file takes one: much shorter or much longer logs would make checkpoints larger."""
_LIMIT = 2
"""A log that has so many times the marks of the run is given up: no checkpoint completes."""

Marks = npt.NDArray[Any]
Rows = npt.NDArray[Any]
Part = tuple[Rows, Marks]


class MarkLog:
    """Marks that have changed, in the order in which they changed. Is only added to, so a snapshot refers to it."""

    __slots__ = ("_first", "_parts", "rows")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._first = 0
        """How many parts have been forgotten."""
        self.rows = 0

    def add(self, rows: Rows, marks: Marks) -> None:
        """Some records have new marks."""
        self._parts.append((rows, marks))
        self.rows += rows.size

    @property
    def end(self) -> int:
        """The number of the next part."""
        return self._first + len(self._parts)

    def is_long(self, rows: int) -> bool:
        """Whether the marks of a run of so many records should be written anew."""
        return self.rows * _MOST_SHARE > rows or len(self._parts) > _MOST_PARTS

    def is_useless(self, rows: int) -> bool:
        """Whether the log has grown so long that it must not grow further."""
        return self.rows > _LIMIT * rows + _MOST_PARTS

    def forget(self, end: int) -> None:
        """Forget the parts before a part. Snapshots keep what they refer to."""
        self._parts = self._parts[max(0, end - self._first) :]
        self._first = max(self._first, end)
        self.rows = sum(rows.size for rows, _ in self._parts)

    def frozen(self) -> Changes:
        """The changes so far, by reference."""
        return Changes(self._parts, len(self._parts))


class Changes:
    """Changed marks of one run at the moment of a snapshot."""

    __slots__ = ("_count", "_parts")

    def __init__(self, parts: list[Part], count: int) -> None:
        self._parts = parts
        self._count = count

    def latest(self) -> Part:
        """The records whose marks have changed, in their order, and their newest marks. May run off the loop."""
        parts = self._parts[: self._count]
        rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in parts)])
        marks = np.concatenate([np.empty(0, np.int32), *(marks for _, marks in parts)])
        found, places = np.unique(rows[::-1], return_index=True)
        return found, marks[::-1][places]


class MarksRun(Run):
    """All marks of a run, for a file of their own."""

    __slots__ = ("_saved",)

    def __init__(self, count: int, marks: Marks | None = None) -> None:
        """`marks` must not change. None: a file has the marks."""
        super().__init__(())
        self.starts = (0, count)
        self._saved = marks

    def saved(self) -> None:
        """A completed checkpoint has the file, so the marks are not needed here any more."""
        self._saved = None

    def encoded(self) -> pa.Buffer:
        """The marks as an Arrow stream."""
        assert self._saved is not None
        batch = pa.record_batch([pa.array(narrow(self._saved))], names=[MARK])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return sink.getvalue()


def narrow(marks: Marks) -> Marks:
    """The same numbers in as few bytes as they need."""
    most = int(marks.max()) if marks.size else 0
    kind: Any = np.int8 if most < 1 << 7 else np.int16 if most < 1 << 15 else np.int32
    return marks.astype(kind)

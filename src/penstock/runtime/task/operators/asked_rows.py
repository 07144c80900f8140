"""The input of an async function, by the numbers of its requests.

A request is a row, or a whole batch if the function takes batches. The input is kept as the batches that came, so that
a snapshot of the requests that are not finished costs a few references.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.runtime.task.operators.rows import Row, rows_of

PART_ROWS = 256
"""A part of the list in a snapshot has at most this many rows, so that the rows can be dealt out to other subtasks."""


class _Taken:
    """A batch that came."""

    __slots__ = ("batch", "left", "nbytes", "rows")

    def __init__(self, batch: pa.RecordBatch, requests: int) -> None:
        self.batch = batch
        self.nbytes = batch.nbytes
        self.rows: list[Row] | None = None
        """Made when the first row is asked for."""
        self.left = requests
        """How many requests of the batch are not finished."""


class AskedRows:
    """The rows of all requests that are not finished."""

    def __init__(self, as_batch: Callable[[pa.RecordBatch], Any] | None) -> None:
        """`as_batch` makes the argument of the function of a batch; None if the function takes rows."""
        self._as_batch = as_batch
        self._firsts: list[int] = []
        self._taken: list[_Taken] = []
        self.nbytes = 0

    def requests_in(self, batch: pa.RecordBatch) -> int:
        """How many requests a batch makes."""
        return batch.num_rows if self._as_batch is None else 1

    def add(self, batch: pa.RecordBatch, first: int) -> None:
        """Keep a batch. `first` is the number of its first request."""
        taken = _Taken(batch, self.requests_in(batch))
        self._firsts.append(first)
        self._taken.append(taken)
        self.nbytes += taken.nbytes

    def arguments(self, numbers: Sequence[int]) -> list[Any]:
        """What the function is called with, for each request."""
        return [self._argument(number) for number in numbers]

    def _argument(self, number: int) -> Any:
        place = bisect_right(self._firsts, number) - 1
        taken = self._taken[place]
        if self._as_batch is not None:
            return self._as_batch(taken.batch)
        if taken.rows is None:
            taken.rows = rows_of(taken.batch)
        return taken.rows[number - self._firsts[place]]

    def finished(self, numbers: Sequence[int]) -> None:
        """Let go of requests."""
        for number in numbers:
            place = bisect_right(self._firsts, number) - 1
            taken = self._taken[place]
            taken.left -= 1
            if not taken.left:
                del self._firsts[place], self._taken[place]
                self.nbytes -= taken.nbytes

    def freeze(self, numbers: Sequence[int]) -> Callable[[], list[pa.RecordBatch]]:
        """The rows of these requests, which are in order. The rows are made when the returned function is called."""
        found: list[tuple[pa.RecordBatch, list[int]]] = []
        current, place = -1, list[int]()
        for number in numbers:
            index = bisect_right(self._firsts, number) - 1
            if index != current:
                current, place = index, []
                found.append((self._taken[index].batch, place))
            place.append(number - self._firsts[index])
        whole = self._as_batch is not None
        return lambda: [
            piece.slice(start, PART_ROWS)
            for batch, rows in found
            for piece in (batch if whole or len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int64())),)
            for start in range(0, piece.num_rows, PART_ROWS)
        ]

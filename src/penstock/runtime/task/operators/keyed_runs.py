"""A run of sorted rows whose rows are found by key, and are taken away one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.runtime.task.operators.sorted_runs import KEY_HASH, Place, SortedRun

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class FrozenKeyed:
    """What was left of a run at the moment of a snapshot."""

    run: SortedRun
    first: int
    """The rows before this row are gone."""
    kept: Bits
    """For each row from `first` on whether the row is there."""
    rows: int
    """How many rows are left."""

    @property
    def gone(self) -> Bits | None:
        """For each row of the run whether the row is gone; None if no row behind `first` is gone. Takes a time that
        grows with the run."""
        return None if self.rows == self.run.rows - self.first else ~self.kept

    @property
    def table(self) -> pa.Table:
        """The rows that are left."""
        batches = list(self._kept_between(self.first, self.run.rows))
        return pa.Table.from_batches(batches, self.run.blocks[0].schema).drop_columns([KEY_HASH])

    def between(self, begin: Place, end: Place) -> Iterator[pa.RecordBatch]:
        """The rows behind one place, up to another place."""
        return self._kept_between(max(self.first, self.run.count(begin)), self.run.count(end))

    def _kept_between(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        for batch in self.run.rows_between(first, end) if first < end else ():
            kept = self.kept[first : first + batch.num_rows]
            first += batch.num_rows
            if kept.all():
                yield batch
            elif kept.any():
                yield batch.filter(pa.array(kept))


class KeyedRun:
    """Rows in the order of runs, with an index of their keys."""

    def __init__(self, run: SortedRun, first: int = 0, gone: Bits | None = None) -> None:
        self.run = run
        self.first = first
        """The rows before this row are gone."""
        hashes = np.concatenate([block.column(KEY_HASH).to_numpy() for block in run.blocks])
        order = np.argsort(hashes, kind="stable")
        self._hashes: Int32s = hashes[order]
        self._order: Int32s = order.astype(np.int32)
        self._kept = np.ones(run.rows, np.bool_) if gone is None else ~gone
        self._is_shared = False
        """Whether a snapshot refers to the marks."""
        self.rows = int(self._kept[first:].sum())
        """How many rows are there."""

    def places_of(self, wanted: Int32s) -> Int64s:
        """Where the rows with some hashes are, in the order of the run. The hashes are in order, each once."""
        begins = np.searchsorted(self._hashes, wanted, side="left")
        counts = np.searchsorted(self._hashes, wanted, side="right") - begins
        # The number of each row is that of the first row with its hash, and how many rows come between.
        numbers = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        found = self._order[numbers]
        return np.sort(found[self._kept[found] & (found >= self.first)]).astype(np.int64)

    def remove(self, places: Int64s) -> None:
        """Take away rows that are there."""
        if self._is_shared:
            self._kept, self._is_shared = self._kept.copy(), False
        self._kept[places] = False
        self.rows -= places.size

    def remove_some(self, places: Int64s) -> None:
        """Take away the rows at some places, as far as they are there."""
        self.remove(places[self._kept[places] & (places >= self.first)])

    def drop(self, end: Place) -> None:
        """Take away the rows up to a place."""
        count = self.run.count(end)
        if count > self.first:
            self.rows -= int(self._kept[self.first : count].sum())
            self.first = count

    def upto(self, end: Place) -> Iterator[pa.RecordBatch]:
        """The rows up to a place."""
        live = FrozenKeyed(self.run, self.first, self._kept, self.rows)
        return live._kept_between(self.first, self.run.count(end))  # noqa: SLF001  # of this module

    def freeze(self) -> FrozenKeyed:
        """What is left, by reference."""
        self._is_shared = True
        return FrozenKeyed(self.run, self.first, self._kept, self.rows)


def rows_at(run: SortedRun, places: Int64s) -> Iterator[pa.RecordBatch]:
    """The rows at some places, which are in order."""
    bounds = np.searchsorted(places, run.starts)
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        picked: Any = pa.array(places[bounds[number] : bounds[number + 1]] - run.starts[number])
        yield run.blocks[number].take(picked)

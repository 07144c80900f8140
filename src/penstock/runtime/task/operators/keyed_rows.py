"""Rows that are found by key, in immutable runs.

Every append makes a *run*: rows ordered by a hash of their keys. Runs of like size are merged, so that runs shrink from
oldest to newest and every row is moved only a few times. A row is taken away by a mark in its run. A run that has lost
half of its rows is made anew. To find the rows of some keys costs a search of every run for each key, however many rows
there are.

A snapshot takes references to runs and marks: neither is ever changed, only replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.runtime.task.partitioning import key_groups

_HASHES = 1 << 30

Times = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]


class _Run:
    """Rows in the order of their hashes."""

    def __init__(self, rows: pa.Table, hashes: npt.NDArray[np.int32], times: Times) -> None:
        order = np.argsort(hashes, kind="stable")
        self.rows = rows.take(order).combine_chunks()
        self.hashes = hashes[order]
        self.times = times[order]
        self.kept = np.ones(order.size, np.bool_)
        self.count = order.size
        self.earliest = int(times.min())
        """No row that is kept has an earlier time."""

    def keep(self, kept: Bits) -> None:
        """From here on only these rows are there."""
        self.kept = kept
        self.count = int(kept.sum())

    def left(self) -> pa.Table:
        """The rows that are kept."""
        return self.rows if self.count == self.rows.num_rows else self.rows.filter(pa.array(self.kept))


class Found(NamedTuple):
    """Some rows, and where they are."""

    rows: pa.Table
    runs: npt.NDArray[np.int64]
    """The number of the run of each row."""
    places: npt.NDArray[np.int64]
    """The place of each row in its run."""


Frozen = tuple[tuple[pa.Table, Bits], ...]


class KeyedRows:
    """Rows that are found by key and taken away by time."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str], times: Callable[[pa.Table], Times]) -> None:
        """`times` gives the time of each row."""
        self._schema = schema
        self._keys = tuple(keys)
        self._times = times
        self._runs: list[_Run] = []

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(run.count for run in self._runs)

    @property
    def earliest(self) -> int | None:
        """No row has an earlier time; None if there are no rows."""
        return min((run.earliest for run in self._runs), default=None)

    def append(self, rows: pa.Table) -> None:
        """Take rows in."""
        if rows.num_rows == 0:
            return
        self._runs.append(self._run(rows))
        while len(self._runs) > 1 and self._runs[-2].count <= 2 * self._runs[-1].count:
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(self._run(pa.concat_tables([older.left(), newer.left()])))

    def find(self, like: pa.Table) -> Found:
        """The rows that have the keys of any of these rows, and perhaps rows of other keys."""
        wanted = np.unique(self._hashes(like))
        tables, runs, places = [self._schema.empty_table()], [], []
        for number, run in enumerate(self._runs):
            begins = np.searchsorted(run.hashes, wanted, side="left")
            counts = np.searchsorted(run.hashes, wanted, side="right") - begins
            # The place of each row is the place of the first row with its hash, and how many rows come between.
            found = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
            found = found[run.kept[found]]
            if found.size:
                tables.append(run.rows.take(found))
                runs.append(np.full(found.size, number))
                places.append(found)
        nothing = np.empty(0, np.int64)
        return Found(pa.concat_tables(tables), np.concatenate([nothing, *runs]), np.concatenate([nothing, *places]))

    def remove(self, found: Found, gone: Bits) -> None:
        """Take away some of the rows that were found since the last change."""
        runs, places = found.runs[gone], found.places[gone]
        for number in np.unique(runs).tolist():
            run = self._runs[number]
            kept = run.kept.copy()
            kept[places[runs == number]] = False
            run.keep(kept)
        self._tidy()

    def take(self, last_us: int) -> pa.Table | None:
        """Take away the rows up to a time, and return them; None if there are none."""
        if self.earliest is None or self.earliest > last_us:
            return None
        found = []
        for run in self._runs:
            gone = run.kept & (run.times <= last_us) if run.earliest <= last_us else None
            if gone is None or not gone.any():
                continue
            found.append(run.rows.filter(pa.array(gone)))
            run.keep(run.kept & ~gone)
            if run.count:
                run.earliest = int(run.times[run.kept].min())
        self._tidy()
        return pa.concat_tables(found) if found else None

    def after(self, time_us: int) -> pa.Table:
        """The rows with a later time."""
        found = [self._schema.empty_table()]
        for run in self._runs:
            later = run.kept & (run.times > time_us)
            found.append(run.rows if later.all() else run.rows.filter(pa.array(later)))
        return pa.concat_tables(found).combine_chunks()

    def freeze(self) -> Frozen:
        """All rows, by reference. Later changes replace what is returned, and do not change it."""
        return tuple((run.rows, run.kept) for run in self._runs)

    def _tidy(self) -> None:
        """Make runs anew that have lost half of their rows."""
        runs = [run for run in self._runs if run.count]
        self._runs = [run if 2 * run.count >= run.rows.num_rows else self._run(run.left()) for run in runs]

    def _run(self, rows: pa.Table) -> _Run:
        rows = rows.combine_chunks()
        return _Run(rows, self._hashes(rows), self._times(rows))

    def _hashes(self, rows: pa.Table) -> npt.NDArray[np.int32]:
        parts = [key_groups(batch, self._keys, _HASHES) for batch in rows.to_batches()]
        return np.concatenate([np.empty(0, np.int32), *parts])


def rows_of(frozen: Frozen, schema: pa.Schema) -> pa.Table:
    """The rows that were frozen."""
    return pa.concat_tables([schema.empty_table(), *(rows.filter(pa.array(kept)) for rows, kept in frozen)])

"""Finds the place of a key in a table: a hash table in arrays, for whole batches of keys at a time.

A bucket has a hash of 64 bits and a place. The bucket of a key is found by linear probing. All keys of a batch probe at
the same time: each round looks at one bucket for each key that has not been found. Two keys may have the same hash, so
whoever knows the keys is asked whether a place has the key that is looked for.

When the buckets are half full, twice as many are made, and the entries move over a few at a time: no batch waits until
all of them have moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

Same = Callable[[Rows, Places], npt.NDArray[np.bool_]]
"""Whether the keys of some rows of the batch are the keys at some places of the table."""

ABSENT = -1
"""The bucket of a key that the table does not have."""

_EMPTY, _GONE, _FIRST = 0, 1, 2
"""What a bucket has in place of a place; places begin at 2. A probe ends at an empty bucket, and passes a bucket whose
entry is gone. A new array is empty without being written."""
_LEAST_BUCKETS = 1_024
_MOVED = 65_536
"""At least so many old buckets move with every batch, while the table grows."""


class KeyIndex:
    """Places by key."""

    def __init__(self) -> None:
        self._hashes, self._entries = _buckets(_LEAST_BUCKETS)
        self._used = 0
        """How many buckets are not empty."""
        self._live = 0
        self._old: tuple[Hashes, Places] | None = None
        """The buckets of which the entries move over."""
        self._next = 0
        """The first of the old buckets that has not moved."""

    def __len__(self) -> int:
        return self._live

    def find(self, hashes: Hashes, same: Same) -> Rows:
        """The bucket of each key, or `ABSENT`. Buckets are valid until the next call of `find` or `insert`."""
        self._move(max(_MOVED, 4 * len(hashes)))
        found = _probe(self._hashes, self._entries, hashes, same)
        if self._old is None:
            return found
        missing = np.flatnonzero(found == ABSENT)
        if missing.size:
            old_hashes, old = self._old
            buckets = _probe(old_hashes, old, hashes[missing], lambda rows, places: same(missing[rows], places))
            there = buckets != ABSENT
            places = old[buckets[there]] - _FIRST
            old[buckets[there]] = _GONE
            found[missing[there]] = self._put(hashes[missing[there]], places)
        return found

    def places(self, buckets: Rows) -> Places:
        """The places in some buckets."""
        return self._entries[buckets] - _FIRST

    def set_places(self, buckets: Rows, places: Places) -> None:
        """The keys of some buckets have moved to other places."""
        self._entries[buckets] = places + _FIRST

    def insert(self, hashes: Hashes, places: Places) -> None:
        """Add keys that the table does not have. The places differ from each other, and from all places in the
        table."""
        if not len(hashes):
            return
        while 2 * (self._used + len(hashes)) > len(self._entries):
            self._grow(len(hashes))
        self._put(hashes, places)
        self._live += len(hashes)

    def remove(self, buckets: Rows) -> None:
        """Remove the keys of some buckets."""
        self._entries[buckets] = _GONE
        self._live -= len(buckets)

    def _put(self, hashes: Hashes, places: Places) -> Rows:
        mask = len(self._entries) - 1
        found = np.empty(len(hashes), np.intp)
        active = np.arange(len(hashes))
        buckets = _home(hashes, mask)
        values = places + _FIRST
        while active.size:
            free = self._entries[buckets] < _FIRST
            tried, rows = buckets[free], active[free]
            was_empty = self._entries[tried] == _EMPTY
            self._entries[tried] = values[rows]
            # Several keys may have tried the same bucket: the last of them has it.
            won = self._entries[tried] == values[rows]
            self._used += int((won & was_empty).sum())
            self._hashes[tried[won]] = hashes[rows[won]]
            found[rows[won]] = tried[won]
            lost = ~free
            lost[free] = ~won
            active, buckets = active[lost], (buckets[lost] + 1) & mask
        return found

    def _grow(self, more: int) -> None:
        if self._old is not None:
            self._move(len(self._old[1]))
        # Buckets whose entries are gone are left behind: the table need not be greater because of them.
        size = _LEAST_BUCKETS
        while size < 4 * (self._live + more):
            size *= 2
        self._old, self._next = (self._hashes, self._entries), 0
        self._hashes, self._entries = _buckets(size)
        self._used = 0

    def _move(self, count: int) -> None:
        if self._old is None:
            return
        hashes, entries = self._old
        last = min(self._next + count, len(entries))
        part = entries[self._next : last]
        there = np.flatnonzero(part >= _FIRST) + self._next
        if there.size:
            places = entries[there] - _FIRST
            entries[there] = _GONE
            self._put(hashes[there], places)
        self._next = last
        if last == len(entries):
            self._old = None


def _buckets(count: int) -> tuple[Hashes, Places]:
    return np.zeros(count, np.uint64), np.zeros(count, np.int64)


def _home(hashes: Hashes, mask: int) -> Rows:
    return (hashes & np.uint64(mask)).astype(np.intp)


def _probe(table: Hashes, entries: Places, hashes: Hashes, same: Same) -> Rows:
    mask = len(entries) - 1
    found = np.full(len(hashes), ABSENT, np.intp)
    active, buckets = np.arange(len(hashes)), _home(hashes, mask)
    while active.size:
        there = entries[buckets]
        alike = np.flatnonzero((there >= _FIRST) & (table[buckets] == hashes[active]))
        more = there != _EMPTY
        if alike.size:
            right = alike[same(active[alike], there[alike] - _FIRST)]
            found[active[right]] = buckets[right]
            more[right] = False
        active, buckets = active[more], (buckets[more] + 1) & mask
    return found


def key_hashes(keys: Any, *, bits: npt.NDArray[np.int64] | None) -> Hashes:
    """A hash of every row of some columns: of `bits` if the key is nothing but these 64 bits, in which case different
    keys have different hashes; otherwise of the columns. Never stored: it may differ from version to version."""
    if bits is None:
        import polars as pl

        return pl.DataFrame(keys).hash_rows(seed=7).to_numpy()
    # The finalizer of murmur3, which can be inverted.
    mixed = bits.view(np.uint64) ^ (bits.view(np.uint64) >> np.uint64(33))
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed

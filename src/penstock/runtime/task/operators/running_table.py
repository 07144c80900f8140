"""Rows by key, in memory: for state that is looked up and changed by batches of keys.

The rows lie in segments, and an index finds the place of a row by its key. A row that is changed is replaced where it
is, unless its segment is frozen: then the row is written anew into the newest segment, and the old row is *stale*. So
the segments that were begun since the last snapshot have exactly the rows that were changed since. A snapshot freezes
them, and need not write the older segments again: whoever reads all segments in their order, and takes the last row of
each key, has the table.

The row of a key that is removed becomes a *mark*, so that older rows of the key are not taken for the row. A mark is
needed as long as there are older segments.

A segment that is half stale is *emptied*: its other rows are written anew, and the segment is forgotten. So are the
smallest segments, if there are many small ones. Every batch empties at most one segment, so that no batch waits for
long. Between two snapshots not many more rows are written anew for this than were changed, and a segment has only a
small part of all rows. So what a snapshot writes follows what was changed, and not what is there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.aggregate_kinds.base import one_array
from penstock.runtime.task.operators.key_index import ABSENT, Hashes, KeyIndex, Places, Rows, key_hashes
from penstock.runtime.task.operators.row_segments import SEGMENT_ROWS, Segment

HASH = "\0hash"
GONE = "__gone"
WRITTEN = "__written"

_LEAST_ROWS = 4_096
_PARTS = 32
"""A segment has at most this part of all rows, unless that would be fewer than `_LEAST_ROWS`."""
_SMALL = 8
"""A segment is small if it has less than this part of the rows that a segment may have."""
_MOST_SMALL = 16
"""When there are more frozen segments that are small, the smallest of them is emptied."""


class RunningTable:
    """Rows of one schema, by key. `keys` are the first columns of the schema."""

    def __init__(self, schema: pa.Schema, keys: int) -> None:
        self._schema = schema
        self._keys = keys
        own = [pa.field(GONE, pa.bool_()), pa.field(WRITTEN, pa.int64()), pa.field(HASH, pa.uint64())]
        self._all = pa.schema([*schema, *own])
        self._gone, self._written, self._hash = (len(schema) + i for i in range(3))
        self._index = KeyIndex()
        self._segments: dict[int, Segment] = {}
        self._numbered = 0
        self._changed = 0
        """How many rows have been written because they were changed, since the last snapshot."""
        self._moved = 0
        """How many rows have been written because their segment was emptied, since the last snapshot."""
        self._bits = keys == 1 and pa.types.is_int64(schema.field(0).type)
        self._null_keys = False
        """Whether a key may be null, whose hash is that of another key."""

    def __len__(self) -> int:
        return len(self._index)

    @property
    def rows(self) -> int:
        """How many rows the segments have, stale rows and marks included."""
        return sum(segment.rows for segment in self._segments.values())

    def find(self, keys: list[Any], *, expired: int | None = None) -> Found:
        """Look up keys, each once. Rows that were written at `expired` or before are not there any more."""
        hashes = self._hashes(keys)
        buckets = self._index.find(hashes, lambda rows, places: self._same(keys, rows, places))
        known = np.flatnonzero(buckets != ABSENT)
        places = self._index.places(buckets[known])
        there = np.zeros(len(hashes), np.bool_)
        there[known] = ~self._take(places, [self._gone])[0].to_numpy(zero_copy_only=False)
        if expired is not None and known.size:
            there[known] &= self._take(places, [self._written])[0].to_numpy() > expired
        return Found(hashes, buckets, there)

    def rows_of(self, found: Found) -> list[Any]:
        """The columns behind the keys, of the rows that are there."""
        places = self._index.places(found.buckets[found.there])
        return self._take(places, list(range(self._keys, len(self._schema))))

    def put(self, found: Found, columns: list[Any], *, gone: npt.NDArray[np.bool_], written: Any) -> None:
        """Set the rows of the keys that were found, in all columns of the schema. Rows that are `gone` are removed, if
        they are there. `written` is the time of writing, or the time for each row. Nothing may have been changed since
        `find`."""
        kept = ~gone | (found.buckets != ABSENT)
        rows: Any = None if kept.all() else pa.array(kept)
        count = int(kept.sum())
        if not count:
            return
        own = [pa.array(gone), pa.array(np.broadcast_to(written, len(gone)).astype(np.int64)), pa.array(found.hashes)]
        every = [column if rows is None else column.filter(rows) for column in (*columns, *own)]
        self._set(found.buckets[kept], found.hashes[kept], every)
        self._empty_one()

    def _set(self, buckets: Rows, hashes: Hashes, columns: list[Any]) -> None:
        """Write rows: in place, or anew where the place is frozen, or where there is none."""
        anew = buckets == ABSENT
        known = np.flatnonzero(~anew)
        places = self._index.places(buckets[known])
        for segment, picked in self._by_segment(places):
            if segment.frozen:
                segment.live -= len(picked)
                anew[known[picked]] = True
            else:
                rows = known[picked]
                segment.put(_rows_at(places[picked]), _taken(columns, rows, len(buckets)))
        added = np.flatnonzero(anew)
        if added.size:
            self._changed += added.size
            written = self._append(_taken(columns, added, len(buckets)))
            fresh = buckets[added] == ABSENT
            self._index.set_places(buckets[added[~fresh]], written[~fresh])
            self._index.insert(hashes[added[fresh]], written[fresh])

    def _append(self, columns: list[Any]) -> Places:
        """Write rows into the newest segments, and return their places."""
        count, done = len(columns[0]), 0
        places = np.empty(count, np.int64)
        while done < count:
            segment = self._newest()
            part = min(self._room(segment), count - done)
            first = segment.rows
            segment.append([column.slice(done, part) for column in columns])
            segment.live += part
            places[done : done + part] = segment.number * SEGMENT_ROWS + np.arange(first, first + part)
            done += part
        return places

    def _newest(self) -> Segment:
        newest = self._segments.get(self._numbered)
        if newest is None or not self._room(newest):
            self._numbered += 1
            newest = self._segments[self._numbered] = Segment(self._numbered, self._all)
        return newest

    def _room(self, segment: Segment) -> int:
        """How many rows can be appended to a segment."""
        return 0 if segment.frozen else max(self._most_rows - segment.rows, 0)

    @property
    def _most_rows(self) -> int:
        """How many rows a segment may have."""
        return min(max(len(self._index) // _PARTS, _LEAST_ROWS), SEGMENT_ROWS)

    # --- snapshots -----------------------------------------------------------------------

    def freeze(self) -> tuple[Segment, ...]:
        """All segments that are not empty, in their order. None of them is changed from here on."""
        self._changed = self._moved = 0
        for segment in self._segments.values():
            segment.frozen = True
        return tuple(segment for segment in self._segments.values() if segment.live)

    # --- upkeep --------------------------------------------------------------------------

    def _empty_one(self) -> None:
        """Empty a segment, if one of them is not worth its room."""
        if self._moved > self._changed:
            return
        oldest, few = next(iter(self._segments), 0), self._most_rows // _SMALL
        small: list[Segment] = []
        for segment in list(self._segments.values()):
            if segment.number == self._numbered:
                continue
            needed = segment.live - (self._marks(segment) if segment.number == oldest else 0)
            if not segment.live:
                del self._segments[segment.number]
            elif 2 * needed < segment.rows:
                self._empty(segment, is_oldest=segment.number == oldest)
                return
            elif segment.frozen and segment.live < few:
                small.append(segment)
        if len(small) > _MOST_SMALL:
            least = min(small, key=lambda segment: segment.live)
            self._empty(least, is_oldest=least.number == oldest)

    def _marks(self, segment: Segment) -> int:
        """How many marks a segment has, stale ones included."""
        return int(segment.take(np.arange(segment.rows), [self._gone])[0].true_count)

    def _empty(self, segment: Segment, *, is_oldest: bool) -> None:
        every = np.arange(segment.rows)
        places = segment.number * SEGMENT_ROWS + every
        hashes = segment.take(every, [self._hash])[0].to_numpy()
        buckets = self._index.find(hashes, lambda rows, found: places[rows] == found)
        live = np.flatnonzero(buckets != ABSENT)
        if is_oldest:
            marks = segment.take(live, [self._gone])[0].to_numpy(zero_copy_only=False)
            self._index.remove(buckets[live[marks]])
            live = live[~marks]
        del self._segments[segment.number]
        self._moved += len(live)
        moved = self._append(segment.take(live, list(range(len(self._all)))))
        self._index.set_places(buckets[live], moved)

    def remove_expired(self, segment_number: int, expired: int) -> int | None:
        """Forget the rows of one segment that were written at `expired` or before. Returns the number of the segment
        that is to be asked next, beginning anew behind the last; None if there is no segment."""
        numbers = [number for number in self._segments if number >= segment_number] or list(self._segments)
        if not numbers:
            return None
        segment = self._segments[numbers[0]]
        every = np.arange(segment.rows)
        written, hashes = (column.to_numpy() for column in segment.take(every, [self._written, self._hash]))
        old = np.flatnonzero(written <= expired)
        if old.size:
            places = segment.number * SEGMENT_ROWS + old
            buckets = self._index.find(hashes[old], lambda rows, found: places[rows] == found)
            live = buckets[buckets != ABSENT]
            # No mark is needed: older rows of these keys were written before, and have expired, too.
            self._index.remove(live)
            segment.live -= len(live)
            if not segment.live and segment.number != self._numbered:
                del self._segments[segment.number]
        return segment.number + 1

    # --- places --------------------------------------------------------------------------

    def _take(self, places: Places, columns: list[int]) -> list[Any]:
        """The values of the rows at some places."""
        parts = self._by_segment(places)
        if len(parts) == 1:
            return parts[0][0].take(_rows_at(places), columns)
        if not parts:
            return [pa.array([], self._all.field(number).type) for number in columns]
        order = np.concatenate([picked for _, picked in parts])
        back: Any = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        found = [segment.take(_rows_at(places[picked]), columns) for segment, picked in parts]
        return [pa.concat_arrays([part[i] for part in found]).take(pa.array(back)) for i in range(len(columns))]

    def _by_segment(self, places: Places) -> list[tuple[Segment, Rows]]:
        """Which of the places are in which segment."""
        if not len(places):
            return []
        numbers = places // SEGMENT_ROWS
        if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
            return [(self._segments[int(numbers[0])], np.arange(len(places)))]
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        bounds = np.flatnonzero(np.diff(ordered, prepend=-1, append=-1))
        return [
            (self._segments[int(ordered[first])], order[first:last])
            for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        ]

    def _hashes(self, keys: list[Any]) -> Hashes:
        if self._keys == 0:
            return np.zeros(1, np.uint64)
        if not self._bits:
            names = self._schema.names[: self._keys]
            return key_hashes(pa.table(keys, names=names), bits=None)
        column = keys[0]
        if column.null_count:
            self._null_keys = True
            column = column.fill_null(0)
        return key_hashes(None, bits=column.to_numpy())

    def _same(self, keys: list[Any], rows: Rows, places: Places) -> npt.NDArray[np.bool_]:
        if self._keys == 0 or (self._bits and not self._null_keys):
            return np.ones(len(rows), np.bool_)
        picked: Any = pa.array(rows)
        found = np.ones(len(rows), np.bool_)
        for stored, given in zip(self._take(places, list(range(self._keys))), keys, strict=True):
            found &= equal(stored, given.take(picked))
        return found


class Found:
    """Where the rows of some keys are."""

    def __init__(self, hashes: Hashes, buckets: Rows, there: npt.NDArray[np.bool_]) -> None:
        self.hashes = hashes
        self.buckets = buckets
        self.there = there
        """Which of the keys have a row."""

    def of(self, which: npt.NDArray[np.bool_]) -> Found:
        """Where the rows of some of the keys are."""
        return Found(self.hashes[which], self.buckets[which], self.there[which])


def equal(left: Any, right: Any) -> npt.NDArray[np.bool_]:
    """Which values are equal. Null is equal to null, and NaN to NaN."""
    left, right = one_array(left), one_array(right)
    if pa.types.is_floating(left.type):
        a, b = left.fill_null(0).to_numpy(), right.fill_null(0).to_numpy()
        same = (a == b) | (np.isnan(a) & np.isnan(b))
    elif pa.types.is_nested(left.type):
        # As texts, in which NaN is equal to NaN.
        texts = (map(repr, column.to_pylist()) for column in (left, right))
        return np.array([a == b for a, b in zip(*texts, strict=True)], np.bool_)
    else:
        alike: Any = pc.coalesce(pc.equal(left, right), pa.scalar(True))  # noqa: FBT003  # a value
        same = alike.to_numpy(zero_copy_only=False)
    if left.null_count or right.null_count:
        nulls, others = (column.is_null().to_numpy(zero_copy_only=False) for column in (left, right))
        same = np.where(nulls | others, nulls & others, same)
    return same  # type: ignore[no-any-return]


def _rows_at(places: Places) -> Rows:
    return (places % SEGMENT_ROWS).astype(np.intp)


def _taken(columns: list[Any], rows: Rows, count: int) -> list[Any]:
    if len(rows) == count:
        return columns
    picked: Any = pa.array(rows)
    return [column.take(picked) for column in columns]

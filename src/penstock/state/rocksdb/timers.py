"""Timers in the database. Each timer has two rows: by time, to find the next timer, and by key, to find the timers of a
key.

    2 bytes   key group
    2 bytes   0: by time                    2 bytes   1: by key
    1 byte    kind                          …         the key
    8 bytes   time                          1 byte    kind
    …         the key                       8 bytes   time

The next timers are also in memory. Every key group has a *horizon*: the timers before the horizon are in memory, and
the timers behind the horizon are only in the database. While the horizon of a key group is before the first timer in
memory, more timers of that key group are read, and the horizon moves forward. When too many timers are in memory, the
later half is forgotten, and horizons move back. So the next timer is found in a heap, and there may be more timers than
fit into memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from penstock.state.backend import Key, TimerKind, TimerTable
from penstock.state.rocksdb.catalog import TIMERS_BY_KEY, TIMERS_BY_TIME
from penstock.state.rocksdb.ordered import KeyCodec, decode_time, encode_time
from penstock.state.rocksdb.store import LayeredStore
from penstock.state.rocksdb.tables import PREFIX_SIZE, Row, Scope

_KINDS = {TimerKind.EVENT_TIME: b"\x00", TimerKind.PROCESSING_TIME: b"\x01"}
_KIND_OF = {byte[0]: kind for kind, byte in _KINDS.items()}
_BY_TIME = TIMERS_BY_TIME.to_bytes(2, "big")
_BY_KEY = TIMERS_BY_KEY.to_bytes(2, "big")
_TIME_SIZE = 8
_Place = tuple[bytes, bytes]
"""The bytes of time and key together, and the key group. The order of places is the order in which timers fire."""


@dataclass(frozen=True, kw_only=True)
class TimerLimits:
    """How many timers are in memory."""

    most_in_memory: int = 65_536
    """How many timers of one kind are in memory, at most."""
    read_at_once: int = 64
    """How many timers of one key group are read from the database at a time."""


class _Upcoming:
    """The next timers of one kind, of all key groups of the subtask."""

    def __init__(self, kind: TimerKind, groups: tuple[int, int], store: LayeredStore, limits: TimerLimits) -> None:
        self._byte = _KINDS[kind]
        self._store = store
        self._limits = limits
        self._known: dict[_Place, None] = {}
        self._heap: list[_Place] = []
        self._horizons: dict[bytes, bytes] = {
            group.to_bytes(2, "big"): b"" for group in range(groups[0], groups[1] + 1)
        }
        """The horizon of each key group. A key group whose timers are all in memory has no horizon."""
        self._nearest: list[_Place] = [(b"", group) for group in self._horizons]
        """A heap of horizons. An entry whose horizon has moved stays in the heap until the entry is the first."""

    def add(self, place: _Place) -> bool:
        """A timer is set. Returns False if the timer is in memory already, which means that it is set already."""
        if place in self._known:
            return False
        horizon = self._horizons.get(place[1])
        if horizon is None or place[0] < horizon:
            self._push(place)
            if len(self._known) > self._limits.most_in_memory:
                self._forget()
        return True

    def remove(self, place: _Place) -> None:
        """A timer is removed."""
        self._known.pop(place, None)
        if len(self._heap) > 2 * len(self._known) + self._limits.read_at_once:
            self._heap = sorted(self._known)

    def first(self) -> _Place | None:
        """The next timer; None if there is no timer."""
        while True:
            while self._heap and self._heap[0] not in self._known:
                heapq.heappop(self._heap)
            while self._nearest and self._horizons.get(self._nearest[0][1]) != self._nearest[0][0]:
                heapq.heappop(self._nearest)
            if not self._nearest or (self._heap and self._heap[0] < self._nearest[0]):
                return self._heap[0] if self._heap else None
            self._read_on(self._nearest[0][1])

    def _push(self, place: _Place) -> None:
        self._known[place] = None
        heapq.heappush(self._heap, place)

    def _read_on(self, group: bytes) -> None:
        prefix = group + _BY_TIME + self._byte
        limit = self._limits.read_at_once
        found = [suffix for suffix, _ in islice(self._store.scan(prefix, self._horizons[group]), limit)]
        for suffix in found:
            if (suffix, group) not in self._known:
                self._push((suffix, group))
        if len(found) < limit:
            del self._horizons[group]
        else:
            # The lowest suffix above the last suffix that was read.
            self._set_horizon(group, found[-1] + b"\x00")

    def _forget(self) -> None:
        places = sorted(self._known)
        half = self._limits.most_in_memory // 2
        kept, forgotten = places[:half], places[half:]
        self._known = dict.fromkeys(kept)
        self._heap = kept
        for suffix, group in reversed(forgotten):
            self._horizons[group] = suffix
        self._nearest = [(suffix, group) for group, suffix in self._horizons.items()]
        heapq.heapify(self._nearest)

    def _set_horizon(self, group: bytes, suffix: bytes) -> None:
        self._horizons[group] = suffix
        heapq.heappush(self._nearest, (suffix, group))


class RocksTimers(TimerTable):
    """The timers of all keys."""

    def __init__(
        self, keys: KeyCodec, groups: tuple[int, int], store: LayeredStore, scope: Scope, *, limits: TimerLimits
    ) -> None:
        self._keys = keys
        self._groups = groups
        self._limits = limits
        self._scope = scope
        self.bind(store)

    def bind(self, store: LayeredStore) -> None:
        """Read and write the timers of this store from now on."""
        self._store = store
        self._upcoming = {kind: _Upcoming(kind, self._groups, store, self._limits) for kind in TimerKind}

    def add(self, kind: TimerKind, time_us: int) -> None:
        """Set a timer for the current key."""
        scope, time, byte = self._scope, encode_time(time_us), _KINDS[kind]
        suffix = time + scope.key
        if self._upcoming[kind].add((suffix, scope.group)):
            self._store.put_in(scope.group + _BY_TIME + byte, suffix, b"")
            self._store.put_in(scope.group + _BY_KEY + scope.key + byte, time, b"")

    def remove(self, kind: TimerKind, time_us: int) -> None:
        """Remove a timer of the current key."""
        scope, time = self._scope, encode_time(time_us)
        self._remove(kind, scope.group, time, scope.key)

    def _remove(self, kind: TimerKind, group: bytes, time: bytes, key: bytes) -> None:
        byte, suffix = _KINDS[kind], time + key
        self._store.put_in(group + _BY_TIME + byte, suffix, None)
        self._store.put_in(group + _BY_KEY + key + byte, time, None)
        self._upcoming[kind].remove((suffix, group))

    def of_key(self, kind: TimerKind) -> list[int]:
        """The times of the current key's timers."""
        scope = self._scope
        found = self._store.scan(scope.group + _BY_KEY + scope.key + _KINDS[kind])
        return [decode_time(suffix, 0) for suffix, _ in found]

    def first(self, kind: TimerKind) -> int | None:
        """The time of the earliest timer."""
        found = self._upcoming[kind].first()
        return None if found is None else decode_time(found[0], 0)

    def last(self, kind: TimerKind) -> int | None:
        """The time of the latest timer."""
        groups = (group.to_bytes(2, "big") for group in range(self._groups[0], self._groups[1] + 1))
        found = (self._store.last(group + _BY_TIME + _KINDS[kind]) for group in groups)
        return max((decode_time(suffix, 0) for suffix in found if suffix is not None), default=None)

    def pop_due(self, kind: TimerKind, until_us: int) -> tuple[int, Key, int] | None:
        """Remove the first timer that is due."""
        found = self._upcoming[kind].first()
        if found is None:
            return None
        suffix, group = found
        time_us = decode_time(suffix, 0)
        if time_us > until_us:
            return None
        key = suffix[_TIME_SIZE:]
        self._remove(kind, group, suffix[:_TIME_SIZE], key)
        return time_us, self._keys.decode(key, 0)[0], int.from_bytes(group, "big")


def timer_rows(group: int, key: bytes, kind: TimerKind, time_us: int) -> Iterator[Row]:
    """The two rows of a timer in the database."""
    prefix, byte, time = group.to_bytes(2, "big"), _KINDS[kind], encode_time(time_us)
    yield prefix + _BY_TIME + byte + time + key, b""
    yield prefix + _BY_KEY + key + byte + time, b""


def timer_of(keys: KeyCodec, row: bytes) -> tuple[Key, TimerKind, int]:
    """Key, kind and time of a timer, from the key of its row by key."""
    key, place = keys.decode(row, PREFIX_SIZE)
    return key, _KIND_OF[row[place]], decode_time(row, place + 1)

"""Keyed state as Python objects in memory.

Every state is a layered container of `penstock.state.layers`, by key. A snapshot only takes references to the layers,
whatever their size. The work of the snapshot encodes the layers in the canonical format. Key groups are not kept: the
work computes them, a column at a time.

A state with a TTL also has a queue of its entries, in the order of their first write. Only the entries at the head of
the queue can have expired. An entry at the head that was renewed meanwhile goes to the end. Timers are a map by key and
a heap by time. A removed timer stays in the heap until its time, or until most of the heap is removed timers.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.api.state import StateKind, StateSpec, Ttl
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.state.backend import (
    MISSING,
    NO_KEY,
    Key,
    ListTable,
    MapTable,
    SnapshotFiles,
    StateContext,
    StateReader,
    StateWriter,
    TabledBackend,
    TimerKind,
    TimerTable,
    ValueTable,
    ttl_expired,
)
from penstock.state.format import TIMERS, CanonicalFile, Row, TimerRow, check_fits, check_keys, encode, is_canonical
from penstock.state.keys import ranking
from penstock.state.layers import (
    Entries,
    Layers,
    ListLayers,
    MapLayers,
    Part,
    ValueLayers,
    frozen_lists,
    frozen_maps,
    frozen_values,
)
from penstock.state.restore_bounds import check_named_once
from penstock.state.underway import SnapshotsUnderway
from penstock.state.values import holds_mutable

_FOLD_AT_SNAPSHOT = 2_000
"""How many steps of folding a snapshot does, if the layers of the snapshot before are not folded yet."""
_LEAST_HEAP = 1_024


class Scope:
    """The current key."""

    __slots__ = ("group", "key")

    def __init__(self) -> None:
        self.key: Key = NO_KEY
        self.group = 0


class _Expiry:
    """The entries of a state with a TTL, in the order in which they can expire."""

    def __init__(self, ttl: Ttl) -> None:
        self.ttl = ttl
        self._queue: OrderedDict[Any, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def note(self, place: Any, written_ms: int) -> None:
        """An entry was written: put the entry into the queue. An entry that is in the queue already keeps its place."""
        self._queue.setdefault(place, written_ms)

    def clean(self, now: int, budget: int, expire: Callable[[Any], int | None]) -> int:
        """Look at up to `budget` entries that may have expired. `expire` removes an entry that has expired, and returns
        None; for another entry it returns when the entry was written. Returns how many entries were looked at."""
        done = 0
        while self._queue and done < budget:
            place = next(iter(self._queue))
            if not ttl_expired(self.ttl, self._queue[place], now):
                break
            done += 1
            del self._queue[place]
            lives_since = expire(place)
            if lives_since is not None:
                self._queue[place] = lives_since
        return done


class _Table:
    """What the three kinds of table have in common."""

    layers: Layers[Any]

    def __init__(self, spec: StateSpec, scope: Scope) -> None:
        self.spec = spec
        self.scope = scope
        self._expiry = None if spec.ttl is None else _Expiry(spec.ttl)

    def clean(self, now: int, budget: int) -> int:
        """Remove expired entries, up to `budget`. Returns how many entries were looked at."""
        return 0 if self._expiry is None else self._expiry.clean(now, budget, partial(self._expire, now))

    def note_all(self) -> None:
        """Put all restored entries into the queue of the entries that can expire, if the state has a TTL."""
        if self._expiry is not None:
            for written_ms, place in sorted(self._written(), key=lambda found: found[0]):
                self._expiry.note(place, written_ms)

    def _expire(self, now: int, place: Any) -> int | None:
        raise NotImplementedError

    def _written(self) -> list[tuple[int, Any]]:
        raise NotImplementedError

    def _is_over(self, entry: Any, now: int) -> bool:
        return self._expiry is not None and ttl_expired(self._expiry.ttl, entry[1], now)


class MemoryValues(_Table, ValueTable):
    """One entry per key."""

    def __init__(self, spec: StateSpec, scope: Scope) -> None:
        super().__init__(spec, scope)
        self.layers: ValueLayers = ValueLayers(mutable=holds_mutable(spec.type))

    def get(self) -> Any:
        """The entry, or `MISSING`."""
        layers = self.layers
        if layers.plain:
            return layers.live.get(self.scope.key, MISSING)
        return layers.get(self.scope.key)

    def put(self, entry: Any) -> None:
        """Replace the entry."""
        key = self.scope.key
        if self._expiry is not None:
            self._expiry.note(key, entry[1])
        if self.layers.plain:
            self.layers.live[key] = entry
        else:
            self.layers.put(key, entry)

    def remove(self) -> None:
        """Remove the entry."""
        self.layers.remove(self.scope.key)

    def _expire(self, now: int, place: Any) -> int | None:
        entry = self.layers.get(place)
        if entry is MISSING:
            return None
        if not self._is_over(entry, now):
            return int(entry[1])
        self.layers.remove(place)
        return None

    def fill(self, rows: Iterator[Row]) -> None:
        """Take in restored rows."""
        for key, _, entry in rows:
            self.layers.live[key] = entry

    def rows(self, frozen: tuple[dict[Any, Any], ...]) -> Iterator[Row]:
        """The frozen entries, as rows."""
        return ((key, None, entry) for key, entry in frozen_values(frozen))

    def _written(self) -> list[tuple[int, Any]]:
        return [(entry[1], key) for key, entry in self.layers.live.items()]


class MemoryLists(_Table, ListTable):
    """Entries in order per key."""

    def __init__(self, spec: StateSpec, scope: Scope) -> None:
        super().__init__(spec, scope)
        self.layers: ListLayers = ListLayers(mutable=holds_mutable(spec.type))

    def get(self) -> list[Any]:
        """All entries."""
        return self.layers.get(self.scope.key)

    def put(self, entries: list[Any]) -> None:
        """Replace all entries."""
        key = self.scope.key
        if self._expiry is not None and entries:
            self._expiry.note(key, min(written for _, written in entries))
        self.layers.put(key, entries)

    def append(self, entry: Any) -> None:
        """Add an entry."""
        key = self.scope.key
        if self._expiry is not None:
            self._expiry.note(key, entry[1])
        self.layers.append(key, entry)

    def remove(self) -> None:
        """Remove all entries."""
        self.layers.remove(self.scope.key)

    def _expire(self, now: int, place: Any) -> int | None:
        entries = self.layers.get(place)
        left = [entry for entry in entries if not self._is_over(entry, now)]
        if len(left) < len(entries):
            self.layers.put(place, left)
        return min((written for _, written in left), default=None)

    def fill(self, rows: Iterator[Row]) -> None:
        """Take in restored rows."""
        live = self.layers.live
        for key, _, entry in rows:
            if (part := live.get(key)) is None:
                live[key] = Part((entry,), whole=True)
            else:
                part.append(entry)

    def rows(self, frozen: tuple[dict[Any, Any], ...]) -> Iterator[Row]:
        """The frozen entries, as rows."""
        return ((key, None, entry) for key, part in frozen_lists(frozen) for entry in part)

    def _written(self) -> list[tuple[int, Any]]:
        return [(min(written for _, written in part), key) for key, part in self.layers.live.items()]


class MemoryMaps(_Table, MapTable):
    """A map of entries per key."""

    def __init__(self, spec: StateSpec, scope: Scope) -> None:
        super().__init__(spec, scope)
        self.layers: MapLayers = MapLayers(mutable=holds_mutable(spec.type))

    def get(self, key: Any) -> Any:
        """The entry of `key`, or `MISSING`."""
        return self.layers.get(self.scope.key, key)

    def put(self, key: Any, entry: Any) -> None:
        """Add or replace an entry."""
        if self._expiry is not None:
            self._expiry.note((self.scope.key, key), entry[1])
        self.layers.put(self.scope.key, key, entry)

    def remove(self, key: Any) -> None:
        """Remove an entry."""
        self.layers.remove(self.scope.key, key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries."""
        return iter(self.layers.items(self.scope.key))

    def clear(self) -> None:
        """Remove all entries."""
        self.layers.clear(self.scope.key)

    def _expire(self, now: int, place: Any) -> int | None:
        key, inner = place
        entry = self.layers.get(key, inner)
        if entry is MISSING:
            return None
        if not self._is_over(entry, now):
            return int(entry[1])
        self.layers.remove(key, inner)
        return None

    def fill(self, rows: Iterator[Row]) -> None:
        """Take in restored rows."""
        live = self.layers.live
        for key, inner, entry in rows:
            if (entries := live.get(key)) is None:
                entries = live[key] = Entries(whole=True)
            entries[inner] = entry

    def rows(self, frozen: tuple[dict[Any, Any], ...]) -> Iterator[Row]:
        """The frozen entries, as rows."""
        found = frozen_maps(frozen)
        return ((key, inner, entry) for key, entries in found for inner, entry in entries.items())

    def _written(self) -> list[tuple[int, Any]]:
        live = self.layers.live
        return [(entry[1], (key, inner)) for key, entries in live.items() for inner, entry in entries.items()]


class _Timers(TimerTable):
    """A map from each key to the key's timers, and a heap per kind to find the next timer."""

    def __init__(self, scope: Scope, keys: pa.Schema) -> None:
        self.layers = MapLayers(mutable=False)
        self._scope = scope
        self._rank = ranking(keys)
        self._heaps: dict[TimerKind, list[tuple[int, Any, Key, int]]] = {kind: [] for kind in TimerKind}
        self._set: dict[TimerKind, int] = dict.fromkeys(TimerKind, 0)
        """How many timers are set."""

    def add(self, kind: TimerKind, time_us: int) -> None:
        """Set a timer for the current key."""
        scope = self._scope
        if self.layers.get(scope.key, (kind, time_us)) is MISSING:
            self.layers.put(scope.key, (kind, time_us), None)
            self._set[kind] += 1
            heapq.heappush(self._heaps[kind], (time_us, self._rank(scope.key), scope.key, scope.group))

    def remove(self, kind: TimerKind, time_us: int) -> None:
        """Remove a timer of the current key."""
        key = self._scope.key
        if self.layers.get(key, (kind, time_us)) is not MISSING:
            self.layers.remove(key, (kind, time_us))
            self._set[kind] -= 1
            heap = self._heaps[kind]
            if len(heap) > _LEAST_HEAP and len(heap) > 4 * self._set[kind]:
                self._heaps[kind] = [entry for entry in dict.fromkeys(heap) if self._is_set(kind, entry)]
                heapq.heapify(self._heaps[kind])

    def of_key(self, kind: TimerKind) -> list[int]:
        """The times of the current key's timers."""
        return sorted(time_us for (found, time_us), _ in self.layers.items(self._scope.key) if found is kind)

    def first(self, kind: TimerKind) -> int | None:
        """The time of the earliest timer."""
        heap = self._heaps[kind]
        while heap:
            if self._is_set(kind, heap[0]):
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def last(self, kind: TimerKind) -> int | None:
        """The time of the latest timer."""
        return max((entry[0] for entry in self._heaps[kind] if self._is_set(kind, entry)), default=None)

    def pop_due(self, kind: TimerKind, until_us: int) -> tuple[int, Key, int] | None:
        """Remove the first timer that is due."""
        heap = self._heaps[kind]
        while heap and heap[0][0] <= until_us:
            time_us, _, key, group = entry = heapq.heappop(heap)
            if self._is_set(kind, entry):
                self.layers.remove(key, (kind, time_us))
                self._set[kind] -= 1
                return time_us, key, group
        return None

    def _is_set(self, kind: TimerKind, entry: tuple[int, Any, Key, int]) -> bool:
        return self.layers.get(entry[2], (kind, entry[0])) is not MISSING

    def fill(self, timers: Iterator[tuple[Key, int, TimerKind, int]]) -> None:
        for key, group, kind, time_us in timers:
            self.layers.put(key, (kind, time_us), None)
            self._set[kind] += 1
            self._heaps[kind].append((time_us, self._rank(key), key, group))
        for heap in self._heaps.values():
            heapq.heapify(heap)

    def rows(self, frozen: tuple[dict[Any, Entries], ...]) -> Iterator[TimerRow]:
        return ((key, kind, time_us) for key, entries in frozen_maps(frozen) for kind, time_us in entries)


class MemoryBackend(TabledBackend):
    """Keyed state in the memory of the process."""

    def __init__(self, context: StateContext) -> None:
        self._context = context
        self._scope = Scope()
        self._tables: dict[str, MemoryValues | MemoryLists | MemoryMaps] = {
            s.name: self._new_table(s) for s in context.specs
        }
        self._timers = self.timers = _Timers(self._scope, context.keys)
        self._underway = SnapshotsUnderway(self._all_layers)

    def _new_table(self, spec: StateSpec) -> MemoryValues | MemoryLists | MemoryMaps:
        if spec.kind is StateKind.LIST:
            return MemoryLists(spec, self._scope)
        return MemoryMaps(spec, self._scope) if spec.kind is StateKind.MAP else MemoryValues(spec, self._scope)

    # --- the current key -----------------------------------------------------------------

    def set_key(self, key: Key, group: int) -> None:
        """`key` is the current key from now on: tables and timers are the key's."""
        scope = self._scope
        scope.key = key
        scope.group = group

    def unset_key(self) -> None:
        """There is no current key."""
        self._scope.key = NO_KEY

    def key_group(self) -> int | None:
        """The key group of the current key."""
        return None if self._scope.key is NO_KEY else self._scope.group

    # --- snapshots -----------------------------------------------------------------------

    def restore(self, snapshots: Sequence[Sequence[StateFile]], reader: StateReader) -> None:
        """Take in the state that old subtasks saved. Only the entries of this subtask's key groups are taken."""
        check_named_once((file for files in snapshots for file in files), what=f"the state of {self._context.name!r}")
        for files in snapshots:
            for file in files:
                data = reader.get(file)
                if len(files) > 1 and not is_canonical(data):
                    raise UsageError(
                        f"the state of {self._context.name!r} was saved by another back end in its own format",
                        hint="restore with the back end that saved the state; to change the back end, take a canonical "
                        "savepoint and restore from that",
                    )
                self._take_in(CanonicalFile(data, what=_described(file, self._context)))
        for table in self._tables.values():
            table.note_all()

    def _take_in(self, file: CanonicalFile) -> None:
        own, now = self._context.own_groups, self._context.now()
        for entry in file.header.tables:
            check_keys(file.key_schema(entry), self._context)
            if entry.kind == TIMERS or entry.name in self._context.dropped:
                continue
            found = file.spec_of(entry)
            table = self._tables.get(entry.name)
            if table is None:
                table = self._tables[entry.name] = self._new_table(found)
            check_fits(found, table.spec, self._context)
            table.fill(file.rows(entry, table.spec, own, now=now))
        self._timers.fill(file.timers(own))

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotFiles:  # noqa: ARG002
        """Take references to the layers, and return the work that encodes the layers. The file is always canonical."""
        self._underway.fold(_FOLD_AT_SNAPSHOT)
        frozen = [(table, table.layers.freeze()) for table in self._tables.values()]
        timers, frozen_timers = self._timers, self._timers.layers.freeze()
        snapshot = self._underway.begin(checkpoint)
        context, now = self._context, self._context.now()

        def write(writer: StateWriter) -> tuple[StateFile, ...]:
            if not snapshot.begin():
                return ()
            try:
                states = ((table.spec, table.rows(layers)) for table, layers in frozen)
                data = encode(context, states, timers.rows(frozen_timers), now=now)
                return () if data is None else (writer.put(data),)
            finally:
                frozen.clear()
                snapshot.end()

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is complete: let go of the state that was frozen for earlier checkpoints."""
        self._underway.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is aborted: let go of the state that was frozen for it, unless that state is being written."""
        self._underway.aborted(checkpoint)

    # --- upkeep --------------------------------------------------------------------------

    def maintain(self, budget: int) -> bool:
        """Remove expired entries, and fold layers that no snapshot needs."""
        now = self._context.now()
        for table in self._tables.values():
            if table.spec.ttl is not None:
                budget -= table.clean(now, max(budget, 0))
        budget -= self._underway.fold(max(budget, 0))
        return budget <= 0

    def _all_layers(self) -> Iterator[Layers[Any]]:
        for table in self._tables.values():
            yield table.layers
        yield self._timers.layers

    def close(self) -> None:
        """Let go of all tables."""
        self._tables = {}


def _described(file: StateFile, context: StateContext) -> str:
    where = "inside the metadata" if file.path is None else f"in {file.path}"
    return f"the state of {context.name!r} {where}"

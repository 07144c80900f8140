"""The handles that a user's function uses: typed, with defaults and times to live, over the tables of a back end.

Everything that must be the same with every back end is done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.api.state import AggregatingState, BroadcastState, ListState, MapState, ReducingState, State, ValueState
from penstock.core.errors import UsageError
from penstock.core.ids import Instant
from penstock.state.backend import MISSING, KeyedBackend, ListTable, MapTable, ValueTable, ttl_expired
from penstock.state.keys import NAN
from penstock.state.memory import MemoryValues
from penstock.state.values import coercer, is_mutable, own_copy

Now = Callable[[], Instant]


def keyed_handle(state: State, backend: KeyedBackend, now: Now) -> State:
    """The handle for a declared keyed state."""
    name = state.spec.name
    match state:
        case ValueState():
            table = _timed_value(state, backend.value_table(name), now)
            return _MemoryValue(state, table) if isinstance(table, MemoryValues) else _Value(state, table)
        case ReducingState():
            return _Reducing(state, _timed_value(state, backend.value_table(name), now))
        case AggregatingState():
            return _Aggregating(state, _timed_value(state, backend.value_table(name), now))
        case ListState():
            return ListHandle(state, _timed_list(state, backend.list_table(name), now))
        case MapState():
            return MapHandle(state, _timed_map(state, backend.map_table(name), now))
        case _:
            raise TypeError(f"{state!r} is of no known kind")


def keyed_table(state: State, backend: KeyedBackend, now: Now) -> ValueTable | ListTable | MapTable:
    """The table behind the handle of a declared value, list or map state. The table hides expired entries, and knows
    nothing of types and defaults."""
    name = state.spec.name
    match state:
        case ValueState():
            return _timed_value(state, backend.value_table(name), now)
        case ListState():
            return _timed_list(state, backend.list_table(name), now)
        case MapState():
            return _timed_map(state, backend.map_table(name), now)
        case _:
            raise TypeError(f"{state!r} is of no known kind")


def _what(state: State) -> str:
    return f"state {state.spec.name!r}"


# --- values ----------------------------------------------------------------------------------------------------------


class _Value(ValueState):
    def __init__(self, declared: ValueState, table: ValueTable) -> None:
        coerce = coercer(declared.spec.type, what=_what(declared))
        super().__init__(declared.spec, None if declared.default is None else coerce(declared.default))
        self._coerce = coerce
        self._get, self._put, self._remove = table.get, table.put, table.remove
        self._copies_default = is_mutable(self.default)

    def get(self) -> Any:
        found = self._get()
        if found is MISSING:
            return own_copy(self.default) if self._copies_default else self.default
        return found

    def set(self, value: Any) -> None:
        if value is None:
            self._remove()
        else:
            self._put(self._coerce(value))

    def exists(self) -> bool:
        return self._get() is not MISSING

    def clear(self) -> None:
        self._remove()


class _MemoryValue(_Value):
    """A value in the memory of the process, without a time to live. `get` and `set` do what the methods of the table
    do, because a call costs more than the look-up, and both are called for every record."""

    def __init__(self, declared: ValueState, table: MemoryValues) -> None:
        super().__init__(declared, table)
        self._scope, self._layers = table.scope, table.layers

    def get(self) -> Any:
        layers = self._layers
        found = layers.live.get(self._scope.key, MISSING) if layers.plain else layers.get(self._scope.key)
        if found is MISSING:
            return own_copy(self.default) if self._copies_default else self.default
        return found

    def set(self, value: Any) -> None:
        if value is None:
            self._remove()
            return
        given, layers = self._coerce(value), self._layers
        if layers.plain:
            layers.live[self._scope.key] = given
        else:
            layers.put(self._scope.key, given)


class _Reducing(ReducingState):
    def __init__(self, declared: ReducingState, table: ValueTable) -> None:
        super().__init__(declared.spec, declared.reduce)
        self._table = table
        self._coerce = coercer(declared.spec.type, what=_what(declared))

    def get(self) -> Any:
        found = self._table.get()
        return None if found is MISSING else found

    def add(self, value: Any) -> None:
        given = self._coerce(value)
        found = self._table.get()
        reduced = given if found is MISSING else self._coerce(self.reduce(found, given))
        if reduced is None:
            raise UsageError(f"{_what(self)} cannot hold None: None was added, or the reduce function returned None")
        self._table.put(reduced)

    def exists(self) -> bool:
        return self._table.get() is not MISSING

    def clear(self) -> None:
        self._table.remove()


class _Aggregating(AggregatingState):
    def __init__(self, declared: AggregatingState, table: ValueTable) -> None:
        super().__init__(declared.spec, create=declared.create, add=declared.add_to, result=declared.result_of)
        self._table = table
        self._coerce = coercer(declared.spec.type, what=_what(declared))

    def get(self) -> Any:
        found = self._table.get()
        if found is MISSING:
            return None
        return found if self.result_of is None else self.result_of(found)

    def add(self, value: Any) -> None:
        found = self._table.get()
        accumulator = self._coerce(self.add_to(self.create() if found is MISSING else found, value))
        if accumulator is None:
            raise UsageError(f"{_what(self)} cannot hold None: the add function returned None")
        self._table.put(accumulator)

    def exists(self) -> bool:
        return self._table.get() is not MISSING

    def clear(self) -> None:
        self._table.remove()


# --- lists and maps --------------------------------------------------------------------------------------------------


class ListHandle(ListState):
    """A list over a table, keyed or not."""

    def __init__(self, declared: State, table: ListTable) -> None:
        super().__init__(declared.spec)
        self._table = table
        self._coerce = coercer(declared.spec.type, what=_what(declared))

    def get(self) -> list[Any]:
        """All values."""
        return self._table.get()

    def add(self, value: Any) -> None:
        """Append one value."""
        self._table.append(self._coerce(value))

    def extend(self, values: Iterable[Any]) -> None:
        """Append several values. If one value does not fit, no value is appended."""
        for value in [self._coerce(value) for value in values]:
            self._table.append(value)

    def set(self, values: Iterable[Any]) -> None:
        """Replace all values."""
        self._table.put([self._coerce(value) for value in values])

    def exists(self) -> bool:
        """Whether there is at least one value."""
        return bool(self._table.get())

    def clear(self) -> None:
        """Remove all values."""
        self._table.remove()


class MapHandle(BroadcastState):
    """A map over a table, keyed or not."""

    def __init__(self, declared: State, table: MapTable, check_write: Callable[[], None] | None = None) -> None:
        super().__init__(declared.spec)
        self._table = table
        self._check_write = check_write
        self._coerce = coercer(declared.spec.type, what=_what(declared))
        self._coerce_key = coercer(declared.spec.map_key, what=f"the key of {_what(declared)}")

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        found = self._table.get(self._key(key))
        return default if found is MISSING else found

    def set(self, key: Any, value: Any) -> None:
        """Add or replace a value."""
        if self._check_write is not None:
            self._check_write()
        self._table.put(self._key(key), self._coerce(value))

    def remove(self, key: Any) -> None:
        """Remove a value."""
        if self._check_write is not None:
            self._check_write()
        self._table.remove(self._key(key))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries."""
        return self._table.items()

    def exists(self) -> bool:
        """Whether there is at least one entry."""
        return next(self._table.items(), MISSING) is not MISSING

    def clear(self) -> None:
        """Remove all entries."""
        if self._check_write is not None:
            self._check_write()
        self._table.clear()

    def __contains__(self, key: Any) -> bool:
        return self._table.get(self._key(key)) is not MISSING

    def _key(self, given: Any) -> Any:
        key = self._coerce_key(given)
        if type(key) is float:
            # All NaNs are one object and -0.0 becomes 0.0, as for the keys of streams.
            return NAN if key != key else key + 0.0
        return key


# --- time to live ----------------------------------------------------------------------------------------------------


def _timed_value(state: State, table: ValueTable, now: Now) -> ValueTable:
    return table if state.spec.ttl is None else _TimedValue(state, table, now)


def _timed_list(state: State, table: ListTable, now: Now) -> ListTable:
    return table if state.spec.ttl is None else _TimedList(state, table, now)


def _timed_map(state: State, table: MapTable, now: Now) -> MapTable:
    return table if state.spec.ttl is None else _TimedMap(state, table, now)


class _Timed:
    """Hides entries that have expired, and knows when a read must renew an entry."""

    def __init__(self, state: State, now: Now) -> None:
        assert state.spec.ttl is not None
        self._ttl = state.spec.ttl
        self._now = now

    def _lives(self, entry: Any) -> bool:
        return not ttl_expired(self._ttl, entry[1], self._now())

    def _is_stale(self, entry: Any) -> bool:
        """Whether reading the entry must renew it."""
        return self._ttl.renewed_by_reads and entry[1] != self._now()


class _TimedValue(_Timed, ValueTable):
    def __init__(self, state: State, table: ValueTable, now: Now) -> None:
        super().__init__(state, now)
        self._table = table

    def get(self) -> Any:
        entry = self._table.get()
        if entry is MISSING:
            return MISSING
        if not self._lives(entry):
            self._table.remove()
            return MISSING
        if self._is_stale(entry):
            self.put(entry[0])
        return entry[0]

    def put(self, entry: Any) -> None:
        self._table.put((entry, self._now()))

    def remove(self) -> None:
        self._table.remove()


class _TimedList(_Timed, ListTable):
    def __init__(self, state: State, table: ListTable, now: Now) -> None:
        super().__init__(state, now)
        self._table = table

    def get(self) -> list[Any]:
        entries = self._table.get()
        found = [entry[0] for entry in entries if self._lives(entry)]
        if len(found) < len(entries) or any(map(self._is_stale, entries)):
            now = self._now()
            renew = self._ttl.renewed_by_reads
            self._table.put([(entry[0], now if renew else entry[1]) for entry in entries if self._lives(entry)])
        return found

    def put(self, entries: list[Any]) -> None:
        now = self._now()
        self._table.put([(entry, now) for entry in entries])

    def append(self, entry: Any) -> None:
        self._table.append((entry, self._now()))

    def remove(self) -> None:
        self._table.remove()


class _TimedMap(_Timed, MapTable):
    def __init__(self, state: State, table: MapTable, now: Now) -> None:
        super().__init__(state, now)
        self._table = table

    def get(self, key: Any) -> Any:
        entry = self._table.get(key)
        if entry is MISSING:
            return MISSING
        if not self._lives(entry):
            self._table.remove(key)
            return MISSING
        if self._is_stale(entry):
            self.put(key, entry[0])
        return entry[0]

    def put(self, key: Any, entry: Any) -> None:
        self._table.put(key, (entry, self._now()))

    def remove(self, key: Any) -> None:
        self._table.remove(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        for key, entry in list(self._table.items()):
            if self._lives(entry):
                if self._is_stale(entry):
                    self.put(key, entry[0])
                yield key, entry[0]

    def clear(self) -> None:
        self._table.clear()

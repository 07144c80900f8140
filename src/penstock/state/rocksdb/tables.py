"""The tables of a back end: the keys of entries in the database, and how entries are read and written.

A key in the database is, most significant byte first:

    2 bytes   key group
    2 bytes   number of the state (`penstock.state.rocksdb.catalog`)
    …         the key (`penstock.state.rocksdb.ordered`)
    …         of a map: the map key, encoded like a key; or, for a map key of any type, its `object_identity`
    8 bytes   of a list: the number of the element

One counter of the back end numbers the elements of all lists, so that an element is added to a list without reading the
list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from penstock.api.state import StateKind
from penstock.core.errors import CorruptFile
from penstock.state.backend import MISSING, NO_KEY, ListTable, MapTable, ValueTable
from penstock.state.rocksdb.catalog import StateEntry
from penstock.state.rocksdb.ordered import object_identity, value_codec
from penstock.state.rocksdb.packed import (
    UNREADABLE,
    Pack,
    Unpack,
    object_reader,
    time_of,
    value_packer,
    with_time,
    without_time,
)
from penstock.state.rocksdb.store import LayeredStore
from penstock.state.values import pickled

PREFIX_SIZE = 4
"""Bytes of a database key before the key itself."""

Row = tuple[bytes, bytes]
"""Key and value in the database."""


class _NoKeyBytes:
    """Stands for the bytes of the current key while there is no current key. To look up an entry then raises
    `UsageError`."""

    def __radd__(self, other: object) -> NoReturn:
        hash(NO_KEY)
        raise AssertionError


NO_KEY_BYTES: Any = _NoKeyBytes()


class Scope:
    """The current key."""

    __slots__ = ("group", "key")

    def __init__(self) -> None:
        self.group = b""
        """The key group, in two bytes."""
        self.key: bytes = NO_KEY_BYTES


class Counter:
    """The numbers of list elements. No number is given twice."""

    def __init__(self) -> None:
        self.next = 0

    def take(self) -> bytes:
        """The next number, in 8 bytes."""
        number = self.next
        self.next = number + 1
        return number.to_bytes(8, "big")


class EntryCodec:
    """Turns the entries of one state, as tables hold the entries, into bytes, and back."""

    def __init__(self, entry: StateEntry, *, unpickles: bool = True) -> None:
        spec = entry.spec()
        self.spec = spec
        self.number = entry.number.to_bytes(2, "big")
        what = f"state {entry.name!r}"
        self._what = what
        self._pack, self._unpack = value_packer(spec.type, what=what, unpickles=unpickles)
        self._read_object = object_reader(what=what, unpickles=unpickles)
        self._since = entry.timed_since_ms
        self.keeps_map_keys = spec.kind is StateKind.MAP and spec.map_key is None
        """Whether the value of an entry has the map key in front: a map key of any type cannot be decoded from the key
        in the database."""
        if spec.kind is StateKind.MAP and spec.map_key is not None:
            self.encode_map_key, self._decode_map_key = value_codec(spec.map_key)
        else:
            self.encode_map_key = object_identity
        self.encode: Pack
        self.decode: Unpack
        if spec.ttl is not None:
            self.encode, self.decode = self._encode_timed, self._decode_timed
        elif entry.timed:
            self.encode, self.decode = self._pack, self._decode_formerly_timed
        else:
            self.encode, self.decode = self._pack, self._unpack

    def unreadable(self, error: BaseException) -> CorruptFile:
        """The error for an entry that cannot be read with the type of this state."""
        return CorruptFile(
            f"an entry of {self._what} cannot be read as {self.spec}: {error}",
            hint="restore from another checkpoint or savepoint",
        )

    def written_ms(self, value: bytes) -> int:
        """When an entry was written; or when the state got its TTL, if that is later."""
        found = time_of(value)
        return max(time for time in (found, self._since, 0) if time is not None)

    def _encode_timed(self, entry: Any) -> bytes:
        return with_time(self._pack(entry[0]), entry[1])

    def _decode_timed(self, value: bytes) -> Any:
        return self._unpack(without_time(value)), self.written_ms(value)

    def _decode_formerly_timed(self, value: bytes) -> Any:
        return self._unpack(without_time(value))

    def encode_in_map(self, key: Any, entry: Any) -> bytes:
        """The bytes of an entry of a map."""
        if not self.keeps_map_keys:
            return self.encode(entry)
        kept = pickled(key)
        kept = len(kept).to_bytes(4, "big") + kept
        if self.spec.ttl is None:
            return kept + self._pack(entry)
        return with_time(kept + self._pack(entry[0]), entry[1])

    def decode_in_map(self, suffix: bytes, value: bytes) -> tuple[Any, Any]:
        """The map key and the entry."""
        if not self.keeps_map_keys:
            return self._decode_map_key(suffix, 0)[0], self.decode(value)
        rest = without_time(value)
        end = 4 + int.from_bytes(rest[:4], "big")
        found = self._unpack(rest[end:])
        entry = found if self.spec.ttl is None else (found, self.written_ms(value))
        return self._read_object(rest[4:end]), entry


class RocksValues(ValueTable):
    """One entry per key."""

    def __init__(self, codec: EntryCodec, store: LayeredStore, scope: Scope) -> None:
        self._scope = scope
        self.bind(codec, store)

    def bind(self, codec: EntryCodec, store: LayeredStore) -> None:
        """Read and write the entries of this store from now on."""
        self._number = codec.number
        self._codec = codec
        self._encode, self._decode = codec.encode, codec.decode
        self._read, self._write = store.get, store.put

    def get(self) -> Any:
        """The entry, or `MISSING`."""
        scope = self._scope
        found = self._read(scope.group + self._number + scope.key)
        try:
            return MISSING if found is None else self._decode(found)
        except UNREADABLE as error:
            raise self._codec.unreadable(error) from error

    def put(self, entry: Any) -> None:
        """Replace the entry."""
        scope = self._scope
        self._write(scope.group + self._number + scope.key, self._encode(entry))

    def remove(self) -> None:
        """Remove the entry."""
        scope = self._scope
        self._write(scope.group + self._number + scope.key, None)


class RocksLists(ListTable):
    """Elements per key, each an entry of its own."""

    def __init__(self, codec: EntryCodec, store: LayeredStore, scope: Scope, counter: Counter) -> None:
        self._scope = scope
        self._counter = counter
        self.bind(codec, store)

    def bind(self, codec: EntryCodec, store: LayeredStore) -> None:
        """Read and write the entries of this store from now on."""
        self._codec = codec
        self._store = store

    def _prefix(self) -> bytes:
        scope = self._scope
        return scope.group + self._codec.number + scope.key

    def get(self) -> list[Any]:
        """All entries."""
        decode, rows = self._codec.decode, self._store.scan(self._prefix())
        try:
            return [decode(value) for _, value in rows]
        except UNREADABLE as error:
            raise self._codec.unreadable(error) from error

    def put(self, entries: list[Any]) -> None:
        """Replace all entries."""
        prefix = self._prefix()
        self._store.clear(prefix)
        for entry in entries:
            self._store.put_in(prefix, self._counter.take(), self._codec.encode(entry))

    def append(self, entry: Any) -> None:
        """Add an entry."""
        self._store.put_in(self._prefix(), self._counter.take(), self._codec.encode(entry))

    def remove(self) -> None:
        """Remove all entries."""
        self._store.clear(self._prefix())


class RocksMaps(MapTable):
    """A map of entries per key."""

    def __init__(self, codec: EntryCodec, store: LayeredStore, scope: Scope) -> None:
        self._scope = scope
        self.bind(codec, store)

    def bind(self, codec: EntryCodec, store: LayeredStore) -> None:
        """Read and write the entries of this store from now on."""
        self._codec = codec
        self._store = store

    def _prefix(self) -> bytes:
        scope = self._scope
        return scope.group + self._codec.number + scope.key

    def get(self, key: Any) -> Any:
        """The entry of `key`, or `MISSING`."""
        suffix = self._codec.encode_map_key(key)
        found = self._store.get_in(self._prefix(), suffix)
        try:
            return MISSING if found is None else self._codec.decode_in_map(suffix, found)[1]
        except UNREADABLE as error:
            raise self._codec.unreadable(error) from error

    def put(self, key: Any, entry: Any) -> None:
        """Add or replace an entry."""
        suffix = self._codec.encode_map_key(key)
        self._store.put_in(self._prefix(), suffix, self._codec.encode_in_map(key, entry))

    def remove(self, key: Any) -> None:
        """Remove an entry."""
        self._store.put_in(self._prefix(), self._codec.encode_map_key(key), None)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries."""
        # `scan` is called here and not in the generator. Otherwise the iterator would show the entries as they are when
        # the first entry is read.
        return self._decoded(self._store.scan(self._prefix()))

    def _decoded(self, rows: Iterator[Row]) -> Iterator[tuple[Any, Any]]:
        decode = self._codec.decode_in_map
        for suffix, value in rows:
            try:
                entry = decode(suffix, value)
            except UNREADABLE as error:
                raise self._codec.unreadable(error) from error
            yield entry

    def clear(self) -> None:
        """Remove all entries."""
        self._store.clear(self._prefix())


Table = RocksValues | RocksLists | RocksMaps


def make_table(codec: EntryCodec, store: LayeredStore, scope: Scope, counter: Counter) -> Table:
    """The table of a state."""
    if codec.spec.kind is StateKind.LIST:
        return RocksLists(codec, store, scope, counter)
    return (RocksMaps if codec.spec.kind is StateKind.MAP else RocksValues)(codec, store, scope)


def database_rows(codec: EntryCodec, rows: Iterable[tuple[bytes, Any, Any]], counter: Counter) -> Iterator[Row]:
    """The rows of entries in the database. Each entry is given with the beginning of its key in the database and its
    map key (None if the state is no map)."""
    is_list, is_map = codec.spec.kind is StateKind.LIST, codec.spec.kind is StateKind.MAP
    for prefix, map_key, entry in rows:
        if is_map:
            yield prefix + codec.encode_map_key(map_key), codec.encode_in_map(map_key, entry)
        else:
            yield (prefix + counter.take() if is_list else prefix), codec.encode(entry)

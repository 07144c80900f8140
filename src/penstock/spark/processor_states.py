"""State of a PySpark `StatefulProcessor`: its declarations as states of Penstock, and the objects that it reads and
writes.

Every variable is one keyed state of Penstock. Values and elements are structs with the fields of their Spark schema. A
key of a map is a plain value if the schema of the keys has a single field of a type that can be a key. Other keys are
tuples, and saved as objects. A value that a processor writes is coerced to the declared type at once: the processor
reads the same value before and after a restore, and a value that does not fit is refused where it is written.
"""

# Names and parameters are those of PySpark's classes, which processors call.
# ruff: noqa: N802, N803

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.streaming import stateful_processor as spark_api
from pyspark.sql.types import Row

from penstock.api.state import ListState, MapState, State, StateKind, StateSpec, Ttl, ValueState
from penstock.core.errors import UsageError
from penstock.sql.schemas import can_be_key
from penstock.state.backend import MISSING, ListTable, MapTable, ValueTable
from penstock.state.keys import NAN
from penstock.state.values import coercer

Convert = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A state that `init` has asked its handle for, with Arrow schemas."""

    name: str
    kind: StateKind
    value: pa.Schema
    map_key: pa.Schema | None = None
    ttl_ms: int | None = None

    def state(self) -> State:
        """The declaration of the state for Penstock."""
        spec = StateSpec(
            name=self.name,
            kind=self.kind,
            type=pa.struct(list(self.value)),
            map_key=None if self.map_key is None else _plain_key(self.map_key),
            ttl=None if self.ttl_ms is None else Ttl(duration_ms=self.ttl_ms),
        )
        match self.kind:
            case StateKind.LIST:
                return ListState(spec)
            case StateKind.MAP:
                return MapState(spec)
            case _:
                return ValueState(spec)

    def opened(self, table: Any) -> Any:
        """The object that the processor reads and writes, over the table of the declaration."""
        what = f"state {self.name!r}"
        fields = Fields(self.value, what=what)
        match self.kind:
            case StateKind.LIST:
                return ProcessorList(table, fields, what)
            case StateKind.MAP:
                assert self.map_key is not None
                return ProcessorMap(table, MapKeys(self.map_key, what=f"the key of {what}"), fields)
            case _:
                return ProcessorValue(table, fields)


def _plain_key(schema: pa.Schema) -> pa.DataType | None:
    """The type of the single field, if a value of this type can be a key of Penstock. Otherwise None, which stands for
    any object."""
    return schema.field(0).type if len(schema) == 1 and can_be_key(schema.field(0).type) else None


class Fields:
    """Converts tuples in the order of a schema into the dicts that tables hold, and back."""

    def __init__(self, schema: pa.Schema, *, what: str) -> None:
        self.names = list(schema.names)
        self._what = what
        into = [_into_state(field.type, f"field {field.name!r} of {what}") for field in schema]
        self._out = [_out_of_state(field.type) for field in schema]
        self._is_plain = not any(self._out)
        self._fields = list(zip(self.names, into, strict=True))
        self._only = self._fields[0] if len(schema) == 1 else None

    def pack(self, given: Any) -> dict[str, Any]:
        """The dict for a tuple. Raises `UsageError` if the tuple does not fit the schema."""
        if isinstance(given, tuple | list) and len(given) == len(self.names):
            if self._only is not None:
                name, into = self._only
                return {name: into(given[0])}
            return {name: into(value) for (name, into), value in zip(self._fields, given, strict=True)}
        raise UsageError(
            f"{self._what} has the fields {', '.join(self.names)}; {given!r} does not fit",
            hint="give a tuple with one value per field",
        )

    def unpack(self, entry: dict[str, Any]) -> tuple[Any, ...]:
        """The tuple of a dict that `pack` has made."""
        return self.shown(tuple(entry.values()))

    def shown(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Values of a table, as the processor sees them."""
        if self._is_plain:
            return values
        return tuple(value if out is None else out(value) for out, value in zip(self._out, values, strict=True))


class MapKeys:
    """Converts the keys of a map, which are tuples, into the keys of tables, and back."""

    def __init__(self, schema: pa.Schema, *, what: str) -> None:
        self._fields = Fields(schema, what=what)
        self._is_plain = _plain_key(schema) is not None

    def pack(self, given: Any) -> Any:
        """The key of a table for a tuple. Raises `UsageError` if the tuple does not fit the schema."""
        values = tuple(_one_of_equals(value) for value in self._fields.pack(given).values())
        return values[0] if self._is_plain else values

    def unpack(self, key: Any) -> tuple[Any, ...]:
        """The tuple for a key of a table."""
        return self._fields.shown((key,) if self._is_plain else key)


def _one_of_equals(value: Any) -> Any:
    if type(value) is float:
        return NAN if value != value else value + 0.0
    return value


def _into_state(kind: pa.DataType, what: str) -> Convert:
    """The function that converts a value of a processor into a value of a table of this type."""
    coerce = coercer(kind, what=what)
    if not pt.is_nested(kind) and not _is_instant(kind):
        return coerce
    plain = as_plain(kind)
    return lambda value: coerce(plain(value))


def as_plain(kind: pa.DataType) -> Convert:
    """The function that converts a value for Arrow: rows and tuples inside the value become dicts, which Arrow takes
    for structs, and times get a time zone."""
    if _is_instant(kind):
        return _as_instant
    if pt.is_struct(kind):
        names = [field.name for field in kind]
        inner = [as_plain(field.type) for field in kind]

        def struct(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: each(value.get(name)) for name, each in zip(names, inner, strict=True)}
            if isinstance(value, tuple | list) and len(value) == len(names):
                return {name: each(item) for name, each, item in zip(names, inner, value, strict=True)}
            return value

        return struct
    if isinstance(kind, pa.ListType | pa.LargeListType):
        element = as_plain(kind.value_type)
        return lambda value: [element(item) for item in value] if value is not None else None
    if isinstance(kind, pa.MapType):
        key, item = as_plain(kind.key_type), as_plain(kind.item_type)
        return lambda value: [(key(k), item(v)) for k, v in _pairs(value)] if value is not None else None
    return lambda value: value


def _is_instant(kind: pa.DataType) -> bool:
    """Whether a type is Spark's `timestamp`: a point in time."""
    return pt.is_timestamp(kind) and kind.tz is not None


def _as_instant(value: Any) -> Any:
    """A time with the zone UTC. A time without a zone is taken for a local time, as in Spark."""
    if not isinstance(value, datetime.datetime):
        return value
    # `astimezone` of a pandas timestamp does not know the local zone; that of a plain datetime does.
    plain = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    return plain.astimezone(datetime.UTC)


def _as_local(value: Any) -> Any:
    """A point in time as Spark gives it out of state: a local time without a zone."""
    return None if value is None else value.astimezone().replace(tzinfo=None)


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else value


def _out_of_state(kind: pa.DataType) -> Convert | None:
    """The function that converts a value of a table into the value that Spark would give to a processor: structs become
    rows, and maps become dicts. None if both values are the same."""
    if _is_instant(kind):
        return _as_local
    if pt.is_struct(kind):
        outs = [_out_of_state(field.type) for field in kind]
        row = rows_with([field.name for field in kind])
        return lambda value: (
            None
            if value is None
            else row(v if out is None else out(v) for out, v in zip(outs, value.values(), strict=True))
        )
    if isinstance(kind, pa.ListType | pa.LargeListType):
        element = _out_of_state(kind.value_type)
        return None if element is None else lambda value: None if value is None else [element(item) for item in value]
    if isinstance(kind, pa.MapType):
        key, item = _out_of_state(kind.key_type) or _same, _out_of_state(kind.item_type) or _same
        return lambda value: None if value is None else {key(k): item(v) for k, v in value}
    return None


def _same(value: Any) -> Any:
    return value


def rows_with(names: list[str]) -> Callable[[Any], Row]:
    """A function that makes PySpark rows with these fields out of tuples. The names of the fields are kept once, in a
    class of their own: to give the names to every row would take longer than to make the row. Such a row is pickled as
    a plain row."""
    return partial(tuple.__new__, type("Row", (Row,), {"__fields__": names, "__module__": Row.__module__}))


# --- the objects that a processor reads and writes -------------------------------------------------------------------


class ProcessorValue(spark_api.ValueState):
    """A value per key."""

    def __init__(self, table: ValueTable, fields: Fields) -> None:
        self._get, self._put, self._remove = table.get, table.put, table.remove
        self._pack, self._unpack = fields.pack, fields.unpack

    def exists(self) -> bool:
        """Whether there is a value."""
        return self._get() is not MISSING

    def get(self) -> tuple[Any, ...] | None:
        """The value, or None."""
        found = self._get()
        return None if found is MISSING else self._unpack(found)

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Replace the value."""
        self._put(self._pack(newValue))

    def clear(self) -> None:
        """Remove the value."""
        self._remove()


class ProcessorList(spark_api.ListState):
    """A list per key."""

    def __init__(self, table: ListTable, fields: Fields, what: str) -> None:
        self._table = table
        self._fields = fields
        self._what = what

    def exists(self) -> bool:
        """Whether there is an element."""
        return bool(self._table.get())

    def get(self) -> Iterator[tuple[Any, ...]]:
        """All elements."""
        return map(self._fields.unpack, self._table.get())

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        """Replace all elements."""
        self._table.put(self._packed(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Add an element."""
        self._table.append(self._fields.pack(newState))

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        """Add elements. If one element does not fit, no element is added."""
        for entry in self._packed(newState):
            self._table.append(entry)

    def clear(self) -> None:
        """Remove all elements."""
        self._table.remove()

    def _packed(self, given: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        packed = [self._fields.pack(each) for each in given]
        if not packed:
            raise UsageError(
                f"{self._what} was given an empty list, which Spark refuses, too", hint="call clear() to empty the list"
            )
        return packed


class ProcessorMap(spark_api.MapState):
    """A map per key."""

    def __init__(self, table: MapTable, keys: MapKeys, fields: Fields) -> None:
        self._table = table
        self._keys = keys
        self._fields = fields
        self._row = rows_with(fields.names)

    def exists(self) -> bool:
        """Whether there is an entry."""
        return next(self._table.items(), MISSING) is not MISSING

    def getValue(self, key: tuple[Any, ...]) -> Row | None:
        """The value of a key, as a row; None if the map has no such key."""
        found = self._table.get(self._keys.pack(key))
        return None if found is MISSING else self._row(self._fields.unpack(found))

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        """Whether the map has this key."""
        return self._table.get(self._keys.pack(key)) is not MISSING

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Add or replace a value."""
        self._table.put(self._keys.pack(key), self._fields.pack(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All entries."""
        key, value = self._keys.unpack, self._fields.unpack
        return ((key(k), value(v)) for k, v in self._table.items())

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """All keys."""
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """All values."""
        return (value for _, value in self.iterator())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Remove an entry."""
        self._table.remove(self._keys.pack(key))

    def clear(self) -> None:
        """Remove all entries."""
        self._table.clear()

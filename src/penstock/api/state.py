"""What a state is: its kinds, its time to live, and the methods that functions use.

States are declared by the functions of `penstock.api.state_declarations`. When the job runs, the attribute that was
declared is a handle on the real state. A handle on keyed state is for the key whose row or timer is being handled, and
for no other key. Outside of a call with a key, a handle on keyed state raises `UsageError`.

A value that a call has got from state, or has put into state, belongs to that call. To change a list or another object
in place, get the object, change the object and set the object again, in one call. Do not keep the object for a later
call.
"""

# A declaration has the methods of its handle, and each method only raises an error, whatever its arguments are.
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NoReturn

import pyarrow as pa

from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import UsageError

RAW_TYPE = "raw"
"""The name that raw state has in the place of a type: raw state is bytes in a format of the function's own."""


class StateKind(Enum):
    """What a state holds. The value is the name of the kind in snapshots."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    SPLIT_LIST = "split-list"
    UNION_LIST = "union-list"
    BROADCAST = "broadcast"
    RAW_KEYED = "raw-keyed"

    @property
    def is_keyed(self) -> bool:
        """Whether there is one state per key, and not one state per subtask or key group."""
        return not self.is_of_subtask and self is not StateKind.RAW_KEYED

    @property
    def is_of_subtask(self) -> bool:
        """Whether there is one state per subtask, whatever the keys."""
        return self in (StateKind.SPLIT_LIST, StateKind.UNION_LIST, StateKind.BROADCAST)


@dataclass(frozen=True, kw_only=True)
class Ttl:
    """How long an entry of a state lives. Made by `ttl`."""

    duration_ms: int
    renewed_by_reads: bool = False


def ttl(duration: Duration, *, on: Literal["write", "read-and-write"] = "write") -> Ttl:
    """A time to live, in processing time, from the last time that an entry was written, or was written or read (`on`).

    An entry that is older than this is never seen again, is left out of snapshots, and is removed in the background. In
    a list or a map every element has a time to live of its own.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class New(ps.KeyedFunction):
    ...     seen = ps.value_state("seen", "boolean", ttl=ps.ttl("7 days", on="read-and-write"))
    ...     def on_row(self, row, context):
    ...         if not self.seen.get():
    ...             self.seen.set(True)
    ...             return row
    >>> def program(env):
    ...     clicks = env.from_iterable([{"user": "ann"}, {"user": "ann"}])
    ...     clicks.key_by("user").process(New(), schema="user string").write(ps.collect())
    >>> run(program)
    [{'user': 'ann'}]
    """
    if on not in ("write", "read-and-write"):
        raise UsageError(f"on is {on!r}; choose 'write' or 'read-and-write'")
    length = duration_ms(duration, argument="ttl")
    if length == 0:
        raise UsageError("a ttl of 0 would keep nothing", hint="give a duration above 0, or no ttl")
    return Ttl(duration_ms=length, renewed_by_reads=on == "read-and-write")


@dataclass(frozen=True, kw_only=True)
class StateSpec:
    """What a back end must know about a declared state."""

    name: str
    kind: StateKind
    type: pa.DataType | None
    """The type of a value, of an element of a list, or of an accumulator; None for any object, pickled."""
    map_key: pa.DataType | None = None
    """The type of the keys of a map; None if the state is no map, or if the keys may be any objects."""
    ttl: Ttl | None = None
    is_raw: bool = False
    """Whether the state is bytes that are written and given back as they are."""

    @property
    def type_text(self) -> str:
        """The name of the type, for people."""
        return RAW_TYPE if self.is_raw else type_name(self.type)

    def __str__(self) -> str:
        types = [self.type_text]
        if self.kind in (StateKind.MAP, StateKind.BROADCAST):
            types.insert(0, type_name(self.map_key))
        return f"{self.kind.value}<{', '.join(types)}>"


class State:
    """A declared state: what all kinds have in common. The methods of a declaration raise `UsageError`; the handle that
    takes the place of the declaration in a running job has the same methods, and they work."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec

    def clear(self) -> None:
        """Remove everything."""
        self._unusable()

    def _unusable(self) -> NoReturn:
        raise UsageError(
            f"state {self.spec.name!r} is declared, but is not in use by a running job",
            hint="use the state inside the methods of a function that process() of a stream was given",
        )

    def __repr__(self) -> str:
        return f"<state {self.spec.name!r}: {self.spec}>"


class ValueState(State):
    """One value per key. Made by `value_state`."""

    def __init__(self, spec: StateSpec, default: Any = None) -> None:
        super().__init__(spec)
        self.default = default

    def get(self) -> Any:
        """The value, or the default if there is no value."""
        self._unusable()

    def set(self, value: Any) -> None:
        """Replace the value; None removes the value."""
        self._unusable()

    def exists(self) -> bool:
        """Whether there is a value; the default does not count."""
        self._unusable()


class ListState(State):
    """Values in the order in which they were added. Made by `list_state`, `split_list_state`, `union_list_state`."""

    def get(self) -> list[Any]:
        """All values; the list is the caller's own."""
        self._unusable()

    def add(self, value: Any) -> None:
        """Append one value."""
        self._unusable()

    def extend(self, values: Iterable[Any]) -> None:
        """Append several values."""
        self._unusable()

    def set(self, values: Iterable[Any]) -> None:
        """Replace all values."""
        self._unusable()

    def exists(self) -> bool:
        """Whether there is at least one value."""
        self._unusable()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self.get())


class MapState(State):
    """Values by key. Made by `map_state`."""

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default` if `key` has no value."""
        self._unusable()

    def set(self, key: Any, value: Any) -> None:
        """Add or replace a value."""
        self._unusable()

    def remove(self, key: Any) -> None:
        """Remove the value of `key`; nothing happens if `key` has no value."""
        self._unusable()

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries, in no particular order. The map may be changed meanwhile; the iteration may or may not show the
        change."""
        self._unusable()

    def keys(self) -> Iterator[Any]:
        """All keys."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        """All values."""
        return (value for _, value in self.items())

    def exists(self) -> bool:
        """Whether there is at least one entry."""
        self._unusable()

    def __contains__(self, key: Any) -> bool:
        self._unusable()

    def __getitem__(self, key: Any) -> Any:
        found = self.get(key, _NOTHING)
        if found is _NOTHING:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self.remove(key)

    def __iter__(self) -> Iterator[Any]:
        return self.keys()


class BroadcastState(MapState):
    """A map that is the same in every subtask. Made by `broadcast_state`.

    Broadcast state is written where broadcast records are handled, and read anywhere. All subtasks handle the same
    broadcast records, and what a subtask writes must follow from these records alone: otherwise the maps of the
    subtasks differ.
    """


class RawKeyedState(State):
    """A stream of bytes per key group. Made by `raw_keyed_state`. May also be used in a call that has no key.

    A snapshot saves the streams. A function that keeps objects of its own makes the objects from the streams in `open`,
    and makes the streams from the objects in `on_snapshot`.
    """

    @property
    def groups(self) -> range:
        """The key groups that this subtask owns."""
        self._unusable()

    def get(self, group: int) -> bytes:
        """The stream of a key group; empty if the key group has no stream."""
        self._unusable()

    def set(self, group: int, data: bytes | bytearray | memoryview) -> None:
        """Replace the stream of a key group that this subtask owns; empty `data` removes the stream."""
        self._unusable()

    def items(self) -> Iterator[tuple[int, bytes]]:
        """Every key group that has a stream, in order, and its stream."""
        self._unusable()

    def exists(self) -> bool:
        """Whether there is at least one stream."""
        self._unusable()


class ReducingState(State):
    """One value per key, made of all added values. Made by `reducing_state`."""

    def __init__(self, spec: StateSpec, reduce: Callable[[Any, Any], Any]) -> None:
        super().__init__(spec)
        self.reduce = reduce

    def get(self) -> Any:
        """The reduced value; None if nothing was added."""
        self._unusable()

    def add(self, value: Any) -> None:
        """Reduce `value` with the value in the state. The first value is taken as it is."""
        self._unusable()

    def exists(self) -> bool:
        """Whether something was added."""
        self._unusable()


class AggregatingState(State):
    """One accumulator per key. Made by `aggregating_state`."""

    def __init__(
        self,
        spec: StateSpec,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(spec)
        self.create = create
        self.add_to = add
        self.result_of = result

    def get(self) -> Any:
        """The result of the accumulator; None if nothing was added."""
        self._unusable()

    def add(self, value: Any) -> None:
        """Add a value to the accumulator."""
        self._unusable()

    def exists(self) -> bool:
        """Whether something was added."""
        self._unusable()


_NOTHING = object()


def type_name(kind: pa.DataType | None) -> str:
    """The name of a type, for people."""
    return "object" if kind is None else str(kind)

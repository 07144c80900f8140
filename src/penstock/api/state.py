"""State of a user's function: declared by name and type, used inside calls.

    class Visits(KeyedFunction):
        seen = value_state("seen", "bigint", default=0)
        pages = map_state("pages", key="string", value="bigint", ttl=ttl("1h"))

A declaration stands on the class (or on the instance, set in `__init__`). When the job runs, the attribute is a handle
on the real state. A handle on keyed state is for the key whose row or timer is being handled, and for no other key.
Outside of a call with a key, a handle on keyed state raises `UsageError`.

Keyed state, one per key:

    value_state          one value
    list_state           values in order
    map_state            values by a key of their own
    reducing_state       one value, made of all added values by a function
    aggregating_state    one accumulator, to which a function adds values, and a result made of the accumulator

State of a subtask, whatever the key (operator state). The kind says which subtasks get the state when a job is
restored:

    split_list_state     a list whose parts are dealt out evenly to the subtasks
    union_list_state     a list; every subtask gets the parts of all subtasks
    broadcast_state      a map that is the same in all subtasks

Raw state, bytes in a format of the function's own, which no other code reads:

    raw_keyed_state         a stream of bytes per key group; a subtask gets the streams of the key groups that it owns
    raw_split_list_state    a list of byte strings, dealt out like a split list
    raw_union_list_state    a list of byte strings; every subtask gets the byte strings of all subtasks

A type is the name of a Spark type ("bigint", "array<string>"), a Python type, a `pa.DataType`, or `object` for any
value that can be pickled. Values of the first three can be read as columns of a table from any snapshot: prefer these
types to `object`.

A value that a call has got from state, or has put into state, belongs to that call. To change a list or another object
in place, get the object, change the object and set the object again, in one call. Do not keep the object for a later
call.
"""

# A declaration has the methods of its handle, and each method only raises an error, whatever its arguments are.
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, NoReturn

import pyarrow as pa

from penstock.api.callables import check_callable
from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import UsageError
from penstock.sql.schemas import TypeLike, as_type, can_be_key

RAW_TYPE = "raw"
"""The name that raw state has in the place of a type: raw state is bytes in a format of the function's own."""
_LONGEST_NAME = 200


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


# --- declarations ----------------------------------------------------------------------------------------------------


def value_state(name: str, type: TypeLike, *, default: Any = None, ttl: Ttl | None = None) -> ValueState:  # noqa: A002
    """One value per key. `default` is what `get` returns when there is no value.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Totals(ps.KeyedFunction):
    ...     total = ps.value_state("total", "bigint", default=0)
    ...     def on_row(self, row, context):
    ...         self.total.set(self.total.get() + row["price"])
    ...         return {"user": context.key, "total": self.total.get()}
    >>> def program(env):
    ...     orders = env.from_iterable([{"user": "ann", "price": 3}, {"user": "ann", "price": 5}])
    ...     orders.key_by("user").process(Totals(), schema="user string, total bigint").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'user': 'ann', 'total': 3}, {'user': 'ann', 'total': 8}]
    """
    return ValueState(_spec(name, StateKind.VALUE, type, ttl=ttl), default)


def list_state(name: str, type: TypeLike, *, ttl: Ttl | None = None) -> ListState:  # noqa: A002
    """A list per key; `type` is the type of an element.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Pairs(ps.KeyedFunction):
    ...     waiting = ps.list_state("waiting", "string")
    ...     def on_row(self, row, context):
    ...         self.waiting.add(row["page"])
    ...         if len(self.waiting) == 2:
    ...             pages = self.waiting.get()
    ...             self.waiting.clear()
    ...             return {"user": context.key, "pages": pages}
    >>> def program(env):
    ...     clicks = env.from_iterable([{"user": "ann", "page": page} for page in ("home", "cart", "pay")])
    ...     clicks.key_by("user").process(Pairs(), schema="user string, pages array<string>").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'user': 'ann', 'pages': ['home', 'cart']}]
    """
    return ListState(_spec(name, StateKind.LIST, type, ttl=ttl))


def map_state(name: str, *, key: TypeLike, value: TypeLike, ttl: Ttl | None = None) -> MapState:
    """A map per key. Entries can be read and changed one by one, however many there are.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Visits(ps.KeyedFunction):
    ...     visits = ps.map_state("visits", key="string", value="bigint")
    ...     def on_row(self, row, context):
    ...         self.visits[row["page"]] = self.visits.get(row["page"], 0) + 1
    ...         return {"page": row["page"], "visits": self.visits[row["page"]]}
    >>> def program(env):
    ...     clicks = env.from_iterable([{"user": "ann", "page": page} for page in ("home", "cart", "home")])
    ...     clicks.key_by("user").process(Visits(), schema="page string, visits bigint").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'page': 'home', 'visits': 1}, {'page': 'cart', 'visits': 1}, {'page': 'home', 'visits': 2}]
    """
    return MapState(_spec(name, StateKind.MAP, value, map_key=key, ttl=ttl))


def reducing_state(
    name: str,
    type: TypeLike,  # noqa: A002
    reduce: Callable[[Any, Any], Any],
    *,
    ttl: Ttl | None = None,
) -> ReducingState:
    """A value per key. `reduce(old, new)` makes the next value of the value in the state and an added value.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Highest(ps.KeyedFunction):
    ...     highest = ps.reducing_state("highest", "bigint", max)
    ...     def on_row(self, row, context):
    ...         self.highest.add(row["price"])
    ...         return {"highest": self.highest.get()}
    >>> def program(env):
    ...     bids = env.from_iterable([{"item": "pen", "price": 5}, {"item": "pen", "price": 3}])
    ...     bids.key_by("item").process(Highest(), schema="highest bigint").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'highest': 5}, {'highest': 5}]
    """
    _check_callable(reduce, name, "reduce")
    return ReducingState(_spec(name, StateKind.REDUCING, type, ttl=ttl), reduce)


def aggregating_state(
    name: str,
    type: TypeLike,  # noqa: A002
    *,
    create: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
    ttl: Ttl | None = None,
) -> AggregatingState:
    """An accumulator per key, of the given type: `create()` makes an accumulator, `add(accumulator, value)` returns the
    next accumulator, `result(accumulator)` is what `get` returns. Without `result`, `get` returns the accumulator
    itself.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Means(ps.KeyedFunction):
    ...     mean = ps.aggregating_state(
    ...         "mean",
    ...         "struct<total: bigint, n: bigint>",
    ...         create=lambda: {"total": 0, "n": 0},
    ...         add=lambda so_far, price: {"total": so_far["total"] + price, "n": so_far["n"] + 1},
    ...         result=lambda so_far: so_far["total"] / so_far["n"],
    ...     )
    ...     def on_row(self, row, context):
    ...         self.mean.add(row["price"])
    ...         return {"mean": self.mean.get()}
    >>> def program(env):
    ...     bids = env.from_iterable([{"item": "pen", "price": 3}, {"item": "pen", "price": 4}])
    ...     bids.key_by("item").process(Means(), schema="mean double").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'mean': 3.0}, {'mean': 3.5}]
    """
    _check_callable(create, name, "create")
    _check_callable(add, name, "add")
    if result is not None:
        _check_callable(result, name, "result")
    spec = _spec(name, StateKind.AGGREGATING, type, ttl=ttl)
    return AggregatingState(spec, create=create, add=add, result=result)


def split_list_state(name: str, type: TypeLike) -> ListState:  # noqa: A002
    """A list per subtask. When a job is restored with another parallelism, the elements of all subtasks are dealt out
    evenly.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class InTwos(ps.ProcessFunction):
    ...     waiting = ps.split_list_state("waiting", "string")
    ...     def on_row(self, row, context):
    ...         self.waiting.add(row["word"])
    ...         return self.joined() if len(self.waiting) == 2 else None
    ...     def on_end(self, context):
    ...         return self.joined() if len(self.waiting) else None
    ...     def joined(self):
    ...         words = " ".join(self.waiting)
    ...         self.waiting.clear()
    ...         return {"words": words}
    >>> def program(env):
    ...     words = env.from_iterable(["to", "be", "or"], schema="word string")
    ...     words.process(InTwos(), schema="words string").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'words': 'to be'}, {'words': 'or'}]
    """
    return ListState(_spec(name, StateKind.SPLIT_LIST, type))


def union_list_state(name: str, type: TypeLike) -> ListState:  # noqa: A002
    """A list per subtask. When a job is restored, every subtask gets the elements of all subtasks, and keeps the
    elements it wants.

    No checkpoint is taken while some subtasks of the step have ended and other subtasks have not: the elements of the
    ended subtasks would be lost.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Highest(ps.ProcessFunction):
    ...     highest = ps.union_list_state("highest", "bigint")
    ...     def open(self, context):
    ...         self.highest.set([max(self.highest, default=0)])
    ...     def on_row(self, row, context):
    ...         if row["price"] > max(self.highest):
    ...             self.highest.set([row["price"]])
    ...             return row
    >>> def program(env):
    ...     prices = env.from_iterable([5, 3, 8], schema="price bigint")
    ...     prices.process(Highest(), schema="price bigint").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'price': 5}, {'price': 8}]
    """
    return ListState(_spec(name, StateKind.UNION_LIST, type))


def broadcast_state(name: str, *, key: TypeLike, value: TypeLike) -> BroadcastState:
    """A map that is the same in every subtask. When a job is restored, every subtask gets one of the copies.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class InEuros(ps.KeyedBroadcastFunction):
    ...     rates = ps.broadcast_state("rates", key="string", value="double")
    ...     def on_broadcast(self, row, context):
    ...         self.rates[row["currency"]] = row["rate"]
    ...     def on_row(self, row, context):
    ...         return {"euros": row["amount"] * self.rates[row["currency"]]}
    >>> def program(env):
    ...     orders = env.from_iterable([{"currency": "GBP", "amount": 10}], name="orders")
    ...     rates = env.from_iterable([{"currency": "GBP", "rate": 1.25}], name="rates")
    ...     both = orders.key_by("currency").connect(rates, wait="end")
    ...     both.process(InEuros(), schema="euros double").write(ps.collect())
    >>> run(program)
    [{'euros': 12.5}]
    """
    return BroadcastState(_spec(name, StateKind.BROADCAST, value, map_key=key))


def raw_keyed_state(name: str) -> RawKeyedState:
    """A stream of bytes per key group, in a format of the function's own. When a job is restored, at any parallelism, a
    subtask gets the streams of the key groups that it owns. `context.key_group` is the key group of the current key.

    >>> import json
    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Latest(ps.KeyedFunction):
    ...     saved = ps.raw_keyed_state("latest")
    ...     def open(self, context):
    ...         self.by_group = {group: json.loads(data) for group, data in self.saved.items()}
    ...     def on_row(self, row, context):
    ...         latest = self.by_group.setdefault(context.key_group, {})
    ...         before = latest.get(context.key)
    ...         latest[context.key] = row["page"]
    ...         return {"user": context.key, "page": row["page"], "before": before}
    ...     def on_snapshot(self, checkpoint):
    ...         for group, latest in self.by_group.items():
    ...             self.saved.set(group, json.dumps(latest).encode())
    >>> def program(env):
    ...     clicks = env.from_iterable([{"user": "ann", "page": "home"}, {"user": "ann", "page": "cart"}])
    ...     steps = clicks.key_by("user").process(Latest(), schema="user string, page string, before string")
    ...     steps.where("before is not null").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'user': 'ann', 'page': 'cart', 'before': 'home'}]
    """
    return RawKeyedState(replace(_spec(name, StateKind.RAW_KEYED, bytes), is_raw=True))


def raw_split_list_state(name: str) -> ListState:
    """A list of byte strings per subtask, in a format of the function's own. When a job is restored with another
    parallelism, the byte strings of all subtasks are dealt out evenly.

    >>> import zlib
    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Packed(ps.ProcessFunction):
    ...     packed = ps.raw_split_list_state("packed")
    ...     def open(self, context):
    ...         self.lines = [zlib.decompress(data).decode() for data in self.packed]
    ...     def on_row(self, row, context):
    ...         self.lines.append(row["line"])
    ...     def on_snapshot(self, checkpoint):
    ...         self.packed.set(zlib.compress(line.encode()) for line in self.lines)
    ...     def on_end(self, context):
    ...         return [{"line": line} for line in sorted(self.lines)]
    >>> def program(env):
    ...     lines = env.from_iterable(["to be", "or not"], schema="line string")
    ...     lines.process(Packed(), schema="line string").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'line': 'or not'}, {'line': 'to be'}]
    """
    return ListState(replace(_spec(name, StateKind.SPLIT_LIST, bytes), is_raw=True))


def raw_union_list_state(name: str) -> ListState:
    """A list of byte strings per subtask, in a format of the function's own. When a job is restored, every subtask gets
    the byte strings of all subtasks; see `union_list_state`.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Highest(ps.ProcessFunction):
    ...     saved = ps.raw_union_list_state("highest")
    ...     def open(self, context):
    ...         self.highest = max((int(data) for data in self.saved), default=0)
    ...     def on_row(self, row, context):
    ...         if row["price"] > self.highest:
    ...             self.highest = row["price"]
    ...             return row
    ...     def on_snapshot(self, checkpoint):
    ...         self.saved.set([str(self.highest).encode()])
    >>> def program(env):
    ...     prices = env.from_iterable([5, 3, 8], schema="price bigint")
    ...     prices.process(Highest(), schema="price bigint").write(ps.collect())
    >>> run(program, parallelism=1)
    [{'price': 5}, {'price': 8}]
    """
    return ListState(replace(_spec(name, StateKind.UNION_LIST, bytes), is_raw=True))


def declared_states(function: object) -> dict[str, State]:
    """The states that a function (or its class) declares, by the name of the attribute. Raises `UsageError` if one name
    stands for different states."""
    kind = function if isinstance(function, type) else type(function)
    found: dict[str, State] = {}
    for base in reversed(kind.__mro__):
        found.update({name: value for name, value in vars(base).items() if isinstance(value, State)})
        # A subclass may replace a declaration by an attribute that is no declaration.
        found = {name: state for name, state in found.items() if name not in vars(base) or vars(base)[name] is state}
    if kind is not function:
        found.update({n: value for n, value in getattr(function, "__dict__", {}).items() if isinstance(value, State)})
    by_name: dict[str, State] = {}
    for state in found.values():
        other = by_name.setdefault(state.spec.name, state)
        if other.spec != state.spec:
            raise UsageError(
                f"{kind.__name__} declares state {state.spec.name!r} twice: as {_described(other.spec)} and as "
                f"{_described(state.spec)}",
                hint="give one of them another name",
            )
    return found


_NOTHING = object()


def _spec(
    name: str, kind: StateKind, given: TypeLike, *, map_key: TypeLike | None = None, ttl: Ttl | None = None
) -> StateSpec:
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot be the name of a state", hint=f"give a text of one line, up to {_LONGEST_NAME} letters"
        )
    if ttl is not None and not isinstance(ttl, Ttl):
        raise UsageError(f"the ttl of state {name!r} is {ttl!r}", hint='write ttl=ps.ttl("1h")')
    key_type = None
    if map_key is not None and map_key is not object:
        key_type = as_type(map_key, argument=f"the key type of state {name!r}")
        if not can_be_key(key_type):
            raise UsageError(
                f"the key type of state {name!r} is {key_type}, which cannot be a key",
                hint="use integers, booleans, floats, decimals, dates, times, timestamps, strings or binary; or object",
            )
    value_type = None if given is object else as_type(given, argument=f"the type of state {name!r}")
    return StateSpec(name=name, kind=kind, type=value_type, map_key=key_type, ttl=ttl)


def _check_callable(given: object, name: str, argument: str) -> None:
    if not callable(given):
        raise UsageError(f"{argument} of state {name!r} is {given!r}, which is no function")
    check_callable(given, f"{argument} of state {name!r}")


def type_name(kind: pa.DataType | None) -> str:
    """The name of a type, for people."""
    return "object" if kind is None else str(kind)


def _described(spec: StateSpec) -> str:
    return str(spec) if spec.ttl is None else f"{spec} with a ttl of {spec.ttl.duration_ms} ms"

"""How a function declares its state: by name and type, on its class.

    class Visits(KeyedFunction):
        seen = value_state("seen", "bigint", default=0)
        pages = map_state("pages", key="string", value="bigint", ttl=ttl("1h"))

A declaration stands on the class (or on the instance, set in `__init__`). When the job runs, the attribute is a handle
on the real state (`penstock.api.state`).

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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.api.callables import check_callable
from penstock.api.state import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    RawKeyedState,
    ReducingState,
    State,
    StateKind,
    StateSpec,
    Ttl,
    ValueState,
)
from penstock.core.errors import UsageError
from penstock.sql.schemas import TypeLike, as_type, can_be_key

_LONGEST_NAME = 200


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


def _described(spec: StateSpec) -> str:
    return str(spec) if spec.ttl is None else f"{spec} with a ttl of {spec.ttl.duration_ms} ms"

"""Async functions: what `Stream.async_map` takes.

An `async def` is enough for most functions. A function that needs a client or a session is an object:

    class Scores(ps.AsyncFunction):
        async def open(self, context):
            self.session = aiohttp.ClientSession()

        async def on_row(self, row):
            async with self.session.get(f"http://scores/{row['id']}") as answer:
                return {"id": row["id"], "score": float(await answer.text())}

        async def close(self):
            await self.session.close()

Every subtask has a function object of its own. All methods of the object run on one event loop, in a thread beside the
loop of the slot. Several calls of `on_row` are under way at the same time. A call must not block: code that blocks
keeps all other calls of the slot waiting, and belongs into `await asyncio.to_thread(...)`.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock.api.functions import FunctionContext, Row, Rows
from penstock.core.errors import UsageError

AsyncCall = Callable[[Any], Coroutine[Any, Any, Any]]

_FRAMES = {"pyarrow": ("RecordBatch", "arrow"), "polars": ("DataFrame", "polars"), "pandas": ("DataFrame", "pandas")}
"""By package: the class of its batches, and the kind of batches of that class."""


class AsyncFunction:
    """An async function with a beginning and an end; see `Stream.async_map`. Write `on_row` or `on_batch`.

    >>> import asyncio
    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Names(ps.AsyncFunction):
    ...     async def open(self, context):
    ...         self.names = {1: "ann"}  # here: a session of a client
    ...     async def on_row(self, row):
    ...         await asyncio.sleep(0.01)
    ...         return {"id": row["id"], "name": self.names.get(row["id"])}
    >>> def program(env):
    ...     ids = env.from_iterable([1, 2], schema="id bigint")
    ...     ids.async_map(Names(), timeout="2s", schema="id bigint, name string").write(ps.collect())
    >>> sorted(run(program), key=lambda row: row["id"])
    [{'id': 1, 'name': 'ann'}, {'id': 2, 'name': None}]
    """

    async def open(self, context: FunctionContext) -> None:
        """Called once, before all other methods. The subtask does not begin before `open` has returned."""

    async def on_row(self, row: Row) -> Rows:
        """Called for every record. Return a row, several rows in a list, or None for no row."""
        raise NotImplementedError

    async def on_batch(self, batch: Any) -> Any:
        """Called for every batch of records. Return a batch of the same kind, or None for no rows."""
        raise NotImplementedError

    async def close(self) -> None:
        """Called once at the end, also after a failure, when all calls have been cancelled. A slot does not wait long
        for `close`."""


def check_async(function: object, argument: str) -> None:
    """Raise `UsageError` unless `function` is an async function, or an object with async methods."""
    if isinstance(function, type):
        raise UsageError(
            f"{argument} takes a function or an object, not the class {function.__name__}",
            hint=f"write {function.__name__}()",
        )
    written = [name for name in ("on_row", "on_batch", "__call__") if _method(function, name) is not None]
    if len(written) > 1:
        raise UsageError(
            f"{type(function).__name__} has {' and '.join(written)}", hint="write only one of these methods"
        )
    if not written and not callable(function):
        raise UsageError(f"{argument} takes an async function, not {function!r}", hint="write it with async def")
    called: Any = _method(function, written[0]) if written else function
    name = f"{type(function).__name__}.{written[0]}" if written else _named(called)
    plain = _plain(called)
    if inspect.isasyncgenfunction(plain):
        raise UsageError(f"{name} is an async generator", hint="return the rows in a list instead of yielding them")
    if not inspect.iscoroutinefunction(plain):
        raise UsageError(
            f"{argument} takes an async function, and {name} is not async",
            hint="write the function with async def; or use map, flat_map or map_batches; "
            "code that blocks can be awaited with asyncio.to_thread(...)",
        )
    for method in ("open", "close"):
        found = None if inspect.isfunction(plain) and not written else _method(function, method)
        if found is not None and not inspect.iscoroutinefunction(_plain(found)):
            raise UsageError(f"{type(function).__name__}.{method} is not async", hint="write it with async def")


def call_of(function: Any) -> AsyncCall:
    """What is called for every row or batch. `function` has been checked by `check_async`."""
    for name in ("on_row", "on_batch"):
        found = _method(function, name)
        if found is not None:
            return typing.cast("AsyncCall", getattr(function, name))
    return typing.cast("AsyncCall", function)


def opening_of(function: Any, context: FunctionContext) -> Callable[[], Coroutine[Any, Any, Any]] | None:
    """The call that opens a function; None if the function has no `open`."""
    if _method(function, "open") is None:
        return None
    takes_context = bool(inspect.signature(function.open).parameters)
    return functools.partial(function.open, context) if takes_context else function.open


def closing_of(function: Any) -> Callable[[], Coroutine[Any, Any, Any]] | None:
    """The call that closes a function; None if the function has no `close`."""
    return function.close if _method(function, "close") is not None else None


def kind_of(function: Any, *, batch: bool | None) -> str:
    """What a function takes: `rows`, or batches of the kind `arrow`, `polars` or `pandas`. The first parameter of the
    function may be annotated with the class of a batch."""
    annotated = _annotated_kind(call_of(function))
    if batch is False or (batch is None and annotated is None and _method(function, "on_batch") is None):
        return "rows"
    return annotated or "arrow"


def _annotated_kind(call: Any) -> str | None:
    call = _plain(call if inspect.isroutine(_plain(call)) else type(call).__call__)
    try:
        hints: Mapping[str, Any] = typing.get_type_hints(call)
    except (NameError, TypeError):
        # A name that exists only for type checkers: the text of the annotation has to do.
        hints = getattr(call, "__annotations__", {})
    parameters = [name for name in inspect.signature(call).parameters if name != "self"]
    found = hints.get(parameters[0]) if parameters else None
    if isinstance(found, str):
        package, _, name = found.rpartition(".")
        shorts = {"pa": "pyarrow", "pl": "polars", "pd": "pandas"}
        known = _FRAMES.get(shorts.get(package, package))
    else:
        name = getattr(found, "__name__", "")
        known = _FRAMES.get(str(getattr(found, "__module__", "")).partition(".")[0])
    return known[1] if known is not None and known[0] == name else None


def _method(function: object, name: str) -> Any:
    """The method of an object's class, if the class of the object has the method, and not only `AsyncFunction`, nor
    the classes of plain functions."""
    kind = type(function)
    if inspect.isroutine(function) or kind in (functools.partial, type):
        return None
    found = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
    return None if found is None or found is AsyncFunction.__dict__.get(name) else found


def _plain(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    return inspect.unwrap(getattr(function, "__func__", function))


def _named(function: Any) -> str:
    return str(getattr(_plain(function), "__qualname__", None) or repr(function))

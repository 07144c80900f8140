"""Which user code can be called: a function, or an object with methods, that returns the result when it is called."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from penstock.core.errors import UsageError

_HINT = "write the function with def; to call async code in it, use asyncio.run(...) or an event loop that open() makes"


_HAVE_ASYNC = ("map", "flat_map", "map_batches", "filter")
"""The methods of streams in whose place `async_map` can be used."""


def check_callable(function: object, argument: str) -> None:
    """Raise `UsageError` unless `function` can be called and returns its result. A call of an async function returns a
    coroutine instead of the result."""
    if not callable(function):
        raise UsageError(f"{argument} takes a function, not {function!r}")
    if is_async(function):
        asks = "use async_map, which takes async functions; or " if argument in _HAVE_ASYNC else ""
        raise UsageError(
            f"{argument} takes a function that returns its result, and {_called(function)} is async",
            hint=f"{asks}{_HINT}",
        )


def refuse_async_methods(given: object, base: type) -> None:
    """Raise `UsageError` if an object has an async version of a method of `base`."""
    kind = type(given)
    for name in dir(base):
        if not name.startswith("_") and is_async(inspect.getattr_static(kind, name, None)):
            raise UsageError(
                f"{kind.__name__}.{name} is async, and must return its result when it is called", hint=_HINT
            )


def is_async(function: Any) -> bool:
    """Whether a call gives a coroutine, or an async generator, instead of a result."""
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    while isinstance(function, functools.partial | functools.partialmethod):
        function = function.func
    if _is_async_function(function):
        return True
    # `function` may be an object with an async `__call__`. A class is called to make an object, which is never async.
    call = None if isinstance(function, type) else inspect.getattr_static(type(function), "__call__", None)
    return _is_async_function(call)


def _is_async_function(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _called(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or repr(function)
    return str(name)

"""What users call has an example in its docstring. What has none is listed here, and the list may only shrink."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import penstock

STREAMS = ("Stream", "KeyedStream", "WindowedStream", "ConnectedStream", "ConnectedKeyedStreams", "Pattern")
MADE_BY_USERS = (
    "AggregateFunction",
    "AsyncFunction",
    "CheckpointHook",
    "Checkpointing",
    "Environment",
    "KeyedBroadcastFunction",
    "KeyedCoFunction",
    "KeyedFunction",
    "ProcessFunction",
    "Sink",
    "Source",
)
WITHOUT_EXAMPLE = frozenset(
    [
        "CheckpointHook",
        "Environment",
        "Sink",
    ]
)


def public_callables() -> Iterator[tuple[str, object]]:
    """The public functions, the classes that users make or inherit from, and the public methods of streams, by name."""
    for name in penstock.__all__:
        found = getattr(penstock, name)
        if inspect.isfunction(found) or name in MADE_BY_USERS:
            yield name, found
    for kind in STREAMS:
        for name, method in inspect.getmembers(getattr(penstock, kind), inspect.isfunction):
            if not name.startswith("_"):
                yield f"{kind}.{name}", method


def has_example(found: object) -> bool:
    return ">>> " in (inspect.getdoc(found) or "")


def test_what_users_call_has_an_example():
    missing = {name for name, found in public_callables() if not has_example(found)}
    assert missing <= WITHOUT_EXAMPLE, f"give these an example: {sorted(missing - WITHOUT_EXAMPLE)}"
    assert missing >= WITHOUT_EXAMPLE, f"these have an example now, take them off: {sorted(WITHOUT_EXAMPLE - missing)}"


def test_a_function_without_an_example_is_found():
    assert has_example(penstock.alignment)
    assert not has_example(lambda: None)

"""What has changed between two documents, for the stream.

A change is a path and the value that stands there from now on: `[["rows", "in"], 5]`. A path without a value is gone:
`[["attempts", 3]]`. Lists of plain values, and lists whose length has changed, are sent as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Change = list[Any]


def changes(before: Any, after: Any) -> list[Change]:
    """The changes that make `after` out of `before`."""
    return list(_changes(before, after, []))


def _changes(before: Any, after: Any, path: list[Any]) -> Iterator[Change]:
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before:
            if name not in after:
                yield [[*path, name]]
        for name, value in after.items():
            if name not in before:
                yield [[*path, name], value]
            else:
                yield from _changes(before[name], value, [*path, name])
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after) and _has_parts(after):
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _changes(one, other, [*path, place])
    elif before != after:
        yield [path, after]


def _has_parts(found: list[Any]) -> bool:
    return bool(found) and all(isinstance(each, dict) for each in found)

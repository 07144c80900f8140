"""Which subtask owns a key group: by arithmetic, where the package goes by ranges."""

from __future__ import annotations


def owner_of(group: int, *, parallelism: int, groups: int) -> int:
    """The subtask that owns a key group."""
    return group * parallelism // groups

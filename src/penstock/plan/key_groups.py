"""Key groups: the unit in which keyed state moves between subtasks.

A key belongs to one of G groups for ever (G is the job's maximum parallelism); a subtask owns a range of groups. The
hash that maps a key to its group is part of the storage format and never changes; the vectorised form lives beside the
operators and is held to the same golden vectors.
"""

from __future__ import annotations

MAX_PARALLELISM = 32_768
DEFAULT_LEAST_MAX_PARALLELISM = 128


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups of a job that names none: 1.5 times the parallelism, rounded up to a power of two."""
    wanted = parallelism + parallelism // 2
    power = 1 << max(0, wanted - 1).bit_length()
    return min(max(power, DEFAULT_LEAST_MAX_PARALLELISM), MAX_PARALLELISM)


def range_of(subtask: int, *, parallelism: int, groups: int) -> tuple[int, int]:
    """First and last key group of a subtask, inclusive."""
    first = (subtask * groups + parallelism - 1) // parallelism
    last = ((subtask + 1) * groups - 1) // parallelism
    return first, last


def owner_of(group: int, *, parallelism: int, groups: int) -> int:
    """The subtask that owns a key group."""
    return group * parallelism // groups

"""Key groups: the unit in which keyed state moves between subtasks.

A key belongs to one of G groups for ever (G is the job's maximum parallelism); a subtask owns a range of groups. The
hash that maps a key to its group is part of the storage format and never changes; the vectorised form lives beside the
operators and is held to the same golden vectors.
"""

from __future__ import annotations

from penstock.core.key_groups import range_of as range_of

MAX_PARALLELISM = 32_768
DEFAULT_LEAST_MAX_PARALLELISM = 128


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups of a job that names none: 1.5 times the parallelism, rounded up to a power of two."""
    wanted = parallelism + parallelism // 2
    power = 1 << max(0, wanted - 1).bit_length()
    return min(max(power, DEFAULT_LEAST_MAX_PARALLELISM), MAX_PARALLELISM)


def owner_of(group: int, *, parallelism: int, groups: int) -> int:
    """The subtask that owns a key group."""
    return group * parallelism // groups

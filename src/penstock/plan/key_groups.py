"""Key groups: the unit in which keyed state moves between subtasks.

A key always belongs to the same key group. A job has G key groups (G is the job's maximum parallelism). A subtask owns
a range of key groups. The hash that maps a key to its key group is part of the storage format and never changes. The
vectorised form of the hash lives beside the operators; tests hold both forms to the same values.
"""

from __future__ import annotations

from penstock.core.key_groups import range_of as range_of

MAX_PARALLELISM = 32_768
DEFAULT_LEAST_MAX_PARALLELISM = 128


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups of a job that sets no number: 1.5 times the parallelism, rounded up to a power of
    two."""
    wanted = parallelism + parallelism // 2
    power = 1 << max(0, wanted - 1).bit_length()
    return min(max(power, DEFAULT_LEAST_MAX_PARALLELISM), MAX_PARALLELISM)

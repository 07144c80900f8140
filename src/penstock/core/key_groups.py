"""Which key groups a subtask owns. Keyed state, and records that are sent by key, go to the owner of their key
group."""

from __future__ import annotations


def range_of(subtask: int, *, parallelism: int, groups: int) -> tuple[int, int]:
    """First and last key group that the subtask owns, both inclusive, of `groups` key groups in all."""
    first = (subtask * groups + parallelism - 1) // parallelism
    last = ((subtask + 1) * groups - 1) // parallelism
    return first, last


def meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two ranges, inclusive at both ends, have a key group in common."""
    return one[0] <= other[1] and other[0] <= one[1]

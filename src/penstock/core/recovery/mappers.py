"""Which subtasks of then a subtask of today takes over, for data that is dealt out by subtask.

A `Mapping` has an entry per subtask of today: the subtasks of then whose data it gets. A subtask of then that several
of today get is *ambiguous*: each of them must look at every record, and take its own.

    by_range       by key group: whoever owns a group today gets it from who owned it then
    round_robin    any subtask can take any record: each of then goes to one of today, in turn
    to_first       one subtask takes everything
    to_all         everybody gets everything
"""

from __future__ import annotations

from penstock.core.key_groups import meet, range_of

Mapping = tuple[tuple[int, ...], ...]

MOST_GROUPS = 32_768
"""As many key groups as a job can have: ranges over these meet if any ranges of two parallelisms can."""


def by_range(old: int, new: int, *, groups: int = MOST_GROUPS) -> Mapping:
    """Subtasks of then and today whose key groups meet."""
    then = [range_of(i, parallelism=old, groups=groups) for i in range(old)]
    today = [range_of(i, parallelism=new, groups=groups) for i in range(new)]
    return tuple(tuple(i for i, was in enumerate(then) if meet(was, own)) for own in today)


def round_robin(old: int, new: int) -> Mapping:
    """Each subtask of then to one of today, in turn."""
    return tuple(tuple(range(subtask, old, new)) for subtask in range(new))


def to_first(old: int, new: int) -> Mapping:
    """All subtasks of then to the first one of today."""
    return (tuple(range(old)), *(() for _ in range(1, new)))


def to_all(old: int, new: int) -> Mapping:
    """All subtasks of then to each one of today."""
    return tuple(tuple(range(old)) for _ in range(new))


def ambiguous(mapping: Mapping) -> frozenset[int]:
    """Subtasks of then that more than one of today gets."""
    counts: dict[int, int] = {}
    for olds in mapping:
        for old in olds:
            counts[old] = counts.get(old, 0) + 1
    return frozenset(old for old, count in counts.items() if count > 1)

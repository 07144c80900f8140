"""Which old subtasks' data a new subtask takes over, for data that is dealt out by subtask.

*Old* subtasks are the subtasks when the snapshot was taken; *new* subtasks are the subtasks of the restored job. A
`Mapping` has an entry for each new subtask: the old subtasks whose data the new subtask gets. An old subtask whose data
goes to several new subtasks is *ambiguous*: each of these new subtasks must look at every record, and take its own.

    by_range       by key group: whoever owns a group today gets it from who owned it then
    round_robin    any subtask can take any record: each of then goes to one of today, in turn
"""

from __future__ import annotations

from penstock.core.key_groups import meet, range_of

Mapping = tuple[tuple[int, ...], ...]

MOST_GROUPS = 32_768
"""As many key groups as a job can have. If the ranges of two subtasks have a key group in common for any number of key
groups, they have one in common for this number."""


def by_range(old: int, new: int, *, groups: int = MOST_GROUPS) -> Mapping:
    """Each new subtask gets the old subtasks that have a key group in common with the new subtask."""
    then = [range_of(i, parallelism=old, groups=groups) for i in range(old)]
    today = [range_of(i, parallelism=new, groups=groups) for i in range(new)]
    return tuple(tuple(i for i, was in enumerate(then) if meet(was, own)) for own in today)


def round_robin(old: int, new: int) -> Mapping:
    """Each old subtask goes to one new subtask, in turn."""
    return tuple(tuple(range(subtask, old, new)) for subtask in range(new))


def ambiguous(mapping: Mapping) -> frozenset[int]:
    """Old subtasks whose data more than one new subtask gets."""
    counts: dict[int, int] = {}
    for olds in mapping:
        for old in olds:
            counts[old] = counts.get(old, 0) + 1
    return frozenset(old for old, count in counts.items() if count > 1)

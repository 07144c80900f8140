"""The state of one operator, dealt out to today's subtasks.

* Keyed state: a subtask gets every piece whose key groups meet its own range; it filters the rows itself.
* Split lists: with the same parallelism everyone keeps their own; else all parts of a name, in old order, are dealt out
  evenly, the remainder going one each to the next subtasks in line, and the next name beginning where it stopped.
* Union lists: everyone gets all parts. Broadcast: subtask i gets copy i modulo the number of copies.
"""

from __future__ import annotations

from penstock.core.key_groups import meet, range_of
from penstock.core.messages import OperatorState
from penstock.core.recovery.metadata import OperatorSnapshot

Parts = dict[str, tuple[bytes, ...]]


def deal(snapshot: OperatorSnapshot, parallelism: int) -> list[tuple[OperatorState, ...]]:
    """What each of `parallelism` subtasks starts from."""
    lists = _lists(snapshot, parallelism)
    states: list[tuple[OperatorState, ...]] = []
    for subtask in range(parallelism):
        keyed = _keyed(snapshot, range_of(subtask, parallelism=parallelism, groups=snapshot.max_parallelism))
        own = lists[subtask]
        states.append(tuple(keyed) if own.is_empty else (*keyed, own))
    return states


def _keyed(snapshot: OperatorSnapshot, own: tuple[int, int]) -> list[OperatorState]:
    everything = (0, snapshot.max_parallelism - 1)
    found = (snapshot.subtasks[number] for number in sorted(snapshot.subtasks))
    return [
        OperatorState(operator=state.operator, keyed=state.keyed, key_groups=state.key_groups)
        for state in found
        if state.keyed and meet(state.key_groups or everything, own)
    ]


def _lists(snapshot: OperatorSnapshot, parallelism: int) -> list[OperatorState]:
    """The state of every new subtask that is not keyed."""
    old = [snapshot.subtasks[number] for number in sorted(snapshot.subtasks)]
    if snapshot.parallelism == parallelism:
        split = [dict(snapshot.subtasks[i].split_lists) if i in snapshot.subtasks else {} for i in range(parallelism)]
    else:
        split = _redistributed(old, parallelism)
    union: Parts = {}
    for state in old:
        for name, parts in state.union_lists.items():
            union[name] = union.get(name, ()) + parts
    copies = [state.broadcast for state in old if state.broadcast]
    return [
        OperatorState(
            operator=snapshot.operator,
            split_lists=split[i],
            union_lists=union,
            broadcast=copies[i % len(copies)] if copies else {},
        )
        for i in range(parallelism)
    ]


def _redistributed(old: list[OperatorState], parallelism: int) -> list[Parts]:
    dealt: list[Parts] = [{} for _ in range(parallelism)]
    names = dict.fromkeys(name for state in old for name in state.split_lists)
    start = 0
    for name in names:
        parts = [part for state in old for part in state.split_lists.get(name, ())]
        each, rest = divmod(len(parts), parallelism)
        taken = 0
        # Who gets one more is decided in turn; the parts themselves stay in order over the subtasks.
        bonus = {(start + i) % parallelism for i in range(rest)}
        for subtask in range(parallelism):
            count = each + (subtask in bonus)
            dealt[subtask][name] = tuple(parts[taken : taken + count])
            taken += count
        start = (start + rest) % parallelism
    return dealt

"""The state of one operator, dealt out to the subtasks of the restored job.

* Keyed state: a subtask gets every piece that has a key group in common with the subtask's range. The subtask itself
  filters the rows. The same holds for raw keyed state, which has streams in place of rows.
* Split lists: with the same parallelism each subtask keeps its own parts. With another parallelism all parts of a name,
  in their old order, are dealt out evenly. Parts that are left go to subtasks in turn, one part each; the turn goes on
  from name to name.
* Union lists: every subtask gets all parts.
* Broadcast: of each name, subtask i gets copy i modulo the number of that name's copies. Names are dealt one by one,
  because a name may have fewer copies than another: a state that was added to a savepoint has a single copy.
"""

from __future__ import annotations

from penstock.core.key_groups import meet, range_of
from penstock.core.messages import OperatorState
from penstock.core.recovery.metadata import OperatorSnapshot

Parts = dict[str, tuple[bytes, ...]]


def deal(snapshot: OperatorSnapshot, parallelism: int) -> list[tuple[OperatorState, ...]]:
    """The states that each of `parallelism` subtasks starts from."""
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
        OperatorState(
            operator=state.operator,
            keyed=state.keyed,
            key_groups=state.key_groups,
            last_timer_us=state.last_timer_us,
            raw=state.raw,
        )
        for state in found
        if state.files and meet(state.key_groups or everything, own)
    ]


def _lists(snapshot: OperatorSnapshot, parallelism: int) -> list[OperatorState]:
    """For every new subtask: the state that is not keyed."""
    old = [snapshot.subtasks[number] for number in sorted(snapshot.subtasks)]
    if snapshot.parallelism == parallelism:
        split = [dict(snapshot.subtasks[i].split_lists) if i in snapshot.subtasks else {} for i in range(parallelism)]
    else:
        split = _redistributed(old, parallelism)
    union: Parts = {}
    for state in old:
        for name, parts in state.union_lists.items():
            union[name] = union.get(name, ()) + parts
    copies: Parts = {}
    for state in old:
        for name, content in state.broadcast.items():
            copies[name] = (*copies.get(name, ()), content)
    return [
        OperatorState(
            operator=snapshot.operator,
            split_lists=split[i],
            union_lists=union,
            broadcast={name: found[i % len(found)] for name, found in copies.items()},
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
        # Which subtasks get one part more is decided in turn. The parts stay in order over the subtasks.
        bonus = {(start + i) % parallelism for i in range(rest)}
        for subtask in range(parallelism):
            count = each + (subtask in bonus)
            dealt[subtask][name] = tuple(parts[taken : taken + count])
            taken += count
        start = (start + rest) % parallelism
    return dealt

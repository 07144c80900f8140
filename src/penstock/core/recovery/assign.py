"""Which subtask starts from which state: a checkpoint dealt out to today's parallelism.

* Keyed state: a subtask gets every piece whose key groups meet its own range; it filters the rows itself.
* Split lists: with the same parallelism everyone keeps their own; else all parts of a name, in old order, are dealt out
  evenly, the remainder going one each to the next subtasks in line, and the next name beginning where it stopped.
* Union lists: everyone gets all parts. Broadcast: subtask i gets copy i modulo the number of copies.

Deliberately not here: reading files, and in-flight channel state of a checkpoint with another parallelism.
"""

from __future__ import annotations

import msgspec

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph, CheckpointVertex
from penstock.core.ids import TaskId
from penstock.core.messages import OperatorState, TaskRestore
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot


def assign(metadata: CheckpointMetadata, graph: CheckpointGraph) -> dict[TaskId, TaskRestore]:
    """What every subtask of the graph starts from. Raises `UsageError` if the checkpoint does not fit the graph."""
    known = {operator for vertex in graph.vertices for operator in vertex.operators}
    lost = [o for o, snapshot in metadata.operators.items() if o not in known and _has_state(snapshot)]
    if lost:
        raise UsageError(
            f"checkpoint {metadata.checkpoint} has state of steps that the program does not have: {', '.join(lost)}",
            hint="give the steps the names they had when the checkpoint was taken",
        )
    parallelism = {vertex.vertex: vertex.parallelism for vertex in graph.vertices}
    restores: dict[TaskId, TaskRestore] = {}
    for vertex in graph.vertices:
        # An operator that the checkpoint does not know is left out: it starts afresh.
        dealt = {
            o: _deal(metadata, metadata.operators[o], vertex, graph.max_parallelism)
            for o in vertex.operators
            if o in metadata.operators
        }
        for task in vertex.tasks:
            restores[task] = TaskRestore(operators={o: states[task.subtask] for o, states in dealt.items()})
    for saved in metadata.channels:
        snapshot = next((o for o in metadata.operators.values() if o.vertex == saved.task.vertex), None)
        if saved.task not in restores or (snapshot and snapshot.parallelism != parallelism.get(saved.task.vertex)):
            raise UsageError(
                f"checkpoint {metadata.checkpoint} has in-flight data and was taken with another parallelism",
                hint="restore it with the parallelism it was taken with",
            )
        restores[saved.task] = msgspec.structs.replace(
            restores[saved.task], input_channels=saved.inputs, output_channels=saved.outputs
        )
    return restores


def _has_state(snapshot: OperatorSnapshot) -> bool:
    return any(not state.is_empty for state in snapshot.subtasks.values())


def _deal(
    metadata: CheckpointMetadata, snapshot: OperatorSnapshot, vertex: CheckpointVertex, max_parallelism: int
) -> list[tuple[OperatorState, ...]]:
    """The states of one operator for each of its subtasks."""
    if snapshot.max_parallelism != max_parallelism:
        raise UsageError(
            f"checkpoint {metadata.checkpoint} was taken with max_parallelism {snapshot.max_parallelism}, "
            f"the job has {max_parallelism}",
            hint=f"set max_parallelism={snapshot.max_parallelism}",
        )
    lists = _deal_lists(snapshot, vertex.parallelism)
    states: list[tuple[OperatorState, ...]] = []
    for subtask in range(vertex.parallelism):
        keyed = _keyed(snapshot, subtask, vertex.parallelism)
        own = lists[subtask]
        states.append(tuple(keyed) if own.is_empty else (*keyed, own))
    return states


def _keyed(snapshot: OperatorSnapshot, subtask: int, parallelism: int) -> list[OperatorState]:
    groups = snapshot.max_parallelism
    first = (subtask * groups + parallelism - 1) // parallelism
    last = ((subtask + 1) * groups - 1) // parallelism
    found: list[OperatorState] = []
    for number in sorted(snapshot.subtasks):
        state = snapshot.subtasks[number]
        low, high = state.key_groups or (0, groups - 1)
        if state.keyed and low <= last and high >= first:
            found.append(OperatorState(operator=state.operator, keyed=state.keyed, key_groups=state.key_groups))
    return found


def _deal_lists(snapshot: OperatorSnapshot, parallelism: int) -> list[OperatorState]:
    """The operator state (not keyed) of every new subtask."""
    old = [snapshot.subtasks[number] for number in sorted(snapshot.subtasks)]
    if snapshot.parallelism == parallelism:
        split = [dict(snapshot.subtasks[i].split_lists) if i in snapshot.subtasks else {} for i in range(parallelism)]
    else:
        split = _redistribute(old, parallelism)
    union: dict[str, tuple[bytes, ...]] = {}
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


def _redistribute(old: list[OperatorState], parallelism: int) -> list[dict[str, tuple[bytes, ...]]]:
    dealt: list[dict[str, tuple[bytes, ...]]] = [{} for _ in range(parallelism)]
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


def encode_restore(restore: TaskRestore) -> bytes:
    """A task's share, as it travels in `Deploy`."""
    return msgspec.msgpack.encode(restore)

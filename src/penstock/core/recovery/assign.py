"""Which subtask starts from which state: a snapshot is dealt out to the subtasks of the program that starts from it.

Each question has a file of its own: which operator gets which state (`matching`), how many key groups there are
(`key_group_count`), which vertices had finished (`finished`), which state each subtask of an operator gets
(`operator_state`), and into which channels the in-flight data goes (`in_flight`). This file puts the answers together.

Deliberately not here: reading files.
"""

from __future__ import annotations

import msgspec

from penstock.core.graph import CheckpointGraph, CheckpointVertex
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.messages import TaskRestore
from penstock.core.recovery.finished import check_finished, ends_with, finished_vertices
from penstock.core.recovery.hook_states import hook_states
from penstock.core.recovery.in_flight import Flow, add_in_flight, flows_of
from penstock.core.recovery.key_group_count import key_group_count
from penstock.core.recovery.matching import Matched, match
from penstock.core.recovery.metadata import (
    NO_SURPRISES,
    CheckpointMetadata,
    MatchingRules,
    OperatorSnapshot,
    Unmatched,
)
from penstock.core.recovery.operator_state import deal


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that was dealt out to the subtasks of a program."""

    tasks: dict[TaskId, TaskRestore]
    """The state that every subtask of the graph starts from."""
    matched: Matched
    flows: tuple[Flow, ...]
    finished: tuple[VertexId, ...]
    """Vertices that are deployed as finished."""
    coordinators: dict[OperatorId, bytes] = {}
    """The state that operator coordinators start from."""
    hooks: dict[str, bytes] = {}
    """The state that master hooks start from. Hooks without state are left out."""
    drained: bool = False
    """A stop with drain had ended the data, and the data ends again after the restore."""
    more_data: bool = False
    """The data had come to its end, and the sources look for more data."""
    is_last: bool = False
    """The restored savepoint is the last checkpoint of every task: the tasks end without another checkpoint."""


NOTHING_RESTORED = Assignment(
    tasks={}, matched=Matched(restored=(), fresh=(), left_over=(), dropped=()), flows=(), finished=()
)
"""Every task starts from the beginning."""


def assign(metadata: CheckpointMetadata, graph: CheckpointGraph, rules: MatchingRules = NO_SURPRISES) -> Assignment:
    """Deal a snapshot out. Raises `UsageError` if the snapshot does not fit the graph."""
    matched = match(metadata, graph, rules)
    kept = _restored_part(metadata, matched)
    known = kept.operators
    key_group_count(kept, graph, given=graph.max_parallelism)
    check_finished(kept, graph)
    finished = finished_vertices(kept, graph)
    restores: dict[TaskId, TaskRestore] = {}
    for vertex in graph.vertices:
        if vertex.vertex in finished:
            restores.update(dict.fromkeys(vertex.tasks, TaskRestore(finished=True)))
        else:
            restores.update(_deal_vertex(vertex, known, _fed_tasks(vertex, graph, restores)))
    flows = flows_of(metadata, graph, _unwanted(metadata, graph, matched, rules))
    add_in_flight(restores, flows, graph)
    is_last = ends_with(metadata) and all(r.finished or r.data_ended for r in restores.values())
    if is_last:
        restores = {task: msgspec.structs.replace(restore, is_last=True) for task, restore in restores.items()}
    coordinators = {o: state for o, state in metadata.coordinators.items() if o in matched.restored}
    return Assignment(
        tasks=restores,
        matched=matched,
        flows=flows,
        finished=finished,
        coordinators=coordinators,
        hooks=hook_states(metadata, graph, rules),
        drained=metadata.is_drained,
        is_last=is_last,
    )


def fitting_key_groups(
    metadata: CheckpointMetadata, graph: CheckpointGraph, rules: MatchingRules, *, given: int | None
) -> int:
    """The number of key groups that `graph` must have so that `assign` can deal the snapshot out. `given` is the number
    that the user asked for. Raises `UsageError` if no number fits."""
    return key_group_count(_restored_part(metadata, match(metadata, graph, rules)), graph, given=given)


def _restored_part(metadata: CheckpointMetadata, matched: Matched) -> CheckpointMetadata:
    operators = {operator: metadata.operators[operator] for operator in matched.restored}
    return msgspec.structs.replace(metadata, operators=operators)


def _unwanted(
    metadata: CheckpointMetadata, graph: CheckpointGraph, matched: Matched, rules: MatchingRules
) -> tuple[OperatorId, ...]:
    """Operators whose in-flight input may be left out: the program does not have these operators, and the user has
    allowed that."""
    wanted = {operator for vertex in graph.vertices for operator in vertex.operators}
    gone = (operator for operator in metadata.operators if operator not in wanted)
    return tuple(o for o in gone if rules.unmatched is Unmatched.IGNORE or o in matched.dropped)


def _fed_tasks(
    vertex: CheckpointVertex, graph: CheckpointGraph, restores: dict[TaskId, TaskRestore]
) -> dict[TaskId, None]:
    """Tasks of a vertex that get more data, because an upstream task has not seen all its own data."""
    fed: dict[TaskId, None] = {}
    for edge in graph.edges:
        if edge.downstream != vertex.vertex:
            continue
        going_on = [
            t for t in graph.vertex(edge.upstream).tasks if not (restores[t].finished or restores[t].data_ended)
        ]
        if edge.all_to_all:
            fed.update(dict.fromkeys(vertex.tasks if going_on else ()))
        else:
            fed.update(dict.fromkeys(TaskId(vertex.vertex, task.subtask) for task in going_on))
    return fed


def _deal_vertex(
    vertex: CheckpointVertex, known: dict[OperatorId, OperatorSnapshot], fed: dict[TaskId, None]
) -> dict[TaskId, TaskRestore]:
    # An operator that is not in the snapshot gets nothing: the operator starts without state.
    snapshots = [known[operator] for operator in vertex.operators if operator in known]
    dealt = {snapshot.operator: deal(snapshot, vertex.parallelism) for snapshot in snapshots}
    return {
        task: TaskRestore(
            operators={operator: states[task.subtask] for operator, states in dealt.items()},
            data_ended=task not in fed
            and len(snapshots) == len(vertex.operators)
            and all(_has_ended(snapshot, task.subtask, vertex.parallelism) for snapshot in snapshots),
            rescaled=any(snapshot.parallelism != vertex.parallelism for snapshot in snapshots),
        )
        for task in vertex.tasks
    }


def _has_ended(snapshot: OperatorSnapshot, subtask: int, parallelism: int) -> bool:
    """Whether a subtask of the program had seen all its data, and only waits for its last checkpoint."""
    ended = {*snapshot.ended_subtasks, *snapshot.finished_subtasks}
    if snapshot.parallelism == parallelism:
        return subtask in ended
    return len(ended) == snapshot.parallelism


def encode_restore(restore: TaskRestore) -> bytes:
    """A task's part of the snapshot, encoded for `Deploy`."""
    return msgspec.msgpack.encode(restore)

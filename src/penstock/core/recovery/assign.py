"""Which subtask starts from which state: a snapshot dealt out to the program that starts from it.

The questions are answered one by one: whose state is whose (`matching`), how many key groups (`key_group_count`), what
had finished (`finished`), what each subtask of an operator gets (`operator_state`), and into which channels goes what
was in flight (`in_flight`). This file puts the answers together.

Deliberately not here: reading files.
"""

from __future__ import annotations

import msgspec

from penstock.core.graph import CheckpointGraph, CheckpointVertex
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.messages import TaskRestore
from penstock.core.recovery.finished import check_finished, finished_vertices
from penstock.core.recovery.hooks import hook_states
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
    """A snapshot dealt out."""

    tasks: dict[TaskId, TaskRestore]
    """What every subtask of the graph starts from."""
    matched: Matched
    flows: tuple[Flow, ...]
    finished: tuple[VertexId, ...]
    """Vertices that are deployed as finished."""
    coordinators: dict[OperatorId, bytes] = {}
    """What operator coordinators start from."""
    hooks: dict[str, bytes] = {}
    """What master hooks start from; those without state are left out."""
    drained: bool = False
    """A stop with drain ended the data, and does so again."""


NOTHING_RESTORED = Assignment(
    tasks={}, matched=Matched(restored=(), fresh=(), left_over=(), dropped=()), flows=(), finished=()
)
"""Every task starts from the beginning."""


def assign(metadata: CheckpointMetadata, graph: CheckpointGraph, rules: MatchingRules = NO_SURPRISES) -> Assignment:
    """Deal a snapshot out. Raises `UsageError` if it does not fit the graph."""
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
    coordinators = {o: state for o, state in metadata.coordinators.items() if o in matched.restored}
    return Assignment(
        tasks=restores,
        matched=matched,
        flows=flows,
        finished=finished,
        coordinators=coordinators,
        hooks=hook_states(metadata, graph, rules),
        drained=metadata.is_drained,
    )


def fitting_key_groups(
    metadata: CheckpointMetadata, graph: CheckpointGraph, rules: MatchingRules, *, given: int | None
) -> int:
    """How many key groups the graph must have for `assign`; `given` is what the user asked for. Raises `UsageError`."""
    return key_group_count(_restored_part(metadata, match(metadata, graph, rules)), graph, given=given)


def _restored_part(metadata: CheckpointMetadata, matched: Matched) -> CheckpointMetadata:
    operators = {operator: metadata.operators[operator] for operator in matched.restored}
    return msgspec.structs.replace(metadata, operators=operators)


def _unwanted(
    metadata: CheckpointMetadata, graph: CheckpointGraph, matched: Matched, rules: MatchingRules
) -> tuple[OperatorId, ...]:
    """Operators whose in-flight input may go nowhere: the program does not have them, and the user knows."""
    wanted = {operator for vertex in graph.vertices for operator in vertex.operators}
    gone = (operator for operator in metadata.operators if operator not in wanted)
    return tuple(o for o in gone if rules.unmatched is Unmatched.IGNORE or o in matched.dropped)


def _fed_tasks(
    vertex: CheckpointVertex, graph: CheckpointGraph, restores: dict[TaskId, TaskRestore]
) -> dict[TaskId, None]:
    """Tasks of a vertex that get more data, because one that feeds them has not seen all of its own."""
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
    # An operator that the snapshot does not know is left out: it starts afresh.
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
    """Whether a subtask of today has nothing left to do but to wait for its last checkpoint."""
    ended = {*snapshot.ended_subtasks, *snapshot.finished_subtasks}
    if snapshot.parallelism == parallelism:
        return subtask in ended
    return len(ended) == snapshot.parallelism


def encode_restore(restore: TaskRestore) -> bytes:
    """A task's share, as it travels in `Deploy`."""
    return msgspec.msgpack.encode(restore)

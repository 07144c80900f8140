"""What a restore would do, as a value: for people who look before they restore, and for the restore itself.

The plan holds the parts that the subtasks are given, so that the text for people and the restore cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from penstock.core.graph import CheckpointGraph, OperatorLabel, Partitioning
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.key_groups import range_of
from penstock.core.messages import OperatorState, TaskRestore
from penstock.core.recovery.assign import Assignment, assign
from penstock.core.recovery.in_flight import Flow, receivers_of
from penstock.core.recovery.mappers import ambiguous
from penstock.core.recovery.metadata import NO_SURPRISES, CheckpointMetadata, MatchingRules, SnapshotKind


class OperatorFate(Enum):
    """What becomes of an operator of the snapshot or of the program. The value is the text for people."""

    RESTORED = "restored"
    STATELESS = "has no state"
    FRESH = "new, starts without state"
    FINISHED = "had finished, runs no more"
    LEFT_OVER = "left over, nobody reads it"
    DROPPED = "dropped as asked"


class SubtaskShare(msgspec.Struct, frozen=True, kw_only=True):
    """The state that one subtask of an operator starts from, as numbers."""

    subtask: int
    key_groups: tuple[int, int] | None
    """First and last key group of the subtask's range, inclusive; None if the operator has no keyed state."""
    files: int
    """How many files the subtask reads. State inside the metadata does not count."""
    size: int
    """How many bytes the subtask reads, rows of other subtasks' key groups included."""
    parts: int
    """How many parts of lists, and how many broadcast states, the subtask gets."""


class OperatorRestore(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one operator."""

    operator: OperatorId
    label: OperatorLabel
    fate: OperatorFate
    vertex: VertexId | None
    """The vertex that the operator runs in; None if the program does not have the operator."""
    old_parallelism: int | None
    """None if the snapshot does not have the operator."""
    new_parallelism: int | None
    size: int
    """Bytes in the snapshot."""
    shares: tuple[SubtaskShare, ...] = ()


class EdgeRestore(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the data in flight on one edge."""

    upstream: OperatorId
    downstream: OperatorId
    size: int
    channels: int
    """How many channels of the snapshot had in-flight data."""
    how: str


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A restore that is possible. `str(plan)` is a text for people; `tasks` is the state that every subtask would be
    given."""

    job: JobId
    """The job that took the snapshot."""
    checkpoint: CheckpointId
    kind: SnapshotKind
    timestamp: Instant
    max_parallelism: int
    operators: tuple[OperatorRestore, ...]
    """The operators of the program, in the program's order, then the operators that only the snapshot has."""
    edges: tuple[EdgeRestore, ...]
    finished: tuple[VertexId, ...]
    tasks: dict[TaskId, TaskRestore]

    @property
    def size(self) -> int:
        """How many bytes of the snapshot are used."""
        used = sum(o.size for o in self.operators if o.fate is OperatorFate.RESTORED)
        return used + sum(edge.size for edge in self.edges)

    def __str__(self) -> str:
        lines = [
            f"{self.kind.value} {self.checkpoint} of job {self.job}, {self.max_parallelism} key groups",
            "",
            *_columns([_HEADINGS, *(_row_of(operator) for operator in self.operators)]),
        ]
        shares = [(o.operator, share) for o in self.operators for share in o.shares]
        if shares:
            rows = [_share_row(operator, share) for operator, share in shares]
            lines += ["", *_columns([_SHARE_HEADINGS, *rows])]
        if self.edges:
            lines += ["", *_columns([_EDGE_HEADINGS, *(_edge_row(edge) for edge in self.edges)])]
        return "\n".join(lines)


def plan_restore(
    metadata: CheckpointMetadata, graph: CheckpointGraph, rules: MatchingRules = NO_SURPRISES
) -> RestorePlan:
    """What a restore of the snapshot into the graph does. Raises `UsageError` if the restore is not possible."""
    assignment = assign(metadata, graph, rules)
    matched = assignment.matched
    operators = [
        _in_program(metadata, graph, assignment, operator) for vertex in graph.vertices for operator in vertex.operators
    ]
    known = {operator for vertex in graph.vertices for operator in vertex.operators}
    for operator, snapshot in metadata.operators.items():
        if operator in known or (operator not in matched.left_over and operator not in matched.dropped):
            continue
        operators.append(
            OperatorRestore(
                operator=operator,
                label=snapshot.label,
                fate=OperatorFate.DROPPED if operator in matched.dropped else OperatorFate.LEFT_OVER,
                vertex=None,
                old_parallelism=snapshot.parallelism,
                new_parallelism=None,
                size=snapshot.size,
            )
        )
    return RestorePlan(
        job=metadata.job,
        checkpoint=metadata.checkpoint,
        kind=metadata.kind,
        timestamp=metadata.timestamp,
        max_parallelism=graph.max_parallelism,
        operators=tuple(operators),
        edges=tuple(_edge_of(flow, graph) for flow in assignment.flows),
        finished=assignment.finished,
        tasks=assignment.tasks,
    )


def _in_program(
    metadata: CheckpointMetadata, graph: CheckpointGraph, assignment: Assignment, operator: OperatorId
) -> OperatorRestore:
    vertex = next(v for v in graph.vertices if operator in v.operators)
    snapshot = metadata.operators.get(operator)
    tasks = [assignment.tasks[task] for task in vertex.tasks]
    if operator in assignment.matched.fresh or snapshot is None:
        fate = OperatorFate.DROPPED if snapshot is not None else OperatorFate.FRESH
    elif all(task.finished for task in tasks):
        fate = OperatorFate.FINISHED
    else:
        fate = OperatorFate.RESTORED if snapshot.has_state else OperatorFate.STATELESS
    shares: tuple[SubtaskShare, ...] = ()
    if fate is OperatorFate.RESTORED and snapshot is not None:
        shares = tuple(
            _share_of(
                number,
                task.operators[operator],
                range_of(number, parallelism=vertex.parallelism, groups=graph.max_parallelism)
                if snapshot.has_keyed_state
                else None,
            )
            for number, task in enumerate(tasks)
        )
    return OperatorRestore(
        operator=operator,
        label=vertex.labels.get(operator, OperatorLabel()),
        fate=fate,
        vertex=vertex.vertex,
        old_parallelism=None if snapshot is None else snapshot.parallelism,
        new_parallelism=vertex.parallelism,
        size=0 if snapshot is None else snapshot.size,
        shares=shares,
    )


def _share_of(subtask: int, states: Sequence[OperatorState], key_groups: tuple[int, int] | None) -> SubtaskShare:
    files = {file.path for state in states for file in state.files if file.path is not None}
    lists = [parts for state in states for parts in (*state.split_lists.values(), *state.union_lists.values())]
    return SubtaskShare(
        subtask=subtask,
        key_groups=key_groups,
        files=len(files),
        size=sum(state.size for state in states),
        parts=sum(map(len, lists)) + sum(len(state.broadcast) for state in states),
    )


def _edge_of(flow: Flow, graph: CheckpointGraph) -> EdgeRestore:
    snapshot = flow.snapshot
    if flow.edge is None:
        how = "left over, nobody reads it"
    elif not flow.rescaled:
        how = "back into the same channels"
    else:
        mapping = receivers_of(snapshot, graph.vertex(flow.edge.downstream).parallelism, groups=graph.max_parallelism)
        by_key = snapshot.partitioning is Partitioning.HASH
        how = f"input of {sum(bool(olds) for olds in mapping)} subtasks, {'by key' if by_key else 'in turn'}"
        if ambiguous(mapping):
            how += ", each taking its own rows"
    return EdgeRestore(
        upstream=snapshot.upstream,
        downstream=snapshot.downstream,
        size=flow.size,
        channels=len(flow.channels),
        how=how,
    )


# --- as text ---------------------------------------------------------------------------------------------------------

_HEADINGS = ("operator", "subtasks", "bytes", "")
_SHARE_HEADINGS = ("subtask", "key groups", "files", "bytes", "list parts")
_EDGE_HEADINGS = ("in flight", "channels", "bytes", "")


def _row_of(operator: OperatorRestore) -> tuple[str, ...]:
    sides = (operator.old_parallelism, operator.new_parallelism)
    old, new = ("-" if side is None else str(side) for side in sides)
    parallelism = new if old == new else f"{old} -> {new}"
    return str(operator.operator), parallelism, str(operator.size), operator.fate.value


def _share_row(operator: OperatorId, share: SubtaskShare) -> tuple[str, ...]:
    groups = "" if share.key_groups is None else f"{share.key_groups[0]} to {share.key_groups[1]}"
    return f"{operator}[{share.subtask}]", groups, str(share.files), str(share.size), str(share.parts)


def _edge_row(edge: EdgeRestore) -> tuple[str, ...]:
    return f"{edge.upstream} to {edge.downstream}", str(edge.channels), str(edge.size), edge.how


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

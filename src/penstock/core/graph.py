"""What the coordinator must know about the job: vertices, their subtasks and operators, and who feeds whom."""

from __future__ import annotations

import msgspec

from penstock.core.errors import InvariantError
from penstock.core.ids import OperatorId, TaskId, VertexId


class CheckpointVertex(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of operators, run as `parallelism` subtasks."""

    vertex: VertexId
    parallelism: int
    operators: tuple[OperatorId, ...]
    """From head to tail."""
    is_source: bool = False
    coordinators: tuple[OperatorId, ...] = ()
    """Those of `operators` that have an operator coordinator on the driver."""

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """Its subtasks, in order."""
        return tuple(TaskId(self.vertex, i) for i in range(self.parallelism))


class CheckpointEdge(msgspec.Struct, frozen=True, kw_only=True):
    """All channels from the subtasks of one vertex to those of another."""

    upstream: VertexId
    downstream: VertexId
    all_to_all: bool = True
    """False: subtask i feeds subtask i only."""
    blocking: bool = False
    """The upstream side ends before the downstream side starts; no barrier can cross it."""


class CheckpointGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The whole job, vertices in topological order."""

    vertices: tuple[CheckpointVertex, ...]
    edges: tuple[CheckpointEdge, ...] = ()
    max_parallelism: int = 128

    def __post_init__(self) -> None:
        """Refuse a graph that contradicts itself: it was built by us."""
        parallelism = {v.vertex: v.parallelism for v in self.vertices}
        if len(parallelism) != len(self.vertices):
            raise InvariantError("two vertices of the checkpoint graph have the same id")
        for edge in self.edges:
            if edge.upstream not in parallelism or edge.downstream not in parallelism:
                raise InvariantError(f"edge {edge.upstream} -> {edge.downstream} joins a vertex that does not exist")
            if not edge.all_to_all and parallelism[edge.upstream] != parallelism[edge.downstream]:
                raise InvariantError(f"edge {edge.upstream} -> {edge.downstream} joins different parallelisms pairwise")

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """All subtasks, in order of the vertices."""
        return tuple(t for v in self.vertices for t in v.tasks)

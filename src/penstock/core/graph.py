"""What the coordinator and a restore must know about the job: vertices, their subtasks and operators, and who feeds
whom."""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.core.errors import InvariantError
from penstock.core.ids import OperatorId, TaskId, VertexId


class Partitioning(Enum):
    """How an upstream subtask chooses the downstream subtask of a record."""

    FORWARD = "forward"
    """Subtask i to subtask i; both sides have the same parallelism."""
    HASH = "hash"
    """By key group of the key columns."""
    REBALANCE = "rebalance"
    """Batch by batch, in turn."""
    BROADCAST = "broadcast"
    """To every subtask."""

    @property
    def all_to_all(self) -> bool:
        """Whether every upstream subtask has a channel to every downstream subtask."""
        return self is not Partitioning.FORWARD

    @property
    def spreads_records(self) -> bool:
        """Whether each record goes to one of several subtasks: only such channels can replay what was in flight."""
        return self in (Partitioning.HASH, Partitioning.REBALANCE)


class OperatorLabel(msgspec.Struct, frozen=True, kw_only=True):
    """What people know an operator by."""

    name: str = ""
    kind: str = ""
    """What it does, in a word: `read`, `window`, `write`."""


class CheckpointVertex(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of operators, run as `parallelism` subtasks."""

    vertex: VertexId
    parallelism: int
    operators: tuple[OperatorId, ...]
    """From head to tail."""
    is_source: bool = False
    coordinators: tuple[OperatorId, ...] = ()
    """Those of `operators` that have an operator coordinator on the driver."""
    labels: dict[OperatorId, OperatorLabel] = {}
    """For messages to people; operators may be missing."""

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
    number: int = 0
    """Its number in the plan, by which its channels are named."""
    partitioning: Partitioning | None = None
    """None: nothing is ever saved that was in flight on it."""
    keys: tuple[str, ...] = ()
    """The columns by which `HASH` chooses."""
    input_number: int = 0
    """Which input of the downstream operator it feeds."""


class CheckpointGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The whole job, vertices in topological order."""

    vertices: tuple[CheckpointVertex, ...]
    edges: tuple[CheckpointEdge, ...] = ()
    max_parallelism: int = 128
    hooks: tuple[str, ...] = ()
    """Master hooks, by name."""

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

    def vertex(self, vertex: VertexId) -> CheckpointVertex:
        """The vertex of that id."""
        return next(v for v in self.vertices if v.vertex == vertex)

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """All subtasks, in order of the vertices."""
        return tuple(t for v in self.vertices for t in v.tasks)

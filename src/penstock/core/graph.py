"""What the coordinator and a restore must know about the job: vertices, their subtasks and operators, and which vertex
feeds which."""

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
    CUSTOM = "custom"
    """By a function of the user's program."""

    @property
    def all_to_all(self) -> bool:
        """Whether every upstream subtask has a channel to every downstream subtask."""
        return self is not Partitioning.FORWARD

    @property
    def spreads_records(self) -> bool:
        """Whether each record goes to one of several subtasks. Only the in-flight data of such channels can be dealt
        out to another number of subtasks."""
        return self in (Partitioning.HASH, Partitioning.REBALANCE)


class DeclaredState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program says about one state of a step."""

    kind: str
    type: str = ""
    map_key: str = ""
    """The type of the keys of a map."""

    def __str__(self) -> str:
        types = ", ".join(part for part in (self.map_key, self.type) if part)
        return f"{self.kind}<{types}>" if types else self.kind


class OperatorLabel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The name that people know an operator by, and what the program declares about the operator's state."""

    name: str = ""
    kind: str = ""
    """What the operator does, in a word: `read`, `window`, `write`."""
    states: dict[str, DeclaredState] = {}
    keys: tuple[str, ...] = ()
    """The columns that the operator's state is keyed by, as `name: type`."""
    connector: str = ""
    """The form of the splits of a source, or of the committables of a sink (`saved_as`). Empty: not known."""


class CheckpointVertex(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of operators, run as `parallelism` subtasks."""

    vertex: VertexId
    parallelism: int
    operators: tuple[OperatorId, ...]
    """From head to tail."""
    is_source: bool = False
    coordinators: tuple[OperatorId, ...] = ()
    """The `operators` that have an operator coordinator on the driver."""
    labels: dict[OperatorId, OperatorLabel] = {}
    """For messages to people. Not every operator has a label."""

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """The subtasks of the vertex, in order."""
        return tuple(TaskId(self.vertex, i) for i in range(self.parallelism))


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A side output: records that an operator emits beside its main output, under a name."""

    operator: OperatorId
    """The operator that emits the records. The operator may stand anywhere in its chain."""
    name: str


class CheckpointEdge(msgspec.Struct, frozen=True, kw_only=True):
    """All channels from the subtasks of one vertex to the subtasks of another vertex."""

    upstream: VertexId
    downstream: VertexId
    all_to_all: bool = True
    """False: subtask i feeds subtask i only."""
    blocking: bool = False
    """Always false: it has been in the records of how jobs began from the first, and their bytes stay as they are."""
    number: int = 0
    """The number of the edge in the plan. The channels of the edge are named by this number."""
    partitioning: Partitioning | None = None
    """None: in-flight data of this edge is never saved."""
    keys: tuple[str, ...] = ()
    """The columns by which `HASH` chooses the downstream subtask."""
    input_number: int = 0
    """Which input of the downstream operator the edge feeds."""
    side: Side | msgspec.UnsetType = msgspec.UNSET
    """The side output that the edge carries; unset for the main output of the last operator of `upstream`."""


class CheckpointGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The whole job, vertices in topological order."""

    vertices: tuple[CheckpointVertex, ...]
    edges: tuple[CheckpointEdge, ...] = ()
    max_parallelism: int = 128
    hooks: tuple[str, ...] = ()
    """Master hooks, by name."""

    def __post_init__(self) -> None:
        """Refuse a graph that contradicts itself. Such a graph is a bug, because this package builds the graph."""
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

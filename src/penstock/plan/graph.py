"""The plan of a job, made from the user's steps: which operators run together, and how they are joined.

A *node* is one step of the program. Nodes joined by a forward edge are chained into a *vertex*, whose operators run in
one task, calling each other directly. *Edges* join vertices; each edge is a set of channels between subtasks. An edge
carries the main output of the last operator of a vertex, or a *side output* of any operator of the vertex. This file
does not look into steps: the runtime builds operators from steps.

A vertex has a subtask in every slot, unless a step of the vertex is limited to fewer subtasks. The limit stays when the
parallelism of the job changes, so that the vertices and the edges of a program do not depend on its parallelism.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core.errors import InvariantError
from penstock.core.graph import Partitioning as Partitioning
from penstock.core.graph import Side as Side
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.plan.key_groups import default_max_parallelism

Partitioner = Callable[[Any, int], Any]
"""From a batch, and the number of subtasks, to the number of a subtask for every record."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """Where a node's records come from."""

    node: int
    partitioning: Partitioning = Partitioning.FORWARD
    keys: tuple[str, ...] = ()
    """The columns by which records are hashed. Hashed by no columns, all records go to one subtask."""
    at_most: int | None = None
    """At most this many subtasks read the records; None: as many as the job has slots."""
    partitioner: Partitioner | None = None
    """The function that chooses the subtasks, if the partitioning is custom."""
    side: str | None = None
    """The side output of `node` that is read; None: the main output."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One step of the program."""

    number: int
    operator: OperatorId
    name: str
    step: Any
    inputs: tuple[Input, ...] = ()
    is_source: bool = False
    at_most: int | None = None
    """At most this many subtasks run the step. None: as many as the step before, if records come from there directly;
    otherwise as many as the job has slots."""
    begins_vertex: bool = False
    """Whether the node is never chained to its upstream node."""


@dataclass(frozen=True, kw_only=True)
class OperatorPlan:
    """One operator of a chain."""

    operator: OperatorId
    name: str
    step: Any


@dataclass(frozen=True, kw_only=True)
class Edge:
    """All channels from the subtasks of one vertex to the subtasks of another vertex."""

    number: int
    upstream: VertexId
    downstream: VertexId
    partitioning: Partitioning
    keys: tuple[str, ...] = ()
    input_number: int = 0
    """Which input of the downstream operator the edge feeds."""
    partitioner: Partitioner | None = None
    """The function that chooses the downstream subtasks, if the partitioning is custom."""
    side: Side | None = None
    """The side output that the edge carries; None: the main output of the last operator of `upstream`."""


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """A chain of operators, run as `parallelism` subtasks."""

    vertex: VertexId
    name: str
    operators: tuple[OperatorPlan, ...]
    parallelism: int
    is_source: bool
    at_most: int | None = None
    """The vertex never has more subtasks than this; None: it has as many as the job has slots."""

    def rescaled(self, parallelism: int) -> Vertex:
        """The same vertex in a job of another parallelism."""
        return replace(self, parallelism=_limited(parallelism, self.at_most))

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """The subtasks of the vertex, in order."""
        return tuple(TaskId(self.vertex, i) for i in range(self.parallelism))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole job: vertices in topological order and the edges between them."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    parallelism: int
    max_parallelism: int
    hooks: tuple[str, ...] = ()
    """The names of the hooks: parts of outside systems that the driver runs in every checkpoint. A hook is no step."""
    _by_id: dict[VertexId, Vertex] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._by_id.update({v.vertex: v for v in self.vertices})

    def rescaled(self, parallelism: int) -> Plan:
        """The same plan with another number of subtasks."""
        vertices = tuple(vertex.rescaled(parallelism) for vertex in self.vertices)
        return replace(self, vertices=vertices, parallelism=parallelism, _by_id={})

    def with_key_groups(self, groups: int) -> Plan:
        """The same plan with another number of key groups."""
        return replace(self, max_parallelism=groups, _by_id={})

    def with_hooks(self, hooks: tuple[str, ...]) -> Plan:
        """The same plan with these hooks."""
        return replace(self, hooks=hooks, _by_id={})

    def vertex(self, vertex: VertexId) -> Vertex:
        """The vertex of that id."""
        return self._by_id[vertex]

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """All subtasks, in topological order of the vertices. The subtasks of a vertex stand together."""
        return tuple(t for v in self.vertices for t in v.tasks)

    def tasks_of_slot(self, slot: int) -> tuple[TaskId, ...]:
        """The subtasks that the slot runs."""
        return tuple(t for t in self.tasks if t.subtask == slot)

    def neighbours_of_slot(self, slot: int) -> tuple[int, ...]:
        """The other slots with which the slot shares a channel, in order."""
        found: set[int] = set()
        for task in self.tasks_of_slot(slot):
            found.update(upstream for _, upstream in self.channels_into(task))
            for edge in self.outputs_of(task.vertex):
                found.update(self.targets_of(edge, slot))
        return tuple(sorted(found - {slot}))

    def inputs_of(self, vertex: VertexId) -> tuple[Edge, ...]:
        """Edges into a vertex, in the order of the vertex's input channels."""
        return tuple(e for e in self.edges if e.downstream == vertex)

    def outputs_of(self, vertex: VertexId) -> tuple[Edge, ...]:
        """Edges out of a vertex."""
        return tuple(e for e in self.edges if e.upstream == vertex)

    def channels_into(self, task: TaskId) -> tuple[tuple[Edge, int], ...]:
        """(edge, upstream subtask) of every input channel of a task; the position is the channel's index."""
        channels: list[tuple[Edge, int]] = []
        for edge in self.inputs_of(task.vertex):
            if edge.partitioning.all_to_all:
                channels += [(edge, i) for i in range(self.vertex(edge.upstream).parallelism)]
            else:
                channels.append((edge, task.subtask))
        return tuple(channels)

    def carries_unaligned_barriers(self, edge: Edge) -> bool:
        """Whether a barrier may overtake data on this edge. All edges into a vertex have the same answer: if one of
        them cannot replay its in-flight data to another parallelism, no barrier overtakes data on any of them."""
        return all(e.partitioning.spreads_records for e in self.inputs_of(edge.downstream))

    def targets_of(self, edge: Edge, subtask: int) -> tuple[int, ...]:
        """Downstream subtasks that an upstream subtask has a channel to."""
        if edge.partitioning.all_to_all:
            return tuple(range(self.vertex(edge.downstream).parallelism))
        return (subtask,)


def build_plan(nodes: tuple[Node, ...], *, parallelism: int, max_parallelism: int | None) -> Plan:
    """Chain the nodes (given in topological order) into vertices and number the edges between them.

    A node is chained to its upstream node if the node has no other input, the input is forward, both have the same
    number of subtasks, the main output of the upstream node has no other consumer, and the node does not begin a vertex
    of its own. So records enter a vertex at its first operator. The records of main outputs leave a vertex at its last
    operator. A node that reads a side output begins a vertex. A forward input from another number of subtasks is dealt
    out in turn.
    """
    _check(nodes)
    limits = _limits(nodes)
    consumers: dict[int, int] = {}
    for node in nodes:
        for source in node.inputs:
            if source.side is None:
                consumers[source.node] = consumers.get(source.node, 0) + 1
    chain_of: dict[int, int] = {}
    chains: list[list[Node]] = []
    for node in nodes:
        head = node.inputs[0] if len(node.inputs) == 1 and not node.begins_vertex else None
        if head is not None and _is_chained(head, node, limits) and consumers[head.node] == 1:
            chain_of[node.number] = chain_of[head.node]
            chains[chain_of[node.number]].append(node)
        else:
            chain_of[node.number] = len(chains)
            chains.append([node])
    # A vertex is named by its first operator, so that the name stays when steps are added at the end of the chain.
    ids = [VertexId(str(chain[0].operator)) for chain in chains]
    vertices = tuple(
        Vertex(
            vertex=ids[i],
            name=" → ".join(n.name for n in chain),
            operators=tuple(OperatorPlan(operator=n.operator, name=n.name, step=n.step) for n in chain),
            parallelism=_limited(parallelism, limits[chain[0].number]),
            is_source=chain[0].is_source,
            at_most=limits[chain[0].number],
        )
        for i, chain in enumerate(chains)
    )
    operators = {node.number: node.operator for node in nodes}
    edges: list[Edge] = []
    for i, chain in enumerate(chains):
        for position, source in enumerate(chain[0].inputs):
            edges.append(
                Edge(
                    number=len(edges),
                    upstream=ids[chain_of[source.node]],
                    downstream=ids[i],
                    partitioning=_partitioning(source, chain[0], limits),
                    keys=source.keys,
                    input_number=position,
                    partitioner=source.partitioner,
                    side=None if source.side is None else Side(operator=operators[source.node], name=source.side),
                )
            )
    return Plan(
        vertices=vertices,
        edges=tuple(edges),
        parallelism=parallelism,
        max_parallelism=max_parallelism or default_max_parallelism(parallelism),
    )


def _limits(nodes: tuple[Node, ...]) -> dict[int, int | None]:
    """How many subtasks each node has at most, by the number of the node; None: as many as the job has slots."""
    limits: dict[int, int | None] = {}
    for node in nodes:
        given = [most for most in (node.at_most, *(source.at_most for source in node.inputs)) if most is not None]
        direct = [limits[s.node] for s in node.inputs if s.partitioning is Partitioning.FORWARD]
        inherits = len(direct) == len(node.inputs) and len(dict.fromkeys(direct)) == 1
        limits[node.number] = min(given) if given else direct[0] if inherits else None
    return limits


def _is_direct(source: Input, node: Node, limits: dict[int, int | None]) -> bool:
    """Whether each subtask of the node gets the records of one subtask."""
    return source.partitioning is Partitioning.FORWARD and limits[source.node] == limits[node.number]


def _is_chained(source: Input, node: Node, limits: dict[int, int | None]) -> bool:
    """Whether the node may run in the task of its upstream node. A side output leaves its task through an edge."""
    return source.side is None and _is_direct(source, node, limits)


def _partitioning(source: Input, node: Node, limits: dict[int, int | None]) -> Partitioning:
    if source.partitioning is Partitioning.FORWARD and not _is_direct(source, node, limits):
        return Partitioning.REBALANCE
    return source.partitioning


def _limited(parallelism: int, at_most: int | None) -> int:
    return parallelism if at_most is None else min(parallelism, at_most)


def _check(nodes: tuple[Node, ...]) -> None:
    numbers: set[int] = set()
    operators: set[OperatorId] = set()
    for node in nodes:
        for source in node.inputs:
            if source.node not in numbers:
                raise InvariantError(
                    f"node {node.number} reads from node {source.node}, which does not come before node {node.number}"
                )
            if source.keys and source.partitioning is not Partitioning.HASH:
                raise InvariantError(
                    f"node {node.number} has keys {source.keys} for partitioning {source.partitioning.value}"
                )
            if (source.partitioning is Partitioning.CUSTOM) != (source.partitioner is not None):
                raise InvariantError(
                    f"node {node.number} has partitioner {source.partitioner} for partitioning "
                    f"{source.partitioning.value}"
                )
        if node.number in numbers:
            raise InvariantError(f"two nodes have the number {node.number}")
        if node.operator in operators:
            raise InvariantError(f"two nodes have the operator id {node.operator}")
        numbers.add(node.number)
        operators.add(node.operator)

"""The plan of a job, made from the user's steps: which operators run together, and how they are joined.

A *node* is one step of the program. Nodes joined by a forward edge are chained into a *vertex*, whose operators run in
one task, calling each other directly. *Edges* join vertices; each edge is a set of channels between subtasks. This file
does not look into steps: the runtime builds operators from steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core.errors import InvariantError
from penstock.core.graph import Partitioning as Partitioning
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.plan.key_groups import default_max_parallelism


@dataclass(frozen=True, kw_only=True)
class Input:
    """Where a node's records come from."""

    node: int
    partitioning: Partitioning = Partitioning.FORWARD
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Node:
    """One step of the program."""

    number: int
    operator: OperatorId
    name: str
    step: Any
    inputs: tuple[Input, ...] = ()
    is_source: bool = False
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


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """A chain of operators, run as `parallelism` subtasks."""

    vertex: VertexId
    name: str
    operators: tuple[OperatorPlan, ...]
    parallelism: int
    is_source: bool

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
        vertices = tuple(replace(vertex, parallelism=parallelism) for vertex in self.vertices)
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

    A node is chained to its upstream node if the node has no other input, the input is forward, the upstream node has
    no other consumer, and the node does not begin a vertex of its own. So records enter a vertex at its first operator,
    and leave a vertex at its last operator.
    """
    _check(nodes)
    consumers: dict[int, int] = {}
    for node in nodes:
        for source in node.inputs:
            consumers[source.node] = consumers.get(source.node, 0) + 1
    chain_of: dict[int, int] = {}
    chains: list[list[Node]] = []
    for node in nodes:
        head = node.inputs[0] if len(node.inputs) == 1 and not node.begins_vertex else None
        if head is not None and head.partitioning is Partitioning.FORWARD and consumers[head.node] == 1:
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
            parallelism=parallelism,
            is_source=chain[0].is_source,
        )
        for i, chain in enumerate(chains)
    )
    edges: list[Edge] = []
    for i, chain in enumerate(chains):
        for position, source in enumerate(chain[0].inputs):
            edges.append(
                Edge(
                    number=len(edges),
                    upstream=ids[chain_of[source.node]],
                    downstream=ids[i],
                    partitioning=source.partitioning,
                    keys=source.keys,
                    input_number=position,
                )
            )
    return Plan(
        vertices=vertices,
        edges=tuple(edges),
        parallelism=parallelism,
        max_parallelism=max_parallelism or default_max_parallelism(parallelism),
    )


def _check(nodes: tuple[Node, ...]) -> None:
    numbers: set[int] = set()
    operators: set[OperatorId] = set()
    for node in nodes:
        for source in node.inputs:
            if source.node not in numbers:
                raise InvariantError(
                    f"node {node.number} reads from node {source.node}, which does not come before node {node.number}"
                )
            if (source.partitioning is Partitioning.HASH) != bool(source.keys):
                raise InvariantError(
                    f"node {node.number} has keys {source.keys} for partitioning {source.partitioning.value}"
                )
        if node.number in numbers:
            raise InvariantError(f"two nodes have the number {node.number}")
        if node.operator in operators:
            raise InvariantError(f"two nodes have the operator id {node.operator}")
        numbers.add(node.number)
        operators.add(node.operator)

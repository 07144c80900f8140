"""In-flight data of an unaligned snapshot: into which channels of today it goes.

Edges are found again by the operators they join, not by their numbers. On an edge whose two sides have the parallelism
they had, every end gets back what it saved. Otherwise all of a channel of then, first what its receiver had not read
and then what its sender had not sent, becomes input of today's receivers:

    by key        each receiver whose key groups meet those of the receiver of then gets it, and takes the rows of its
                  own groups if others get it too
    in turn       one receiver gets it
    other edges   hold nothing in flight, so there is nothing to deal out

A channel of then goes into one channel of today, so the order in it is kept. Over several, order means nothing as long
as all of it comes before anything new.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointEdge, CheckpointGraph, Partitioning
from penstock.core.ids import OperatorId, TaskId
from penstock.core.messages import ChannelState, DealtChannel, TaskRestore
from penstock.core.recovery.mappers import Mapping, ambiguous, by_range, round_robin
from penstock.core.recovery.metadata import CheckpointMetadata, EdgeSnapshot

HINT = (
    "start the program that it was taken of from it and take a savepoint, which has nothing in flight; "
    "then start the changed program from that"
)


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """What was in flight between two subtasks of then."""

    upstream: int
    downstream: int
    inputs: tuple[ChannelState, ...] = ()
    """What the receiving end had not read: the older part."""
    outputs: tuple[ChannelState, ...] = ()
    """What the sending end had not sent."""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What was in flight on one edge, and where it goes."""

    snapshot: EdgeSnapshot
    edge: CheckpointEdge | None
    """Today's; None if the data is left over, because nobody would take it."""
    channels: tuple[Channel, ...]
    """Those that had something, in order."""
    rescaled: bool = False
    """Today's edge has another parallelism on one side, or on both."""

    @property
    def size(self) -> int:
        """Bytes in flight."""
        return sum(n for c in self.channels for part in (*c.inputs, *c.outputs) for _, n in part.ranges)


def flows_of(metadata: CheckpointMetadata, graph: CheckpointGraph, left_over: Iterable[OperatorId]) -> tuple[Flow, ...]:
    """Everything in flight, by edge. What was on its way to an operator in `left_over` goes nowhere. Raises
    `UsageError` for data that has nowhere to go and should have, and for what cannot be dealt out."""
    recorded = {edge.number: edge for edge in metadata.edges or _assumed_edges(metadata, graph)}
    unwanted = tuple(left_over)
    found: list[Flow] = []
    for number, channels in sorted(_by_edge(metadata).items()):
        snapshot = recorded.get(number)
        if snapshot is None:
            raise UsageError(
                f"{metadata.title} has data in flight on edge {number}, which the program does not have",
                hint=HINT,
            )
        if snapshot.downstream in unwanted:
            found.append(Flow(snapshot=snapshot, edge=None, channels=channels))
            continue
        edge = _edge_today(metadata, snapshot, graph)
        sides = (graph.vertex(edge.upstream).parallelism, graph.vertex(edge.downstream).parallelism)
        rescaled = sides != (snapshot.upstream_parallelism, snapshot.downstream_parallelism)
        if rescaled and not snapshot.partitioning.spreads_records:
            raise UsageError(
                f"{metadata.title} has data in flight on the {snapshot.partitioning.value} edge from "
                f"{snapshot.upstream} to {snapshot.downstream}, which cannot be dealt out to another parallelism",
                hint=f"restore it with a parallelism of {snapshot.downstream_parallelism}",
            )
        found.append(Flow(snapshot=snapshot, edge=edge, channels=channels, rescaled=rescaled))
    return tuple(found)


def add_in_flight(restores: dict[TaskId, TaskRestore], flows: tuple[Flow, ...], graph: CheckpointGraph) -> None:
    """Give every task its part of what was in flight."""
    for flow in flows:
        if flow.edge is not None and flow.rescaled:
            _deal(restores, flow, flow.edge, graph)
        elif flow.edge is not None:
            _give_back(restores, flow, flow.edge)


# --- which edge it was -----------------------------------------------------------------------------------------------


def _by_edge(metadata: CheckpointMetadata) -> dict[int, tuple[Channel, ...]]:
    found: dict[tuple[int, int, int], Channel] = {}
    for task in metadata.channels:
        for state in task.inputs:
            known = _channel_in(found, state)
            found[_key(state)] = msgspec.structs.replace(known, inputs=(*known.inputs, state))
        for state in task.outputs:
            known = _channel_in(found, state)
            found[_key(state)] = msgspec.structs.replace(known, outputs=(*known.outputs, state))
    numbers = dict.fromkeys(number for number, _, _ in found)
    return {number: tuple(found[key] for key in sorted(found) if key[0] == number) for number in numbers}


def _key(state: ChannelState) -> tuple[int, int, int]:
    return state.edge, state.upstream, state.downstream


def _channel_in(found: dict[tuple[int, int, int], Channel], state: ChannelState) -> Channel:
    return found.get(_key(state)) or Channel(upstream=state.upstream, downstream=state.downstream)


def _assumed_edges(metadata: CheckpointMetadata, graph: CheckpointGraph) -> list[EdgeSnapshot]:
    """Edges as the program has them, for metadata that does not say: with the parallelism that their sides had."""
    parallelism = {snapshot.vertex: snapshot.parallelism for snapshot in metadata.operators.values()}
    return [
        _snapshot_of(edge, graph, parallelism[edge.upstream], parallelism[edge.downstream])
        for edge in graph.edges
        if edge.partitioning is not None and edge.upstream in parallelism and edge.downstream in parallelism
    ]


def edges_of(graph: CheckpointGraph) -> tuple[EdgeSnapshot, ...]:
    """What a snapshot of this graph writes down about its edges."""
    parallelism = {vertex.vertex: vertex.parallelism for vertex in graph.vertices}
    return tuple(
        _snapshot_of(edge, graph, parallelism[edge.upstream], parallelism[edge.downstream])
        for edge in graph.edges
        if edge.partitioning is not None
    )


def _snapshot_of(edge: CheckpointEdge, graph: CheckpointGraph, upstream: int, downstream: int) -> EdgeSnapshot:
    return EdgeSnapshot(
        number=edge.number,
        upstream=graph.vertex(edge.upstream).operators[-1],
        downstream=graph.vertex(edge.downstream).operators[0],
        partitioning=edge.partitioning or Partitioning.FORWARD,
        upstream_parallelism=upstream,
        downstream_parallelism=downstream,
        keys=edge.keys,
        input_number=edge.input_number,
    )


def _edge_today(metadata: CheckpointMetadata, snapshot: EdgeSnapshot, graph: CheckpointGraph) -> CheckpointEdge:
    what = f"{metadata.title} has data in flight from {snapshot.upstream} to {snapshot.downstream}"
    tails = {vertex.operators[-1]: vertex.vertex for vertex in graph.vertices}
    heads = {vertex.operators[0]: vertex.vertex for vertex in graph.vertices}
    ends = (tails.get(snapshot.upstream), heads.get(snapshot.downstream))
    between = [e for e in graph.edges if (e.upstream, e.downstream) == ends]
    edge = next((e for e in between if e.input_number == snapshot.input_number), None)
    if edge is None:
        chained = any({snapshot.upstream, snapshot.downstream} <= set(v.operators) for v in graph.vertices)
        how = "which the program runs in one chain" if chained else "and the program does not join the two any more"
        raise UsageError(f"{what}, {how}", hint=HINT)
    if (edge.partitioning, edge.keys) != (snapshot.partitioning, snapshot.keys):
        raise UsageError(f"{what}, which the program exchanges in another way", hint=HINT)
    return edge


# --- who gets it -----------------------------------------------------------------------------------------------------


def _give_back(restores: dict[TaskId, TaskRestore], flow: Flow, edge: CheckpointEdge) -> None:
    """Each end gets what it saved."""
    for channel in flow.channels:
        receiver, sender = TaskId(edge.downstream, channel.downstream), TaskId(edge.upstream, channel.upstream)
        inputs = (*restores[receiver].input_channels, *_numbered(channel.inputs, edge))
        restores[receiver] = msgspec.structs.replace(restores[receiver], input_channels=inputs)
        outputs = (*restores[sender].output_channels, *_numbered(channel.outputs, edge))
        restores[sender] = msgspec.structs.replace(restores[sender], output_channels=outputs)


def _deal(restores: dict[TaskId, TaskRestore], flow: Flow, edge: CheckpointEdge, graph: CheckpointGraph) -> None:
    """Today's receivers get all of it, by channel of then."""
    senders = graph.vertex(edge.upstream).parallelism
    mapping = receivers_of(flow.snapshot, graph.vertex(edge.downstream).parallelism, groups=graph.max_parallelism)
    shared = ambiguous(mapping)
    for subtask, olds in enumerate(mapping):
        task = TaskId(edge.downstream, subtask)
        dealt = tuple(
            DealtChannel(
                parts=_numbered((*channel.inputs, *channel.outputs), edge),
                upstream=channel.upstream % senders,
                own_keys_only=channel.downstream in shared,
            )
            for channel in flow.channels
            if channel.downstream in olds
        )
        found = restores[task]
        restores[task] = msgspec.structs.replace(found, dealt_channels=(*found.dealt_channels, *dealt))


def receivers_of(snapshot: EdgeSnapshot, parallelism: int, *, groups: int) -> Mapping:
    """For each of today's receivers, the receivers of then whose channels it gets."""
    if snapshot.partitioning is Partitioning.HASH:
        return by_range(snapshot.downstream_parallelism, parallelism, groups=groups)
    return round_robin(snapshot.downstream_parallelism, parallelism)


def _numbered(states: tuple[ChannelState, ...], edge: CheckpointEdge) -> tuple[ChannelState, ...]:
    return tuple(msgspec.structs.replace(state, edge=edge.number) for state in states)

"""In-flight data of an unaligned snapshot: into which channels of the restored job the data goes.

*Old* is what the job had when the snapshot was taken; *new* is what the restored job has. An edge is found again by the
operators that the edge joins, not by its number. If both sides of an edge have the same parallelism as before, each end
of a channel gets back the data that this end saved. Otherwise the data of an old channel becomes input of new
receivers: first the data that the old receiver had not read, then the data that the old sender had not sent.

    by key        each new receiver that shares key groups with the old receiver gets the data; if several new receivers
                  get the same data, each takes only the rows of its own key groups
    in turn       one new receiver gets the data
    other edges   have no in-flight data, so there is nothing to deal out

The data of an old channel goes into one new channel, so the order of the channel is kept. Between channels there is no
order, as long as all in-flight data comes before new data.
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
    "start the unchanged program from this snapshot and take a savepoint, because a savepoint has nothing in flight; "
    "then start the changed program from that savepoint"
)


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """The in-flight data between two old subtasks."""

    upstream: int
    downstream: int
    inputs: tuple[ChannelState, ...] = ()
    """The data that the receiving end had not read. This data was sent before the data in `outputs`."""
    outputs: tuple[ChannelState, ...] = ()
    """The data that the sending end had not sent."""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The in-flight data of one edge, and the new edge that the data goes to."""

    snapshot: EdgeSnapshot
    edge: CheckpointEdge | None
    """The new edge; None if the data is left over, because the new job has no receiver for the data."""
    channels: tuple[Channel, ...]
    """The old channels that had in-flight data, in order."""
    rescaled: bool = False
    """The new edge has another parallelism on one side, or on both sides."""

    @property
    def size(self) -> int:
        """Bytes in flight."""
        return sum(n for c in self.channels for part in (*c.inputs, *c.outputs) for _, n in part.ranges)


def flows_of(metadata: CheckpointMetadata, graph: CheckpointGraph, left_over: Iterable[OperatorId]) -> tuple[Flow, ...]:
    """All in-flight data, by edge. Data that was on its way to an operator in `left_over` is left out. Raises
    `UsageError` for other data that the new job has no edge for, and for data that cannot be dealt out to another
    parallelism."""
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
                hint=f"restore the snapshot with a parallelism of {snapshot.downstream_parallelism}",
            )
        found.append(Flow(snapshot=snapshot, edge=edge, channels=channels, rescaled=rescaled))
    return tuple(found)


def add_in_flight(restores: dict[TaskId, TaskRestore], flows: tuple[Flow, ...], graph: CheckpointGraph) -> None:
    """Give every task its part of the in-flight data."""
    for flow in flows:
        if flow.edge is not None and flow.rescaled:
            _deal(restores, flow, flow.edge, graph)
        elif flow.edge is not None:
            _give_back(restores, flow, flow.edge)


# --- which edge the data was on --------------------------------------------------------------------------------------


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
    """The edges for metadata that records no edges: the edges of the program, with the parallelism that the metadata
    records for their two sides."""
    parallelism = {snapshot.vertex: snapshot.parallelism for snapshot in metadata.operators.values()}
    return [
        _snapshot_of(edge, graph, parallelism[edge.upstream], parallelism[edge.downstream])
        for edge in graph.edges
        if edge.partitioning is not None and edge.upstream in parallelism and edge.downstream in parallelism
    ]


def edges_of(graph: CheckpointGraph) -> tuple[EdgeSnapshot, ...]:
    """The edges of this graph as they are recorded in a snapshot."""
    parallelism = {vertex.vertex: vertex.parallelism for vertex in graph.vertices}
    return tuple(
        _snapshot_of(edge, graph, parallelism[edge.upstream], parallelism[edge.downstream])
        for edge in graph.edges
        if edge.partitioning is not None
    )


def _emitter(edge: CheckpointEdge, graph: CheckpointGraph) -> tuple[OperatorId, str | msgspec.UnsetType]:
    """The operator that emits the records of an edge, and the name of the side output if the edge carries one."""
    if edge.side is msgspec.UNSET:
        return graph.vertex(edge.upstream).operators[-1], msgspec.UNSET
    return edge.side.operator, edge.side.name


def _snapshot_of(edge: CheckpointEdge, graph: CheckpointGraph, upstream: int, downstream: int) -> EdgeSnapshot:
    operator, side = _emitter(edge, graph)
    return EdgeSnapshot(
        number=edge.number,
        upstream=operator,
        downstream=graph.vertex(edge.downstream).operators[0],
        partitioning=edge.partitioning or Partitioning.FORWARD,
        upstream_parallelism=upstream,
        downstream_parallelism=downstream,
        keys=edge.keys,
        input_number=edge.input_number,
        side=side,
    )


def _edge_today(metadata: CheckpointMetadata, snapshot: EdgeSnapshot, graph: CheckpointGraph) -> CheckpointEdge:
    what = f"{metadata.title} has data in flight from {snapshot.upstream} to {snapshot.downstream}"
    if snapshot.side is not msgspec.UNSET:
        what = f"{what}, from the side output {snapshot.side!r}"
    heads = {vertex.vertex: vertex.operators[0] for vertex in graph.vertices}
    ends = (snapshot.upstream, snapshot.side), snapshot.downstream
    between = [e for e in graph.edges if (_emitter(e, graph), heads[e.downstream]) == ends]
    edge = next((e for e in between if e.input_number == snapshot.input_number), None)
    if edge is None:
        chained = any({snapshot.upstream, snapshot.downstream} <= set(v.operators) for v in graph.vertices)
        how = "which the program runs in one chain" if chained else "and the program does not join the two any more"
        raise UsageError(f"{what}, {how}", hint=HINT)
    if (edge.partitioning, edge.keys) != (snapshot.partitioning, snapshot.keys):
        raise UsageError(f"{what}, which the program exchanges in another way", hint=HINT)
    return edge


# --- which task gets the data ----------------------------------------------------------------------------------------


def _give_back(restores: dict[TaskId, TaskRestore], flow: Flow, edge: CheckpointEdge) -> None:
    """Each end of a channel gets back the data that this end saved."""
    for channel in flow.channels:
        receiver, sender = TaskId(edge.downstream, channel.downstream), TaskId(edge.upstream, channel.upstream)
        inputs = (*restores[receiver].input_channels, *_numbered(channel.inputs, edge))
        restores[receiver] = msgspec.structs.replace(restores[receiver], input_channels=inputs)
        outputs = (*restores[sender].output_channels, *_numbered(channel.outputs, edge))
        restores[sender] = msgspec.structs.replace(restores[sender], output_channels=outputs)


def _deal(restores: dict[TaskId, TaskRestore], flow: Flow, edge: CheckpointEdge, graph: CheckpointGraph) -> None:
    """The new receivers get all data, old channel by old channel."""
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
    """For each new receiver: the old receivers whose channels the new receiver gets."""
    if snapshot.partitioning is Partitioning.HASH:
        return by_range(snapshot.downstream_parallelism, parallelism, groups=groups)
    return round_robin(snapshot.downstream_parallelism, parallelism)


def _numbered(states: tuple[ChannelState, ...], edge: CheckpointEdge) -> tuple[ChannelState, ...]:
    return tuple(msgspec.structs.replace(state, edge=edge.number) for state in states)

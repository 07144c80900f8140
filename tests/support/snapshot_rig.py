"""A small job and snapshots of it: a source, an exchange, and a step behind it."""

from __future__ import annotations

from typing import Any

from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex, OperatorLabel, Partitioning
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.core.recovery.in_flight import edges_of
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind, TaskChannels


def vertex(*operators: str, parallelism: int = 2, kinds: dict[str, str] | None = None) -> CheckpointVertex:
    """A chain; its id is that of its first operator."""
    return CheckpointVertex(
        vertex=VertexId(operators[0]),
        parallelism=parallelism,
        operators=tuple(OperatorId(o) for o in operators),
        labels={OperatorId(o): OperatorLabel(name=o, kind=(kinds or {}).get(o, "")) for o in operators},
    )


def edge(
    upstream: str, downstream: str, partitioning: Partitioning = Partitioning.HASH, *, number: int = 0, **more: Any
) -> CheckpointEdge:
    """An edge between two vertices."""
    keys = ("k",) if partitioning is Partitioning.HASH else ()
    return CheckpointEdge(
        upstream=VertexId(upstream),
        downstream=VertexId(downstream),
        all_to_all=partitioning.all_to_all,
        number=number,
        partitioning=partitioning,
        **{"keys": keys, **more},
    )


def graph_of(*vertices: CheckpointVertex, edges: tuple[CheckpointEdge, ...] = (), groups: int = 128) -> CheckpointGraph:
    return CheckpointGraph(vertices=vertices, edges=edges, max_parallelism=groups)


def simple_graph(parallelism: int, partitioning: Partitioning = Partitioning.HASH) -> CheckpointGraph:
    """`read` exchanges with `count`."""
    return graph_of(
        vertex("read", parallelism=parallelism),
        vertex("count", parallelism=parallelism),
        edges=(edge("read", "count", partitioning),),
    )


def in_channel(upstream: int, downstream: int, what: str, *, number: int = 0) -> ChannelState:
    """Batches that were in flight between two subtasks."""
    content = what.encode()
    file = StateFile(path=None, size=len(content), checksum=0, inline=content)
    return ChannelState(edge=number, upstream=upstream, downstream=downstream, file=file, ranges=((0, len(content)),))


def operator(
    name: str, *, parallelism: int = 2, groups: int = 128, state: bool = True, **more: Any
) -> OperatorSnapshot:
    """The snapshot of an operator, with a part of a list in its first subtask."""
    parts = {0: OperatorState(operator=OperatorId(name), split_lists={"s": (b"part",)})} if state else {}
    return OperatorSnapshot(
        **{
            "operator": OperatorId(name),
            "vertex": VertexId(name),
            "parallelism": parallelism,
            "max_parallelism": groups,
            "subtasks": parts,
            "label": OperatorLabel(name=name),
            **more,
        }
    )


def snapshot_of(
    *operators: OperatorSnapshot,
    graph: CheckpointGraph | None = None,
    channels: tuple[TaskChannels, ...] = (),
    **more: Any,
) -> CheckpointMetadata:
    """Checkpoint 7; with a graph it knows what edges there were."""
    return CheckpointMetadata(
        job=JobId("job"),
        checkpoint=CheckpointId(7),
        timestamp=Instant(0),
        kind=SnapshotKind.CHECKPOINT,
        operators={o.operator: o for o in operators},
        channels=channels,
        edges=edges_of(graph) if graph is not None else (),
        **more,
    )

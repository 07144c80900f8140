"""Vertices that had ended for good in a snapshot: which they are, and whether the program can still have them so.

A vertex is *finished* if all its subtasks had ended, and *partly* finished if some had. A finished one is deployed as
such: it runs no user code again. That is right only while everything before it has ended as well, so the program that
starts from the snapshot must not have put anything new there.

A stop with drain ends the data of every task. If the job fails before it has ended, it restarts from that savepoint and
ends again; so what it saves until then is of a drained job too, whatever the reason for it was. Who starts another job
from any of that wants it to go on.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import OperatorId, VertexId
from penstock.core.recovery.metadata import CheckpointMetadata

HINT = "leave out what was put before or into a part of the job that has finished, or give the changed steps new names"


class Progress(IntEnum):
    """How far a vertex has come; more is further."""

    RUNNING = 0
    PARTLY = 1
    FINISHED = 2


def finished_vertices(metadata: CheckpointMetadata, graph: CheckpointGraph) -> tuple[VertexId, ...]:
    """The vertices of the graph that are deployed as finished."""
    return tuple(
        v.vertex for v in graph.vertices if all(_progress(metadata, o) is Progress.FINISHED for o in v.operators)
    )


def with_more_data(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """The same for a job that is started from what a stop with drain left: what had ended for it goes on reading."""
    if not metadata.is_drained:
        return metadata
    operators = {o: msgspec.structs.replace(s, ended_subtasks=()) for o, s in metadata.operators.items()}
    return msgspec.structs.replace(metadata, operators=operators, drained=False)


def check_finished(metadata: CheckpointMetadata, graph: CheckpointGraph) -> None:
    """Raise `UsageError` if the program has something running before, or chained to, what had finished."""
    reached = {v.vertex: _vertex_progress(metadata, v) for v in graph.vertices}
    for edge in graph.edges:
        least = _least_upstream(reached[edge.downstream], edge)
        if max(reached[edge.upstream], _data_progress(metadata, graph.vertex(edge.upstream))) < least:
            raise UsageError(
                f"{metadata.title} has {edge.downstream} {_TEXTS[reached[edge.downstream]]}, "
                f"but in the program it reads from {edge.upstream}, which is {_TEXTS[reached[edge.upstream]]} there",
                hint=HINT,
            )


def _least_upstream(progress: Progress, edge: CheckpointEdge) -> Progress:
    """How far the upstream side must have come for the downstream side to be where it is."""
    if progress is Progress.PARTLY:
        return Progress.FINISHED if edge.all_to_all else Progress.PARTLY
    return progress


def _data_progress(metadata: CheckpointMetadata, vertex: CheckpointVertex) -> Progress:
    """The same by the data: a subtask that has seen all of its own feeds nobody any more, even if it was not yet known
    to have ended when what it fed was."""
    snapshots = [metadata.operators[o] for o in vertex.operators if o in metadata.operators]
    ended = [{*s.finished_subtasks, *s.ended_subtasks} for s in snapshots]
    if snapshots and all(len(e) == s.parallelism for e, s in zip(ended, snapshots, strict=True)):
        return Progress.FINISHED
    return Progress.PARTLY if snapshots and all(ended) else Progress.RUNNING


def _vertex_progress(metadata: CheckpointMetadata, vertex: CheckpointVertex) -> Progress:
    found = {o: _progress(metadata, o) for o in vertex.operators}
    first = next(iter(found))
    for operator, progress in found.items():
        if progress is not found[first]:
            raise UsageError(
                f"{metadata.title} has {first} {_TEXTS[found[first]]} and {operator} {_TEXTS[progress]}, "
                "which the program runs in one chain",
                hint=HINT,
            )
    return found[first]


def _progress(metadata: CheckpointMetadata, operator: OperatorId) -> Progress:
    snapshot = metadata.operators.get(operator)
    if snapshot is None:
        return Progress.RUNNING
    if snapshot.finished:
        return Progress.FINISHED
    return Progress.PARTLY if snapshot.finished_subtasks else Progress.RUNNING


_TEXTS = {Progress.RUNNING: "not finished", Progress.PARTLY: "partly finished", Progress.FINISHED: "finished"}

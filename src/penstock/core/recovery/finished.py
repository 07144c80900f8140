"""Vertices that had ended for good in a snapshot, and whether the program can still deploy them as finished.

A vertex is *finished* if all its subtasks had ended, and *partly* finished if some of its subtasks had ended. A
finished vertex is deployed as finished: its tasks run no user code again. That is right only if every vertex upstream
has ended as well. So the program that starts from the snapshot must not have a new step upstream of a finished vertex.

A stop with drain ends the data of every task. If the job fails after the savepoint and before its end, the job restarts
from that savepoint and ends again. The savepoint is the last checkpoint of such a job (`ends_with`): no task has
anything to save that the savepoint does not have. So the job ends as it would have ended without the failure, and goes
on from that savepoint when its program is run again. If the program has a step that the savepoint does not have, the
step may read data of its own. Then checkpoints are taken as ever, and every checkpoint counts as drained, whatever its
kind.

A user who starts another job from a drained snapshot wants the sources to go on reading (`with_more_data`).
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import OperatorId, VertexId
from penstock.core.recovery.metadata import CheckpointMetadata, SnapshotKind

HINT = "remove the steps that were added to or before a finished part of the job, or give the changed steps new names"


class Progress(IntEnum):
    """How far a vertex has come; a greater value is nearer to the end."""

    RUNNING = 0
    PARTLY = 1
    FINISHED = 2


def finished_vertices(metadata: CheckpointMetadata, graph: CheckpointGraph) -> tuple[VertexId, ...]:
    """The vertices of the graph that are deployed as finished."""
    return tuple(
        v.vertex for v in graph.vertices if all(_progress(metadata, o) is Progress.FINISHED for o in v.operators)
    )


def ends_with(metadata: CheckpointMetadata) -> bool:
    """Whether a job that restarts from this snapshot ends with it, if the data of every task had ended."""
    return metadata.kind is SnapshotKind.TERMINATE and metadata.is_drained


def with_more_data(metadata: CheckpointMetadata, graph: CheckpointGraph) -> CheckpointMetadata:
    """The metadata for another job that is started from a drained snapshot: subtasks whose data had ended because of
    the drain go on reading. The data of other subtasks had ended before the drain, and stays at its end."""
    if not metadata.is_drained:
        return metadata
    ended = _ended_before_the_drain(metadata, graph)
    operators = {
        o: msgspec.structs.replace(s, ended_subtasks=tuple(e for e in s.ended_subtasks if e in ended.get(o, ())))
        for o, s in metadata.operators.items()
    }
    return msgspec.structs.replace(metadata, operators=operators, drained=False)


def _ended_before_the_drain(metadata: CheckpointMetadata, graph: CheckpointGraph) -> dict[OperatorId, set[int]]:
    """The subtasks of each operator whose data is known to have ended before the drain.

    A task ends for good only after a checkpoint that the task took behind its data. The drain is the last checkpoint.
    So the data of a task that had ended for good, and the data of all tasks that had sent to this task, had ended
    before the drain.
    """
    reached: dict[VertexId, set[int]] = {}
    for vertex in reversed(graph.vertices):
        snapshots = [metadata.operators[o] for o in vertex.operators if o in metadata.operators]
        found = {e for s in snapshots for e in (range(s.parallelism) if s.finished else s.finished_subtasks)}
        for edge in graph.edges:
            if edge.upstream == vertex.vertex and (behind := reached[edge.downstream]):
                found |= {e for s in snapshots for e in s.ended_subtasks if edge.all_to_all or e in behind}
        reached[vertex.vertex] = found
    return {o: reached[vertex.vertex] for vertex in graph.vertices for o in vertex.operators}


def reopened(metadata: CheckpointMetadata, graph: CheckpointGraph) -> CheckpointMetadata:
    """The metadata of the last checkpoint of a job that had come to the end of its data, or of the savepoint that
    drained the job, for a job that goes on with more data. Every task took part in such a checkpoint, so no task has
    ended for good."""
    if metadata.is_drained:
        return with_more_data(metadata, graph)
    operators = {
        o: msgspec.structs.replace(s, finished=False, finished_subtasks=(), ended_subtasks=())
        for o, s in metadata.operators.items()
    }
    return msgspec.structs.replace(metadata, operators=operators)


def check_finished(metadata: CheckpointMetadata, graph: CheckpointGraph) -> None:
    """Raise `UsageError` if the program has a running step upstream of a finished step, or chained to a finished
    step."""
    reached = {v.vertex: _vertex_progress(metadata, v) for v in graph.vertices}
    for edge in graph.edges:
        least = _least_upstream(reached[edge.downstream], edge)
        if max(reached[edge.upstream], _data_progress(metadata, graph.vertex(edge.upstream))) < least:
            raise UsageError(
                f"{metadata.title} has {edge.downstream} {_TEXTS[reached[edge.downstream]]}, "
                f"but in the program it reads from {edge.upstream}, which is {_TEXTS[reached[edge.upstream]]} "
                "in the snapshot",
                hint=HINT,
            )


def _least_upstream(progress: Progress, edge: CheckpointEdge) -> Progress:
    """How far the upstream vertex must have come, if the downstream vertex has come as far as `progress`."""
    if progress is Progress.PARTLY:
        return Progress.FINISHED if edge.all_to_all else Progress.PARTLY
    return progress


def _data_progress(metadata: CheckpointMetadata, vertex: CheckpointVertex) -> Progress:
    """How far a vertex has come with its data. A subtask that has seen all its data sends nothing downstream any more.
    The subtasks downstream may then have ended before this subtask was known to have ended."""
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

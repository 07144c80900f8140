"""Makes the metadata of a checkpoint out of all its acknowledgements. A restore reads the metadata.

A vertex all of whose subtasks have ended for good, or that was deployed as finished, is recorded as finished and has no
state. Of a vertex that is partly finished the metadata names the ended subtasks. A partly finished vertex with union
state makes no checkpoint: a restore gives every subtask the union parts of all subtasks, and the parts of the ended
subtasks would be missing. The same holds if some subtasks still run but have finished their operators, and other
subtasks of the vertex have not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.coordinator.pending import PendingCheckpoint
from penstock.core.coordinator.registry import SharedStateRegistry
from penstock.core.graph import CheckpointGraph, CheckpointVertex, OperatorLabel
from penstock.core.ids import JobId, OperatorId, TaskId
from penstock.core.messages import OperatorState, SubtaskState
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.in_flight import edges_of
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, TaskChannels


class CannotFinalize(msgspec.Struct, frozen=True, kw_only=True):
    """Why the acknowledgements do not make a checkpoint."""

    reason: CheckpointFailure
    text: str


class Finalizer:
    """Makes the metadata out of the acknowledgements of a checkpoint."""

    def __init__(
        self, job: JobId, graph: CheckpointGraph, registry: SharedStateRegistry, job_settings: dict[str, Any]
    ) -> None:
        self._job = job
        self._graph = graph
        self._registry = registry
        self._job_settings = job_settings
        self._edges = edges_of(graph)

    def finalize(self, pending: PendingCheckpoint, *, drained: bool = False) -> CheckpointMetadata | CannotFinalize:
        """The metadata of a checkpoint that all tasks have acknowledged; `drained`: the checkpoint was taken after a
        stop with drain."""
        operators: dict[OperatorId, OperatorSnapshot] = {}
        channels: list[TaskChannels] = []
        ended = set(pending.plan.finished)
        for vertex in self._graph.vertices:
            states = {t: pending.states.get(t) for t in vertex.tasks if t not in ended}
            if vertex.vertex in pending.plan.finished_vertices:
                problem = _state_of_finished(states)
            else:
                problem = _union_of_partly_finished(vertex, states)
            if problem is not None:
                return problem
            operators.update(self._snapshots_of(vertex, pending, states))
            channels += [c for task, state in states.items() if state is not None for c in _channels_of(task, state)]
        return CheckpointMetadata(
            job=self._job,
            checkpoint=pending.checkpoint,
            timestamp=pending.created,
            kind=pending.kind,
            operators=operators,
            channels=tuple(channels),
            coordinators=dict(pending.coordinator_states),
            hooks=dict(pending.hook_states),
            settings=self._job_settings,
            edges=self._edges,
            drained=True if drained else msgspec.UNSET,
        )

    def _snapshots_of(
        self, vertex: CheckpointVertex, pending: PendingCheckpoint, states: dict[TaskId, SubtaskState | None]
    ) -> dict[OperatorId, OperatorSnapshot]:
        finished = vertex.vertex in pending.plan.finished_vertices
        by_operator: dict[OperatorId, dict[int, OperatorState]] = {operator: {} for operator in vertex.operators}
        for task, state in states.items():
            for part in state.operators if state is not None else ():
                if not part.is_empty:
                    by_operator.setdefault(part.operator, {})[task.subtask] = self._resolved(part, pending)
        named = () if finished else tuple(t.subtask for t in vertex.tasks if t not in states)
        ended = () if finished else tuple(t.subtask for t, s in states.items() if s is not None and s.finished)
        return {
            operator: OperatorSnapshot(
                operator=operator,
                vertex=vertex.vertex,
                parallelism=vertex.parallelism,
                max_parallelism=self._graph.max_parallelism,
                subtasks=subtasks,
                finished=finished,
                finished_subtasks=named,
                ended_subtasks=ended,
                label=vertex.labels.get(operator, OperatorLabel()),
            )
            for operator, subtasks in by_operator.items()
        }

    def _resolved(self, part: OperatorState, pending: PendingCheckpoint) -> OperatorState:
        """The operator's state, with the file that the registry has in the place of each shared file. The task may have
        named a placeholder, or a second copy of a file that is registered already."""
        if pending.kind.is_savepoint or all(f.shared_key is None for f in part.keyed):
            return part
        return msgspec.structs.replace(part, keyed=tuple(self._registry.resolve(f) for f in part.keyed))


def _channels_of(task: TaskId, state: SubtaskState) -> list[TaskChannels]:
    if not state.input_channels and not state.output_channels:
        return []
    return [TaskChannels(task=task, inputs=state.input_channels, outputs=state.output_channels)]


def _state_of_finished(states: dict[TaskId, SubtaskState | None]) -> CannotFinalize | None:
    for task, state in states.items():
        if state is not None and any(not part.is_empty for part in state.operators):
            return CannotFinalize(
                reason=CheckpointFailure.FINALIZE_FAILED,
                text=f"task {task} was deployed as finished, but reported state",
            )
    return None


def _union_of_partly_finished(
    vertex: CheckpointVertex, states: dict[TaskId, SubtaskState | None]
) -> CannotFinalize | None:
    ended = vertex.parallelism - len(states)
    reported = sum(s is not None and s.finished for s in states.values())
    if ended == 0 and reported in (0, vertex.parallelism):
        return None
    for task, state in states.items():
        for part in state.operators if state is not None else ():
            if part.union_lists:
                return CannotFinalize(
                    reason=CheckpointFailure.DECLINED_TASK_CLOSING,
                    text=(
                        f"{ended + reported} of {vertex.parallelism} subtasks of {vertex.vertex} have finished, "
                        f"but operator {part.operator} has union state (seen in {task})"
                    ),
                )
    return None

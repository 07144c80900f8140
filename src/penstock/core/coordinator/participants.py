"""Which tasks a checkpoint concerns: which get the trigger, which must acknowledge, which are told how it ended.

    all tasks run            trigger the sources; wait for, and tell, all tasks
    some have finished       wait for, and tell, the running tasks; trigger each running task that no running task feeds
    any other state          no checkpoint

A task whose upstream tasks have all finished gets no barrier, so the task is triggered and sends the barrier itself. An
all-to-all edge feeds every subtask if one upstream subtask runs. A pairwise edge feeds subtask i if upstream subtask i
runs.
"""

from __future__ import annotations

import msgspec

from penstock.core.coordinator.tasks import TaskBoard
from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import TaskId, VertexId


class CheckpointPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which task does what in one checkpoint."""

    trigger: tuple[TaskId, ...]
    wait: tuple[TaskId, ...]
    """The tasks that must acknowledge. The same tasks are told how the checkpoint ended."""
    finished: tuple[TaskId, ...] = ()
    """Tasks that have ended for good and have no part in the checkpoint."""
    finished_vertices: tuple[VertexId, ...] = ()
    """Vertices that have ended: none of their subtasks has anything to restore."""


class NotReady(msgspec.Struct, frozen=True, kw_only=True):
    """Why there can be no checkpoint now."""

    text: str


class Planner:
    """Makes plans for one job."""

    def __init__(self, graph: CheckpointGraph, *, after_tasks_finish: bool) -> None:
        self._vertices = graph.vertices
        self._after_tasks_finish = after_tasks_finish
        self._everybody = graph.tasks
        self._sources = tuple(t for v in graph.vertices if v.is_source for t in v.tasks)
        self._inputs: dict[VertexId, list[CheckpointEdge]] = {v.vertex: [] for v in graph.vertices}
        for edge in graph.edges:
            self._inputs[edge.downstream].append(edge)

    def plan(self, board: TaskBoard) -> CheckpointPlan | NotReady:
        """The plan of a checkpoint that starts now."""
        if board.all_running:
            return CheckpointPlan(
                trigger=self._sources, wait=self._everybody, finished_vertices=board.deployed_as_finished
            )
        down = [t for t in self._everybody if not board.is_running(t) and not board.is_finished(t)]
        if down:
            more = f" and {len(down) - 1} more" if len(down) > 1 else ""
            return NotReady(text=f"task {down[0]}{more} not running")
        if board.all_finished:
            return NotReady(text="all tasks have finished")
        if not self._after_tasks_finish:
            return NotReady(text="tasks have finished, and checkpoints after that are switched off")
        return self._plan_with_finished(board)

    def _plan_with_finished(self, board: TaskBoard) -> CheckpointPlan:
        ended = (v.vertex for v in self._vertices if board.num_running_in(v.vertex) == 0)
        return CheckpointPlan(
            trigger=tuple(t for v in self._vertices for t in self._triggered_in(v, board)),
            wait=tuple(t for t in self._everybody if board.is_running(t)),
            finished=tuple(t for t in self._everybody if board.is_finished(t)),
            finished_vertices=tuple(dict.fromkeys((*ended, *board.deployed_as_finished))),
        )

    def _triggered_in(self, vertex: CheckpointVertex, board: TaskBoard) -> list[TaskId]:
        inputs = self._inputs[vertex.vertex]
        if any(e.all_to_all and board.num_running_in(e.upstream) > 0 for e in inputs):
            return []
        pairwise = [e.upstream for e in inputs if not e.all_to_all]
        return [
            task
            for task in vertex.tasks
            if board.is_running(task)
            and not any(board.is_running(TaskId(upstream, task.subtask)) for upstream in pairwise)
        ]

"""Which task is in which state, in which attempt, and whether all of its data has been seen.

A task is down (being deployed, failed, or stopped), running, or finished. Every event about a task carries the epoch of
the task. An event with another epoch is about a task that does not exist any more, and is ignored.

The end of a running task:

    all data seen ──► settled ──► asks ──► leaves ──► finished

    settled   a checkpoint that the task took after the end of its data is complete
    asks      every task downstream has processed the task's data, and no operator of the task has anything under way
    leaves    no checkpoint waits for the task, and the task was told to end

Data of a settled task may wait behind back-pressure for as long as a task downstream is slow. So a task takes part in
every checkpoint until the task is told to end. No checkpoint begins while a task asks or leaves. That time is short:
the checkpoints under way must get the acknowledgement of that task, and one message goes to the task and one comes
back.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from penstock.core.errors import InvariantError
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import Epoch, TaskId, VertexId


class TaskState(Enum):
    """What a task does."""

    DOWN = "down"
    RUNNING = "running"
    FINISHED = "finished"


class TaskBoard:
    """The state of every task. Counts are kept, so that no question needs a walk over all tasks."""

    def __init__(self, graph: CheckpointGraph) -> None:
        self.change_graph(graph)

    def change_graph(self, graph: CheckpointGraph) -> None:
        """The job has the tasks of this graph, and no task runs yet. Nothing is remembered of the tasks before."""
        self.tasks = graph.tasks
        self._states = dict.fromkeys(self.tasks, TaskState.DOWN)
        self._epochs = dict.fromkeys(self.tasks, Epoch(0))
        self._data_ended: set[TaskId] = set()
        self._settled: set[TaskId] = set()
        self._asking: dict[TaskId, None] = {}
        self._leaving: set[TaskId] = set()
        self._num_running = 0
        self._num_finished = 0
        self._running_in: dict[VertexId, int] = {v.vertex: 0 for v in graph.vertices}
        self._deployed_as_finished: dict[VertexId, None] = {}

    # --- what happens -------------------------------------------------------------------------------------------------

    def deploy(self, epoch: Epoch, tasks: Iterable[TaskId], finished_vertices: Iterable[VertexId]) -> None:
        """A new attempt of these tasks begins; vertices in `finished_vertices` come up with nothing left to do."""
        for task in tasks:
            self._move(task, TaskState.DOWN)
            self._epochs[task] = epoch
            self._deployed_as_finished.pop(task.vertex, None)
        self._deployed_as_finished.update(dict.fromkeys(finished_vertices))

    def stop(self, tasks: Iterable[TaskId]) -> None:
        """These tasks do not run any more."""
        for task in tasks:
            self._move(task, TaskState.DOWN)

    def run(self, task: TaskId) -> None:
        """The task runs. A finished task stays finished."""
        if self._states[task] is TaskState.DOWN:
            self._move(task, TaskState.RUNNING)
        if task.vertex in self._deployed_as_finished:
            self._data_ended.add(task)

    def finish(self, task: TaskId) -> None:
        """The task has ended for good."""
        self._move(task, TaskState.FINISHED)
        self._data_ended.add(task)

    def end_data(self, task: TaskId) -> None:
        """The task has seen all its data."""
        self._data_ended.add(task)

    def settle(self, tasks: Iterable[TaskId]) -> None:
        """A checkpoint that these tasks took after the end of their data is complete. The tasks that run need no
        further checkpoint."""
        self._settled.update(task for task in tasks if self.is_running(task))

    def ask(self, task: TaskId) -> None:
        """The task wants to end."""
        if self.is_running(task):
            self._asking[task] = None

    def let_go(self, task: TaskId) -> None:
        """The task is told to end."""
        del self._asking[task]
        self._leaving.add(task)

    def _move(self, task: TaskId, state: TaskState) -> None:
        before = self._states[task]
        running = (state is TaskState.RUNNING) - (before is TaskState.RUNNING)
        self._num_running += running
        self._running_in[task.vertex] += running
        self._num_finished += (state is TaskState.FINISHED) - (before is TaskState.FINISHED)
        self._states[task] = state
        if state is not TaskState.RUNNING:
            self._settled.discard(task)
            self._asking.pop(task, None)
            self._leaving.discard(task)
        if state is TaskState.DOWN:
            self._data_ended.discard(task)

    # --- what is asked ------------------------------------------------------------------------------------------------

    def is_current(self, task: TaskId, epoch: Epoch) -> bool:
        """Whether `epoch` is the epoch of this task."""
        return self._epochs.get(task) == epoch

    def epoch_of(self, task: TaskId) -> Epoch:
        """The epoch of a task."""
        return self._epochs[task]

    def is_running(self, task: TaskId) -> bool:
        """Whether the task runs."""
        return self._states[task] is TaskState.RUNNING

    def is_finished(self, task: TaskId) -> bool:
        """Whether the task has ended for good."""
        return self._states[task] is TaskState.FINISHED

    def num_running_in(self, vertex: VertexId) -> int:
        """How many subtasks of a vertex run."""
        return self._running_in[vertex]

    @property
    def deployed_as_finished(self) -> tuple[VertexId, ...]:
        """Vertices whose tasks only take part so that barriers get through."""
        return tuple(self._deployed_as_finished)

    @property
    def all_running(self) -> bool:
        """Whether every task runs."""
        return self._num_running == len(self.tasks)

    @property
    def all_up(self) -> bool:
        """Whether every task runs or has finished."""
        return self._num_running + self._num_finished == len(self.tasks)

    @property
    def all_finished(self) -> bool:
        """Whether every task has ended for good."""
        return self._num_finished == len(self.tasks)

    @property
    def asking(self) -> tuple[TaskId, ...]:
        """The tasks that want to end and have not been let go."""
        return tuple(self._asking)

    @property
    def is_any_leaving(self) -> bool:
        """Whether a task wants to end, or was told to end: such a task could not take part in a checkpoint that begins
        now."""
        return bool(self._asking or self._leaving)

    @property
    def all_settled(self) -> bool:
        """Whether every task has finished, or has its last checkpoint: a further checkpoint would save nothing new."""
        return self._num_running == len(self._settled)

    @property
    def awaits_last_checkpoint(self) -> bool:
        """Whether every task has seen all its data, and some tasks still run because they wait for a checkpoint."""
        return not self.all_settled and self.all_up and len(self._data_ended) == len(self.tasks)

    def validate(self) -> None:
        """Raise `InvariantError` if a count differs from the number of tasks in that state."""
        running = [t for t in self.tasks if self.is_running(t)]
        finished = [t for t in self.tasks if self.is_finished(t)]
        per_vertex = dict.fromkeys(self._running_in, 0)
        for task in running:
            per_vertex[task.vertex] += 1
        if (len(running), len(finished), per_vertex) != (self._num_running, self._num_finished, self._running_in):
            raise InvariantError("the counts of running and finished tasks are wrong")

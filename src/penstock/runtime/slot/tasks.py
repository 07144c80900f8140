"""The tasks of a slot: their plan, the attempt of each task, and which task has which end of a channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cloudpickle

from penstock.core.errors import InvariantError
from penstock.core.ids import Epoch, SlotId, TaskId, VertexId
from penstock.core.job.regions import regions_of
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan
from penstock.runtime.slot.attempts import Attempts
from penstock.runtime.slot.deployment import edge_schemas
from penstock.runtime.task.channels import ChannelKey
from penstock.runtime.task.meter import LoopMeter
from penstock.runtime.task.subtask import Task
from penstock.wire.codec import BatchCodec


class SlotTasks:
    """The tasks of one slot. A task is added when it is deployed, and removed when it is dropped."""

    def __init__(self, slot: SlotId, clock_ms: Callable[[], float]) -> None:
        self._slot = slot
        self.epoch = Epoch(0)
        """The epoch of the whole attempt and of the links. Tasks of a region that was restarted alone have a later
        epoch."""
        self._plan: Plan | None = None
        self.coordinated: frozenset[VertexId] = frozenset()
        """The vertices with an operator that has an operator coordinator."""
        self.by_id: dict[TaskId, Task] = {}
        """In the order of the plan."""
        self.attempts = Attempts()
        self.readers: dict[ChannelKey, Task] = {}
        """The task that has the receiving end of each channel."""
        self.writers: dict[ChannelKey, Task] = {}
        """The task that has the sending end of each channel."""
        self.meter = LoopMeter(clock_ms)
        """Accounts for the time of the tasks."""
        self.codecs: dict[int, BatchCodec] = {}
        """The codec for the batches of each edge, by the number of the edge."""

    def take_plan(self, pickled: bytes) -> None:
        """The whole job is deployed with this plan."""
        plan: Plan = cloudpickle.loads(pickled)
        self._plan = plan
        graph = checkpoint_graph(plan)
        self.coordinated = frozenset(v.vertex for v in graph.vertices if v.coordinators)
        self.attempts = Attempts(regions_of(graph))
        self.codecs = {number: BatchCodec(schema) for number, schema in edge_schemas(plan).items()}

    @property
    def plan(self) -> Plan:
        """The plan of the job that runs here."""
        if self._plan is None:
            raise InvariantError(f"{self._slot} was told to restart tasks of a job whose plan it does not have")
        return self._plan

    def name_of(self, vertex: VertexId) -> str:
        """The name of a vertex, for people; the id of the vertex if there is no plan."""
        return self._plan.vertex(vertex).name if self._plan is not None else str(vertex)

    def add(self, built: Sequence[Task], epoch: Epoch) -> None:
        """Add tasks that were deployed in this epoch."""
        for task in built:
            inputs, outputs = [channel.key for channel in task.gate.channels], tuple(task.outputs.channels)
            self.by_id[task.task] = task
            self.attempts.begin(task.task, epoch, inputs, outputs)
            self.readers.update(dict.fromkeys(inputs, task))
            self.writers.update(dict.fromkeys(outputs, task))
        # In the order of the plan, even if only some tasks were restarted.
        self.by_id = {task: self.by_id[task] for task in self.plan.tasks if task in self.by_id}

    def remove(self, dropped: Sequence[Task]) -> None:
        """Remove tasks that are dropped."""
        for task in dropped:
            del self.by_id[task.task]
        self.readers = {key: task for key, task in self.readers.items() if task.task in self.by_id}
        self.writers = {key: task for key, task in self.writers.items() if task.task in self.by_id}

    def named(self, names: Sequence[TaskId] | None = None) -> list[Task]:
        """The tasks of this slot that have one of these ids; None: all tasks of this slot."""
        return [task for task in self.by_id.values() if names is None or task.task in names]

    def has(self, task: Task) -> bool:
        """Whether this task object is in this slot. A task of another attempt may have the same id."""
        return self.by_id.get(task.task) is task

    def of_epoch(self, task: TaskId, epoch: Epoch) -> Task | None:
        """The task with this id, if the task is in this slot and has this epoch; otherwise None."""
        return self.by_id.get(task) if epoch == self.attempts.of(task) else None

    def is_alive(self, task: TaskId, epoch: Epoch) -> bool:
        """Whether the task with this id is in this slot, has this epoch and is not over."""
        found = self.of_epoch(task, epoch)
        return found is not None and found.is_alive

    @property
    def active(self) -> tuple[TaskId, ...]:
        """The tasks that take part in checkpoints."""
        return tuple(task for task, found in self.by_id.items() if found.is_active)

"""The tasks that a slot has: of which plan, of which attempt, and which of them has which end of a channel."""

from __future__ import annotations

from collections.abc import Sequence

import cloudpickle

from penstock.core.errors import InvariantError
from penstock.core.ids import Epoch, SlotId, TaskId, VertexId
from penstock.core.job.regions import regions_of
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan
from penstock.runtime.slot.attempts import Attempts
from penstock.runtime.slot.deployment import edge_schemas
from penstock.runtime.task.channels import ChannelKey
from penstock.runtime.task.subtask import Task
from penstock.wire.codec import BatchCodec


class SlotTasks:
    """Of one slot. Tasks are added when they are deployed, and removed when they are dropped."""

    def __init__(self, slot: SlotId) -> None:
        self._slot = slot
        self.epoch = Epoch(0)
        """That of the whole attempt, and of links. Tasks that were restarted beside others have a later one."""
        self._plan: Plan | None = None
        self.coordinated: frozenset[VertexId] = frozenset()
        """Vertices of which an operator has a coordinator on the driver."""
        self.by_id: dict[TaskId, Task] = {}
        """In the order of the plan."""
        self.attempts = Attempts()
        self.readers: dict[ChannelKey, Task] = {}
        """Who has the receiving end of a channel."""
        self.writers: dict[ChannelKey, Task] = {}
        """Who has the sending end of a channel."""
        self.codecs: dict[int, BatchCodec] = {}
        """For the batches of each edge."""

    def take_plan(self, pickled: bytes) -> None:
        """The whole job is deployed; this is its plan."""
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
            raise InvariantError(f"{self._slot} is to restart tasks of a job that it does not run")
        return self._plan

    def name_of(self, vertex: VertexId) -> str:
        """What people call a vertex."""
        return self._plan.vertex(vertex).name if self._plan is not None else str(vertex)

    def add(self, built: Sequence[Task], epoch: Epoch) -> None:
        """These were deployed, in this attempt."""
        for task in built:
            inputs, outputs = [channel.key for channel in task.gate.channels], tuple(task.outputs.channels)
            self.by_id[task.task] = task
            self.attempts.begin(task.task, epoch, inputs, outputs)
            self.readers.update(dict.fromkeys(inputs, task))
            self.writers.update(dict.fromkeys(outputs, task))
        # In the order of the plan, whoever was restarted.
        self.by_id = {task: self.by_id[task] for task in self.plan.tasks if task in self.by_id}

    def remove(self, dropped: Sequence[Task]) -> None:
        """These are no more."""
        for task in dropped:
            del self.by_id[task.task]
        self.readers = {key: task for key, task in self.readers.items() if task.task in self.by_id}
        self.writers = {key: task for key, task in self.writers.items() if task.task in self.by_id}

    def named(self, names: Sequence[TaskId] | None = None) -> list[Task]:
        """The tasks with these names, as far as they are here; without names, all."""
        return [task for task in self.by_id.values() if names is None or task.task in names]

    def has(self, task: Task) -> bool:
        """Whether this very task is here, and not another one of the same name."""
        return self.by_id.get(task.task) is task

    def of_epoch(self, task: TaskId, epoch: Epoch) -> Task | None:
        """A task, if it is here and belongs to this attempt."""
        return self.by_id.get(task) if epoch == self.attempts.of(task) else None

    def is_alive(self, task: TaskId, epoch: Epoch) -> bool:
        """Whether a task is here, belongs to this attempt, and is not over."""
        found = self.of_epoch(task, epoch)
        return found is not None and found.is_alive

    @property
    def active(self) -> tuple[TaskId, ...]:
        """The tasks that take part in checkpoints."""
        return tuple(task for task, found in self.by_id.items() if found.is_active)

"""Keeps the events of operator coordinators on the right side of the barrier.

An operator coordinator (a source's enumerator, a committer) runs on the driver, takes its snapshot there, and sends
events to its subtasks. An event that is sent before the snapshot must reach the subtask before the barrier. An event
that is sent after the snapshot must reach the subtask after the barrier. Otherwise a restore would lose the event, or
the subtask would get the event twice. So each subtask has a gateway:

    mark(id)    the operator coordinator is asked for its snapshot; events still pass
    close(id)   the snapshot is taken: from now on events wait, in the line of the newest closed id
    open(id)    the subtask has frozen its snapshot, or the checkpoint has ended: the waiting events go out in order; if
                an older id is still closed, the waiting events join the line of that older id

An aborted checkpoint has lost its mark, so a snapshot that arrives late closes nothing.

An event counts as on its way from the moment the event is submitted. An event that waits in the line of an older
checkpoint belongs before the barrier of the next checkpoint. So the next checkpoint waits until the event has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.core.coordinator.effects import SendOperatorEvent
from penstock.core.coordinator.tasks import TaskBoard
from penstock.core.errors import InvariantError
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, OperatorId, TaskId


@dataclass(frozen=True, slots=True)
class HeldEvent:
    """An event on its way to a subtask."""

    number: int
    event: bytes


@dataclass(slots=True)
class SubtaskGateway:
    """One subtask's gateway."""

    latest_mark: CheckpointId | None = None
    marks: set[CheckpointId] = field(default_factory=set)
    lines: dict[CheckpointId, list[HeldEvent]] = field(default_factory=dict)
    """Closed ids, oldest first, each with the events that wait in its line."""

    def mark(self, checkpoint: CheckpointId) -> None:
        """Note that the operator coordinator has been asked for its snapshot."""
        if self.latest_mark is not None and checkpoint <= self.latest_mark:
            raise InvariantError(f"gateway marked for checkpoint {checkpoint} after {self.latest_mark}")
        self.latest_mark = checkpoint
        self.marks.add(checkpoint)

    def close(self, checkpoint: CheckpointId) -> None:
        """The operator coordinator has taken its snapshot. Closing twice changes nothing."""
        self.lines.setdefault(checkpoint, [])

    def open(self, checkpoint: CheckpointId) -> list[HeldEvent]:
        """The subtask has the barrier, or the barrier will never come. Returns the events that may go out now."""
        if self.latest_mark is None or checkpoint > self.latest_mark:
            raise InvariantError(f"gateway opened for checkpoint {checkpoint}, which it was never marked for")
        self.marks.discard(checkpoint)
        waiting = self.lines.pop(checkpoint, None)
        if waiting is None:
            return []
        older = [c for c in self.lines if c < checkpoint]
        if not older:
            return waiting
        self.lines[max(older)] += waiting
        return []

    def submit(self, event: HeldEvent) -> list[HeldEvent]:
        """The operator coordinator submits an event. Returns the events that may go out now."""
        if not self.lines:
            return [event]
        self.lines[max(self.lines)].append(event)
        return []


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event that was submitted and is not known to have arrived."""

    operator: OperatorId
    task: TaskId
    may_be_lost: bool


class Gateways:
    """The gateways of all operator coordinators of the job."""

    def __init__(self, graph: CheckpointGraph, board: TaskBoard) -> None:
        self._board = board
        self._next_number = 1
        self.change_graph(graph)

    def change_graph(self, graph: CheckpointGraph) -> None:
        """Make new gateways, all of them open. Events that were on their way are lost."""
        self._vertices = {o: v.vertex for v in graph.vertices for o in v.coordinators}
        self._gateways = {
            o: [SubtaskGateway() for _ in range(v.parallelism)] for v in graph.vertices for o in v.coordinators
        }
        self._operators_in = {v.vertex: v.coordinators for v in graph.vertices}
        self._on_the_way: dict[int, SentEvent] = {}

    @property
    def operators(self) -> tuple[OperatorId, ...]:
        """Every operator that has a coordinator."""
        return tuple(self._vertices)

    def mark(self, checkpoint: CheckpointId) -> None:
        """Note in every gateway that its operator coordinator has been asked for its snapshot."""
        for gateways in self._gateways.values():
            for gateway in gateways:
                gateway.mark(checkpoint)

    def try_close(self, operator: OperatorId, checkpoint: CheckpointId) -> bool:
        """The operator coordinator has taken its snapshot: close the gateways of all its subtasks. Returns False, and
        closes no gateway, if the checkpoint has been aborted meanwhile."""
        gateways = self._gateways.get(operator, [])
        if not gateways or any(checkpoint not in g.marks for g in gateways):
            return False
        for gateway in gateways:
            gateway.close(checkpoint)
        return True

    def open(self, checkpoint: CheckpointId) -> list[SendOperatorEvent]:
        """The checkpoint has ended: open all gateways for this checkpoint."""
        effects: list[SendOperatorEvent] = []
        for operator, gateways in self._gateways.items():
            for subtask, gateway in enumerate(gateways):
                if gateway.latest_mark is not None and checkpoint <= gateway.latest_mark:
                    effects += self._send(operator, subtask, gateway.open(checkpoint))
        return effects

    def _open_for(self, operator: OperatorId, subtask: int, checkpoint: CheckpointId) -> list[SendOperatorEvent]:
        """One subtask of one operator has the barrier. Nothing happens unless the gateway is closed for the checkpoint.
        The message may be of a checkpoint that this attempt does not know. And a checkpoint whose snapshot the operator
        coordinator has not taken yet must keep its mark."""
        gateway = self._gateways[operator][subtask]
        if checkpoint not in gateway.lines:
            return []
        return self._send(operator, subtask, gateway.open(checkpoint))

    def open_for_task(self, task: TaskId, checkpoint: CheckpointId) -> list[SendOperatorEvent]:
        """A task has frozen its snapshot for the checkpoint, or has acknowledged the checkpoint: the task has the
        barrier."""
        operators = self._operators_in[task.vertex]
        return [e for o in operators for e in self._open_for(o, task.subtask, checkpoint)]

    def reset(self, tasks: Iterable[TaskId]) -> None:
        """These tasks are stopped: events that wait for them, or are on their way to them, are lost with the tasks."""
        gone = set(tasks)
        for task in sorted(gone):
            for operator in self._operators_in[task.vertex]:
                self._gateways[operator][task.subtask] = SubtaskGateway()
        self._on_the_way = {n: sent for n, sent in self._on_the_way.items() if sent.task not in gone}

    def submit(self, operator: OperatorId, subtask: int, event: bytes, *, may_be_lost: bool) -> list[SendOperatorEvent]:
        """An operator coordinator wants an event sent."""
        gateways = self._gateways.get(operator, [])
        if not 0 <= subtask < len(gateways):
            raise InvariantError(f"operator {operator} has no coordinator with a subtask {subtask}")
        number = self._next_number
        self._next_number += 1
        task, held = TaskId(self._vertices[operator], subtask), HeldEvent(number, event)
        self._on_the_way[number] = SentEvent(operator, task, may_be_lost)
        return self._send(operator, subtask, gateways[subtask].submit(held))

    def on_the_way(self, operator: OperatorId) -> set[int]:
        """Numbers of the operator's events that are not known to have arrived."""
        return {n for n, sent in self._on_the_way.items() if sent.operator == operator}

    def settle(self, number: int) -> SentEvent | None:
        """An event has arrived, or is lost. Returns the event; None if the event is not on its way any more."""
        return self._on_the_way.pop(number, None)

    def _send(self, operator: OperatorId, subtask: int, events: list[HeldEvent]) -> list[SendOperatorEvent]:
        task = TaskId(self._vertices[operator], subtask)
        epoch = self._board.epoch_of(task)
        return [
            SendOperatorEvent(number=e.number, operator=operator, task=task, epoch=epoch, event=e.event) for e in events
        ]

"""Keeps the events of operator coordinators on the right side of the barrier.

An operator coordinator (a source's enumerator, a committer) runs on the driver, takes its snapshot there, and sends
events to its subtasks. An event sent before the snapshot must reach the subtask before the barrier, a later one behind
it, or a restore would lose it or see it twice. So each subtask has a gateway:

    mark(id)    the coordinator is asked for its snapshot; events still pass
    close(id)   its snapshot is taken: from here events wait, under the newest id that is closed
    open(id)    the subtask has the barrier, or the checkpoint has ended: what waits goes out in order; if an older id
                is closed still, it joins that one's line

A checkpoint that was aborted has lost its mark, so a snapshot that arrives late closes nothing.

A task that is about to end takes no part in a checkpoint whose barrier it does not have yet, and never says that it has
it. No barrier is left that an event could be on the wrong side of. So what waits goes out at once: the task may be
waiting for it, as a sink does that ends when its last results are committed.

An event counts as on its way from the moment it is submitted: one that waits behind an older checkpoint belongs before
the barrier of the next one, which therefore waits until it has arrived.
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
    """Closed ids, oldest first, each with what waits under it."""

    def mark(self, checkpoint: CheckpointId) -> None:
        """A snapshot has been asked for."""
        if self.latest_mark is not None and checkpoint <= self.latest_mark:
            raise InvariantError(f"gateway marked for checkpoint {checkpoint} after {self.latest_mark}")
        self.latest_mark = checkpoint
        self.marks.add(checkpoint)

    def close(self, checkpoint: CheckpointId) -> None:
        """The snapshot that was asked for is taken. Closing twice changes nothing."""
        self.lines.setdefault(checkpoint, [])

    def open(self, checkpoint: CheckpointId) -> list[HeldEvent]:
        """The barrier is in, or will never come. Returns what may go out now."""
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

    def let_go(self) -> list[HeldEvent]:
        """No barrier will come. Returns what waits, in order; ids stay closed until they are opened."""
        waiting = [event for line in self.lines.values() for event in line]
        self.lines = {checkpoint: [] for checkpoint in self.lines}
        return waiting

    def submit(self, event: HeldEvent) -> list[HeldEvent]:
        """An event comes. Returns what may go out now."""
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
        """All gateways are new, and open; what was on its way to anybody is lost."""
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
        """All operator coordinators are asked for their snapshots."""
        for gateways in self._gateways.values():
            for gateway in gateways:
                gateway.mark(checkpoint)

    def try_close(self, operator: OperatorId, checkpoint: CheckpointId) -> bool:
        """The operator's snapshot is taken. Closes the gateways of all its subtasks, or of none: then the checkpoint
        was aborted since."""
        gateways = self._gateways.get(operator, [])
        if not gateways or any(checkpoint not in g.marks for g in gateways):
            return False
        for gateway in gateways:
            gateway.close(checkpoint)
        return True

    def open(self, checkpoint: CheckpointId) -> list[SendOperatorEvent]:
        """The checkpoint has ended: all gateways are opened for it."""
        effects: list[SendOperatorEvent] = []
        for operator, gateways in self._gateways.items():
            for subtask, gateway in enumerate(gateways):
                if gateway.latest_mark is not None and checkpoint <= gateway.latest_mark:
                    effects += self._send(operator, subtask, gateway.open(checkpoint))
        return effects

    def open_for(self, operator: OperatorId, subtask: int, checkpoint: CheckpointId) -> list[SendOperatorEvent]:
        """One subtask of one operator has the barrier. Ignored if the gateway was never marked for it: the message may
        be of a checkpoint that this attempt knows nothing of."""
        gateways = self._gateways.get(operator, [])
        if subtask >= len(gateways):
            return []
        gateway = gateways[subtask]
        if checkpoint not in gateway.marks:
            return []
        return self._send(operator, subtask, gateway.open(checkpoint))

    def open_for_task(self, task: TaskId, checkpoint: CheckpointId) -> list[SendOperatorEvent]:
        """A task has acknowledged the checkpoint: its barrier is in."""
        operators = self._operators_in[task.vertex]
        return [e for o in operators for e in self.open_for(o, task.subtask, checkpoint)]

    def let_go(self, tasks: Iterable[TaskId]) -> list[SendOperatorEvent]:
        """These tasks are about to end: nothing waits for a barrier any more that they will never have."""
        return [
            effect
            for task in tasks
            for operator in self._operators_in[task.vertex]
            for effect in self._send(operator, task.subtask, self._gateways[operator][task.subtask].let_go())
        ]

    def reset(self, tasks: Iterable[TaskId]) -> None:
        """These tasks are stopped: what waits for them, or is on its way to them, is lost with them."""
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
        passing = [held] if self._board.is_leaving(task) else gateways[subtask].submit(held)
        return self._send(operator, subtask, passing)

    def on_the_way(self, operator: OperatorId) -> set[int]:
        """Numbers of the operator's events that are not known to have arrived."""
        return {n for n, sent in self._on_the_way.items() if sent.operator == operator}

    def settle(self, number: int) -> SentEvent | None:
        """An event has arrived, or is lost; None if nobody waits for that news any more."""
        return self._on_the_way.pop(number, None)

    def _send(self, operator: OperatorId, subtask: int, events: list[HeldEvent]) -> list[SendOperatorEvent]:
        task = TaskId(self._vertices[operator], subtask)
        epoch = self._board.epoch_of(task)
        return [
            SendOperatorEvent(number=e.number, operator=operator, task=task, epoch=epoch, event=e.event) for e in events
        ]

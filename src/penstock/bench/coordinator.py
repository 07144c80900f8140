"""`penstock bench coordinator`: what a checkpoint of a large job costs the driver, and whether it grows with size.

No job runs. The coordinator is fed what the tasks of one would say, and what it wants of storage is answered at once,
so that only its own work is measured: in processor time, which other programs on the machine do not change much. A
measurement reaches from the request for a checkpoint to the last notification: plan, triggers, every acknowledgement,
metadata, subsumption and deletion of the checkpoint before. Writing the metadata down is storage's business and left
out.

Sizes take turns and the medians over the rounds count. One checkpoint of the small job is over in milliseconds, so each
round takes several before the large one and several after it, and compares with their median.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import click

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.effects import (
    CheckpointCompleted,
    CoordinatorEffect,
    CreateLocation,
    DeleteFiles,
    SendToTask,
    StorePointer,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    Acknowledged,
    AttemptStarted,
    CheckpointRequested,
    CoordinatorEvent,
    FilesDeleted,
    LocationCreated,
    MetadataWritten,
    PointerStored,
    RequestKind,
    ScheduleAllowed,
    TaskRunning,
)
from penstock.core.errors import InvariantError
from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, RequestId, TaskId, VertexId
from penstock.core.messages import Acknowledge, OperatorState, SnapshotMetrics, StateFile, SubtaskState
from penstock.settings import CheckpointSettings
from penstock.terminal.failures import reported_failures

FEW_SUBTASKS = 100
"""The size that the cost per subtask is compared with."""
DEFAULT_SUBTASKS = 10_000
FEW_REPEATED = 20
"""Checkpoints of the small job before and after each of the large one."""
ARRIVING_TOGETHER = 100
"""Acknowledgements are made in such portions, outside the measured time. A driver never has all of them in hand at
once, and what was made long ago is slow to read."""
CHAINS = ("source", "clean", "window", "sink")
"""The vertices of the job; the subtasks are spread over them evenly."""

_JOB = JobId("bench")
_EPOCH = Epoch(1)


@dataclass(frozen=True, kw_only=True)
class CoordinatorCost:
    """What was measured."""

    subtasks: int
    cpu_seconds: float
    """Of one checkpoint with that many subtasks."""
    cost_growth: float
    """Cost per subtask in the large job over that in one with `FEW_SUBTASKS`."""


class SimulatedTasks:
    """A job whose tasks and storage are made up, around a real coordinator."""

    def __init__(self, subtasks: int) -> None:
        """`subtasks` is a multiple of the number of chains."""
        self.graph = _graph(subtasks // len(CHAINS))
        self.coordinator = CheckpointCoordinator(_JOB, CheckpointSettings(), self.graph, CheckpointId(1))
        self.told = 0
        """Messages sent to tasks."""
        self._completed = 0
        self._next = CheckpointId(1)
        self._feed(AttemptStarted(epoch=_EPOCH))
        for task in self.graph.tasks:
            self._feed(TaskRunning(task=task, epoch=_EPOCH))
        self._feed(ScheduleAllowed(draw=0.0))

    def checkpoint(self) -> float:
        """Have one checkpoint taken; the processor seconds of the coordinator, its driver's questions included."""
        number = self._next
        self._next = CheckpointId(number + 1)
        took = self._timed([CheckpointRequested(request=RequestId(number), kind=RequestKind.CHECKPOINT)])
        tasks = self.graph.tasks
        for first in range(0, len(tasks), ARRIVING_TOGETHER):
            arriving = tasks[first : first + ARRIVING_TOGETHER]
            took += self._timed([Acknowledged(message=_acknowledge(task, number)) for task in arriving])
        if self._completed != number:
            raise InvariantError(f"checkpoint {number} of the simulated job did not complete")
        return took

    def _timed(self, events: Sequence[CoordinatorEvent]) -> float:
        started = time.process_time()
        for event in events:
            self._feed(event)
        return time.process_time() - started

    def _feed(self, event: CoordinatorEvent) -> None:
        waiting: deque[CoordinatorEvent] = deque((event,))
        while waiting:
            for effect in self.coordinator.handle(waiting.popleft(), Instant(0)):
                answer = self._answer(effect)
                if answer is not None:
                    waiting.append(answer)
            # A driver asks after every event.
            self.coordinator.next_deadline()

    def _answer(self, effect: CoordinatorEffect) -> CoordinatorEvent | None:
        match effect:
            case SendToTask():
                self.told += 1
            case CheckpointCompleted():
                self._completed = effect.completed.checkpoint
            case CreateLocation():
                return LocationCreated(checkpoint=effect.checkpoint, location=f"chk-{effect.checkpoint}")
            case WriteMetadata():
                path = f"{effect.location}/_metadata"
                return MetadataWritten(checkpoint=effect.checkpoint, path=path, size=1)
            case StorePointer():
                return PointerStored(checkpoint=effect.completed.checkpoint)
            case DeleteFiles():
                return FilesDeleted(cleaning=effect.cleaning)
            case _:
                pass
        return None


def _graph(parallelism: int) -> CheckpointGraph:
    vertices = tuple(
        CheckpointVertex(
            vertex=VertexId(name), parallelism=parallelism, operators=(OperatorId(name),), is_source=name == CHAINS[0]
        )
        for name in CHAINS
    )
    edges = tuple(CheckpointEdge(upstream=up.vertex, downstream=down.vertex) for up, down in pairwise(vertices))
    return CheckpointGraph(vertices=vertices, edges=edges, max_parallelism=max(128, parallelism))


def _acknowledge(task: TaskId, checkpoint: CheckpointId) -> Acknowledge:
    metrics = SnapshotMetrics(start_delay_ms=3, alignment_ms=2, sync_ms=0.5, async_ms=4.0, checkpointed_bytes=100)
    return Acknowledge(
        job=_JOB, epoch=_EPOCH, task=task, checkpoint=checkpoint, state=_state_of(task, checkpoint), metrics=metrics
    )


def _state_of(task: TaskId, checkpoint: CheckpointId) -> SubtaskState | None:
    """Positions in a source, keyed state of which half is shared with the checkpoint before, files to be committed in a
    sink, and a chain without state."""
    if task.vertex == "clean":
        return None
    operator = OperatorId(task.vertex)
    if task.vertex != "window":
        return SubtaskState(operators=(OperatorState(operator=operator, split_lists={"own": (b"part",)}),))
    own = StateFile(path=f"chk-{checkpoint}/{task.subtask}", size=100, checksum=1)
    key = f"{task.subtask}-base"
    base = StateFile(path=f"shared/{key}", size=100, checksum=1, shared_key=key)
    return SubtaskState(operators=(OperatorState(operator=operator, keyed=(own, base)),))


def measure(*, subtasks: int, rounds: int) -> CoordinatorCost:
    """Measure both sizes in turn, each after a checkpoint that does not count."""
    many, few = SimulatedTasks(subtasks), SimulatedTasks(FEW_SUBTASKS)
    many.checkpoint()
    few.checkpoint()
    large: list[float] = []
    growth: list[float] = []
    for _ in range(rounds):
        # What lies about from before is not the measured checkpoint's; what the collector does meanwhile is.
        gc.collect()
        small = [few.checkpoint() for _ in range(FEW_REPEATED)]
        large.append(many.checkpoint())
        small += [few.checkpoint() for _ in range(FEW_REPEATED)]
        growth.append((large[-1] / subtasks) / (statistics.median(small) / FEW_SUBTASKS))
    return CoordinatorCost(
        subtasks=subtasks, cpu_seconds=statistics.median(large), cost_growth=statistics.median(growth)
    )


def _whole_chains(_context: click.Context, _option: click.Parameter, value: int) -> int:
    if value % len(CHAINS):
        raise click.BadParameter(f"{value} is not a multiple of {len(CHAINS)}, the number of chains of the job.")
    return value


@click.command("coordinator")
@click.option(
    "--subtasks",
    type=click.IntRange(min=FEW_SUBTASKS),
    default=DEFAULT_SUBTASKS,
    show_default=True,
    callback=_whole_chains,
    help=f"Subtasks of the large job, over {len(CHAINS)} chains.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="How often to measure each.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON and nothing else.")
def coordinator(*, subtasks: int, rounds: int, as_json: bool) -> None:
    """Processor time of the checkpoint coordinator for one checkpoint of a large job. Needs no Spark."""
    with reported_failures():
        cost = measure(subtasks=subtasks, rounds=rounds)
    if as_json:
        click.echo(json.dumps(summary(cost)))
        return
    click.echo(f"one checkpoint of {subtasks:,} subtasks: {cost.cpu_seconds:.3f} s of the coordinator's processor time")
    click.echo(
        f"cost per subtask: {cost.cpu_seconds / subtasks * 1e6:.1f} us, "
        f"{cost.cost_growth:.2f} times that with {FEW_SUBTASKS} subtasks"
    )


def summary(cost: CoordinatorCost) -> dict[str, float]:
    """The result as it is printed for programs."""
    return {
        "subtasks": cost.subtasks,
        "cpu_seconds": round(cost.cpu_seconds, 4),
        "cost_growth": round(cost.cost_growth, 3),
    }

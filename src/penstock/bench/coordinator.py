"""`penstock bench coordinator`: the processor time that a checkpoint of a large job costs the driver, and whether the
time per subtask grows with the size of the job.

No job runs. The coordinator gets the messages that the tasks of a job would send, and its requests to storage are
answered at once, so that only the work of the coordinator is measured. The measure is processor time, which other
programs on the machine do not change much. The measurement reaches from the request for a checkpoint to the last
notification: plan, triggers, every acknowledgement, metadata, subsumption, and deletion of the checkpoint before. To
write the metadata is the work of storage, and is left out.

Each round measures a small job and a large job, and the medians over the rounds count. A checkpoint of the small job
takes only milliseconds. So each round takes several checkpoints of the small job before and after the checkpoint of the
large job, and compares with the median of the small job's checkpoints.
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
"""The subtasks of the small job."""
DEFAULT_SUBTASKS = 10_000
FEW_REPEATED = 20
"""How many checkpoints of the small job are taken before and after each checkpoint of the large job."""
ARRIVING_TOGETHER = 100
"""How many acknowledgements are made at a time, outside of the measured time. A driver never has all acknowledgements
in memory at once, and an object that was made long before is slow to read."""
CHAINS = ("source", "clean", "window", "sink")
"""The vertices of the job. All vertices have the same number of subtasks."""

_JOB = JobId("bench")
_EPOCH = Epoch(1)


@dataclass(frozen=True, kw_only=True)
class CoordinatorCost:
    """The result of the measurement."""

    subtasks: int
    cpu_seconds: float
    """The processor time of one checkpoint of the large job."""
    cost_growth: float
    """The cost per subtask in the large job, divided by the cost per subtask in the small job."""


class SimulatedTasks:
    """A real coordinator, with simulated tasks and a simulated storage."""

    def __init__(self, subtasks: int) -> None:
        """`subtasks` is a multiple of the number of chains."""
        self.graph = _graph(subtasks // len(CHAINS))
        self.coordinator = CheckpointCoordinator(_JOB, CheckpointSettings(), self.graph, CheckpointId(1))
        self.told = 0
        """How many messages the coordinator has sent to tasks."""
        self._completed = 0
        self._next = CheckpointId(1)
        self._feed(AttemptStarted(epoch=_EPOCH))
        for task in self.graph.tasks:
            self._feed(TaskRunning(task=task, epoch=_EPOCH))
        self._feed(ScheduleAllowed(draw=0.0))

    def checkpoint(self) -> float:
        """Take one checkpoint. Returns the processor seconds of the coordinator, with the calls of `next_deadline`."""
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
            # A driver asks for the next deadline after every event.
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
    """The state of a task: a source has positions, a sink has committables, a window has keyed state of which half is
    shared with the checkpoint before, and the other chain has no state."""
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
    """Measure both jobs in turn. The first checkpoint of each job does not count."""
    many, few = SimulatedTasks(subtasks), SimulatedTasks(FEW_SUBTASKS)
    many.checkpoint()
    few.checkpoint()
    large: list[float] = []
    growth: list[float] = []
    for _ in range(rounds):
        # The garbage of earlier rounds must not be collected in the measured time. Garbage of the measured checkpoint
        # counts.
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
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="How often to measure each job."
)
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

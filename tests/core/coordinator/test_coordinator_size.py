"""A job of ten thousand subtasks: its checkpoint is the same as that of a small one, only larger.

What it costs is counted in `test_coordinator_cost` and measured by `penstock bench coordinator`.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.effects import (
    AnswerRequest,
    CheckpointAborted,
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
    Declined,
    FilesDeleted,
    LocationCreated,
    MetadataWritten,
    PointerStored,
    RequestKind,
    TaskRunning,
)
from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, RequestId, TaskId, VertexId
from penstock.core.messages import (
    Acknowledge,
    Decline,
    NotifyAborted,
    NotifyComplete,
    OperatorState,
    StateFile,
    SubtaskState,
    TriggerCheckpoint,
)
from penstock.core.reasons import CheckpointFailure
from penstock.settings import CheckpointSettings

JOB = JobId("large")
EPOCH = Epoch(1)
NOW = Instant(0)
WIDTH = 2_500
NAMES = ("a", "b", "c", "d")


def large_graph() -> CheckpointGraph:
    vertices = tuple(
        CheckpointVertex(
            vertex=VertexId(name), parallelism=WIDTH, operators=(OperatorId(f"op-{name}"),), is_source=name == "a"
        )
        for name in NAMES
    )
    edges = tuple(
        CheckpointEdge(upstream=VertexId(up), downstream=VertexId(down)) for up, down in itertools.pairwise(NAMES)
    )
    return CheckpointGraph(vertices=vertices, edges=edges, max_parallelism=WIDTH)


def own_file(task: TaskId, checkpoint: int) -> str:
    return f"chk-{checkpoint}/{task}"


def state_of(task: TaskId, checkpoint: int) -> SubtaskState:
    keyed = (StateFile(path=own_file(task, checkpoint), size=10, checksum=1),)
    return SubtaskState(operators=(OperatorState(operator=OperatorId(f"op-{task.vertex}"), keyed=keyed),))


class LargeJob:
    """All tasks run; storage answers at once."""

    def __init__(self) -> None:
        self.graph = large_graph()
        self.coordinator = CheckpointCoordinator(JOB, CheckpointSettings(), self.graph, CheckpointId(1))
        self.feed(AttemptStarted(epoch=EPOCH))
        self.feed(*(TaskRunning(task=task, epoch=EPOCH) for task in self.graph.tasks))

    def feed(self, *events: CoordinatorEvent) -> list[CoordinatorEffect]:
        seen: list[CoordinatorEffect] = []
        waiting = list(reversed(events))
        while waiting:
            effects = self.coordinator.handle(waiting.pop(), NOW)
            seen += effects
            waiting += [answer for effect in effects for answer in self.answers_to(effect)]
        return seen

    @staticmethod
    def answers_to(effect: CoordinatorEffect) -> list[CoordinatorEvent]:
        match effect:
            case CreateLocation():
                return [LocationCreated(checkpoint=effect.checkpoint, location=f"chk-{effect.checkpoint}")]
            case WriteMetadata():
                path = f"{effect.location}/_metadata"
                return [MetadataWritten(checkpoint=effect.checkpoint, path=path, size=1)]
            case StorePointer():
                return [PointerStored(checkpoint=effect.completed.checkpoint)]
            case DeleteFiles():
                return [FilesDeleted(cleaning=effect.cleaning)]
            case _:
                return []

    def request(self, number: int) -> list[CoordinatorEffect]:
        return self.feed(CheckpointRequested(request=RequestId(number), kind=RequestKind.CHECKPOINT))

    def acknowledge(self, tasks: tuple[TaskId, ...], number: int) -> list[CoordinatorEffect]:
        acks = (
            Acknowledge(job=JOB, epoch=EPOCH, task=task, checkpoint=CheckpointId(number), state=state_of(task, number))
            for task in tasks
        )
        return self.feed(*(Acknowledged(message=ack) for ack in acks))


def told(effects: list[CoordinatorEffect], kind: type) -> Counter[TaskId]:
    return Counter(e.task for e in effects if isinstance(e, SendToTask) and isinstance(e.message, kind))


@pytest.fixture(scope="module")
def taken() -> tuple[LargeJob, list[CoordinatorEffect], list[CoordinatorEffect], list[CoordinatorEffect]]:
    """One complete checkpoint, and one that the very last task declines: the job, the effects of the first checkpoint's
    beginning, of its acknowledgements, and of the second checkpoint."""
    job = LargeJob()
    tasks = job.graph.tasks
    begun = job.request(1)
    answered = job.acknowledge(tasks, 1)
    declined = job.request(2) + job.acknowledge(tasks[:-1], 2)
    message = Decline(
        job=JOB,
        epoch=EPOCH,
        task=tasks[-1],
        checkpoint=CheckpointId(2),
        reason=CheckpointFailure.DECLINED_TASK_NOT_READY,
        error="",
    )
    declined += job.feed(Declined(message=message))
    job.coordinator.validate()
    return job, begun, answered, declined


def test_every_source_is_triggered_once_and_nobody_else(taken):
    job, begun, _, _ = taken
    assert told(begun, TriggerCheckpoint) == Counter(job.graph.vertices[0].tasks)


def test_the_metadata_has_the_state_of_every_subtask(taken):
    _, _, answered, _ = taken
    (written,) = (e for e in answered if isinstance(e, WriteMetadata))
    subtasks = {o.vertex: sorted(o.subtasks) for o in written.metadata.operators.values()}
    assert subtasks == {VertexId(name): list(range(WIDTH)) for name in NAMES}
    assert written.metadata.size == 10 * WIDTH * len(NAMES)


def test_the_last_acknowledgement_completes_it_and_everybody_hears_once(taken):
    job, _, answered, _ = taken
    assert [e.completed.checkpoint for e in answered if isinstance(e, CheckpointCompleted)] == [1]
    assert told(answered, NotifyComplete) == Counter(job.graph.tasks)
    assert [e.request for e in answered if isinstance(e, AnswerRequest)] == [1]


def test_one_refusal_among_ten_thousand_aborts_it_and_everybody_hears_once(taken):
    job, _, _, declined = taken
    assert [e.checkpoint for e in declined if isinstance(e, CheckpointAborted)] == [2]
    assert told(declined, NotifyAborted) == Counter(job.graph.tasks)
    assert job.coordinator.latest is not None
    assert job.coordinator.latest.checkpoint == 1


def test_a_refusal_deletes_what_the_others_had_written_and_nothing_of_the_checkpoint_before(taken):
    job, _, _, declined = taken
    deleted = Counter(path for e in declined if isinstance(e, DeleteFiles) for path in e.paths)
    assert deleted == Counter(own_file(task, 2) for task in job.graph.tasks[:-1])

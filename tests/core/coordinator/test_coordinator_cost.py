"""What a checkpoint costs per subtask does not grow with the number of subtasks.

Function calls are counted instead of time: the number is the same on every machine.
"""

from __future__ import annotations

import sys

import pytest

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.events import (
    Acknowledged,
    AttemptStarted,
    CheckpointRequested,
    CoordinatorEvent,
    LocationCreated,
    MetadataWritten,
    PointerStored,
    RequestKind,
    TaskRunning,
)
from penstock.core.graph import CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, RequestId, VertexId
from penstock.core.messages import Acknowledge, OperatorState, StateFile, SubtaskState
from penstock.settings import CheckpointSettings

ONE = CheckpointId(1)


def calls_of(coordinator: CheckpointCoordinator, *events: CoordinatorEvent) -> int:
    """How many functions are called and left while the coordinator handles these."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for event in events:
            coordinator.handle(event, Instant(0))
    finally:
        sys.setprofile(before)
    return calls


def steps_of_a_checkpoint(parallelism: int) -> dict[str, int]:
    """The calls of each step of one checkpoint with so many subtasks."""
    vertex = CheckpointVertex(
        vertex=VertexId("v"), parallelism=parallelism, operators=(OperatorId("o"),), is_source=True
    )
    settings = CheckpointSettings()
    coordinator = CheckpointCoordinator(JobId("job"), settings, CheckpointGraph(vertices=(vertex,)), ONE)
    acks = []
    for task in vertex.tasks:
        files = (
            StateFile(path=f"p{task.subtask}", size=1, checksum=1),
            StateFile(path=f"s{task.subtask}", size=1, checksum=1, shared_key=f"k{task.subtask}"),
        )
        state = SubtaskState(operators=(OperatorState(operator=OperatorId("o"), keyed=files),))
        message = Acknowledge(job=JobId("job"), epoch=Epoch(1), task=task, checkpoint=ONE, state=state)
        acks.append(Acknowledged(message=message))
    coordinator.handle(AttemptStarted(epoch=Epoch(1)), Instant(0))
    running = [TaskRunning(task=task, epoch=Epoch(1)) for task in vertex.tasks]
    request = CheckpointRequested(request=RequestId(1), kind=RequestKind.CHECKPOINT)
    located = LocationCreated(checkpoint=ONE, location="chk-1")
    written = MetadataWritten(checkpoint=ONE, path="chk-1/_metadata", size=1)
    return {
        "running": calls_of(coordinator, *running) // parallelism,
        "trigger": calls_of(coordinator, request, located) // parallelism,
        "one ack": calls_of(coordinator, acks[0]),
        "all but one ack": calls_of(coordinator, *acks[1:-1]) // (parallelism - 2),
        "last ack": calls_of(coordinator, acks[-1]) // parallelism,
        "completion": calls_of(coordinator, written, PointerStored(checkpoint=ONE)) // parallelism,
    }


@pytest.fixture(scope="module")
def few_and_many() -> tuple[dict[str, int], dict[str, int]]:
    return steps_of_a_checkpoint(50), steps_of_a_checkpoint(1_000)


def test_one_acknowledgement_does_the_same_whatever_the_number_of_subtasks(few_and_many):
    few, many = few_and_many
    assert many["one ack"] == few["one ack"]
    assert many["all but one ack"] == few["all but one ack"]


def test_no_step_does_more_per_subtask_when_there_are_more(few_and_many):
    few, many = few_and_many
    assert all(many[step] <= few[step] for step in few)

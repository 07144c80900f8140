"""The in-flight data of a slot's tasks, written together. What is kept of a checkpoint goes with the checkpoint."""

from __future__ import annotations

import pytest

from penstock.core.ids import CheckpointId, TaskId, VertexId
from penstock.runtime.task.inflight import ChannelFiles, InFlight

A, B = TaskId(VertexId("a"), 0), TaskId(VertexId("b"), 0)


@pytest.fixture
def files() -> ChannelFiles:
    """Files of tasks that have nothing in flight: no file is written, and no copy is kept."""
    return ChannelFiles(
        store=None,
        background=None,
        codecs={},
        copies=None,
        path_of=lambda checkpoint: f"{checkpoint}",
        inline_threshold=0,
    )


def test_nothing_is_kept_of_a_checkpoint_that_all_tasks_have_answered(files):
    answers = []
    for checkpoint in map(CheckpointId, range(1, 100)):
        files.submit(A, InFlight(checkpoint, input_complete=True), answers.append, (A, B))
        files.give_up(B, checkpoint, (A, B))
    assert len(answers) == 99
    assert (files._answered, files._waiting) == ({}, {})


def test_nothing_is_kept_of_checkpoints_before_a_checkpoint_that_is_over(files):
    """1. A task answers a checkpoint. 2. The other task never does, because the checkpoint is aborted for it earlier.
    3. The slot hears that the checkpoint is over."""
    for checkpoint in map(CheckpointId, range(1, 100)):
        files.give_up(A, checkpoint, (A, B))
        files.forget_before(checkpoint)
        assert list(files._answered) == [checkpoint]

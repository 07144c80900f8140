"""The coordinator of a sink that commits on the driver, without a job: what it commits, abandons and owes, and when."""

from __future__ import annotations

import msgspec
import pytest
from commits_rig import Rig, part

from penstock.core.coordinator.effects import TellCheckpointAborted, TellCheckpointComplete
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.messages import OperatorState
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind
from penstock.runtime.master.operator_coordinators.of_job import OperatorCoordinators

SINK = OperatorId("sink")


@pytest.fixture
def rig():
    return Rig()


def test_what_an_attempt_prepared_and_no_checkpoint_names_is_abandoned_before_anything_is_committed(rig):
    for checkpoint in (1, 2, 3):
        rig.commits.snapshot(CheckpointId(checkpoint))
    rig.commits.completed(CheckpointId(1), [part(1, b"a")])
    rig.background.perform()
    rig.commits.stop()
    rig.commits.start(msgspec.msgpack.encode(0), [part(1, b"a"), part(2, b"b")], parallelism=2)
    rig.commits.run()
    rig.background.perform()
    assert rig.story == [("commit", 1, b"a"), ("abandon", 3, b"a", b"b"), ("commit", 1, b"a"), ("commit", 2, b"b")]


def test_what_earlier_attempts_left_is_removed_when_one_begins_but_for_what_any_subtask_carries(rig):
    """1. A subtask prepares. 2. The job is rescaled, and another subtask carries it. 3. The next attempt fails before
    that is committed, and another begins: only the driver knows that it is promised."""
    rig.commits.stop()
    rig.commits.start(msgspec.msgpack.encode(0), [part(1, b"a"), part(1, b"b")], parallelism=3, epoch=4)
    rig.commits.run()
    rig.background.perform()
    assert rig.story == [("clean up", "job", 4, b"a", b"b"), ("commit", 1, b"a", b"b")]


def test_a_first_attempt_has_nothing_to_abandon(rig):
    rig.background.perform()
    assert rig.story == []


def test_a_commit_that_was_not_begun_when_the_job_ended_is_made_then(rig):
    rig.commits.snapshot(CheckpointId(1))
    rig.commits.completed(CheckpointId(1), [part(1, b"a")])
    rig.commits.stop()
    rig.commits.end()
    rig.background.perform()
    assert rig.story == [("commit", 1, b"a"), ("abandon", 1), ("close", False)]


def test_a_commit_that_had_returned_when_the_job_ended_is_not_made_again(rig):
    rig.commits.snapshot(CheckpointId(1))
    rig.commits.completed(CheckpointId(1), [part(1, b"a")])
    work, _ = rig.background.work.pop()
    work()
    rig.commits.end()
    rig.background.perform()
    assert rig.story == [("commit", 1, b"a"), ("abandon", 1), ("close", False)]


def test_a_checkpoint_that_completes_when_its_attempt_is_over_is_committed_when_the_job_ends(rig):
    rig.commits.snapshot(CheckpointId(4))
    rig.commits.stop()
    rig.commits.completed(CheckpointId(4), [part(3, b"x"), part(4, b"y")])
    rig.background.perform()
    assert rig.story == []
    rig.commits.end()
    rig.background.perform()
    assert rig.story == [("commit", 3, b"x"), ("commit", 4, b"y"), ("abandon", 4), ("close", False)]


def test_one_that_failed_is_owed_with_all_that_follow_it(rig):
    rig.told.refuses = {1}
    rig.commits.snapshot(CheckpointId(1))
    rig.commits.snapshot(CheckpointId(2))
    rig.commits.completed(CheckpointId(2), [part(1, b"a"), part(2, b"b")])
    rig.background.perform()
    assert rig.failed == ["ValueError: locked"]
    rig.commits.end()
    rig.background.perform()
    assert rig.story == [("commit", 1, b"a"), ("abandon", 2, b"a", b"b"), ("close", True)]


def test_one_that_fails_when_the_job_ends_is_owed(rig):
    rig.told.refuses = {1}
    rig.commits.snapshot(CheckpointId(1))
    rig.commits.stop()
    rig.commits.completed(CheckpointId(1), [part(1, b"a")])
    rig.commits.end()
    rig.background.perform()
    assert rig.story == [("commit", 1, b"a"), ("abandon", 1, b"a"), ("close", True)]


def test_a_checkpoint_that_completes_when_its_attempt_is_over_still_has_its_parts():
    """1. All subtasks have acknowledged, and the metadata is being stored. 2. The attempt fails, and with
    it a newer checkpoint. 3. The metadata is stored."""
    rig = Rig()
    coordinators = OperatorCoordinators(feed=lambda _: None, send=lambda *_: None)
    coordinators.add(SINK, rig.commits)
    rig.commits.snapshot(CheckpointId(1))
    state = OperatorState(operator=SINK, split_lists={"committables": (part(1, b"a"),)})
    snapshot = OperatorSnapshot(
        operator=SINK, vertex=VertexId("v"), parallelism=1, max_parallelism=1, subtasks={0: state}
    )
    metadata = CheckpointMetadata(
        job=JobId("job"),
        checkpoint=CheckpointId(1),
        timestamp=Instant(0),
        kind=SnapshotKind.CHECKPOINT,
        operators={SINK: snapshot},
    )
    coordinators.metadata_made(metadata)
    coordinators.stop()
    coordinators.perform(TellCheckpointAborted(operator=SINK, checkpoint=CheckpointId(2)))
    coordinators.perform(TellCheckpointComplete(operator=SINK, checkpoint=CheckpointId(1)))
    coordinators.end()
    rig.background.perform()
    assert ("commit", 1, b"a") in rig.story

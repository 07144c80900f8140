"""One pending checkpoint by itself: every party answers exactly once."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.effects import AckVerdict, StorePointer, WriteMetadata
from penstock.core.coordinator.events import MetadataWritten
from penstock.core.coordinator.participants import CheckpointPlan
from penstock.core.coordinator.pending import PendingCheckpoint, Phase
from penstock.core.coordinator.requests import Request
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant, OperatorId, TaskId, VertexId
from penstock.core.messages import ChannelState, OperatorState, StateFile, SubtaskState
from penstock.core.recovery.metadata import SnapshotKind

A, B, C = (TaskId(VertexId(name), 0) for name in "abc")
ONE = CheckpointId(1)


def pending(kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> PendingCheckpoint:
    return PendingCheckpoint(
        checkpoint=ONE,
        kind=kind,
        request=Request(kind=kind, submitted=Instant(0)),
        plan=CheckpointPlan(trigger=(A,), wait=(A, B)),
        options=CheckpointOptions(),
        created=Instant(0),
    )


def test_a_task_answers_once():
    p = pending()
    answers = [p.acknowledge_task(task, None) for task in (A, A, C, B)]
    assert answers == [AckVerdict.ACCEPTED, AckVerdict.DUPLICATE, AckVerdict.UNKNOWN, AckVerdict.ACCEPTED]


def test_it_is_acknowledged_when_it_has_come_to_its_tasks_and_none_is_missing():
    p = pending()
    p.acknowledge_task(A, None)
    p.acknowledge_task(B, None)
    assert not p.is_acknowledged
    p.phase = Phase.TASKS
    assert p.is_acknowledged


def test_an_operator_coordinator_answers_once():
    p = pending()
    p.await_coordinators((OperatorId("x"), OperatorId("y")))
    operators = [OperatorId(name) for name in ("x", "x", "z", "y")]
    answers = [p.acknowledge_coordinator(o, o.encode(), set()) for o in operators]
    assert answers == [AckVerdict.ACCEPTED, AckVerdict.DUPLICATE, AckVerdict.UNKNOWN, AckVerdict.ACCEPTED]
    assert p.coordinator_states == {"x": b"x", "y": b"y"}


def test_a_hook_answers_once():
    p = pending()
    p.await_hooks(("h",))
    assert p.acknowledge_hook("h", b"1") is AckVerdict.ACCEPTED
    assert p.acknowledge_hook("h", b"2") is AckVerdict.UNKNOWN
    assert p.hook_states == {"h": b"1"}


@pytest.mark.parametrize(
    ("kind", "own"),
    [(SnapshotKind.CHECKPOINT, ("private",)), (SnapshotKind.SAVEPOINT, ("private", "keyed"))],
)
def test_a_checkpoint_leaves_shared_files_to_the_registry_and_a_savepoint_has_none(kind, own):
    p = pending(kind)
    files = (
        StateFile(path="private", size=1, checksum=1),
        StateFile(path="keyed", size=1, checksum=1, shared_key="k"),
        StateFile(path=None, size=1, checksum=1, inline=b"x"),
        StateFile(path="elsewhere", size=1, checksum=1, shared_key="p", placeholder=True),
    )
    channel = ChannelState(edge=0, upstream=0, downstream=0, file=files[0], ranges=((0, 1),))
    operator = OperatorState(operator=OperatorId("o"), keyed=files)
    p.acknowledge_task(A, SubtaskState(operators=(operator,), input_channels=(channel,)))
    p.acknowledge_task(B, None)
    assert p.own_files() == own


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "text"),
    [("location", "has no folder"), ("metadata", "metadata was written before the coordinator made metadata")],
)
def test_a_checkpoint_that_lost_what_it_needs_to_complete_is_a_bug(rig, field, text):
    r = rig().start()
    r.hold = {WriteMetadata}
    r.request()
    r.ack_all(1)
    setattr(r.coordinator._under_way._pending[1], field, None)
    with pytest.raises(InvariantError, match=rf"checkpoint 1: {text} \(story: 1000: Checkpoint begins"):
        r.feed(MetadataWritten(checkpoint=ONE, path="p", size=1))


def test_a_checkpoint_that_is_ready_without_a_record_is_a_bug(rig):
    r = rig(max_concurrent=2).start()
    r.hold = {StorePointer}
    r.request()
    r.request()
    r.ack_all(1)
    r.ack_all(2)
    r.coordinator._under_way._pending[2].completed = None
    with pytest.raises(InvariantError, match="ready to be stored without a record"):
        r.feed(*r.answers_to(next(e for e in r.log if isinstance(e, StorePointer))))

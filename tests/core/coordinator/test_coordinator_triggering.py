"""Everything that can go wrong before a task is asked, operator coordinators, their events, and hooks."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.effects import (
    CreateLocation,
    FailJob,
    FailTask,
    SendOperatorEvent,
    SnapshotOperatorCoordinator,
    TellCheckpointAborted,
    TellCheckpointComplete,
    TriggerHook,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    BarrierPassed,
    FailedOver,
    HookFailed,
    HookTriggered,
    JobEnd,
    LocationCreated,
    LocationFailed,
    OperatorCoordinatorFailed,
    OperatorCoordinatorSnapshotted,
    OperatorEventDelivered,
    OperatorEventLost,
    OperatorEventSubmitted,
    ShutDown,
    TaskEnded,
    TaskFailing,
)
from penstock.core.coordinator.gateway import Gateways, HeldEvent, SubtaskGateway
from penstock.core.coordinator.tasks import TaskBoard
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Epoch, Instant, OperatorId
from penstock.core.reasons import CheckpointFailure

OPERATOR = OperatorId("op-s")
ONE, TWO, THREE = (CheckpointId(i) for i in (1, 2, 3))
HOOKS = ("outside", "other")


def snapshotted(checkpoint, state=b"enumerator"):
    return OperatorCoordinatorSnapshotted(operator=OPERATOR, checkpoint=CheckpointId(checkpoint), state=state)


def submit(subtask, event, **more):
    return OperatorEventSubmitted(operator=OPERATOR, subtask=subtask, event=event, **more)


def delivered(pick, effects):
    """(subtask, event) of everything sent."""
    return [(e.task.subtask, e.event) for e in pick.of(effects, SendOperatorEvent)]


@pytest.fixture
def enumerated(rig, make):
    """A source with two subtasks and an operator coordinator."""

    def build(**settings):
        settings.setdefault("tolerable_failures", None)
        graph = make.graph(make.vertex("s", 2, is_source=True, coordinators=(OPERATOR,)))
        return rig(graph, **settings).start()

    return build


# --- the folder ------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_counts_as_failed_storage(rig, pick):
    r = rig(tolerable_failures=0).start()
    r.hold = {CreateLocation}
    r.request()
    effects = r.feed(LocationFailed(checkpoint=ONE, error="disk full"))
    assert pick.aborted(effects) == [(1, CheckpointFailure.IO)]
    assert pick.answers(effects)[1].text == "the checkpoint storage, or another outside system, failed: disk full"
    assert [e.reason for e in pick.of(effects, FailJob)] == [CheckpointFailure.IO]
    r.feed(ShutDown(status=JobEnd.FAILED))
    assert r.deleted == []
    assert r.coordinator.is_settled


def test_after_a_failed_folder_the_next_request_starts(rig, pick):
    r = rig(tolerable_failures=None).start()
    r.hold = {CreateLocation}
    r.request()
    r.request()
    assert pick.begun(r.feed(LocationFailed(checkpoint=ONE))) == [2]


def test_a_folder_that_is_made_after_the_end_of_its_checkpoint_is_deleted(rig, pick):
    r = rig(tolerable_failures=None, timeout_ms=100).start()
    r.hold = {CreateLocation}
    r.request()
    r.tick(100)
    assert r.deleted == []
    r.feed(LocationCreated(checkpoint=ONE, location="late"))
    assert r.deleted == ["late"]
    r.feed(LocationCreated(checkpoint=ONE, location="late"))
    assert r.deleted == ["late"]


def test_a_folder_that_could_not_be_made_after_the_end_leaves_nothing(rig):
    r = rig(tolerable_failures=None, timeout_ms=100).start()
    r.hold = {CreateLocation}
    r.request()
    r.tick(100)
    assert r.feed(LocationFailed(checkpoint=ONE)) == []


# --- operator coordinators -------------------------------------------------------------------------------------------


def test_operator_coordinators_snapshot_before_any_task_is_triggered(enumerated, make, pick):
    r = enumerated()
    effects = r.request()
    assert pick.of(effects, SnapshotOperatorCoordinator) == [
        SnapshotOperatorCoordinator(operator=OPERATOR, checkpoint=ONE)
    ]
    assert pick.triggered(effects) == []
    assert pick.triggered(r.feed(snapshotted(1))) == [make.task("s", 0), make.task("s", 1)]
    r.ack("s", 1, subtask=0)
    effects = r.ack("s", 1, subtask=1)
    assert pick.of(effects, WriteMetadata)[0].metadata.coordinators == {OPERATOR: b"enumerator"}
    assert pick.of(effects, TellCheckpointComplete) == [TellCheckpointComplete(operator=OPERATOR, checkpoint=ONE)]


def test_a_second_snapshot_of_an_operator_coordinator_changes_nothing(make, rig, pick):
    graph = make.graph(
        make.vertex("s", 1, is_source=True, coordinators=(OPERATOR,)),
        make.vertex("u", 1, is_source=True, coordinators=(OperatorId("op-u"),)),
    )
    r = rig(graph).start()
    r.request()
    r.feed(snapshotted(1, b"first"), snapshotted(1, b"second"))
    assert pick.triggered(r.log) == []
    r.feed(OperatorCoordinatorSnapshotted(operator=OperatorId("op-u"), checkpoint=ONE, state=b""))
    effects = r.ack_all(1)
    assert pick.of(effects, WriteMetadata)[0].metadata.coordinators == {OPERATOR: b"first", "op-u": b""}


def test_a_snapshot_that_comes_again_when_the_tasks_have_been_triggered_changes_nothing(enumerated):
    r = enumerated()
    r.request()
    r.feed(snapshotted(1))
    assert r.feed(snapshotted(1, b"again")) == []


@pytest.mark.parametrize("reason", [CheckpointFailure.TRIGGER_FAILED, CheckpointFailure.IO])
def test_an_operator_coordinator_that_raises_aborts_the_checkpoint_and_fails_the_job(enumerated, pick, reason):
    """However many failed checkpoints are tolerated: it cannot be trusted to know what it has told its subtasks."""
    r = enumerated()
    r.request()
    failed = OperatorCoordinatorFailed(
        operator=OPERATOR, checkpoint=ONE, reason=reason, error="no", name="orders", traceback="Traceback: no"
    )
    effects = r.feed(failed)
    assert pick.aborted(effects) == [(1, reason)]
    assert pick.of(effects, FailJob) == [
        FailJob(reason=reason, text="no", operator="orders", traceback="Traceback: no")
    ]
    assert "operator coordinator orders: no" in pick.answers(effects)[1].text
    assert pick.of(effects, TellCheckpointAborted) == [TellCheckpointAborted(operator=OPERATOR, checkpoint=ONE)]
    assert "ckpt/chk-1" in r.deleted
    assert r.feed(failed, snapshotted(1)) == []


def test_a_failure_of_a_coordinator_that_is_not_waited_for_is_ignored(enumerated):
    r = enumerated()
    r.request()
    assert r.feed(OperatorCoordinatorFailed(operator=OperatorId("op-x"), checkpoint=ONE)) == []
    assert r.feed(OperatorCoordinatorSnapshotted(operator=OperatorId("op-x"), checkpoint=ONE, state=b"")) == []


# --- S30: gateways ---------------------------------------------------------------------------------------------------


def test_events_flow_until_the_snapshot_and_wait_from_then_on(enumerated, pick):
    r = enumerated()
    assert delivered(pick, r.feed(submit(0, b"a"))) == [(0, b"a")]
    r.feed(OperatorEventDelivered(number=1))
    r.request()
    assert delivered(pick, r.feed(submit(0, b"b"))) == [(0, b"b")]
    r.feed(OperatorEventDelivered(number=2), snapshotted(1))
    assert r.feed(submit(0, b"c")) == []


def test_an_acknowledgement_releases_the_events_of_that_subtask_only(enumerated, pick):
    r = enumerated()
    r.request()
    r.feed(snapshotted(1))
    r.feed(submit(0, b"x"), submit(1, b"y"), submit(1, b"z"))
    assert delivered(pick, r.ack("s", 1, subtask=1)) == [(1, b"y"), (1, b"z")]
    assert delivered(pick, r.ack("s", 1, subtask=0)) == [(0, b"x")]


def test_completion_releases_the_events_of_subtasks_that_had_no_part_in_it(enumerated, make, pick):
    r = enumerated()
    r.feed(TaskEnded(task=make.task("s", 0), epoch=Epoch(1)))
    r.request()
    r.feed(snapshotted(1), submit(0, b"x"))
    effects = r.ack("s", 1, subtask=1)
    assert pick.completed(effects) == [1]
    assert delivered(pick, effects) == [(0, b"x")]


def test_a_barrier_that_is_in_releases_events_before_the_acknowledgement(enumerated, make, pick):
    r = enumerated()
    r.request()
    r.feed(snapshotted(1), submit(0, b"x"))
    passed = BarrierPassed(task=make.task("s", 0), epoch=Epoch(1), checkpoint=ONE)
    assert delivered(pick, r.feed(passed)) == [(0, b"x")]
    assert r.feed(passed) == []


@pytest.mark.parametrize(
    "stray",
    [
        {"epoch": Epoch(0)},
        {"checkpoint": TWO},
        {"task": ("s", 7)},
    ],
)
def test_a_barrier_of_something_unknown_releases_nothing(enumerated, make, stray):
    r = enumerated()
    r.request()
    r.feed(snapshotted(1), submit(0, b"x"))
    said = {"task": make.task("s", 0), "epoch": Epoch(1), "checkpoint": ONE} | stray
    said["task"] = make.task(*said["task"])
    assert r.feed(BarrierPassed(**said)) == []


def test_a_barrier_that_is_said_to_be_in_before_the_snapshot_of_the_coordinator_opens_nothing(enumerated, make, pick):
    """The mark must stay: without it the coordinator's snapshot would close nothing and count for nothing."""
    r = enumerated()
    r.request()
    assert r.feed(BarrierPassed(task=make.task("s", 0), epoch=Epoch(1), checkpoint=ONE)) == []
    assert pick.triggered(r.feed(snapshotted(1))) == [make.task("s", 0), make.task("s", 1)]
    assert r.feed(submit(0, b"x")) == []


def test_an_abort_releases_the_events(enumerated, pick):
    r = enumerated()
    r.request()
    r.feed(snapshotted(1), submit(0, b"x"), submit(1, b"y"))
    assert delivered(pick, r.decline("s", 1, subtask=1)) == [(0, b"x"), (1, b"y")]


def test_a_restart_loses_the_events_that_waited_and_opens_the_gateways(enumerated, pick):
    r = enumerated()
    r.request()
    r.feed(snapshotted(1), submit(0, b"lost"))
    assert delivered(pick, r.feed(FailedOver())) == []
    r.start()
    (sent,) = pick.of(r.feed(submit(0, b"new")), SendOperatorEvent)
    assert (sent.event, sent.epoch) == (b"new", 2)


def test_a_failing_task_loses_only_its_own_events(enumerated, make, pick):
    r = enumerated()
    r.request()
    r.feed(snapshotted(1), submit(0, b"lost"), submit(1, b"kept"))
    assert delivered(pick, r.feed(TaskFailing(task=make.task("s", 0), epoch=Epoch(1)))) == [(1, b"kept")]


def test_a_snapshot_of_an_aborted_checkpoint_that_comes_late_closes_nothing(enumerated, pick):
    """1. Checkpoint 1 expires before its coordinator has answered. 2. Checkpoint 2 is taken and acknowledged.
    3. The coordinator's answer for 1 arrives. 4. Events still flow."""
    r = enumerated(timeout_ms=100)
    r.request()
    r.tick(100)
    r.request()
    r.feed(snapshotted(2))
    r.ack_all(2)
    r.feed(snapshotted(1))
    assert delivered(pick, r.feed(submit(0, b"x"))) == [(0, b"x")]


def test_a_snapshot_that_is_told_twice_keeps_the_events_that_wait(enumerated, make, pick):
    """1. The snapshot is taken, and waits for a to arrive; b waits behind it. 2. It is told again, before and after the
    tasks are triggered. 3. b is there when the barrier is in, and nobody is triggered twice."""
    r = enumerated()
    r.feed(submit(0, b"a"))
    r.request()
    r.feed(snapshotted(1), submit(0, b"b"), snapshotted(1))
    assert pick.triggered(r.feed(OperatorEventDelivered(number=1))) == [make.task("s", 0), make.task("s", 1)]
    assert r.feed(snapshotted(1)) == []
    assert delivered(pick, r.ack("s", 1)) == [(0, b"b")]


def test_the_snapshot_counts_only_when_earlier_events_have_arrived(enumerated, make, pick):
    r = enumerated()
    r.feed(submit(0, b"a"), submit(1, b"b"))
    r.request()
    assert r.feed(snapshotted(1)) == []
    assert r.feed(OperatorEventDelivered(number=2)) == []
    assert pick.triggered(r.feed(OperatorEventDelivered(number=1))) == [make.task("s", 0), make.task("s", 1)]


def test_an_earlier_event_that_is_lost_fails_the_checkpoint_and_the_task(enumerated, make, pick):
    r = enumerated()
    r.feed(submit(1, b"a"))
    r.request()
    r.feed(snapshotted(1))
    effects = r.feed(OperatorEventLost(number=1))
    text = "an event of operator op-s to task s[1] was lost"
    assert pick.aborted(effects) == [(1, CheckpointFailure.TRIGGER_FAILED)]
    assert pick.of(effects, FailTask) == [
        FailTask(task=make.task("s", 1), reason=CheckpointFailure.TASK_FAILED, text=text)
    ]


def test_an_event_that_is_lost_before_the_snapshot_fails_only_the_task(enumerated, pick):
    """The snapshot is yet to be taken, by a coordinator that knows of the loss."""
    r = enumerated()
    r.feed(submit(1, b"a"))
    r.request()
    effects = r.feed(OperatorEventLost(number=1))
    assert pick.aborted(effects) == []
    assert len(pick.of(effects, FailTask)) == 1


def test_news_of_an_event_that_nobody_knows_changes_nothing(enumerated):
    r = enumerated()
    r.feed(submit(1, b"a"))
    r.request()
    r.feed(snapshotted(1))
    assert r.feed(OperatorEventDelivered(number=99), OperatorEventLost(number=99)) == []


def test_an_event_to_an_earlier_attempt_that_is_lost_is_nothing_to_the_next(enumerated):
    r = enumerated()
    r.feed(submit(0, b"a"))
    r.feed(FailedOver())
    r.start()
    assert r.feed(OperatorEventLost(number=1)) == []


def test_an_event_to_a_survivor_is_still_waited_for(enumerated, make, pick):
    r = enumerated()
    r.feed(submit(0, b"a"), submit(1, b"b"))
    r.feed(TaskFailing(task=make.task("s", 0), epoch=Epoch(1)))
    assert [e.task for e in pick.of(r.feed(OperatorEventLost(number=2)), FailTask)] == [make.task("s", 1)]


def test_an_event_that_may_be_lost_is_no_failure_if_the_task_does_not_run(enumerated, pick):
    r = enumerated()
    r.feed(submit(0, b"a", may_be_lost=True), submit(0, b"b", may_be_lost=True), submit(0, b"c"))
    assert r.feed(OperatorEventLost(number=1, task_not_running=True)) == []
    assert len(pick.of(r.feed(OperatorEventLost(number=2)), FailTask)) == 1
    assert len(pick.of(r.feed(OperatorEventLost(number=3, task_not_running=True)), FailTask)) == 1


def test_an_event_that_is_lost_with_its_task_is_no_further_failure(enumerated, make):
    r = enumerated()
    r.feed(submit(0, b"a"))
    r.feed(TaskFailing(task=make.task("s", 0), epoch=Epoch(1)))
    assert r.feed(OperatorEventLost(number=1), OperatorEventDelivered(number=1)) == []


def test_an_event_lost_to_a_task_that_is_not_up_yet_is_no_failure(enumerated, make):
    r = enumerated()
    r.feed(FailedOver(), submit(0, b"early"))
    assert r.feed(OperatorEventLost(number=1)) == []


def test_an_event_for_a_subtask_that_does_not_exist_is_a_bug(enumerated):
    r = enumerated()
    with pytest.raises(InvariantError, match="no coordinator with a subtask 2"):
        r.feed(submit(2, b"a"))


def test_events_of_overlapping_checkpoints_keep_their_order(enumerated, pick):
    """1. Closed for 1: a waits. 2. Closed for 2, too: b waits behind it. 3. The barrier of 2 is in first: b joins the
    line of 1. 4. The barrier of 1 is in: a, b."""
    r = enumerated(max_concurrent=2)
    r.request()
    r.feed(snapshotted(1), submit(0, b"a"))
    r.request()
    r.feed(snapshotted(2), submit(0, b"b"))
    assert delivered(pick, r.ack("s", 2)) == []
    assert delivered(pick, r.ack("s", 1)) == [(0, b"a"), (0, b"b")]


def test_a_checkpoint_waits_for_events_that_are_held_back_for_an_older_one(enumerated, make, pick):
    """1. Closed for 1: a waits. 2. The coordinator's snapshot for 2 includes that it sent a. 3. Nobody is triggered for
    2 before a has arrived: else the task's snapshot would be without it, and a restore would lose it."""
    r = enumerated(max_concurrent=2)
    r.request()
    r.feed(snapshotted(1), submit(0, b"a"))
    r.request()
    assert pick.triggered(r.feed(snapshotted(2))) == []
    assert delivered(pick, r.ack("s", 1)) == [(0, b"a")]
    assert pick.triggered(r.feed(OperatorEventDelivered(number=1))) == [make.task("s", 0), make.task("s", 1)]


def event(text):
    return HeldEvent(1, text)


def test_marks_must_grow():
    gateway = SubtaskGateway()
    gateway.mark(TWO)
    with pytest.raises(InvariantError, match="marked for checkpoint 2 after 2"):
        gateway.mark(TWO)


def test_opening_for_a_checkpoint_that_was_never_marked_is_a_bug():
    with pytest.raises(InvariantError, match="never marked"):
        SubtaskGateway().open(ONE)
    gateway = SubtaskGateway()
    gateway.mark(ONE)
    with pytest.raises(InvariantError, match="never marked"):
        gateway.open(TWO)


def test_opening_without_having_closed_does_nothing():
    gateway = SubtaskGateway()
    gateway.mark(TWO)
    assert gateway.open(ONE) == []
    assert gateway.open(TWO) == []
    assert gateway.submit(event(b"a")) == [event(b"a")]


def test_gateways_that_were_opened_can_not_be_closed_for_the_same_checkpoint(make):
    graph = make.graph(make.vertex("s", 2, is_source=True, coordinators=(OPERATOR,)))
    gateways = Gateways(graph, TaskBoard(graph))
    gateways.mark(ONE)
    gateways.open(ONE)
    assert not gateways.try_close(OPERATOR, ONE)
    assert not gateways.try_close(OperatorId("op-x"), ONE)


def test_gateways_are_closed_all_or_none(make):
    graph = make.graph(make.vertex("s", 2, is_source=True, coordinators=(OPERATOR,)))
    gateways = Gateways(graph, TaskBoard(graph))
    gateways.mark(ONE)
    gateways.reset([make.task("s", 1)])
    assert not gateways.try_close(OPERATOR, ONE)
    assert len(gateways.submit(OPERATOR, 0, b"a", may_be_lost=False)) == 1


def test_a_checkpoint_that_ends_before_it_came_to_the_gateways_leaves_them_alone(enumerated, pick):
    r = enumerated()
    r.request()
    r.feed(snapshotted(1))
    r.ack_all(1)
    r.hold = {CreateLocation}
    r.request()
    assert pick.aborted(r.feed(LocationFailed(checkpoint=TWO))) == [(2, CheckpointFailure.IO)]


def test_a_line_joins_the_next_older_one():
    gateway = SubtaskGateway()
    for checkpoint in (ONE, TWO, THREE):
        gateway.mark(checkpoint)
        gateway.close(checkpoint)
        gateway.submit(event(str(checkpoint).encode()))
    assert gateway.open(THREE) == []
    assert gateway.open(ONE) == [event(b"1")]
    assert gateway.open(TWO) == [event(b"2"), event(b"3")]


# --- hooks -----------------------------------------------------------------------------------------------------------


def test_hooks_run_after_the_operator_coordinators_and_before_the_tasks(rig, make, pick):
    graph = make.graph(make.vertex("s", 1, is_source=True, coordinators=(OPERATOR,)), hooks=HOOKS)
    r = rig(graph).start()
    assert pick.of(r.request(), TriggerHook) == []
    effects = r.feed(snapshotted(1))
    assert pick.of(effects, TriggerHook) == [
        TriggerHook(hook=hook, checkpoint=ONE, timestamp=Instant(1_000)) for hook in ("outside", "other")
    ]
    assert r.feed(HookTriggered(hook="outside", checkpoint=ONE, state=b"offset")) == []
    assert pick.triggered(r.feed(HookTriggered(hook="other", checkpoint=ONE))) == [make.task("s")]
    (write,) = pick.of(r.ack("s", 1), WriteMetadata)
    assert write.metadata.hooks == {"outside": b"offset"}
    assert write.metadata.size == len(b"offset") + len(b"enumerator")


def test_a_hook_that_fails_aborts_the_checkpoint(rig, make, pick):
    r = rig(make.sources(2, hooks=HOOKS), tolerable_failures=None).start()
    r.request()
    effects = r.feed(HookFailed(hook="other", checkpoint=ONE, error="no"))
    assert pick.aborted(effects) == [(1, CheckpointFailure.TRIGGER_FAILED)]
    assert pick.answers(effects)[1].text == "triggering the checkpoint failed: hook other: no"


def test_a_hook_that_never_answers_lets_the_checkpoint_expire(rig, make, pick):
    r = rig(make.sources(2, hooks=HOOKS), tolerable_failures=None, timeout_ms=100).start()
    r.request()
    assert pick.aborted(r.tick(100)) == [(1, CheckpointFailure.EXPIRED)]


def test_hooks_have_a_time_limit_of_their_own_from_when_they_were_asked(rig, make, pick):
    graph = make.graph(make.vertex("s", 1, is_source=True, coordinators=(OPERATOR,)), hooks=HOOKS)
    r = rig(graph, tolerable_failures=None, timeout_ms=10_000, hook_timeout_ms=100).start()
    r.request()
    assert pick.aborted(r.tick(500)) == []  # the operator coordinator has not answered, and has no such limit
    r.feed(snapshotted(1), HookTriggered(hook="outside", checkpoint=ONE))
    assert pick.aborted(r.tick(99)) == []
    effects = r.tick(1)
    assert pick.aborted(effects) == [(1, CheckpointFailure.EXPIRED)]
    text = "not all tasks acknowledged in time: after 100 ms there is no answer from hooks: 'other'"
    assert pick.answers(effects)[1].text == text


def test_the_limit_of_hooks_ends_with_their_answers(rig, make, pick):
    r = rig(make.sources(2, hooks=HOOKS), timeout_ms=10_000, hook_timeout_ms=100).start()
    r.request()
    r.feed(*(HookTriggered(hook=hook, checkpoint=ONE) for hook in HOOKS))
    assert pick.aborted(r.tick(5_000)) == []
    r.ack_all(1)
    assert r.in_progress == []


def test_hooks_that_answer_twice_late_or_unasked_change_nothing(rig, make, pick):
    r = rig(make.sources(2, hooks=HOOKS)).start()
    stray = [
        HookTriggered(hook="outside", checkpoint=ONE),
        HookFailed(hook="outside", checkpoint=ONE),
    ]
    assert r.feed(*stray) == []
    r.request()
    r.feed(HookTriggered(hook="outside", checkpoint=ONE))
    assert r.feed(*stray) == []
    assert r.in_progress == [1]


def test_a_hook_that_answers_for_an_earlier_checkpoint_is_not_taken_for_this_one(rig, make):
    r = rig(make.sources(2, hooks=HOOKS), tolerable_failures=None, timeout_ms=100).start()
    r.request()
    r.tick(100)
    r.request()
    assert r.feed(HookTriggered(hook="outside", checkpoint=ONE), HookFailed(hook="other", checkpoint=ONE)) == []
    assert r.in_progress == [2]


def test_a_source_that_is_told_from_outside_may_be_faster_than_the_trigger(rig, make, pick):
    r = rig(make.sources(2, hooks=HOOKS)).start()
    r.request()
    r.ack_all(1)
    r.feed(HookTriggered(hook="outside", checkpoint=ONE))
    assert pick.completed(r.feed(HookTriggered(hook="other", checkpoint=ONE))) == [1]

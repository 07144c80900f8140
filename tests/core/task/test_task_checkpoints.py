"""A subtask's part in a checkpoint, event by event."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.barrier.events import AlignmentMetrics
from penstock.core.effects import Ticked
from penstock.core.elements import Barrier, CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.messages import SubtaskState
from penstock.core.reasons import CheckpointFailure
from penstock.core.task.checkpoints import MOST_REMEMBERED_ABORTS, TaskCheckpoints
from penstock.core.task.events import (
    AbortNotified,
    AcknowledgeSnapshot,
    ArmOutputTimeout,
    AskToEnd,
    BroadcastBarrier,
    BroadcastCancelMarker,
    CancelSnapshot,
    CompletionNotified,
    DataFinished,
    DeclineSnapshot,
    DiscardSnapshot,
    EndAllowed,
    EndTask,
    FailTask,
    GiveUpStop,
    InputStateComplete,
    PrepareOperators,
    SaveOutput,
    SnapshotDue,
    SnapshotImpossible,
    SnapshotTaken,
    SnapshotWriteFailed,
    SnapshotWritten,
    TakeSnapshot,
    TaskEffect,
    TaskEvent,
    TaskStarted,
    TaskStopped,
    TellAborted,
    TellBarrierPassed,
    TellCompleted,
    TellSubsumed,
)

STATE = SubtaskState(finished=True)


def c(number: int) -> CheckpointId:
    return CheckpointId(number)


def barrier(number: int, **options: object) -> Barrier:
    return Barrier(checkpoint=c(number), timestamp=Instant(0), options=CheckpointOptions(**options))  # type: ignore[arg-type]


def due(number: int, **options: object) -> SnapshotDue:
    return SnapshotDue(barrier=barrier(number, **options))


def written(number: int) -> SnapshotWritten:
    return SnapshotWritten(checkpoint=c(number), state=STATE, async_ms=2.0, checkpointed_bytes=7)


def complete(number: int, subsumed: int | None = None) -> CompletionNotified:
    return CompletionNotified(checkpoint=c(number), subsumed=None if subsumed is None else c(subsumed))


def abort(number: int, completed: int | None = None) -> AbortNotified:
    return AbortNotified(checkpoint=c(number), latest_completed=None if completed is None else c(completed))


def task(
    *,
    restored: int | None = None,
    max_concurrent: int = 1,
    started: bool = True,
    after_tasks_finish: bool = True,
    restored_is_last: bool = False,
) -> TaskCheckpoints:
    machine = TaskCheckpoints(
        restored=None if restored is None else c(restored),
        max_concurrent=max_concurrent,
        after_tasks_finish=after_tasks_finish,
        restored_is_last=restored_is_last,
    )
    if started:
        feed(machine, TaskStarted())
    return machine


def feed(machine: TaskCheckpoints, *events: TaskEvent) -> list[TaskEffect]:
    effects: list[TaskEffect] = []
    for event in events:
        effects += machine.handle(event, Instant(0))
        machine.validate()
    return effects


def taken(number: int, *, after_data: bool = False) -> TakeSnapshot:
    return TakeSnapshot(barrier=barrier(number), after_data=after_data)


def acknowledged(effects: list[TaskEffect]) -> list[int]:
    return [e.checkpoint for e in effects if isinstance(e, AcknowledgeSnapshot)]


def test_operators_prepare_before_the_barrier_goes_out_and_the_snapshot_follows_it():
    assert feed(task(), due(1)) == [
        PrepareOperators(checkpoint=c(1)),
        BroadcastBarrier(barrier=barrier(1)),
        taken(1),
    ]


def test_the_acknowledgement_carries_what_was_measured():
    metrics = AlignmentMetrics(start_delay_ms=3, alignment_ms=4, bytes_processed=5)
    machine = task()
    feed(machine, SnapshotDue(barrier=barrier(1), metrics=metrics), SnapshotTaken(checkpoint=c(1), sync_ms=1.5))
    assert feed(machine, written(1)) == [
        AcknowledgeSnapshot(
            checkpoint=c(1),
            state=STATE,
            metrics=metrics,
            sync_ms=1.5,
            async_ms=2.0,
            checkpointed_bytes=7,
            bytes_persisted=0,
        )
    ]


def test_coordinators_of_operators_are_told_of_the_barrier_before_the_snapshot_is_written():
    machine = task()
    feed(machine, due(1))
    assert feed(machine, SnapshotTaken(checkpoint=c(1), sync_ms=1.0)) == [TellBarrierPassed(checkpoint=c(1))]


def test_a_task_that_was_stopped_by_its_snapshot_tells_nobody_of_the_barrier():
    machine = task()
    feed(machine, due(1), TaskStopped())
    assert feed(machine, SnapshotTaken(checkpoint=c(1), sync_ms=1.0)) == []


def test_an_unaligned_barrier_saves_the_output_it_overtakes():
    effects = feed(task(), due(1, unaligned=True))
    assert SaveOutput(checkpoint=c(1)) in effects
    assert not any(isinstance(e, ArmOutputTimeout) for e in effects)


def test_a_barrier_that_may_time_out_arms_the_output_side():
    effects = feed(task(), due(1, aligned_timeout_ms=10))
    assert ArmOutputTimeout(barrier=barrier(1, aligned_timeout_ms=10)) in effects
    assert SaveOutput(checkpoint=c(1)) in effects


def test_a_barrier_that_an_input_edge_forced_to_align_may_overtake_output_again():
    effects = feed(task(), due(1, unaligned=True, forced_aligned=True))
    assert BroadcastBarrier(barrier=barrier(1, unaligned=True)) in effects


def test_the_metrics_of_an_unaligned_checkpoint_are_those_of_its_last_barrier():
    machine = task()
    late = AlignmentMetrics(alignment_ms=99, unaligned=True)
    feed(machine, due(1, unaligned=True), InputStateComplete(checkpoint=c(1), metrics=late))
    (effect,) = feed(machine, written(1))
    assert isinstance(effect, AcknowledgeSnapshot)
    assert effect.metrics == late


def test_input_and_timing_of_a_checkpoint_that_is_gone_are_ignored():
    late = AlignmentMetrics()
    assert feed(task(), InputStateComplete(checkpoint=c(1), metrics=late)) == []
    assert feed(task(), SnapshotTaken(checkpoint=c(1), sync_ms=1.0)) == []


def test_an_id_at_or_below_the_last_one_is_dropped():
    machine = task()
    feed(machine, due(2))
    assert feed(machine, due(2), due(1)) == [CancelSnapshot(checkpoint=c(2)), CancelSnapshot(checkpoint=c(1))]


def test_ids_up_to_the_restored_one_are_dropped():
    assert feed(task(restored=5), due(5)) == [CancelSnapshot(checkpoint=c(5))]


def test_a_task_that_is_not_restored_yet_declines():
    effects = feed(task(started=False), due(1))
    assert effects[0] == BroadcastCancelMarker(checkpoint=c(1))
    assert isinstance(effects[1], DeclineSnapshot)
    assert effects[1].reason is CheckpointFailure.DECLINED_TASK_NOT_READY


def test_s33_abort_before_the_barrier_takes_no_snapshot_and_tells_downstream():
    machine = task()
    assert feed(machine, abort(42)) == [TellAborted(checkpoint=c(42))]
    assert machine.remembered_aborts == 1
    assert feed(machine, due(42)) == [CancelSnapshot(checkpoint=c(42)), BroadcastCancelMarker(checkpoint=c(42))]
    assert machine.remembered_aborts == 0


def test_s33_abort_during_the_asynchronous_part_cancels_it_and_remembers_nothing():
    machine = task()
    feed(machine, due(1))
    assert feed(machine, abort(1)) == [CancelSnapshot(checkpoint=c(1)), TellAborted(checkpoint=c(1))]
    assert machine.remembered_aborts == 0
    assert feed(machine, written(1)) == [DiscardSnapshot(checkpoint=c(1), state=STATE)]


def test_s33_however_many_aborts_come_the_memory_stays_bounded():
    machine = task(max_concurrent=1_000)
    for number in range(1, 298):
        feed(machine, abort(number))
        assert machine.remembered_aborts <= MOST_REMEMBERED_ABORTS
    assert machine.remembered_aborts == MOST_REMEMBERED_ABORTS


def test_an_abort_too_old_to_be_remembered_still_counts():
    machine = task()
    feed(machine, abort(1), abort(2), abort(3))
    assert feed(machine, due(1)) == [CancelSnapshot(checkpoint=c(1)), BroadcastCancelMarker(checkpoint=c(1))]


def test_aborts_older_than_a_barrier_are_forgotten():
    machine = task(max_concurrent=4)
    feed(machine, abort(1), abort(2), due(3))
    assert machine.remembered_aborts == 0


def test_a_second_abort_of_one_checkpoint_cancels_once():
    machine = task()
    feed(machine, due(1), abort(1))
    assert feed(machine, abort(1)) == [TellAborted(checkpoint=c(1))]


def test_a_failed_write_declines():
    machine = task()
    feed(machine, due(1))
    assert feed(machine, SnapshotWriteFailed(checkpoint=c(1), error="disk full")) == [
        DeclineSnapshot(checkpoint=c(1), reason=CheckpointFailure.ASYNC_PART_FAILED, error="disk full")
    ]
    assert feed(machine, written(1)) == [DiscardSnapshot(checkpoint=c(1), state=STATE)]


def test_what_was_written_for_an_aborted_savepoint_lies_in_its_own_folder():
    machine = task()
    feed(machine, due(1, savepoint=True, target="save/1"), abort(1))
    assert feed(machine, written(1)) == [DiscardSnapshot(checkpoint=c(1), state=STATE, target="save/1")]


def test_a_failed_write_of_an_aborted_checkpoint_is_no_news():
    machine = task()
    feed(machine, due(1), abort(1))
    assert feed(machine, SnapshotWriteFailed(checkpoint=c(1), error="disk full")) == []


def test_what_the_barrier_handler_gives_up_is_declined_and_told_downstream():
    machine = task(max_concurrent=4)
    feed(machine, abort(3))
    reason = CheckpointFailure.DECLINED_ON_CANCELLATION
    assert feed(machine, SnapshotImpossible(checkpoint=c(3), reason=reason)) == [
        CancelSnapshot(checkpoint=c(3)),
        BroadcastCancelMarker(checkpoint=c(3)),
        DeclineSnapshot(checkpoint=c(3), reason=reason, error=""),
    ]
    assert machine.remembered_aborts == 0
    assert feed(machine, due(3)) == [CancelSnapshot(checkpoint=c(3))]


def test_giving_up_an_unaligned_checkpoint_discards_what_is_being_written():
    machine = task()
    feed(machine, due(1, unaligned=True))
    feed(machine, SnapshotImpossible(checkpoint=c(1), reason=CheckpointFailure.DECLINED_SUBSUMED))
    assert acknowledged(feed(machine, written(1))) == []


@pytest.mark.parametrize(
    "given_up",
    [
        pytest.param(
            [SnapshotImpossible(checkpoint=c(2), reason=CheckpointFailure.DECLINED_SUBSUMED)], id="impossible"
        ),
        pytest.param([abort(2), due(2, unaligned=True)], id="aborted before its barrier"),
        pytest.param([due(2, unaligned=True), abort(2)], id="aborted behind its barrier"),
        pytest.param([due(2, unaligned=True), SnapshotWriteFailed(checkpoint=c(2), error="x")], id="not written"),
    ],
)
def test_what_was_given_up_here_is_declined_and_told_downstream_once(given_up: list[TaskEvent]):
    """1. A snapshot cannot be taken: a channel holds the barrier of a newer checkpoint already, for example. 2. The
    newer barrier is read, and the barrier handler gives up the older checkpoint, whose other barriers it waited for."""
    machine = task()
    effects = feed(machine, *given_up)
    effects += feed(machine, SnapshotImpossible(checkpoint=c(2), reason=CheckpointFailure.DECLINED_SUBSUMED))
    assert sum(isinstance(effect, BroadcastCancelMarker) for effect in effects) <= 1
    assert sum(isinstance(effect, DeclineSnapshot) for effect in effects) <= 1
    later = SnapshotImpossible(checkpoint=c(2), reason=CheckpointFailure.DECLINED_SUBSUMED)
    assert feed(machine, later) == [CancelSnapshot(checkpoint=c(2))]


def test_a_task_that_is_not_restored_declines_once():
    machine = task(started=False)
    effects = feed(machine, due(1, unaligned=True))
    effects += feed(machine, SnapshotImpossible(checkpoint=c(1), reason=CheckpointFailure.DECLINED_SUBSUMED))
    assert sum(isinstance(effect, BroadcastCancelMarker) for effect in effects) == 1
    assert sum(isinstance(effect, DeclineSnapshot) for effect in effects) == 1


def test_completions_only_grow_and_a_lost_one_is_covered_by_the_next():
    machine = task()
    feed(machine, due(1), due(2), written(1), written(2))
    assert feed(machine, complete(2, subsumed=1)) == [TellCompleted(checkpoint=c(2)), TellSubsumed(checkpoint=c(1))]
    assert feed(machine, complete(1), complete(2)) == []


def test_the_restored_checkpoint_is_not_completed_again():
    assert feed(task(restored=4), complete(4)) == []


def test_an_abort_repairs_a_lost_completion_first():
    machine = task()
    assert feed(machine, abort(3, completed=2)) == [TellCompleted(checkpoint=c(2)), TellAborted(checkpoint=c(3))]
    assert feed(machine, complete(2)) == []


def test_a_task_asks_to_end_when_a_checkpoint_taken_after_its_data_completes():
    machine = task()
    feed(machine, due(1), DataFinished())
    assert feed(machine, due(2))[-1] == taken(2, after_data=True)
    assert feed(machine, complete(1)) == [TellCompleted(checkpoint=c(1))]
    assert feed(machine, complete(2)) == [TellCompleted(checkpoint=c(2)), AskToEnd()]
    assert feed(machine, EndAllowed()) == [EndTask()]
    assert feed(machine, EndAllowed()) == []


def test_a_task_takes_part_in_checkpoints_until_it_is_let_go():
    """Its data may wait behind back-pressure for long after its last checkpoint."""
    machine = task()
    feed(machine, DataFinished(), due(2), complete(2))
    assert feed(machine, due(3))[-1] == taken(3, after_data=True)
    assert acknowledged(feed(machine, written(3))) == [3]
    gives_up = SnapshotImpossible(checkpoint=c(4), reason=CheckpointFailure.DECLINED_ON_CANCELLATION)
    assert BroadcastCancelMarker(checkpoint=c(4)) in feed(machine, gives_up)


def test_a_task_that_ends_sends_no_barrier_and_no_cancel_marker_behind_its_end():
    """1. The master gives up a checkpoint, and lets the task end. 2. The barrier of that checkpoint is read; or it is
    never read, because the checkpoint was cancelled upstream."""
    machine = task()
    feed(machine, DataFinished(), due(2), complete(2))
    assert feed(machine, EndAllowed()) == [EndTask()]
    closing = CheckpointFailure.DECLINED_TASK_CLOSING
    declined = DeclineSnapshot(checkpoint=c(3), reason=closing, error="the task is about to end")
    assert feed(machine, due(3)) == [declined]
    gives_up = SnapshotImpossible(checkpoint=c(4), reason=CheckpointFailure.DECLINED_ON_CANCELLATION)
    assert feed(machine, gives_up) == [CancelSnapshot(checkpoint=c(4))]


def test_a_task_that_does_not_want_to_end_is_not_let_go():
    machine = task()
    feed(machine, DataFinished(), due(2))
    (effect,) = feed(machine, EndAllowed())
    assert isinstance(effect, FailTask)
    feed(machine, complete(2), TaskStopped())
    assert feed(machine, EndAllowed()) == []


def test_any_later_checkpoint_lets_the_task_ask_too_and_only_once():
    machine = task()
    feed(machine, DataFinished(), due(2), due(3))
    assert AskToEnd() in feed(machine, complete(3))
    assert AskToEnd() not in feed(machine, due(4), complete(4))


def test_where_tasks_may_not_end_before_others_only_the_last_checkpoint_of_all_ends_one():
    """1. A checkpoint after this task's data, but not after that of all. 2. The last one is aborted: some tasks have
    seen its barrier, others have not. 3. Another one completes. 4. The last one is taken again."""
    machine = task(after_tasks_finish=False)
    feed(machine, DataFinished(), due(1))
    assert AskToEnd() not in feed(machine, complete(1))
    feed(machine, due(2, final=True), abort(2), due(3))
    assert AskToEnd() not in feed(machine, complete(3))
    feed(machine, due(4, final=True))
    assert AskToEnd() in feed(machine, complete(4))


def test_a_synchronous_savepoint_ends_also_a_task_that_may_not_end_before_others():
    machine = task(after_tasks_finish=False)
    feed(machine, due(1, synchronous=True, savepoint=True))
    assert AskToEnd() in feed(machine, complete(1))


def test_a_synchronous_savepoint_is_the_only_one_that_ends_the_task():
    machine = task()
    feed(machine, due(1, synchronous=True, savepoint=True), DataFinished(drained=False), due(2))
    assert AskToEnd() not in feed(machine, complete(2))
    machine = task()
    feed(machine, due(1, synchronous=True, savepoint=True))
    assert AskToEnd() in feed(machine, complete(1))


@pytest.mark.parametrize("after_tasks_finish", [False, True])
def test_a_task_that_is_restored_from_the_savepoint_that_was_to_end_it_ends_without_another_checkpoint(
    after_tasks_finish: bool,
):
    """1. The savepoint of a stop with drain is complete. 2. The job fails before the task has ended. 3. The task comes
    to the end of its data again, and has nothing to save that the savepoint does not have."""
    machine = task(restored=3, after_tasks_finish=after_tasks_finish, restored_is_last=True)
    assert feed(machine, DataFinished()) == [TellCompleted(checkpoint=c(3)), AskToEnd()]
    assert feed(machine, EndAllowed()) == [EndTask()]


def test_stopped_without_drain_the_snapshot_does_not_say_that_the_task_had_finished():
    machine = task()
    feed(machine, DataFinished(drained=False))
    effects = feed(machine, due(1, synchronous=True, savepoint=True))
    assert isinstance(effects[-1], TakeSnapshot)
    assert not effects[-1].after_data


def test_a_second_synchronous_savepoint_is_an_error():
    machine = task()
    feed(machine, due(1, synchronous=True, savepoint=True))
    (effect,) = feed(machine, due(2, synchronous=True, savepoint=True))
    assert isinstance(effect, FailTask)


def test_the_abort_of_the_synchronous_savepoint_ends_the_attempt_of_the_task():
    machine = task()
    feed(machine, due(1, synchronous=True, savepoint=True))
    assert feed(machine, abort(1))[-2:] == [TellAborted(checkpoint=c(1)), GiveUpStop(checkpoint=c(1))]


def test_a_stopped_task_says_nothing_more():
    machine = task(max_concurrent=3)
    feed(machine, due(1), due(2), abort(2))
    assert feed(machine, TaskStopped()) == [CancelSnapshot(checkpoint=c(1))]
    quiet: list[TaskEvent] = [
        due(3),
        SnapshotImpossible(checkpoint=c(4), reason=CheckpointFailure.DECLINED),
        SnapshotWriteFailed(checkpoint=c(1), error="x"),
        complete(1),
        abort(1),
    ]
    assert feed(machine, *quiet) == []
    assert feed(machine, written(2)) == [DiscardSnapshot(checkpoint=c(2), state=STATE)]


def test_time_alone_does_nothing():
    machine = task()
    assert feed(machine, Ticked()) == []
    assert machine.next_deadline() is None


def test_validate_finds_too_many_remembered_aborts_and_snapshots_from_the_future():
    machine = task()
    machine._aborted.update({c(n): None for n in range(3)})
    with pytest.raises(InvariantError, match="remembered"):
        machine.validate()
    machine = task()
    feed(machine, due(1))
    machine._last = c(0)
    with pytest.raises(InvariantError, match="newer"):
        machine.validate()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), max_size=50), st.integers(1, 3))
def test_every_snapshot_has_exactly_one_end_and_ids_only_grow(steps: list[tuple[int, int]], concurrent: int):
    machine = task(max_concurrent=concurrent)
    open_snapshots: list[int] = []
    begun: list[int] = []
    ends: dict[int, int] = {}
    completed = [0]
    for kind, number in steps:
        events: list[TaskEvent] = [due(number), abort(number), complete(number), DataFinished()]
        event: TaskEvent
        if kind < 4:
            event = events[kind]
        elif not open_snapshots:
            continue
        else:
            done = open_snapshots.pop(0)
            event = written(done) if kind == 4 else SnapshotWriteFailed(checkpoint=c(done), error="x")
            ends[done] = 0
        for effect in feed(machine, event):
            match effect:
                case TakeSnapshot():
                    begun.append(effect.barrier.checkpoint)
                    open_snapshots.append(effect.barrier.checkpoint)
                case AcknowledgeSnapshot() | DiscardSnapshot() | DeclineSnapshot():
                    ends[effect.checkpoint] = ends.get(effect.checkpoint, 0) + 1
                case TellCompleted():
                    assert effect.checkpoint > completed[-1]
                    completed.append(effect.checkpoint)
                case _:
                    pass
    assert begun == sorted(set(begun))
    assert all(count <= 1 for count in ends.values())

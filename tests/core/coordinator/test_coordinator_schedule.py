"""When a checkpoint is asked for without anybody asking."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.coordinator import MAX_MIN_PAUSE_MS
from penstock.core.coordinator.effects import (
    CheckpointStarted,
    CreateLocation,
    RequestDropped,
    SendToTask,
    StorePointer,
)
from penstock.core.coordinator.events import (
    AttemptStarted,
    BacklogChanged,
    FailedOver,
    JobEnd,
    PointerFailed,
    RequestKind,
    ScheduleAllowed,
    ScheduleForbidden,
    ShutDown,
    TaskAsksToEnd,
    TaskDataEnded,
    TaskEnded,
    TaskFailing,
    TaskRunning,
)
from penstock.core.coordinator.schedule import FINAL_RETRY_MS, PeriodicSchedule
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Epoch, Instant, OperatorId
from penstock.core.messages import LetEnd
from penstock.core.reasons import CheckpointFailure
from penstock.settings import BacklogInterval

ONE = Epoch(1)
SLOW = BacklogInterval(interval_ms=500)
OFF = BacklogInterval(interval_ms=None)


def behind(operator: str = "op-t1") -> BacklogChanged:
    return BacklogChanged(operator=OperatorId(operator), backlog=True)


def caught_up(operator: str = "op-t1") -> BacklogChanged:
    return BacklogChanged(operator=OperatorId(operator), backlog=False)


# --- periodic --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 1_020), (0.5, 1_060), (0.999, 1_100)])
def test_the_first_trigger_is_drawn_between_the_minimum_pause_and_the_interval(rig, draw, expected):
    r = rig(interval_ms=100, min_pause_ms=20).start(draw=draw)
    assert r.coordinator.next_deadline() == expected


def test_later_starts_wait_only_for_the_minimum_pause(rig):
    r = rig(interval_ms=100, min_pause_ms=20).start(draw=0.9)
    r.feed(ScheduleForbidden(), ScheduleAllowed(draw=0.9))
    assert r.coordinator.next_deadline() == 1_020


def test_the_rate_is_fixed_however_late_the_tick(rig, pick):
    r = rig(interval_ms=100, max_concurrent=9).start()
    assert pick.begun(r.tick()) == [1]
    assert pick.begun(r.tick(130)) == [2]
    assert r.coordinator.view().next_trigger == 1_200


def test_a_tick_before_the_time_does_nothing(rig):
    r = rig(interval_ms=100).start(draw=0.999)
    assert r.tick(99) == []
    assert r.coordinator.view().next_trigger == 1_100


def test_times_that_passed_while_nobody_looked_give_one_request(rig, pick):
    r = rig(interval_ms=100, max_concurrent=9).start()
    r.tick()
    assert pick.begun(r.tick(1_050)) == [2]
    assert r.coordinator.view().next_trigger == 2_100


def test_an_interval_shorter_than_the_minimum_pause_is_raised_to_it(rig):
    r = rig(interval_ms=100, min_pause_ms=300, max_concurrent=9).start()
    r.until(1_300)
    assert r.coordinator.view().next_trigger == 1_600


def test_the_minimum_pause_is_at_most_a_year(rig):
    r = rig(interval_ms=100, min_pause_ms=MAX_MIN_PAUSE_MS * 3).start()
    assert r.coordinator.next_deadline() == 1_000 + MAX_MIN_PAUSE_MS


def test_without_an_interval_nothing_is_scheduled(rig):
    r = rig().start()
    assert r.coordinator.next_deadline() is None
    r.feed(behind())
    assert r.coordinator.next_deadline() is None


# --- on only while everything runs -----------------------------------------------------------------------------------


def test_the_schedule_is_on_only_when_the_job_and_all_tasks_run(rig, make):
    r = rig(interval_ms=100)
    r.epoch = 1
    r.feed(AttemptStarted(epoch=ONE), ScheduleAllowed(draw=0.5))
    r.feed(TaskRunning(task=make.task("t1"), epoch=ONE))
    assert r.coordinator.next_deadline() is None
    r.feed(TaskRunning(task=make.task("t2"), epoch=ONE))
    assert r.coordinator.next_deadline() == 1_050


def test_finished_tasks_do_not_switch_it_off(rig, make):
    r = rig(interval_ms=100).start()
    r.feed(TaskEnded(task=make.task("t1"), epoch=ONE))
    assert r.coordinator.next_deadline() is not None


def test_when_all_tasks_have_finished_there_is_nothing_left_to_schedule(rig):
    r = rig(interval_ms=100).start()
    r.feed(*(TaskEnded(task=t, epoch=ONE) for t in r.graph.tasks))
    assert r.coordinator.next_deadline() is None


@pytest.mark.parametrize("event", [ScheduleForbidden(), FailedOver(), ShutDown(status=JobEnd.SUSPENDED)])
def test_it_goes_off_when_the_job_leaves_the_running_state(rig, event):
    r = rig(interval_ms=100).start()
    r.feed(event)
    assert r.coordinator.next_deadline() is None


def test_going_off_aborts_running_and_waiting_checkpoints_and_answers_their_requesters(rig, pick):
    r = rig().start()
    r.request()
    r.request()
    effects = r.feed(ScheduleForbidden())
    suspended = CheckpointFailure.COORDINATOR_SUSPENDED
    assert pick.aborted(effects) == [(1, suspended)]
    assert [a.reason for a in pick.answers(effects).values()] == [suspended, suspended]
    assert (r.in_progress, r.waiting) == ([], 0)


def test_what_is_said_of_another_attempt_of_a_task_is_ignored(rig, make):
    r = rig(interval_ms=100).start()
    r.feed(TaskFailing(task=make.task("t1"), epoch=Epoch(7)), TaskRunning(task=make.task("nobody"), epoch=ONE))
    assert r.coordinator.next_deadline() is not None


def test_a_second_running_does_not_bring_a_finished_task_back(rig, make):
    r = rig().start()
    r.feed(TaskEnded(task=make.task("t1"), epoch=ONE), TaskRunning(task=make.task("t1"), epoch=ONE))
    r.request()
    assert r.details(1).totals.num_subtasks == 1


def test_time_never_goes_back(rig):
    r = rig()
    r.tick()
    r.now -= 1
    with pytest.raises(InvariantError, match="time went back from 1000 to 999"):
        r.tick()


# --- backlog ---------------------------------------------------------------------------------------------------------


def test_a_source_that_is_behind_lengthens_the_period_from_the_next_trigger_on(rig):
    r = rig(interval_ms=100, max_concurrent=9, during_backlog=SLOW).start(draw=0.999)
    r.feed(behind())
    assert r.coordinator.view().next_trigger == 1_100
    r.until(1_100)
    assert r.coordinator.view().next_trigger == 1_600


def test_catching_up_pulls_the_next_trigger_closer(rig):
    r = rig(interval_ms=100, max_concurrent=9, during_backlog=SLOW).start(draw=0.999)
    r.feed(behind())
    r.until(1_150)
    r.feed(caught_up(), caught_up("never-behind"))
    assert r.coordinator.view().next_trigger == 1_250


def test_the_period_stays_long_while_another_source_is_behind(rig):
    r = rig(interval_ms=100, max_concurrent=9, during_backlog=SLOW).start(draw=0.999)
    r.feed(behind(), behind("op-t2"))
    r.until(1_150)
    r.feed(caught_up())
    assert r.coordinator.view().next_trigger == 1_600


def test_with_no_period_during_backlog_the_trigger_that_is_set_is_the_last(rig, pick):
    r = rig(interval_ms=100, max_concurrent=9, during_backlog=OFF).start(draw=0.999)
    r.feed(behind())
    assert pick.begun(r.until(1_100)) == [1]
    assert r.coordinator.view().next_trigger is None
    r.now = 5_000
    r.feed(caught_up())
    assert r.coordinator.view().next_trigger == 5_100


def test_a_schedule_that_starts_during_a_backlog_without_period_sets_no_trigger(rig):
    r = rig(interval_ms=100, during_backlog=OFF)
    r.feed(behind())
    r.start()
    assert r.coordinator.view().next_trigger == 1_000
    r.feed(behind(), ScheduleForbidden(), ScheduleAllowed(draw=0.0))
    assert r.coordinator.view().next_trigger is None


def test_a_backlog_that_changes_while_the_schedule_is_off_sets_no_trigger(rig):
    r = rig(interval_ms=100, during_backlog=SLOW)
    r.feed(behind(), caught_up())
    assert r.coordinator.next_deadline() is None


def reader_behind(make, subtask="t1", *, backlog=True, epoch=ONE):
    return BacklogChanged(operator=OperatorId("op-t1"), backlog=backlog, task=make.task(subtask), epoch=epoch)


def test_a_source_is_behind_while_one_of_its_readers_or_its_enumerator_is(rig, make):
    r = rig(interval_ms=100, max_concurrent=9, during_backlog=SLOW).start(draw=0.999)
    r.feed(reader_behind(make), reader_behind(make, "t2"), behind("op-t1"))
    r.until(1_150)
    r.feed(caught_up("op-t1"), reader_behind(make, backlog=False))
    assert r.coordinator.view().next_trigger == 1_600
    r.feed(reader_behind(make, "t2", backlog=False))
    assert r.coordinator.view().next_trigger == 1_250


def test_a_reader_of_an_earlier_attempt_is_not_listened_to(rig, make):
    r = rig(interval_ms=100, max_concurrent=9, during_backlog=OFF).start(draw=0.999)
    r.feed(reader_behind(make, epoch=Epoch(0)))
    r.until(1_100)
    assert r.coordinator.view().next_trigger == 1_200


@pytest.mark.parametrize("how", ["ended", "restarts"])
def test_a_reader_that_is_gone_is_behind_no_more(rig, make, how):
    r = rig(interval_ms=100, max_concurrent=9, during_backlog=OFF).start(draw=0.999)
    r.feed(reader_behind(make))
    r.until(1_100)
    assert r.coordinator.view().next_trigger is None
    if how == "ended":
        r.feed(TaskEnded(task=make.task("t1"), epoch=ONE))
        assert r.coordinator.view().next_trigger == 1_200
        return
    r.feed(FailedOver(tasks=(make.task("t1"),)), AttemptStarted(epoch=Epoch(2), tasks=(make.task("t1"),)))
    r.feed(TaskRunning(task=make.task("t1"), epoch=Epoch(2)))
    assert r.coordinator.view().next_trigger is not None


def test_a_backlog_changes_nothing_if_no_period_is_set_for_it(rig):
    r = rig(interval_ms=100, max_concurrent=9).start(draw=0.999)
    r.feed(behind())
    r.until(1_100)
    assert r.coordinator.view().next_trigger == 1_200


def test_a_schedule_that_is_off_sets_no_time():
    schedule = PeriodicSchedule(interval_ms=100, min_pause_ms=0, during_backlog=None)
    schedule.retry_after(10, Instant(0))
    schedule.change_backlog((OperatorId("o"), None), Instant(0), backlog=True)
    assert schedule.next_trigger is None


# --- the last checkpoint ---------------------------------------------------------------------------------------------


def end_data(rig_, make, *names: str):
    return rig_.feed(*(TaskDataEnded(task=make.task(n), epoch=Epoch(rig_.epoch)) for n in names))


def test_when_all_tasks_have_seen_their_data_one_checkpoint_is_taken_at_once(rig, make, pick):
    r = rig().start()
    assert pick.begun(end_data(r, make, "t1")) == []
    assert pick.begun(end_data(r, make, "t2")) == [1]
    assert pick.begun(end_data(r, make, "t2") + r.tick(10_000)) == []


def test_finished_tasks_count_as_having_seen_their_data(rig, make, pick):
    r = rig().start()
    r.feed(TaskEnded(task=make.task("t1"), epoch=ONE))
    assert pick.begun(end_data(r, make, "t2")) == [1]


def test_when_all_tasks_have_finished_no_last_checkpoint_is_taken(rig, make, pick):
    r = rig().start()
    assert r.feed(*(TaskEnded(task=t, epoch=ONE) for t in r.graph.tasks)) == []
    assert r.coordinator.next_deadline() is None


def test_tasks_deployed_as_finished_have_seen_their_data(rig, make, pick):
    r = rig()
    r.start(finished_vertices=("t1",))
    assert pick.begun(end_data(r, make, "t2")) == [1]


def test_with_checkpoints_after_the_end_switched_off_there_is_a_last_one_that_says_so(rig, make, pick):
    """Tasks know by that one that no other task has data left, and end together."""

    def finals(effects):
        return [effect.options.final for effect in pick.of(effects, CreateLocation)]

    r = rig(after_tasks_finish=False).start()
    end_data(r, make, "t1")
    assert finals(r.request()) == [False]
    r.ack("t1", 1, make.state("t1", finished=True))
    # Nobody ends with checkpoint 1, so the next one need not wait for that.
    assert finals(r.ack("t2", 1) + r.request()) == [False]
    r.ack_all(2)
    assert finals(end_data(r, make, "t2")) == [True]
    r.ack("t1", 3, make.state("t1", finished=True))
    r.ack("t2", 3, make.state("t2", finished=True))
    assert finals(r.until(r.now + 10_000)) == []


def test_a_last_checkpoint_that_failed_is_tried_again(rig, make, pick):
    r = rig(tolerable_failures=None).start()
    end_data(r, make, "t1", "t2")
    r.decline("t1", 1)
    assert r.coordinator.next_deadline() == r.now + FINAL_RETRY_MS
    assert pick.begun(r.tick(FINAL_RETRY_MS)) == [2]
    r.ack_all(2)
    assert r.coordinator.next_deadline() is None


def test_the_last_checkpoint_waits_for_the_job_to_run(rig, make, pick):
    r = rig()
    r.epoch = 1
    r.feed(AttemptStarted(epoch=ONE), *(TaskRunning(task=t, epoch=ONE) for t in r.graph.tasks))
    assert pick.begun(end_data(r, make, "t1", "t2")) == []
    assert r.coordinator.next_deadline() is None
    assert pick.begun(r.feed(ScheduleAllowed(draw=0.0))) == [1]


def test_a_new_attempt_has_to_see_its_data_again(rig, make, pick):
    r = rig().start()
    end_data(r, make, "t1", "t2")
    r.ack_all(1)
    r.feed(FailedOver())
    r.start()
    assert pick.begun(end_data(r, make, "t1")) == []
    assert pick.begun(end_data(r, make, "t2")) == [2]


def test_a_new_attempt_does_not_take_the_last_checkpoint_that_the_old_one_meant_to_try_again(rig, make, pick):
    r = rig(tolerable_failures=None).start()
    end_data(r, make, "t1", "t2")
    r.decline("t1", 1)
    r.feed(FailedOver())
    r.start()
    assert r.coordinator.next_deadline() is None
    assert pick.begun(r.tick(FINAL_RETRY_MS)) == []


def test_a_last_checkpoint_of_the_old_attempt_that_is_not_stored_in_the_end_is_not_tried_again(rig, make, pick):
    """A checkpoint that is being stored outlives a failover; the new attempt has not seen all its data."""
    r = rig(tolerable_failures=None).start()
    r.hold.add(StorePointer)
    end_data(r, make, "t1", "t2")
    r.ack_all(1)
    r.feed(FailedOver())
    assert [checkpoint for checkpoint, _ in pick.aborted(r.feed(PointerFailed(checkpoint=CheckpointId(1))))] == [1]
    r.start()
    assert r.coordinator.next_deadline() is None
    assert pick.begun(r.tick(FINAL_RETRY_MS)) == []


def test_while_the_job_is_being_stopped_its_savepoint_is_the_last_checkpoint(rig, make, pick):
    r = rig().start()
    r.request(RequestKind.STOP, drain=True)
    assert pick.begun(end_data(r, make, "t1", "t2")) == []


def test_if_the_stop_fails_the_last_checkpoint_is_taken_after_all(rig, make, pick):
    r = rig().start()
    r.request(RequestKind.STOP)
    end_data(r, make, "t1", "t2")
    effects = r.tick(r.settings.timeout_ms)
    assert pick.aborted(effects) == [(1, CheckpointFailure.EXPIRED)]
    assert pick.begun(effects) == [2]
    assert pick.of(effects, CheckpointStarted)[0].queued_ms == 0


def test_a_periodic_request_is_dropped_silently_when_the_schedule_goes_off(rig, pick):
    r = rig(interval_ms=10).start()
    r.until(1_030)
    effects = r.feed(ScheduleForbidden())
    assert [e.periodic for e in pick.of(effects, RequestDropped)] == [True, True, True]
    assert pick.answers(effects) == {}


# --- tasks that are about to end -------------------------------------------------------------------------------------


def finished(make, name: str):
    return make.state(name, finished=True)


def asks(make, name: str) -> TaskAsksToEnd:
    return TaskAsksToEnd(task=make.task(name), epoch=ONE)


def let_go(effects) -> list[str]:
    sent = (effect.message for effect in effects if isinstance(effect, SendToTask))
    return [message.task.vertex for message in sent if isinstance(message, LetEnd)]


def at_its_end(rig, make, pick, **settings):
    """Checkpoint 1, which t1 took after its data, is complete."""
    r = rig(**settings).start()
    end_data(r, make, "t1")
    assert pick.begun(r.request()) == [1]
    r.ack("t1", 1, finished(make, "t1"))
    assert pick.completed(r.ack("t2", 1)) == [1]
    return r


def test_a_task_that_has_its_last_checkpoint_takes_part_in_others_until_it_asks_to_end(rig, make, pick):
    """Its data may wait behind back-pressure for as long as somebody downstream is slow."""
    r = at_its_end(rig, make, pick)
    effects = r.request()
    assert (pick.begun(effects), let_go(effects)) == ([2], [])
    assert pick.completed(r.ack("t2", 2)) == []
    assert pick.completed(r.ack("t1", 2, finished(make, "t1"))) == [2]


def test_a_task_that_asks_is_let_go_at_once_and_no_checkpoint_begins_before_it_has_ended(rig, make, pick):
    r = at_its_end(rig, make, pick)
    assert let_go(r.feed(asks(make, "t1"))) == ["t1"]
    assert pick.begun(r.request() + r.tick(1_000)) == []
    effects = r.feed(TaskEnded(task=make.task("t1"), epoch=ONE))
    assert (pick.begun(effects), pick.aborted(effects)) == ([2], [])
    assert pick.completed(r.ack("t2", 2)) == [2]


@pytest.mark.parametrize("ends", ["acknowledged", "aborted"])
def test_a_task_is_let_go_when_no_checkpoint_waits_for_it(rig, make, pick, ends):
    """1. Checkpoint 2 begins. 2. t1 asks to end, before it has the barrier. 3. It has acknowledged, or nobody waits for
    that any more."""
    r = at_its_end(rig, make, pick, max_concurrent=2, tolerable_failures=None)
    assert pick.begun(r.request()) == [2]
    assert let_go(r.feed(asks(make, "t1"))) == []
    assert pick.begun(r.request()) == [], "a task that waits for its end does not do so for ever"
    effects = r.ack("t1", 2, finished(make, "t1")) if ends == "acknowledged" else r.decline("t2", 2)
    assert (let_go(effects), pick.begun(effects)) == (["t1"], [])
    assert pick.begun(r.feed(TaskEnded(task=make.task("t1"), epoch=ONE))) == [3]


def test_a_stop_waits_for_a_task_that_ends(rig, make, pick):
    r = at_its_end(rig, make, pick)
    r.feed(asks(make, "t1"))
    assert pick.begun(r.request(RequestKind.STOP)) == []
    assert pick.begun(r.feed(TaskEnded(task=make.task("t1"), epoch=ONE))) == [2]


def test_when_all_tasks_have_their_last_checkpoint_no_further_one_is_asked_for(rig, make, pick):
    r = rig().start()
    end_data(r, make, "t1")
    assert pick.begun(end_data(r, make, "t2")) == [1]
    r.ack("t1", 1, finished(make, "t1"))
    assert pick.completed(r.ack("t2", 1, finished(make, "t2"))) == [1]
    effects = r.until(2_000) + r.feed(asks(make, "t1"), asks(make, "t2"))
    assert (pick.begun(effects), let_go(effects)) == ([], ["t1", "t2"])
    ended = r.feed(*(TaskEnded(task=make.task(t), epoch=ONE) for t in ("t1", "t2")))
    assert (pick.begun(ended), pick.aborted(ended)) == ([], [])


def test_when_all_tasks_have_their_last_checkpoint_the_schedule_is_off_and_users_may_still_ask(rig, make, pick):
    """Tasks may wait for long until their last results are committed."""
    r = rig(interval_ms=100).start()
    end_data(r, make, "t1", "t2")
    r.until(1_500)
    r.ack("t1", 1, finished(make, "t1"))
    effects = r.ack("t2", 1, finished(make, "t2"))
    assert (pick.completed(effects), pick.begun(effects + r.until(3_000))) == ([1], [])
    assert r.coordinator.next_deadline() is None
    assert pick.begun(r.request()) == [2]


def test_a_checkpoint_that_was_the_last_one_for_all_tasks_is_not_followed_by_another(rig, make, pick):
    """1. Checkpoint 1 begins. 2. All tasks come to the end of their data before they take it, and one that is to be the
    last is asked for. 3. Checkpoint 1 completes."""
    r = rig().start()
    r.request()
    end_data(r, make, "t1", "t2")
    r.ack("t1", 1, finished(make, "t1"))
    effects = r.ack("t2", 1, finished(make, "t2"))
    assert (pick.completed(effects), pick.begun(effects + r.until(10_000))) == ([1], [])
    assert r.coordinator.next_deadline() is None


@pytest.mark.parametrize("asked", [False, True])
def test_a_task_that_was_about_to_end_and_is_restarted_takes_part_again(rig, make, pick, asked):
    r = at_its_end(rig, make, pick)
    if asked:
        r.feed(asks(make, "t1"))
    r.feed(FailedOver())
    assert let_go(r.feed(asks(make, "t1"))) == [], "it does not run"
    r.start()
    assert let_go(r.feed(asks(make, "t1"))) == [], "that was its predecessor"
    assert pick.begun(r.request()) == [2]

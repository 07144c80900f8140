"""The job's life, event by event: two slots, two tasks, and everything that can go wrong around them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifecycle_rig import cancelled, feed, kinds, ready, slot, tasks, tick, up

from penstock.core.effects import Ticked
from penstock.core.errors import InvariantError
from penstock.core.ids import Epoch, Instant, SlotId, SlotIndex
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEnded,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    RunTasks,
    SlotCancelled,
    SlotGone,
    SlotHeard,
    SlotReady,
    SlotRegistered,
    StartSlot,
    StopSlot,
    TaskDone,
    TellCancel,
    TellLeave,
)
from penstock.core.job.lifecycle import LEAVE_TIMEOUT_MS, JobLifecycle
from penstock.settings import ExponentialDelay, FixedDelay, NoRestart, Restart, SlotSettings

A1, B1, A2, B2 = slot(0), slot(1), slot(0, 2), slot(1, 2)
TASKS = tasks(2)
BAD = FailureCause(text="boom")
SLOTS = SlotSettings(start_timeout_ms=1_000, heartbeat_timeout_ms=10_000, cancel_timeout_ms=500, deploy_timeout_ms=800)


def lifecycle(restart: Restart | None = None) -> JobLifecycle:
    return JobLifecycle(slots=2, tasks=TASKS, settings=SLOTS, restart=restart or FixedDelay(attempts=2, delay_ms=100))


def running(restart: Restart | None = None) -> JobLifecycle:
    job = lifecycle(restart)
    feed(job, 0, JobStarted(), *up(A1, B1), *ready(1, A1, B1))
    assert job.state is JobState.RUNNING
    return job


def failed(epoch: int) -> AttemptFailed:
    return AttemptFailed(epoch=Epoch(epoch), cause=BAD)


def test_deploys_only_when_every_slot_is_up_and_runs_only_when_every_slot_is_ready():
    job = lifecycle()
    assert feed(job, 0, JobStarted()) == [StartSlot(slot=A1), StartSlot(slot=B1)]
    assert feed(job, 1, *up(A1)) == []
    assert feed(job, 2, *up(B1)) == [DeployTasks(epoch=Epoch(1), slots=(A1, B1))]
    assert feed(job, 3, *ready(1, B1)) == []
    assert feed(job, 4, *ready(1, A1)) == [RunTasks(epoch=Epoch(1), slots=(A1, B1))]


def test_finishes_when_the_last_task_is_done_and_the_last_slot_has_left():
    job = running()
    assert feed(job, 10, TaskDone(epoch=Epoch(1), task=TASKS[0])) == []
    assert feed(job, 11, TaskDone(epoch=Epoch(1), task=TASKS[1])) == [
        JobEnding(outcome=JobState.FINISHED, cause=None),
        TellLeave(slot=A1),
        TellLeave(slot=B1),
    ]
    assert feed(job, 12, SlotGone(slot=A1, error=None)) == []
    assert feed(job, 13, SlotGone(slot=B1, error=None)) == [JobEnded(outcome=JobState.FINISHED, cause=None)]
    assert job.next_deadline() is None


def test_a_failed_task_is_restarted_in_place_after_the_pause_once_survivors_are_clean():
    job = running()
    assert feed(job, 10, failed(1)) == [
        AttemptEnded(epoch=Epoch(1), cause=BAD, restart_in_ms=100),
        TellCancel(slot=A1, epoch=Epoch(1)),
        TellCancel(slot=B1, epoch=Epoch(1)),
    ]
    assert feed(job, 11, *cancelled(1, A1, B1)) == []
    assert job.state is JobState.RESTARTING
    assert tick(job, 109) == []
    assert tick(job, 110) == [DeployTasks(epoch=Epoch(2), slots=(A1, B1))]


def test_waits_for_a_slow_survivor_even_when_the_pause_is_over():
    job = running()
    feed(job, 10, failed(1), *cancelled(1, A1))
    assert tick(job, 200) == []
    assert feed(job, 210, *cancelled(1, B1)) == [DeployTasks(epoch=Epoch(2), slots=(A1, B1))]


def test_a_lost_slot_gets_a_new_incarnation_and_the_survivor_is_cancelled():
    job = running(FixedDelay(attempts=1, delay_ms=0))
    effects = feed(job, 10, SlotGone(slot=A1, error="killed"))
    assert kinds(effects) == [AttemptEnded, TellCancel, StartSlot]
    assert effects[2] == StartSlot(slot=A2)
    assert feed(job, 11, *cancelled(1, B1)) == []
    assert feed(job, 12, *up(A2)) == [DeployTasks(epoch=Epoch(2), slots=(A2, B1))]


def test_losing_a_second_slot_while_failing_costs_no_second_restart():
    job = running(FixedDelay(attempts=1, delay_ms=0))
    feed(job, 10, SlotGone(slot=A1, error="killed"))
    assert feed(job, 11, SlotGone(slot=B1, error="killed too")) == [StartSlot(slot=B2)]
    assert feed(job, 12, *up(A2, B2)) == [DeployTasks(epoch=Epoch(2), slots=(A2, B2))]


def test_a_driver_that_takes_the_job_over_numbers_its_attempts_and_slots_above_those_before_it():
    job = JobLifecycle(slots=1, tasks=TASKS[:1], settings=SLOTS, restart=NoRestart(), first_epoch=3_000_001)
    slot = SlotId(SlotIndex(0), 3_000_001)
    assert feed(job, 0, JobStarted()) == [StartSlot(slot=slot)]
    assert feed(job, 0, SlotRegistered(slot=A1)) == [TellLeave(slot=A1)]
    assert feed(job, 0, SlotRegistered(slot=slot)) == [DeployTasks(epoch=Epoch(3_000_001), slots=(slot,))]


def test_a_job_that_ran_before_does_not_take_bad_luck_for_a_wrong_environment():
    for ran_before in (False, True):
        restart = FixedDelay(attempts=9, delay_ms=0)
        job = JobLifecycle(slots=1, tasks=TASKS[:1], settings=SLOTS, restart=restart, ran_before=ran_before)
        feed(job, 0, JobStarted())
        for incarnation in (1, 2, 3):
            feed(job, 0, SlotGone(slot=SlotId(SlotIndex(0), incarnation), error="no luck"))
        assert (job.state is JobState.STARTING) is ran_before


def test_a_woken_process_of_an_older_incarnation_is_sent_away():
    job = running(FixedDelay(attempts=1, delay_ms=0))
    feed(job, 10, SlotGone(slot=A1, error="silent"))
    assert feed(job, 11, *up(A1)) == [TellLeave(slot=A1)]
    assert feed(job, 12, *ready(1, A1), *cancelled(1, A1), SlotGone(slot=A1, error="again")) == []
    assert feed(job, 12, SlotHeard(slot=A1)) == []


def test_news_of_an_older_epoch_changes_nothing():
    job = running(FixedDelay(attempts=1, delay_ms=0))
    feed(job, 10, failed(1), *cancelled(1, A1, B1))
    assert job.state is JobState.DEPLOYING
    assert feed(job, 11, *ready(1, A1, B1), failed(1), TaskDone(epoch=Epoch(1), task=TASKS[0])) == []
    assert feed(job, 12, *ready(2, A1, B1)) == [RunTasks(epoch=Epoch(2), slots=(A1, B1))]


def test_registering_twice_is_a_sign_of_life_only():
    job = running()
    assert feed(job, 5_000, *up(A1)) == []
    assert job.next_deadline() == 10_000  # of the other slot


def test_a_slot_that_the_cluster_started_again_counts_as_lost_and_arrived():
    job = running(FixedDelay(attempts=1, delay_ms=0))
    again = SlotId(SlotIndex(0), 1, 1)
    effects = feed(job, 10, *up(again))
    assert kinds(effects) == [AttemptEnded, TellCancel]
    assert effects[1] == TellCancel(slot=B1, epoch=Epoch(1))
    assert feed(job, 11, *cancelled(1, B1)) == [DeployTasks(epoch=Epoch(2), slots=(again, B1))]


def test_a_slot_of_the_clusters_second_try_may_be_the_first_to_call_in():
    job = lifecycle()
    again = SlotId(SlotIndex(0), 1, 1)
    feed(job, 0, JobStarted())
    assert feed(job, 1, *up(again, B1)) == [DeployTasks(epoch=Epoch(1), slots=(again, B1))]
    assert feed(job, 2, *up(A1)) == [TellLeave(slot=A1)]


def test_gives_up_when_the_strategy_is_used_up_and_says_why():
    job = running(NoRestart())
    effects = feed(job, 10, failed(1))
    told = FailureCause(text="boom", why_final="no_restart() was given")
    assert effects[0] == AttemptEnded(epoch=Epoch(1), cause=told, restart_in_ms=None)
    assert effects[1] == JobEnding(outcome=JobState.FAILED, cause=told)
    feed(job, 11, SlotGone(slot=A1, error=None))
    assert feed(job, 12, SlotGone(slot=B1, error=None)) == [JobEnded(outcome=JobState.FAILED, cause=told)]


def test_a_slot_lost_for_good_with_no_restart_ends_the_job_without_asking_for_another():
    job = running(NoRestart())
    effects = feed(job, 10, SlotGone(slot=A1, error="killed"))
    assert StartSlot not in kinds(effects)
    assert kinds(feed(job, 11, SlotGone(slot=B1, error=None))) == [JobEnded]


def test_slots_that_cannot_start_before_the_first_run_fail_the_job_after_three_tries():
    job = lifecycle()
    feed(job, 0, JobStarted())
    assert feed(job, 1, SlotGone(slot=A1, error="no module")) == [StartSlot(slot=A2)]
    assert feed(job, 2, SlotGone(slot=A2, error="no module")) == [StartSlot(slot=SlotId(SlotIndex(0), 3))]
    effects = feed(job, 3, SlotGone(slot=SlotId(SlotIndex(0), 3), error="no module"))
    assert isinstance(effects[0], JobEnding)
    assert effects[0].cause is not None
    assert "no module" in effects[0].cause.text
    assert isinstance(effects[-1], JobEnded)


def test_attempts_that_fail_before_the_first_run_do_not_count_as_slots_that_cannot_start():
    job = lifecycle(FixedDelay(attempts=9, delay_ms=0))
    feed(job, 0, JobStarted(), *up(A1, B1))
    for epoch in (1, 2, 3):
        feed(job, epoch, failed(epoch), *cancelled(epoch, A1, B1))
    assert job.state is JobState.DEPLOYING
    feed(job, 10, SlotGone(slot=B1, error="killed"))
    assert feed(job, 11, SlotGone(slot=B2, error="did not start")) == [StartSlot(slot=SlotId(SlotIndex(1), 3))]


def test_a_slot_that_dies_in_the_pause_is_waited_for_after_it():
    job = running(FixedDelay(attempts=5, delay_ms=500))
    feed(job, 10, failed(1), *cancelled(1, A1, B1))
    assert job.state is JobState.RESTARTING
    assert feed(job, 20, SlotGone(slot=A1, error="killed")) == [StartSlot(slot=A2)]
    assert tick(job, 510) == []
    assert feed(job, 600, *up(A2)) == [DeployTasks(epoch=Epoch(2), slots=(A2, B1))]


def test_too_few_slots_in_time_says_how_many_came_and_which_are_missing():
    job = lifecycle()
    feed(job, 0, JobStarted(), *up(A1))
    effects = tick(job, 1_000)
    assert isinstance(effects[0], JobEnding)
    assert effects[0].cause is not None
    assert "only 1 of 2 slots came up in 1000 ms (missing: 1)" in effects[0].cause.text
    assert StopSlot(slot=B1) in effects
    assert TellLeave(slot=A1) in effects


def test_a_silent_slot_is_stopped_and_replaced():
    job = running(FixedDelay(attempts=1, delay_ms=0))
    feed(job, 9_000, SlotHeard(slot=B1))
    effects = tick(job, 10_000)
    assert kinds(effects) == [StopSlot, AttemptEnded, TellCancel, StartSlot]
    assert effects[0] == StopSlot(slot=A1)


def test_a_slot_that_does_not_drop_its_tasks_is_stopped_and_replaced():
    job = running(FixedDelay(attempts=1, delay_ms=0))
    feed(job, 10, failed(1), *cancelled(1, A1))
    assert tick(job, 510) == [StopSlot(slot=B1), StartSlot(slot=B2)]
    assert feed(job, 520, *up(B2)) == [DeployTasks(epoch=Epoch(2), slots=(A1, B2))]


def test_a_slot_that_does_not_restore_in_time_is_stopped_and_replaced():
    job = lifecycle(FixedDelay(attempts=1, delay_ms=0))
    feed(job, 0, JobStarted(), *up(A1, B1), *ready(1, A1))
    effects = tick(job, 800)
    assert kinds(effects) == [StopSlot, AttemptEnded, TellCancel, StartSlot]
    assert effects[0] == StopSlot(slot=B1)


def test_cancel_lets_every_slot_go_and_is_heard_once():
    job = running()
    assert kinds(feed(job, 10, CancelRequested())) == [JobEnding, TellLeave, TellLeave]
    assert feed(job, 11, CancelRequested()) == []
    assert feed(job, 12, *up(A1)) == [TellLeave(slot=A1)]
    effects = tick(job, 10 + LEAVE_TIMEOUT_MS)
    assert effects == [StopSlot(slot=A1), StopSlot(slot=B1), JobEnded(outcome=JobState.CANCELLED, cause=None)]
    assert feed(job, 9_999, CancelRequested()) == []
    assert feed(job, 9_999, Ticked()) == []


def test_cancel_before_any_slot_came_up_ends_at_once():
    job = lifecycle()
    feed(job, 0, JobStarted())
    assert kinds(feed(job, 1, CancelRequested())) == [JobEnding, StopSlot, StopSlot, JobEnded]


def test_a_slot_the_job_does_not_have_is_sent_away():
    job = running()
    stranger = SlotId(SlotIndex(7), 1)
    assert feed(job, 1, *up(stranger)) == [TellLeave(slot=stranger)]
    assert feed(job, 1, SlotGone(slot=stranger, error=None)) == []


def test_starting_twice_is_our_bug():
    job = running()
    with pytest.raises(InvariantError):
        job.handle(JobStarted(), Instant(1))


def test_validate_finds_a_running_job_whose_slot_is_not_ready():
    job = running()
    job._attempt.epoch = Epoch(5)
    with pytest.raises(InvariantError, match="not ready"):
        job.validate()


def test_validate_finds_an_ended_job_with_slots_left():
    job = running()
    job._attempt.state = JobState.FINISHED
    with pytest.raises(InvariantError, match="slots are left"):
        job.validate()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1), st.integers(0, 400)), max_size=60))
def test_whatever_happens_no_two_epochs_share_a_slot_and_time_never_livelocks(steps: list[tuple[int, int, int]]):
    """A slot gets `DeployTasks` of an epoch only after it is fresh or has said that all earlier tasks are gone."""
    job = lifecycle(ExponentialDelay(initial_ms=50, max_ms=200))
    feed(job, 0, JobStarted())
    clean: dict[SlotId, int] = {}
    now = 0
    for kind, number, wait_ms in steps:
        slot = job.slots[number]
        epoch = job.epoch
        now += wait_ms
        events: dict[int, JobEvent] = {
            0: SlotRegistered(slot=slot),
            1: SlotReady(slot=slot, epoch=epoch),
            2: SlotCancelled(slot=slot, epoch=epoch),
            3: SlotGone(slot=slot, error="x"),
            4: AttemptFailed(epoch=epoch, cause=BAD),
            5: SlotHeard(slot=slot),
            6: Ticked(),
            7: TaskDone(epoch=epoch, task=TASKS[number]),
            8: SlotRegistered(slot=SlotId(slot.number, max(1, slot.incarnation - 1))),
            9: SlotRegistered(slot=SlotId(slot.number, slot.incarnation, slot.attempt + 1)),
        }
        event = events[kind]
        if isinstance(event, SlotRegistered) and event.slot not in clean:
            clean[event.slot] = epoch
        if isinstance(event, SlotCancelled):
            clean[slot] = epoch
        for effect in job.handle(event, Instant(now)):
            if isinstance(effect, DeployTasks):
                assert all(clean.get(s, -1) >= effect.epoch - 1 for s in effect.slots)
                for s in effect.slots:
                    clean[s] = effect.epoch - 1
        job.validate()
        if kind == 6:
            deadline = job.next_deadline()
            assert deadline is None or deadline > now


def test_the_price_of_what_a_user_asked_for_is_no_failure_to_the_restart_strategy():
    job = running(NoRestart())
    cause = FailureCause(text="the stop came to nothing", free=True)
    effects = feed(job, 10, AttemptFailed(epoch=Epoch(1), cause=cause))
    assert effects[0] == AttemptEnded(epoch=Epoch(1), cause=cause, restart_in_ms=0)
    assert feed(job, 11, *cancelled(1, A1, B1)) == [DeployTasks(epoch=Epoch(2), slots=(A1, B1))]

"""Slots that stand by: one takes the place of a slot that dies at once, and never costs the job anything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lifecycle_rig import feed, ready, slot, tasks, up

from penstock.core.effects import Ticked
from penstock.core.ids import Epoch, SlotId, TaskId, VertexId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    AttemptRescaled,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEffect,
    JobEnded,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    RescaleConfirmed,
    RescalePrepared,
    RescaleRequested,
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
from penstock.core.job.standby_pause import LONGEST_STANDBY_PAUSE_MS, STANDBY_PAUSE_MS
from penstock.settings import FixedDelay, SlotSettings

TASKS = tasks(2)


A, B, C, D = (slot(number) for number in range(4))


def lifecycle(spares: int = 1) -> JobLifecycle:
    settings = SlotSettings(
        start_timeout_ms=100_000,
        heartbeat_timeout_ms=1_000_000,
        cancel_timeout_ms=500,
        deploy_timeout_ms=800,
        spares=spares,
    )
    return JobLifecycle(slots=2, tasks=TASKS, settings=settings, restart=FixedDelay(attempts=9, delay_ms=0))


def gone(which: SlotId) -> SlotGone:
    return SlotGone(slot=which, error="killed")


def running(spares: int = 1) -> JobLifecycle:
    """Runs on A and B; C (and D) stand by."""
    job = lifecycle(spares)
    feed(job, 0, JobStarted(), *up(A, B), *ready(1, A, B), *up(*(slot(2 + i) for i in range(spares))))
    assert job.state is JobState.RUNNING
    return job


def state_of(job: JobLifecycle) -> JobState:
    return job.state


def spares_of(job: JobLifecycle) -> tuple[SlotId, ...]:
    return job.spares


def started(effects: list[JobEffect]) -> list[SlotId]:
    return [effect.slot for effect in effects if isinstance(effect, StartSlot)]


def test_a_spare_is_asked_for_when_the_job_runs_and_not_before():
    job = lifecycle()
    assert started(feed(job, 0, JobStarted(), *up(A, B))) == [A, B]
    assert feed(job, 1, *ready(1, A, B)) == [RunTasks(epoch=Epoch(1), slots=(A, B)), StartSlot(slot=C)]
    assert spares_of(job) == ()
    assert feed(job, 2, *up(C)) == []
    assert spares_of(job) == (C,)
    assert job.slots == (A, B)


def test_it_takes_the_place_of_a_slot_that_dies_and_the_next_is_asked_for_when_the_job_runs_again():
    job = running()
    effects = feed(job, 10, gone(A))
    assert [type(effect) for effect in effects] == [AttemptEnded, TellCancel]
    assert job.slots == (C, B)
    assert feed(job, 11, SlotCancelled(slot=B, epoch=Epoch(1))) == [DeployTasks(epoch=Epoch(2), slots=(C, B))]
    assert feed(job, 12, *ready(2, C, B)) == [RunTasks(epoch=Epoch(2), slots=(C, B)), StartSlot(slot=slot(0, 2))]
    assert feed(job, 13, *up(slot(0, 2))) == []
    assert spares_of(job) == (slot(0, 2),)


def test_when_all_others_are_clean_already_the_next_attempt_is_deployed_at_once():
    job = running()
    feed(job, 10, AttemptFailed(epoch=Epoch(1), cause=FailureCause(text="x")), SlotCancelled(slot=B, epoch=Epoch(1)))
    assert feed(job, 11, gone(A)) == [DeployTasks(epoch=Epoch(2), slots=(C, B))]


def test_the_slot_that_died_is_sent_away_should_it_call_after_all():
    job = running()
    feed(job, 10, gone(A))
    assert feed(job, 11, *up(A)) == [TellLeave(slot=A)]
    assert feed(job, 12, *up(slot(0, 1, 1))) == [TellLeave(slot=slot(0, 1, 1))]


def test_more_deaths_than_spares_are_replaced_as_ever():
    job = running()
    assert started(feed(job, 10, gone(A))) == []
    assert started(feed(job, 11, gone(B))) == [slot(1, 2)]
    assert feed(job, 12, *up(slot(1, 2))) == [DeployTasks(epoch=Epoch(2), slots=(C, slot(1, 2)))]


def test_two_spares_take_two_places():
    job = running(spares=2)
    feed(job, 10, gone(B))
    assert feed(job, 11, gone(A)) == [DeployTasks(epoch=Epoch(2), slots=(D, C))]
    assert started(feed(job, 12, *ready(2, D, C))) == [slot(0, 2), slot(1, 2)]


def test_a_spare_that_comes_up_while_a_member_is_missing_gets_its_place_and_the_member_stands_by_then():
    """There may be one core for the two of them, and Spark gives it to whom was asked for first."""
    job = lifecycle()
    feed(job, 0, JobStarted(), *up(A, B), *ready(1, A, B))
    assert started(feed(job, 10, gone(A), SlotCancelled(slot=B, epoch=Epoch(1)))) == [slot(0, 2)]
    assert feed(job, 11, *up(C)) == [DeployTasks(epoch=Epoch(2), slots=(C, B))]
    assert spares_of(job) == ()
    assert started(feed(job, 12, *ready(2, C, B))) == []
    assert feed(job, 13, *up(slot(0, 2))) == []
    assert spares_of(job) == (slot(0, 2),)


def test_a_lost_spare_disturbs_nobody_and_is_asked_for_again_after_a_pause_that_grows():
    job = running()
    assert feed(job, 10, gone(C)) == []
    assert state_of(job) is JobState.RUNNING
    assert job.next_deadline() == 10 + STANDBY_PAUSE_MS
    assert feed(job, 11, Ticked()) == []
    assert feed(job, 10 + STANDBY_PAUSE_MS, Ticked()) == [StartSlot(slot=slot(2, 2))]
    now = 20_000
    assert feed(job, now, gone(slot(2, 2))) == []
    assert job.next_deadline() == now + 2 * STANDBY_PAUSE_MS
    for incarnation in range(3, 20):
        now = int(job.next_deadline() or 0)
        assert started(feed(job, now, Ticked())) == [slot(2, incarnation)]
        feed(job, now, gone(slot(2, incarnation)))
    assert job.next_deadline() == now + LONGEST_STANDBY_PAUSE_MS
    now += LONGEST_STANDBY_PAUSE_MS
    feed(job, now, Ticked(), *up(slot(2, 20)), gone(slot(2, 20)))
    assert job.next_deadline() == now + STANDBY_PAUSE_MS


def test_a_spare_lost_while_the_job_does_not_run_is_asked_for_when_it_does():
    job = running()
    feed(job, 10, AttemptFailed(epoch=Epoch(1), cause=FailureCause(text="x")), gone(C))
    assert job.next_deadline() == 10
    feed(job, 2_000, SlotCancelled(slot=A, epoch=Epoch(1)), SlotCancelled(slot=B, epoch=Epoch(1)))
    assert started(feed(job, 2_001, *ready(2, A, B))) == [slot(2, 2)]


def test_the_pause_holds_also_for_a_job_that_runs_again_sooner():
    job = running()
    feed(job, 10, AttemptFailed(epoch=Epoch(1), cause=FailureCause(text="x")), gone(C))
    feed(job, 11, SlotCancelled(slot=A, epoch=Epoch(1)), SlotCancelled(slot=B, epoch=Epoch(1)))
    assert started(feed(job, 12, *ready(2, A, B))) == []
    assert job.next_deadline() == 10 + STANDBY_PAUSE_MS


def test_a_silent_spare_is_stopped_and_asked_for_again():
    job = running()
    feed(job, 999_999, SlotHeard(slot=A), SlotHeard(slot=B))
    assert feed(job, 1_000_000, Ticked()) == [StopSlot(slot=C)]
    assert feed(job, 1_000_000 + STANDBY_PAUSE_MS, Ticked()) == [StartSlot(slot=slot(2, 2))]


def test_a_spare_that_the_cluster_started_again_stands_by_as_before():
    job = running()
    assert feed(job, 10, *up(slot(2, 1, 1))) == []
    assert spares_of(job) == (slot(2, 1, 1),)
    assert state_of(job) is JobState.RUNNING


def test_spares_leave_with_the_job():
    job = running(spares=2)
    feed(job, 10, gone(D), Ticked())
    feed(job, 10 + STANDBY_PAUSE_MS, Ticked())
    effects = feed(job, 2_000, TaskDone(epoch=Epoch(1), task=TASKS[0]), TaskDone(epoch=Epoch(1), task=TASKS[1]))
    assert effects == [
        TellLeave(slot=C),
        StopSlot(slot=slot(3, 2)),
        JobEnding(outcome=JobState.FINISHED, cause=None),
        TellLeave(slot=A),
        TellLeave(slot=B),
    ]
    assert feed(job, 2_001, gone(A), gone(B)) == []
    assert feed(job, 2_002, gone(C)) == [JobEnded(outcome=JobState.FINISHED, cause=None)]


def test_a_spare_that_does_not_leave_is_stopped():
    job = running()
    feed(job, 10, CancelRequested(), gone(A), gone(B))
    assert feed(job, 10 + LEAVE_TIMEOUT_MS, Ticked()) == [
        StopSlot(slot=C),
        JobEnded(outcome=JobState.CANCELLED, cause=None),
    ]


def test_a_rescale_gets_slots_of_its_own_and_leaves_the_spare():
    job = running()
    tasks = tuple(TaskId(VertexId("v"), i) for i in range(3))
    assert feed(job, 10, RescaleRequested(slots=3, tasks=tasks)) == [StartSlot(slot=D)]
    assert feed(job, 11, *up(D)) == [RescalePrepared()]
    effects = feed(job, 12, RescaleConfirmed())
    assert AttemptRescaled(epoch=Epoch(1), slots=3) in effects
    assert job.slots == (A, B, D)
    assert spares_of(job) == (C,)


def test_after_a_spare_took_a_place_the_job_rescales_by_places():
    job = running()
    feed(job, 10, gone(A), SlotCancelled(slot=B, epoch=Epoch(1)), *ready(2, C, B), *up(slot(0, 2)))
    one = RescaleRequested(slots=1, tasks=TASKS[:1])
    assert feed(job, 20, one) == [RescalePrepared()]
    effects = feed(job, 21, RescaleConfirmed())
    assert TellLeave(slot=B) in effects
    assert job.slots == (C,)
    assert spares_of(job) == (slot(0, 2),)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 3_000)), max_size=80))
def test_whatever_happens_every_place_is_held_once_and_nobody_is_started_twice(story: list[tuple[int, int, int]]):
    job = lifecycle(2)
    everybody = [effect.slot for effect in feed(job, 0, JobStarted()) if isinstance(effect, StartSlot)]
    now = 0
    for what, number, wait_ms in story:
        now += wait_ms
        chosen = everybody[-1 - number % len(everybody)]
        events: dict[int, JobEvent] = {
            0: SlotRegistered(slot=chosen),
            1: SlotReady(slot=chosen, epoch=job.epoch),
            2: SlotCancelled(slot=chosen, epoch=job.epoch),
            3: gone(chosen),
            4: AttemptFailed(epoch=job.epoch, cause=FailureCause(text="x")),
            5: SlotHeard(slot=chosen),
            6: SlotRegistered(slot=chosen),
            7: SlotReady(slot=chosen, epoch=job.epoch),
            8: SlotRegistered(slot=chosen),
            9: Ticked(),
        }
        effects = feed(job, now, events[what], Ticked())
        deadline = job.next_deadline()
        assert deadline is None or deadline > now
        for asked in started(effects):
            assert asked not in everybody
            everybody.append(asked)
        if not job.state.is_terminal:
            assert len(job.slots) == 2
            assert len({*job.slots, *job.spares}) == 2 + len(job.spares)
            assert len(job.spares) <= 2

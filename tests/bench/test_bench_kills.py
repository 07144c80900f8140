"""Kills happen in the middle, each with a checkpoint to recover from, and recoveries are timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from job_views import make_view

from penstock.bench.kills import Kills
from penstock.core.job.events import JobState


@dataclass
class Victims:
    pids: list[int] = field(default_factory=list)


@pytest.fixture
def victims() -> Victims:
    return Victims()


@pytest.fixture
def kills(victims) -> Callable[[int], Kills]:
    return lambda count: Kills(count=count, events=900, kill=victims.pids.append)


def test_one_kill_comes_half_way(kills, victims):
    plan = kills(1)
    assert plan.look(make_view(completed=1), events_read=449, now_ms=1_000) == []
    notes = plan.look(make_view(completed=1), events_read=450, now_ms=1_100)
    assert notes == ["killed worker pid 4710 of slot 0 (SIGKILL)"]
    assert victims.pids == [4_710]
    assert plan.done == 1
    assert plan.recoveries_ms == []


def test_without_a_completed_checkpoint_nobody_is_killed(kills, victims):
    plan = kills(1)
    plan.look(make_view(completed=0), events_read=800, now_ms=1_000)
    assert victims.pids == []
    plan.look(make_view(completed=1), events_read=850, now_ms=1_100)
    assert len(victims.pids) == 1


@pytest.mark.parametrize("state", [s for s in JobState if s is not JobState.RUNNING])
def test_a_job_that_does_not_run_is_left_alone(kills, victims, state):
    kills(1).look(make_view(state=state, completed=1), events_read=800, now_ms=1_000)
    assert victims.pids == []


def test_recovery_is_over_when_a_later_attempt_runs_and_reads(kills):
    plan = kills(1)
    plan.look(make_view(completed=1), events_read=450, now_ms=1_000)
    not_yet = [
        make_view(completed=1, rows_in=470),
        make_view(completed=1, state=JobState.FAILING),
        make_view(completed=1, epoch=2, state=JobState.DEPLOYING),
        make_view(completed=1, epoch=2, restored=1, rows_in=0),
    ]
    assert [plan.look(view, events_read=400, now_ms=1_500) for view in not_yet] == [[]] * 4
    assert plan.look(make_view(completed=1, epoch=2, restored=1, rows_in=1), events_read=400, now_ms=2_150) == [
        "running again after 1.1 s"
    ]
    assert plan.recoveries_ms == [1_150]


def test_kills_are_spread_take_turns_and_wait_for_a_new_checkpoint(kills, victims):
    plan = kills(2)
    plan.look(make_view(completed=3), events_read=300, now_ms=1_000)
    plan.look(make_view(completed=3, epoch=2, restored=3, rows_in=1), events_read=700, now_ms=2_000)
    plan.look(make_view(completed=3, epoch=2, restored=3, rows_in=9), events_read=700, now_ms=2_100)
    assert victims.pids == [4_710]
    plan.look(make_view(completed=4, epoch=2, restored=3, rows_in=50), events_read=750, now_ms=2_200)
    assert victims.pids == [4_710, 4_711]
    plan.look(make_view(completed=4, epoch=3, restored=4, rows_in=1), events_read=750, now_ms=3_000)
    plan.look(make_view(completed=5, epoch=3, restored=4, rows_in=99), events_read=890, now_ms=3_100)
    assert victims.pids == [4_710, 4_711]
    assert plan.recoveries_ms == [1_000, 800]


def test_no_kill_is_asked_for_no_kill_is_done(kills, victims):
    kills(0).look(make_view(completed=9), events_read=900, now_ms=1_000)
    assert victims.pids == []

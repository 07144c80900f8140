"""Sources that are behind, and how often checkpoints are taken meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.core.coordinator.schedule import PeriodicSchedule
from penstock.settings import BacklogInterval
from penstock.sim.faults import SlotCrash
from penstock.sim.jobs import OnDriver
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice

OFF = BacklogInterval(interval_ms=None)
CRASH = SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD)
FINDS = OnDriver(sources=(0,), known=0, at_once=1, look_ms=20, unread=None)


def behind(make: Any, *, rows: int, during: BacklogInterval | None = OFF, **changes: Any) -> Scenario:
    """A world of about 600 ms, with a checkpoint every 20 ms while no source is behind."""
    workload = {"splits": 6, "rows": 60, "pause_ms": 20, "burst": 1, "batch_rows": 2, "behind_rows": rows}
    plain = make.workload(make.plain(1, **changes), **workload)
    return make.checkpoints(plain, interval_ms=20, during_backlog=during)


def test_some_worlds_have_sources_that_are_behind_with_every_kind_of_interval():
    drawn = [scenario_of(seed) for seed in range(1, 301)]
    found = [w.settings.checkpoint.during_backlog for w in drawn if w.workload.behind_rows]
    assert 0.05 < len(found) / len(drawn) < 0.25
    assert {each.interval_ms is None for each in found if each is not None} == {True, False}


@pytest.mark.parametrize("on_driver", [None, FINDS])
def test_checkpoints_are_as_rare_as_asked_for_while_a_source_is_behind(make: Any, on_driver: OnDriver | None):
    """The last checkpoint, at the end of the data, and perhaps the first, which was due before anybody had said so."""

    def checkpoints(rows: int, during: BacklogInterval | None) -> int:
        world = make.workload(behind(make, rows=rows, during=during), on_driver=on_driver)
        told = run_scenario(world)
        assert told.violations == ()
        return told.checkpoints

    often, rare = checkpoints(0, OFF), checkpoints(60, OFF)
    assert rare < often / 3
    assert checkpoints(60, None) > often / 2
    assert rare < checkpoints(30, OFF) < often


def test_a_job_that_is_behind_and_fails_says_again_that_it_is(make: Any):
    told = run_scenario(behind(make, rows=60, faults=(CRASH,)))
    assert told.violations == ()
    assert told.attempts == 2
    assert told.checkpoints <= 6


def test_a_source_that_is_forgotten_to_be_behind_shows(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = run_scenario(behind(make, rows=60)).checkpoints
    monkeypatch.setattr(PeriodicSchedule, "change_backlog", lambda self, who, now, *, backlog: None)
    assert run_scenario(behind(make, rows=60)).checkpoints > 3 * honest


def test_a_world_with_a_backlog_runs_twice_alike(make: Any):
    world = replace(behind(make, rows=30, faults=(CRASH,)), lasting=True)
    assert run_scenario(world).digest == run_scenario(world).digest

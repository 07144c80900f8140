"""A loop takes no turn for longer than anybody may be silent, and its process lives: nobody is given up for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_bugs import worlds

from penstock.runtime.pulse import Pulse
from penstock.sim.faults import BusyLoop, SlotCrash, SlotPause
from penstock.sim.jobs import Shape
from penstock.sim.run import run_scenario
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice

BUSY_MS = 12_000
"""More than twice as long as anybody may be silent."""


def busy(make: Any, fault: Any, count: int = 3, **settings: Any) -> list[Scenario]:
    """Worlds with an exchange between slots, in which nothing else goes wrong."""
    made = worlds(make, count, make.steady, lambda s: make.shape(s, Shape.WINDOW), faults=(fault,))
    return [
        make.checkpoints(
            make.settings(make.workload(s, rows=80), slot=replace(s.settings.slot, **settings)),
            interval_ms=200,
            timeout_ms=60_000,
            tolerable_failures=None,
        )
        for s in made
    ]


@pytest.mark.parametrize("slot", [0, 1, None], ids=["slot 0", "slot 1", "master"])
def test_a_loop_that_does_not_turn_in_a_process_that_lives_ends_no_attempt(make: Any, slot: int | None):
    for scenario in busy(make, BusyLoop(at_ms=400, for_ms=BUSY_MS, slot=slot)):
        result = run_scenario(scenario)
        assert (result.violations, result.attempts, result.crashes) == ((), 1, 0)
        assert result.virtual_ms > BUSY_MS


def test_a_loop_that_is_busy_before_its_slot_learns_of_the_attempt_is_missed_by_no_other_slot(make: Any):
    """It has no link yet that its process could keep alive. Slot 0 comes up late, and slot 1 waits for it."""
    for scenario in busy(make, BusyLoop(at_ms=60, for_ms=BUSY_MS, slot=1), 6):
        late = replace(scenario, start_us=(1_000, 100_000))
        late = make.settings(late, slot=replace(late.settings.slot, deploy_timeout_ms=60_000))
        result = run_scenario(late)
        assert (result.violations, result.attempts, result.crashes) == ((), 1, 0)


def test_a_slot_may_miss_a_dead_slot_by_itself_while_the_master_is_busy(make: Any):
    """1. The loop of the master is busy. 2. A slot dies, and the master can tell no other slot. 3. The other slots take
    their links to the dead slot for broken, and are right."""
    death = SlotCrash(at_ms=410, slot=1, notice=Notice.TOLD)
    for scenario in busy(make, BusyLoop(at_ms=400, for_ms=2 * BUSY_MS, slot=None)):
        result = run_scenario(replace(scenario, faults=(*scenario.faults, death)), keep_log=True)
        assert (result.violations, result.crashes) == ((), 1)
        assert any("TaskFailed" in line and "LinkBroken" in line for line in result.log)


def test_without_a_pulse_it_would(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Pulse, "beat", lambda self, now: None)
    results = [run_scenario(s) for s in busy(make, BusyLoop(at_ms=400, for_ms=BUSY_MS, slot=0))]
    assert all(result.attempts > 1 for result in results)


def test_a_process_that_is_stopped_is_given_up_as_ever(make: Any):
    results = [run_scenario(s) for s in busy(make, SlotPause(at_ms=400, for_ms=BUSY_MS, slot=0))]
    assert all(result.attempts > 1 for result in results)
    assert [violation for result in results for violation in result.violations] == []


def test_a_loop_that_is_stuck_for_longer_than_the_settings_allow_is_given_up_and_nothing_is_lost(make: Any):
    fault = BusyLoop(at_ms=400, for_ms=BUSY_MS, slot=0)
    for scenario in busy(make, fault, stuck_after_ms=1_000, stuck_timeout_ms=3_000):
        result = run_scenario(scenario, keep_log=True)
        assert (result.violations, result.attempts) == ((), 2)
        assert any("its loop did not turn for" in line for line in result.log)


def test_people_are_told_of_a_loop_that_is_stuck_and_that_it_goes_on(make: Any):
    (scenario,) = busy(make, BusyLoop(at_ms=400, for_ms=BUSY_MS, slot=0), 1, stuck_after_ms=1_000)
    log = "\n".join(run_scenario(scenario, keep_log=True).log)
    assert log.count("and its process lives") == 3
    assert log.count("goes on: the code that it was in has returned") == 1

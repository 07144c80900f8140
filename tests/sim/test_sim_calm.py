"""The calm after the safety phase: no fault strikes or lasts then, and what the faults left is not held against the
job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_bugs import found

from penstock.settings import SlotSettings
from penstock.sim.faults import CrashAfterCheckpoint, CrashAfterRescale, DriverOversleeps, Fault, SlotCrash
from penstock.sim.run import run_scenario
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

RESCALE = UserRequest(at_ms=0, wish=Wish.RESCALE, moment=Moment.RUN, delay_ms=10, parallelism=3)
LATE_MS = 700
"""Longer than the safety phase of a world that has faults of such a delay."""


def deaths(world: Scenario) -> int:
    """How many processes died."""
    result = run_scenario(world)
    assert not result.violations
    return result.crashes + result.takeovers


@pytest.mark.parametrize("slot", [0, None], ids=["slot", "driver"])
@pytest.mark.parametrize("kind", [CrashAfterRescale, CrashAfterCheckpoint])
def test_no_process_dies_in_the_calm_whatever_its_death_waited_for(make: Any, kind: type[Any], slot: int | None):
    """1. A process is to die some time after a checkpoint, or after a rescale. 2. That happens. 3. The safety phase is
    over before the process dies."""
    late = kind(at_ms=0, slot=slot, delay_ms=LATE_MS, notice=Notice.SILENT)
    worlds = [make.plain(n, faults=(late,), safety_ms=LATE_MS - 100, requests=(RESCALE,), lasting=True) for n in (1, 2)]
    worlds = [make.workload(world, pause_ms=600) for world in worlds]
    assert [deaths(world) for world in worlds] == [0, 0]
    assert all(deaths(replace(world, faults=(replace(late, delay_ms=100),))) for world in worlds)


def test_a_driver_that_sleeps_after_a_checkpoint_is_awake_in_the_calm(make: Any):
    """1. A driver is to sleep for the whole safety phase. 2. The sleep waits for a checkpoint, and so begins later."""
    sleep = DriverOversleeps(at_ms=0, for_ms=LATE_MS, taken_over_ms=LATE_MS, after_checkpoint_us=0)
    worlds = [make.plain(n, faults=(sleep,), safety_ms=LATE_MS, lasting=True) for n in range(3)]
    logs = [run_scenario(make.workload(world, pause_ms=200), keep_log=True).log for world in worlds]
    takeover = "sleeps, and another driver takes the job over"
    taken_over = [float(line.split()[0]) for log in logs for line in log if takeover in line]
    assert len(taken_over) == len(worlds)
    assert max(taken_over) <= LATE_MS


DEATHS: tuple[tuple[int, int], ...] = ((1, 442), (2, 160), (3, 466), (5, 409))
"""Worlds, and when a task of slot 1 has been told to end there that has not ended yet."""


@pytest.mark.parametrize(("number", "at_ms"), DEATHS)
def test_a_slot_that_nobody_misses_yet_starves_no_checkpoint(make: Any, number: int, at_ms: int):
    """1. A task is told to end. 2. The slot of that task dies in silence, at the end of the safety phase. 3. No
    checkpoint begins before the slot is missed."""
    crash: Fault = SlotCrash(at_ms=at_ms, slot=1, notice=Notice.SILENT)
    world = make.checkpoints(make.plain(number, faults=(crash,), safety_ms=at_ms), interval_ms=10, max_concurrent=2)
    slot = SlotSettings(heartbeat_interval_ms=300, heartbeat_timeout_ms=5_000)
    assert found([make.settings(world, slot=slot)]) == []

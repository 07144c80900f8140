"""Slots that survive the failure of another one restore from what they have themselves."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.sim.disk import Disk
from penstock.sim.faults import CrashAfterCheckpoint
from penstock.sim.jobs import Shape
from penstock.sim.run import run_scenario
from penstock.sim.simulation import Parts
from penstock.sim.slots import Notice

CRASH = CrashAfterCheckpoint(at_ms=100, slot=1, delay_ms=30, notice=Notice.TOLD)


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize(("limit_bytes", "reads"), [(1_000_000, False), (0, True)])
def test_a_surviving_slot_reads_its_state_from_the_storage_only_without_copies(
    make: Any, unaligned: bool, limit_bytes: int, reads: bool
):
    survivors, replaced = 0, 0
    for number in range(4):
        disks: list[Disk] = []
        scenario = make.shape(make.steady(make.plain(number, faults=(CRASH,))), Shape.WINDOW)
        scenario = make.checkpoints(
            scenario, unaligned=unaligned, inline_threshold_bytes=0, local_copies_bytes=limit_bytes
        )

        def disk(world: Any, made: list[Disk] = disks) -> Disk:
            made.append(Disk(world))
            return made[0]

        result = run_scenario(scenario, parts=Parts(disk=disk))
        assert result.violations == ()
        assert (result.crashes, result.restores) == (1, 1)
        read = [who for who, path in disks[0].reads if "/chk-" in path and not path.endswith("_metadata")]
        survivors += read.count("slot-0.1.0")
        replaced += read.count("slot-1.2.0")
    assert (survivors > 0) is reads
    # One that has just begun has nothing.
    assert replaced > 0

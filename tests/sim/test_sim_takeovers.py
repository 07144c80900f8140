"""A job that outlives its driver: another one takes it over, and what the dead one left half-done does no harm.

Each bug that a takeover could have is put in once and seen found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.ids import CheckpointId
from penstock.core.job.events import JobState
from penstock.core.recovery.layout import JobFolder
from penstock.core.recovery.tenure import Tenure
from penstock.ports import Store
from penstock.settings import Retention
from penstock.sim import masters
from penstock.sim.disk import Disk
from penstock.sim.faults import (
    ClockJump,
    CrashAfterCheckpoint,
    CrashAtEnd,
    CrashInCall,
    DriverOversleeps,
    Fault,
    SlotCrash,
    StorageErrors,
)
from penstock.sim.rules import Rule
from penstock.sim.run import Result, run_scenario
from penstock.sim.scenario import Scenario
from penstock.sim.simulation import SOUND, Parts
from penstock.sim.slots import Notice
from penstock.storage.records import FileRecords
from penstock.storage.tenure import take_over

MASTER_DIES = CrashAfterCheckpoint(at_ms=200, slot=None, delay_ms=0, notice=Notice.TOLD)


def lasting(make: Any, count: int, *faults: Fault, **changes: object) -> list[Scenario]:
    """Worlds of a job that outlives its driver."""
    return [make.plain(number, faults=faults, lasting=True, **changes) for number in range(count)]


def broken_rules(results: list[Result]) -> list[Rule]:
    return list(dict.fromkeys(violation.rule for result in results for violation in result.violations))


def run_all(scenarios: list[Scenario], parts: Parts = SOUND) -> list[Result]:
    return [run_scenario(scenario, parts=parts) for scenario in scenarios]


def test_another_driver_goes_on_where_the_dead_one_was(make: Any):
    results = run_all(lasting(make, 3, MASTER_DIES))
    assert broken_rules(results) == []
    assert [result.takeovers for result in results] == [1, 1, 1]
    assert all(result.restores >= 1 for result in results)


@pytest.mark.parametrize("call", ["send", "submit", "collect", "write", "write-done", "delete", "read", "list"])
def test_a_driver_may_die_at_any_call(make: Any, call: str):
    deaths = [CrashInCall(at_ms=150, slot=None, call=call, calls=n, notice=Notice.TOLD) for n in (1, 2, 5)]
    results = [run_scenario(world) for death in deaths for world in lasting(make, 1, death, loses_unsynced=True)]
    assert broken_rules(results) == []
    assert any(result.takeovers for result in results) or call in ("read", "list")


@pytest.mark.slow
def test_a_driver_may_die_at_any_moment_of_the_end(make: Any):
    worlds = [world for calls in range(1, 26) for world in lasting(make, 1, CrashAtEnd(at_ms=0, calls=calls))]
    keeping = [make.checkpoints(world, retention=Retention.KEEP) for world in worlds[::4]]
    cancelled = [make.checkpoints(world, retention=Retention.KEEP) for world in worlds[::3]]
    results = run_all(worlds + keeping) + run_all([_cancelled(world) for world in cancelled])
    assert broken_rules(results) == []
    assert sum(result.takeovers for result in results) > len(worlds) // 2


def _cancelled(scenario: Scenario) -> Scenario:
    return replace(scenario, cancel_at_ms=400)


@pytest.mark.slow
def test_a_job_that_seems_never_to_have_begun_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """1. The job finishes, its records are dropped. 2. The driver dies. 3. Another finds no record: without the
    outcome it would begin at the beginning, and show every result twice."""
    worlds = [world for calls in range(5, 20) for world in lasting(make, 1, CrashAtEnd(at_ms=0, calls=calls))]
    monkeypatch.setattr(FileRecords, "record_outcome", lambda *_: None)
    assert Rule.NEWEST in broken_rules(run_all(worlds))


def test_a_driver_that_overlooks_the_records_of_the_one_before_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    def blind(store: Store, job: JobFolder) -> Tenure:
        return msgspec.structs.replace(take_over(store, job), completed=(), next_id=CheckpointId(1))

    monkeypatch.setattr(masters, "take_over", blind)
    assert {Rule.NEWEST, Rule.CHECKPOINT_IDS} <= set(broken_rules(run_all(lasting(make, 2, MASTER_DIES))))


FROM_MS = 400


class Doubtful(Disk):
    """From some time on, the first record is written, its writer is told that it was not, and cannot look either."""

    record: str | None = None
    blind_until_us = 0

    def draw_fault(self, call: str, path: str) -> str | None:
        now_us = self.world.now_us
        if call == "write" and "/completed/" in path and self.record is None and now_us >= FROM_MS * 1_000:
            self.record = path
            self.blind_until_us = now_us + 1_000
            return "after"
        return "before" if call == "list" and path.endswith("/completed") and now_us < self.blind_until_us else None


@pytest.mark.parametrize("withdraws", [True, False])
@pytest.mark.slow
def test_a_doubtful_record_is_withdrawn_before_an_older_checkpoint_is_restored(
    make: Any, monkeypatch: pytest.MonkeyPatch, withdraws: bool
):
    """1. The record of a checkpoint is there, and the driver does not know it. 2. A slot dies: the job restarts from
    the checkpoint before, and the sink drops what the doubtful one had promised. 3. The driver dies. 4. Another one
    finds the record, if it is still there, and would have the sink commit what was dropped."""
    if not withdraws:
        monkeypatch.setattr(CheckpointCoordinator, "doubtful", property(lambda self: ()))
    slot_dies = CrashAfterCheckpoint(at_ms=FROM_MS, slot=1, delay_ms=5, notice=Notice.TOLD)
    worlds = [
        make.checkpoints(make.workload(world, rows=120), min_pause_ms=400)
        for later_ms in range(500, 1_300, 200)
        for world in lasting(
            make,
            1,
            slot_dies,
            SlotCrash(at_ms=FROM_MS + later_ms, slot=None, notice=Notice.TOLD),
            work_us=(50, 300),
            liveness_ms=8_000,
        )
    ]
    found = broken_rules(run_all(worlds, Parts(disk=Doubtful)))
    assert found == ([] if withdraws else [Rule.FENCING, Rule.LIVENESS])


@pytest.mark.parametrize("by_ms", [-5_000, -50, 50, 5_000, 3_600_000])
def test_a_clock_that_jumps_does_no_harm(make: Any, by_ms: int):
    jumps = (ClockJump(at_ms=150, slot=0, by_ms=by_ms), ClockJump(at_ms=300, slot=0, by_ms=max(-by_ms, -5_000)))
    timed = [
        make.checkpoints(make.steady(world), unaligned=True, aligned_timeout_ms=5, max_concurrent=1)
        for world in lasting(make, 2, *jumps)
    ]
    assert broken_rules(run_all(timed)) == []


# --- two drivers at once ---------------------------------------------------------------------------------------------


def oversleeping(make: Any) -> list[Scenario]:
    """The driver falls asleep at all kinds of moments, and wakes up beside the one that took the job over."""
    return [
        make.workload(world, rows=120)
        for at_ms in range(130, 390, 40)
        for slept_ms in (30, 400)
        for world in lasting(
            make,
            1,
            DriverOversleeps(at_ms=at_ms, for_ms=20 + slept_ms, taken_over_ms=20),
            work_us=(50, 3_000),
            liveness_ms=20_000,
        )
    ]


@pytest.mark.slow
def test_a_driver_that_wakes_up_beside_another_does_no_harm(make: Any):
    results = run_all(oversleeping(make))
    assert broken_rules(results) == []
    assert all(result.outcome is JobState.FINISHED for result in results)


def test_a_driver_has_the_job_until_another_can_claim_it(make: Any):
    """1. The driver sleeps, and another is to take the job over: the storage says no. 2. The first wakes up, the
    storage is well again, and the first completes checkpoints, since it has the job still. 3. The other one tries
    again."""
    worlds = [
        world
        for refused_ms in (100, 150, 200, 250)
        for world in lasting(
            make,
            1,
            StorageErrors(at_ms=400, for_ms=refused_ms, share=1.0, after=False),
            DriverOversleeps(at_ms=390, for_ms=40, taken_over_ms=20),
        )
    ]
    results = run_all(worlds)
    assert broken_rules(results) == []
    assert all(result.outcome is JobState.FINISHED for result in results)


@pytest.mark.slow
def test_without_fencing_two_drivers_both_commit(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FileRecords, "check", lambda self: None)
    found = broken_rules(run_all(oversleeping(make)[:8]))
    assert {Rule.FENCING, Rule.EARLY_COMMIT, Rule.EXACTLY_ONCE} & set(found)

"""Jobs of several regions, of which one restarts while the others go on; and the bugs that this could have."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from planted_bugs import first_found, found, shows, worlds

from penstock.core.ids import TaskId
from penstock.core.job import attempt_tasks
from penstock.core.job.events import TellPeerGone
from penstock.core.job.repair import Repair
from penstock.plan.graph import Plan
from penstock.runtime.master import deployment, orders, starting
from penstock.runtime.master.decisions import Decisions
from penstock.runtime.slot import tasks as slot_tasks
from penstock.runtime.slot.attempts import Attempts
from penstock.settings import FixedDelay
from penstock.sim.faults import SlotCrash, TaskError
from penstock.sim.jobs import APART, Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice

ERRORS = tuple(
    TaskError(at_ms=at_ms, slot=at_ms // 100 % 2, what=what) for at_ms, what in ((300, "write"), (600, "read"))
)
UNALIGNED = {"unaligned": True}


def apart(
    make: Any, shape: Shape, count: int = 4, *, faults: tuple[Any, ...] = ERRORS, **checkpoint: Any
) -> list[Scenario]:
    """The second pipeline has as much to do as the first: no task may have ended when one fails."""
    made = worlds(make, count, make.steady, lambda s: make.shape(s, shape), faults=faults)
    made = [make.checkpoints(make.workload(s, rows=80), **checkpoint) for s in made]
    return [make.workload(s, other_rows=(80,) if s.workload.other_rows else ()) for s in made]


@pytest.mark.parametrize("checkpoint", [{}, UNALIGNED], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("shape", APART)
def test_a_region_restarts_alone_and_every_record_shows_once(make: Any, shape: Shape, checkpoint: dict[str, Any]):
    results = [run_scenario(scenario) for scenario in apart(make, shape, **checkpoint)]
    assert [violation for result in results for violation in result.violations] == []
    assert sum(result.repairs for result in results) >= len(results)


LOSSES = [{"notice": notice} for notice in Notice] + [{"notice": Notice.TOLD, "spares": 1}]


@pytest.mark.parametrize("checkpoint", [{}, UNALIGNED], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: "-".join(str(getattr(v, "value", v)) for v in loss.values()))
@pytest.mark.parametrize("shape", [Shape.SLICES, Shape.MIXED])
def test_with_a_slot_that_dies_only_the_regions_of_its_tasks_restart(
    make: Any, shape: Shape, loss: dict[str, Any], checkpoint: dict[str, Any]
):
    worlds = apart(make, shape, 2, faults=(SlotCrash(at_ms=400, slot=1, notice=loss["notice"]),), **checkpoint)
    for scenario in worlds:
        # So long that the other slot has something to commit while the replacement comes up, and after it.
        slow = make.workload(scenario, pause_ms=60)
        slot_settings = replace(slow.settings.slot, spares=loss.get("spares", 0))
        result = run_scenario(make.settings(slow, slot=slot_settings), keep_log=True)
        assert (result.violations, result.attempts, result.repairs, result.replaced) == ((), 2, 1, 1)
        # Whatever the other slot's slice writes bears the epoch that it began with.
        epochs = {
            subtask: {
                int(epoch)
                for at, epoch in re.findall(r"committed second/(\d)/(\d+)/", "\n".join(result.log))
                if at == subtask
            }
            for subtask in "01"
        }
        assert epochs == {"0": {1}, "1": {1, 2}}


SILENCE_MS = 4_500
"""After which a peer counts as silent, in worlds that are made here."""


@pytest.mark.parametrize("shape", [Shape.SLICES, Shape.MIXED])
def test_long_after_a_slot_was_replaced_nobody_is_taken_for_silent(make: Any, shape: Shape):
    crash = SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD)
    for world in lasting(make, shape, crash):
        result = run_scenario(world)
        assert (result.violations, result.attempts, result.replaced) == ((), 2, 1)


@pytest.mark.parametrize("shape", [Shape.SLICES, Shape.MIXED])
def test_a_slot_that_is_lost_is_not_missed_while_the_next_one_takes_its_time(make: Any, shape: Shape):
    start_us = (1_200 * SILENCE_MS, 1_300 * SILENCE_MS)
    crash = SlotCrash(at_ms=start_us[1] // 1_000 + 800, slot=1, notice=Notice.TOLD)
    for world in lasting(make, shape, crash):
        result = run_scenario(replace(world, start_us=start_us, safety_ms=crash.at_ms))
        assert (result.violations, result.attempts, result.replaced) == ((), 2, 1)


def lasting(make: Any, shape: Shape, crash: SlotCrash) -> list[Scenario]:
    """Worlds in which jobs last twice as long as a peer may be silent."""
    made = apart(make, shape, 2, faults=(crash,), interval_ms=400)
    return [make.workload(world, pause_ms=2 * SILENCE_MS // 40) for world in made]


def test_a_job_of_which_every_slot_has_a_part_of_all_regions_restarts_as_a_whole(make: Any):
    crash = SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD)
    results = [run_scenario(scenario) for scenario in apart(make, Shape.PIPELINES, 2, faults=(crash,))]
    assert [(result.violations, result.attempts, result.repairs) for result in results] == [((), 2, 0)] * 2


@pytest.mark.slow
def test_a_slot_that_dies_while_another_is_replaced_restarts_everything(make: Any):
    crashes = tuple(SlotCrash(at_ms=at_ms, slot=slot, notice=Notice.TOLD) for at_ms, slot in ((1_500, 1), (1_510, 0)))
    worlds = [make.workload(world, pause_ms=60) for world in apart(make, Shape.SLICES, 4, faults=crashes)]
    # A death is known before a slot that was asked for is there.
    results = [run_scenario(replace(world, start_us=(900_000, 1_000_000), safety_ms=3_000)) for world in worlds]
    assert [(result.violations, result.attempts, result.repairs) for result in results] == [((), 2, 0)] * 4


def test_a_slot_that_does_not_come_up_again_restarts_everything(make: Any):
    crash = SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD)
    worlds = [replace(world, failing_starts=1) for world in apart(make, Shape.SLICES, 2, faults=(crash,))]
    results = [run_scenario(world) for world in worlds]
    assert [(result.violations, result.attempts, result.repairs) for result in results] == [((), 2, 0)] * 2


@pytest.mark.slow
def test_drawn_worlds_restart_single_regions_also_when_slots_die():
    drawn = [scenario for seed in range(1, 200) if (scenario := scenario_of(seed)).workload.shape in APART]
    # A part on the driver makes the whole job one region.
    drawn = [scenario for scenario in drawn if scenario.workload.on_driver is None]
    dying = [scenario for scenario in drawn if any(isinstance(fault, SlotCrash) for fault in scenario.faults)]
    results = [run_scenario(scenario) for scenario in (*drawn[:8], *dying[-12:])]
    assert [violation for result in results for violation in result.violations] == []
    assert any(result.repairs > result.replaced for result in results)
    assert any(result.replaced for result in results)


# --- planted bugs ----------------------------------------------------------------------------


@pytest.mark.slow
def test_batches_of_a_region_that_was_restarted_are_found_if_they_are_let_in(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    """1. A task sends a batch and is dropped. 2. The region is deployed again. 3. The batch arrives, and once more with
    the records that are read again; or the link is taken for broken before that."""
    errors = tuple(TaskError(at_ms=at_ms, slot=0, what="read") for at_ms in range(200, 800, 100))
    at_once = [
        make.settings(s, restart=FixedDelay(attempts=1_000, delay_ms=0))
        for s in apart(make, Shape.PIPELINES, 8, faults=errors)
    ]
    # Most messages are quick, some very late: orders overtake batches, on their way from another process.
    hasty = [replace(s, latency_us=(20, 300), spike_share=0.2, work_us=(10, 50)) for s in at_once]
    assert found(hasty) == []
    # The tasks of the other pipeline have the epoch of the link.
    monkeypatch.setattr(Attempts, "of_channel", lambda self, key: min(self._tasks.values()))
    assert first_found(hasty)


@pytest.mark.slow
def test_a_region_that_is_too_small_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """A source is put back, and what it has sent is not."""

    def alone(graph: Any) -> dict[TaskId, tuple[TaskId, ...]]:
        return {task: (task,) for task in graph.tasks}

    monkeypatch.setattr(starting, "regions_of", alone)
    monkeypatch.setattr(slot_tasks, "regions_of", alone)
    assert first_found(apart(make, Shape.SLICES, faults=ERRORS[:1])) != []


def test_a_region_that_begins_from_nothing_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = orders.deployments

    def forgetful(effect: Any, *args: Any) -> Any:
        for told, message in honest(effect, *args):
            yield told, message if effect.tasks is None else _without_state(message)

    monkeypatch.setattr(deployment, "deployments", forgetful)
    assert shows(Rule.EXACTLY_ONCE, apart(make, Shape.SLICES))


def _without_state(message: Any) -> Any:
    return msgspec.structs.replace(message, restore={}, restored_checkpoint=None)


def test_a_coordinator_that_does_not_hear_of_the_restart_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """It waits for tasks that are no more, or announces to them what they have not seen."""
    honest = Decisions.feed_coordinator

    def deaf(decisions: Decisions, event: Any) -> None:
        if getattr(event, "tasks", None) is None:
            honest(decisions, event)

    monkeypatch.setattr(Decisions, "feed_coordinator", deaf)
    assert first_found(apart(make, Shape.SLICES)) != []


def lost_with(monkeypatch: pytest.MonkeyPatch, make: Any, chosen: Any, *, shape: Shape, slots: int) -> list[Rule]:
    """What is found when with a slot other tasks are restarted than its regions."""
    monkeypatch.setattr(attempt_tasks, "regions_at", chosen)
    crash = SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD)
    made = [make.workload(s, pause_ms=60) for s in apart(make, shape, 3, faults=(crash,))]
    return found([make.settings(s, parallelism=slots) for s in made])


def test_tasks_that_are_restarted_with_a_lost_slot_though_nothing_joins_them_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    def too_many(place: int, regions: Any) -> tuple[TaskId, ...]:
        return tuple(task for task in regions if task.subtask in (place, 0))

    assert lost_with(monkeypatch, make, too_many, shape=Shape.SLICES, slots=3) == [Rule.REGIONS]


@pytest.mark.slow
def test_tasks_of_a_lost_slot_that_are_restarted_without_those_that_are_joined_to_them_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    def too_few(place: int, regions: Any) -> tuple[TaskId, ...]:
        return tuple(task for task in regions if task.subtask == place)

    assert Rule.REGIONS in lost_with(monkeypatch, make, too_few, shape=Shape.MIXED, slots=2)


def test_a_slot_that_expects_to_hear_of_those_that_nothing_joins_to_it_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    def all_others(plan: Plan, slot: int) -> tuple[int, ...]:
        return tuple(other for other in range(plan.parallelism) if other != slot)

    monkeypatch.setattr(Plan, "neighbours_of_slot", all_others)
    crash = SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD)
    assert shows(Rule.LINKS, lasting(make, Shape.SLICES, crash))


def test_a_slot_that_is_not_told_that_another_is_lost_and_misses_it_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    honest = Repair.begins

    def silent(repair: Repair, *args: Any) -> list[Any]:
        return [told for told in honest(repair, *args) if not isinstance(told, TellPeerGone)]

    monkeypatch.setattr(Repair, "begins", silent)
    start_us = (1_200 * SILENCE_MS, 1_300 * SILENCE_MS)
    crash = SlotCrash(at_ms=start_us[1] // 1_000 + 800, slot=1, notice=Notice.TOLD)
    assert shows(Rule.LINKS, [replace(world, start_us=start_us) for world in lasting(make, Shape.MIXED, crash)])

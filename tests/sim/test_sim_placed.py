"""Steps with a number of subtasks of their own, records that go where a function says, and the first records: worlds
find a bug in any of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from planted_bugs import found, shows, worlds

from penstock.api.first_rows import FirstRows
from penstock.core.graph import Partitioning
from penstock.plan.graph import Vertex
from penstock.runtime.task.inflight import ChannelReader
from penstock.runtime.task.operators.distinct import DistinctOperator
from penstock.sim.faults import CrashAfterCheckpoint
from penstock.sim.jobs import PLACED, Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import UserRequest, Wish

CRASH = CrashAfterCheckpoint(at_ms=100, slot=1, delay_ms=5, notice=Notice.TOLD)


def crashing(make: Any, shape: Shape, count: int = 4) -> list[Scenario]:
    return worlds(make, count, make.steady, lambda s: make.shape(s, shape), faults=(CRASH,))


def rescaling(make: Any, shape: Shape, *targets: int, count: int = 4, rows: int = 120) -> list[Scenario]:
    """Worlds with full channels and barriers that overtake, that are rescaled to these parallelisms."""
    requests = tuple(UserRequest(at_ms=150 + 150 * i, wish=Wish.RESCALE, parallelism=t) for i, t in enumerate(targets))
    made = worlds(make, count, make.steady, lambda s: make.shape(s, shape), requests=requests)
    unaligned = [make.checkpoints(s, unaligned=True, max_concurrent=1) for s in made]
    return [make.workload(s, rows=rows, slow_us=4_000) for s in unaligned]


def test_a_part_of_the_worlds_has_each_of_these_shapes():
    drawn = Counter(scenario_of(seed).workload.shape for seed in range(1_500))
    share = sum(drawn[shape] for shape in PLACED) / 1_500
    assert 0.05 < share < 0.15
    assert all(drawn[shape] >= 10 for shape in PLACED)


@pytest.mark.parametrize("shape", PLACED)
@pytest.mark.parametrize("targets", [(3,), (1, 4), (4, 1, 3)])
def test_data_in_flight_is_there_once_at_any_parallelism(make: Any, shape: Shape, targets: tuple[int, ...]):
    results = [run_scenario(world) for world in rescaling(make, shape, *targets, count=2)]
    assert [result.violations for result in results] == [(), ()]
    assert all(Wish.RESCALE in result.granted for result in results)


# --- planted bugs ----------------------------------------------------------------------------------------------------


def test_a_count_that_is_not_in_the_state_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = FirstRows.on_batch

    def forgetful(self: Any, batch: Any, context: Any) -> Any:
        before = self.taken.get()
        self.taken.set([self.__dict__.get("count", 0)])
        try:
            return honest(self, batch, context)
        finally:
            self.count = sum(self.taken.get())
            self.taken.set(before)

    monkeypatch.setattr(FirstRows, "on_batch", forgetful)
    assert found(crashing(make, Shape.LIMIT)) == [Rule.EXACTLY_ONCE]


def test_a_count_for_each_subtask_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """The first records go through several subtasks, each of which counts for itself."""
    monkeypatch.setattr(Vertex, "rescaled", lambda self, parallelism: replace(self, parallelism=parallelism))
    assert shows(Rule.EXACTLY_ONCE, rescaling(make, Shape.LIMIT, 3, 1))


def test_a_key_that_is_forgotten_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DistinctOperator, "snapshot", lambda self, checkpoint, options: None)
    assert found(crashing(make, Shape.DISTINCT)) == [Rule.EXACTLY_ONCE]


@pytest.mark.slow
def test_barriers_that_overtake_records_which_a_function_places_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """After a rescale, data in flight would have to go where the function says for the new number of subtasks."""
    overtakes = property(lambda self: self is not Partitioning.BROADCAST and self is not Partitioning.FORWARD)
    monkeypatch.setattr(Partitioning, "spreads_records", overtakes)
    assert found(rescaling(make, Shape.CHOSEN, 3, 1)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("shape", [Shape.GLOBAL, Shape.FEWER])
def test_data_in_flight_that_is_not_dealt_out_is_missed(make: Any, monkeypatch: pytest.MonkeyPatch, shape: Shape):
    monkeypatch.setattr(ChannelReader, "read_dealt", lambda self, task, dealt: {})
    assert shows(Rule.EXACTLY_ONCE, rescaling(make, shape, 3, 1))

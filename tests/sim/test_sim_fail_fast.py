"""Jobs whose program is wrong: without a restart strategy of the user's they end, and with one they go on."""

from __future__ import annotations

from typing import Any

from planted_bugs import found, worlds

from penstock.core.job import fail_fast
from penstock.core.job.events import JobState
from penstock.sim.faults import SinkErrors, SlotCrash, TaskError
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice

TYPO = TaskError(at_ms=25, slot=0, what="read")
LATER = TaskError(at_ms=600, slot=0, what="read")
DEATH = SlotCrash(at_ms=25, slot=0, notice=Notice.TOLD)
AWAY = SinkErrors(at_ms=0, for_ms=400, share=1.0, after=False)


def undecided(make: Any, *faults: Any) -> list[Scenario]:
    """Worlds whose user has chosen no restart strategy."""
    return [make.settings(s, restart=None) for s in worlds(make, 4, make.steady, faults=faults)]


def outcomes(scenarios: list[Scenario]) -> list[JobState | None]:
    results = [run_scenario(scenario) for scenario in scenarios]
    assert [violation for result in results for violation in result.violations] == []
    return [result.outcome for result in results]


def test_an_error_before_the_first_checkpoint_ends_the_job(make: Any):
    assert set(outcomes(undecided(make, TYPO))) == {JobState.FAILED}


def test_an_error_after_a_checkpoint_does_not_end_the_job_if_it_passes(make: Any):
    assert set(outcomes(undecided(make, LATER))) == {JobState.FINISHED}


def test_neither_a_process_that_dies_nor_an_outside_system_that_is_away_is_an_error_of_the_program(make: Any):
    assert set(outcomes([*undecided(make, DEATH), *undecided(make, AWAY)])) == {JobState.FINISHED}


def test_with_a_strategy_of_the_users_the_same_error_is_tried_again(make: Any):
    assert set(outcomes(worlds(make, 4, make.steady, faults=(TYPO,)))) == {JobState.FINISHED}


def test_a_job_that_takes_a_death_for_an_error_of_the_program_is_found(make: Any, monkeypatch: Any):
    monkeypatch.setattr(fail_fast.FailFast, "failed", lambda _self, _cause: "wrong")
    assert found(undecided(make, DEATH)) == [Rule.LIVENESS]


def test_seeds_draw_both():
    drawn = [scenario_of(seed).settings.restart is None for seed in range(100)]
    assert any(drawn)
    assert not all(drawn)

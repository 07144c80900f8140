"""Running a few worlds with a bug in them, to see which rules are found broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario
from penstock.sim.scenario import Scenario
from penstock.sim.simulation import SOUND, Parts

Change = Callable[[Scenario], Scenario]


def found(scenarios: list[Scenario], parts: Parts = SOUND) -> list[Rule]:
    """The rules that were broken over all these worlds, in the order in which they were first seen to be."""
    results = [run_scenario(world, parts=parts) for world in scenarios]
    return list(dict.fromkeys(violation.rule for result in results for violation in result.violations))


def shows(rule: Rule, scenarios: Iterable[Scenario], parts: Parts = SOUND) -> bool:
    """Whether the rule is broken in one of these worlds. The worlds after the first such world are left out."""
    results = (run_scenario(world, parts=parts) for world in scenarios)
    return any(violation.rule is rule for result in results for violation in result.violations)


def first_found(scenarios: list[Scenario]) -> list[Rule]:
    """The rules that are broken in the first of these worlds in which any rule is. A world that hangs takes long, so
    that the others are left out."""
    return next((rules for scenario in scenarios if (rules := found([scenario]))), [])


def worlds(make: Any, count: int, *steps: Change, **changes: object) -> list[Scenario]:
    """Plain worlds with these changes, put through these steps."""
    made = [make.plain(number, **changes) for number in range(count)]
    for step in steps:
        made = [step(scenario) for scenario in made]
    return made

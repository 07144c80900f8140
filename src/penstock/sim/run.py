"""One seed, one world: draw the world, run it, and tell how it went."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.core.job.events import JobState
from penstock.sim.drawing import draw_scenario
from penstock.sim.external import enter, leave
from penstock.sim.logs import watch_logs
from penstock.sim.rules import Violation
from penstock.sim.scenario import Scenario
from penstock.sim.simulation import SOUND, Parts, Simulation
from penstock.sim.user import Wish
from penstock.sim.verdict import Verdict
from penstock.sim.world import seeded


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a world went."""

    seed: int
    violations: tuple[Violation, ...]
    outcome: JobState | None
    crashes: int
    takeovers: int
    """How many drivers died."""
    checkpoints: int
    """How many checkpoints became durable."""
    attempts: int
    restores: int
    """How many attempts began from a checkpoint."""
    repairs: int
    """How many attempts were of some tasks only, while other tasks went on."""
    replaced: int
    """How many of these attempts replaced a slot."""
    granted: tuple[Wish, ...]
    """The wishes of the user that were granted."""
    refused: tuple[Wish, ...]
    """The wishes of the user that were not granted."""
    virtual_ms: int
    digest: str
    """The digest of all events, in order. The same seed gives the same digest."""
    header: tuple[str, ...]
    log: tuple[str, ...]
    jobs: int = 1
    """How many jobs, or runs of a program, there were, one after the other."""

    @property
    def reproduce(self) -> str:
        """The command that runs this world again."""
        return f"penstock sim --seeds 1 --first-seed {self.seed}"


def run_seed(seed: int, *, keep_log: bool = False) -> Result:
    """Run the world of a seed to its end."""
    return run_scenario(scenario_of(seed), keep_log=keep_log)


def scenario_of(seed: int) -> Scenario:
    """Everything that a seed decides before its world begins."""
    return draw_scenario(seed, seeded(seed))


def run_scenario(scenario: Scenario, *, parts: Parts = SOUND, keep_log: bool = False) -> Result:
    """Run the world of a scenario to its end."""
    first = Simulation(scenario, parts, keep_log=keep_log)
    second: Simulation | None = None
    result = None
    enter(scenario.seed, first.external)
    try:
        with watch_logs(first.world):
            _run(first)
            result = _result_of(first)
            second = first.go_on()
            if second is not None:
                _run(second)
    finally:
        leave(scenario.seed)
    return result if second is None else _together(result, _result_of(second))


def _run(simulation: Simulation) -> None:
    if simulation.run():
        Verdict(simulation).check()


def _together(first: Result, second: Result) -> Result:
    return replace(
        second,
        header=first.header,
        crashes=first.crashes + second.crashes,
        takeovers=first.takeovers + second.takeovers,
        checkpoints=first.checkpoints + second.checkpoints,
        attempts=first.attempts + second.attempts,
        restores=first.restores + second.restores,
        repairs=first.repairs + second.repairs,
        replaced=first.replaced + second.replaced,
        granted=first.granted,
        refused=first.refused,
        jobs=2,
    )


def _result_of(ended: Simulation) -> Result:
    return Result(
        seed=ended.scenario.seed,
        violations=tuple(ended.world.violations),
        outcome=ended.outcome,
        crashes=ended.host.crashes,
        takeovers=ended.masters.crashes,
        checkpoints=len(ended.ledger.durable) - ended.durable_before,
        attempts=ended.messages.attempts,
        restores=ended.messages.restores,
        repairs=ended.messages.repairs,
        replaced=ended.regions.replaced,
        granted=tuple(asked.wish for asked in ended.user.asked if asked.is_granted),
        refused=tuple(asked.wish for asked in ended.user.asked if not asked.is_granted),
        virtual_ms=ended.world.now_ms,
        digest=ended.world.digest,
        header=tuple(ended.scenario.header()),
        log=tuple(ended.world.log),
    )

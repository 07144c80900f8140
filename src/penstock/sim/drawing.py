"""The scenario of a seed: first a job in a world with faults, then what may be added to both."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from penstock.settings import JobSettings, Retention
from penstock.sim.again import draw_again
from penstock.sim.drawn_jobs import (
    VERTICES,
    draw_narrow_network,
    draw_other_rows,
    draw_settings,
    draw_workload,
    steady,
    with_possible_timeout,
)
from penstock.sim.faults import draw_faults
from penstock.sim.jobs import APART, ASIDE, PLACED, Shape
from penstock.sim.scenario import Scenario
from penstock.sim.user import draw_requests
from penstock.sim.variations import varied

DRAWN_LATER = (
    *APART,
    *PLACED,
    *ASIDE,
    Shape.LIMIT_BESIDE,
    Shape.TIMERS,
    Shape.WAITS,
    Shape.ASKS,
    Shape.ASKS_WINDOW,
    Shape.JOIN,
    Shape.CHANGES,
    Shape.RUNNING,
    Shape.CHOOSES,
    Shape.MATCHES,
    Shape.TABLE,
    Shape.MEETS,
    Shape.SORTED,
)
"""The shapes that take the place of another shape when everything else has been drawn."""


def draw_scenario(seed: int, random: Random) -> Scenario:
    """The scenario of a seed."""
    shape = random.choice(tuple(shape for shape in Shape if shape not in DRAWN_LATER))
    # The more vertices a shape has, the more channels each slot adds: shapes with many vertices mostly get fewer slots.
    parallelism = random.choice((1, 2, 2, 2, 2, 3, 3, 4) if shape in VERTICES else (1, 2, 2, 2, 3, 3, 4, 5, 6))
    duration_ms = random.choice((300, 300, 600, 600, 2_000))
    # Slots take time to come up, and the job takes time to restart.
    safety_ms = duration_ms + 600
    # Under pressure a steady stream meets a slow network: something is in flight whenever a barrier comes.
    pressed = random.random() < 0.7
    lasting = random.random() < 0.3
    workload = draw_workload(random, shape, parallelism, duration_ms)
    settings = draw_settings(random, parallelism, workload.batch_rows, duration_ms)
    if pressed:
        workload = steady(workload, parallelism, duration_ms)
        settings = replace(settings, network=draw_narrow_network(random, workload.batch_rows))
    workload = replace(workload, other_rows=draw_other_rows(random, workload))
    work_us = (50, random.choice((500, 5_000, 30_000)))
    drawn = Scenario(
        seed=seed,
        world_seed=random.getrandbits(64),
        workload=workload,
        settings=replace(settings, checkpoint=with_possible_timeout(settings.checkpoint, workload, work_us)),
        latency_us=(20, random.choice((5_000, 20_000, 20_000) if pressed else (100, 1_000, 10_000))),
        spike_share=random.choice((0.0, 0.0, 0.02)),
        work_us=work_us,
        start_us=(1_000, random.choice((20_000, 20_000, 400_000))),
        failing_starts=random.choice((0, 0, 0, 1, 2)),
        cancel_at_ms=_draw_cancel(random, settings, duration_ms),
        safety_ms=safety_ms,
        faults=draw_faults(random, parallelism=parallelism, safety_ms=safety_ms, lasting=lasting),
        requests=draw_requests(random, duration_ms=duration_ms),
        lasting=lasting,
        loses_unsynced=random.random() < 0.3,
    )
    again = draw_again(random, parallelism=parallelism, safety_ms=safety_ms, lasting=lasting)
    # Drawn last, so that the draws above stay the same: a seed that has found a bug still finds it.
    slot = replace(drawn.settings.slot, spares=random.choice((0, 0, 1, 2)))
    drawn = replace(drawn, again=again, settings=replace(drawn.settings, slot=slot))
    return varied(random, drawn, duration_ms)


def _draw_cancel(random: Random, settings: JobSettings, duration_ms: int) -> int | None:
    # A cancelled job that keeps its checkpoints shows best which files should have been deleted.
    share = 0.4 if settings.checkpoint.retention is Retention.KEEP else 0.05
    return random.randint(0, 2 * duration_ms) if random.random() < share else None

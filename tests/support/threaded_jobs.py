"""Whole jobs whose slots are threads: their plans and settings, and slots that are killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.api.steps import ReadStep
from penstock.core.job.events import JobState
from penstock.plan.graph import OperatorPlan, Plan
from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, NetworkSettings

CHECKPOINTS = pytest.mark.parametrize(
    "checkpoint",
    [
        CheckpointSettings(interval_ms=20),
        CheckpointSettings(interval_ms=10, max_concurrent=3),
        CheckpointSettings(interval_ms=20, unaligned=True),
    ],
    ids=["aligned", "overlapping", "unaligned"],
)


def settings(**changes) -> JobSettings:
    chosen = {
        "parallelism": 2,
        "checkpoint": CheckpointSettings(interval_ms=20),
        "restart": FixedDelay(attempts=20, delay_ms=5),
        "network": NetworkSettings(channel_bytes=200_000, output_bytes=200_000, batch_bytes=50_000),
    }
    return JobSettings(**{**chosen, **changes})


def with_splits(plan: Plan) -> Plan:
    """Sources begin at their beginning."""

    def filled(operator: OperatorPlan) -> OperatorPlan:
        step = operator.step
        if not isinstance(step, ReadStep):
            return operator
        return replace(operator, step=replace(step, splits=tuple(step.source.splits(plan.parallelism))))

    return replace(plan, vertices=tuple(replace(v, operators=tuple(map(filled, v.operators))) for v in plan.vertices))


def kill_slots(gate: Path, *, times: int):
    """For each turn of a job: kill a slot after every second checkpoint, and open the gate when that is done. A slot
    that was killed is noticed later: the next one is killed in a later attempt, so that every kill costs one."""
    kills: list[int] = []

    def each_turn(running):
        view = running.driver.view()
        if len(kills) < times and view.state is JobState.RUNNING and view.epoch > max(kills, default=0):
            if view.checkpoints.counts.completed >= 2 * (len(kills) + 1):
                kills.append(view.epoch)
                running.slots.kill(len(kills) % 2)
        elif len(kills) == times:
            gate.touch()

    return each_turn

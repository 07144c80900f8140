"""A small job in a quiet world, for tests that add one thing to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, NetworkSettings, SlotSettings
from penstock.sim.jobs import PAIRS, Shape, Workload
from penstock.sim.scenario import Scenario


class Worlds:
    """Makes scenarios: a keyed job on two slots under some pressure, without faults."""

    def plain(self, number: int = 0, **changes: object) -> Scenario:
        """The number decides delays and input."""
        made = Scenario(
            seed=1_000_000 + number,
            world_seed=number,
            workload=Workload(
                shape=Shape.KEYED,
                splits=3,
                rows=60,
                keys=5,
                salt=number,
                batch_rows=6,
                burst=3,
                pause_ms=100,
                window_us=20_000,
                disorder_us=5_000,
            ),
            settings=JobSettings(
                parallelism=2,
                checkpoint=CheckpointSettings(interval_ms=60, timeout_ms=2_000, tolerable_failures=None),
                restart=FixedDelay(attempts=1_000, delay_ms=50),
                network=NetworkSettings(channel_bytes=100, output_bytes=200, batch_bytes=100),
                slot=SlotSettings(heartbeat_interval_ms=300, heartbeat_timeout_ms=3_000),
            ),
            latency_us=(20, 3_000),
            spike_share=0.0,
            work_us=(50, 2_000),
            start_us=(1_000, 20_000),
            failing_starts=0,
            cancel_at_ms=None,
            safety_ms=1_000,
            faults=(),
            liveness_ms=30_000,
        )
        return replace(made, **changes)

    def checkpoints(self, scenario: Scenario, **changes: object) -> Scenario:
        """The same with other checkpoint settings."""
        return self.settings(scenario, checkpoint=replace(scenario.settings.checkpoint, **changes))

    def settings(self, scenario: Scenario, **changes: object) -> Scenario:
        """The same with other settings."""
        return replace(scenario, settings=replace(scenario.settings, **changes))

    def workload(self, scenario: Scenario, **changes: object) -> Scenario:
        """The same with another job or input."""
        return replace(scenario, workload=replace(scenario.workload, **changes))

    def steady(self, scenario: Scenario) -> Scenario:
        """The same with something in flight whenever a barrier comes."""
        flowing = self.workload(scenario, burst=1, pause_ms=8, batch_rows=2, rows=40)
        return replace(flowing, latency_us=(20, 20_000))

    def shape(self, scenario: Scenario, shape: Shape) -> Scenario:
        """The same with a job of another shape; further sources end early."""
        others = 1 if shape in PAIRS else shape.most_sources - 1
        # Only the records of a single split have first records.
        splits = 1 if shape in (Shape.LIMIT, Shape.LIMIT_BESIDE) else scenario.workload.splits
        return self.workload(scenario, shape=shape, splits=splits, other_rows=(scenario.workload.rows // 4,) * others)

    def windows(self, scenario: Scenario) -> Scenario:
        """The same with a job whose state lies in files."""
        return self.checkpoints(self.workload(scenario, shape=Shape.WINDOW), inline_threshold_bytes=0)


@pytest.fixture(scope="session")
def make() -> Worlds:
    return Worlds()

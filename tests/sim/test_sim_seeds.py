"""Whole jobs in simulated worlds: some seeds in every run, and the worlds in which a bug was found once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from penstock.cli.sim import sim
from penstock.core.job.events import JobState
from penstock.settings import (
    CheckpointSettings,
    FixedDelay,
    JobSettings,
    NetworkSettings,
    Retention,
    SlotSettings,
)
from penstock.sim.faults import ConnectionLoss, Fault, SinkErrors, SlotCrash, SlotPause, StorageErrors, end_ms
from penstock.sim.jobs import Shape, Workload
from penstock.sim.rules import Rule, Violation
from penstock.sim.run import Result, run_scenario, run_seed, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice

SEEDS = range(1, 51)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_job_keeps_every_rule(seed: int):
    result = run_seed(seed)
    assert not result.violations, "\n".join([result.reproduce, *map(str, result.violations)])

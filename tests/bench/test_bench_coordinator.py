"""The coordinator's benchmark measures whole checkpoints and prints what programs can read."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from penstock.bench.coordinator import FEW_SUBTASKS, SimulatedTasks, measure
from penstock.cli import main
from penstock.core.errors import InvariantError


def run(*arguments: str):
    return CliRunner().invoke(main, ("bench", "coordinator", *arguments))


def test_json_is_one_line_with_the_three_numbers():
    result = run("--subtasks", "400", "--rounds", "1", "--json")
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert list(found) == ["subtasks", "cpu_seconds", "cost_growth"]
    assert found["subtasks"] == 400
    assert found["cpu_seconds"] > 0
    assert found["cost_growth"] > 0


def test_without_json_the_numbers_come_in_words():
    result = run("--subtasks", "200", "--rounds", "1")
    assert result.exit_code == 0
    assert "one checkpoint of 200 subtasks" in result.stdout
    assert "times that with 100 subtasks" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--subtasks", "99"), "--subtasks"),
        (("--subtasks", "102"), "102 is not a multiple of 4"),
        (("--rounds", "0"), "--rounds"),
    ],
)
def test_a_size_that_cannot_be_is_refused(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_measured_checkpoint_triggers_sources_and_notifies_everybody():
    job = SimulatedTasks(FEW_SUBTASKS)
    job.checkpoint()
    assert job.told == FEW_SUBTASKS // 4 + FEW_SUBTASKS
    assert [c.checkpoint for c in job.coordinator.retained] == [1]
    job.checkpoint()
    assert [c.checkpoint for c in job.coordinator.retained] == [2]


def test_a_measured_checkpoint_shares_files_with_the_one_before():
    job = SimulatedTasks(FEW_SUBTASKS)
    job.checkpoint()
    (first,) = job.coordinator.retained
    job.checkpoint()
    (second,) = job.coordinator.retained
    assert len(second.shared_files) == FEW_SUBTASKS // 4
    assert second.shared_files == first.shared_files
    assert not set(second.private_files) & set(first.private_files)


def test_a_checkpoint_that_does_not_complete_is_no_measurement(monkeypatch):
    monkeypatch.setattr(SimulatedTasks, "_answer", lambda self, effect: None)
    with pytest.raises(InvariantError, match="checkpoint 1 of the simulated job did not complete"):
        measure(subtasks=FEW_SUBTASKS, rounds=1)

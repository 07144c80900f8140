"""Checkpoint hooks as a program has them."""

from __future__ import annotations

import pytest
from marked_logs import Logs, MarkedSource, Marks

import penstock as ps
from penstock.api.program import Program
from penstock.core.errors import SettingsError, UsageError
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.settings import CheckpointSettings, JobSettings, SlotSettings


class Hook(ps.CheckpointHook):
    def __init__(self, name: object = "outside") -> None:
        self._name = name

    @property
    def name(self):
        return self._name

    def trigger(self, checkpoint, timestamp_ms):
        return None


class Nameless(ps.CheckpointHook):
    def trigger(self, checkpoint, timestamp_ms):
        return None


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path / "logs", 2)


def test_the_plan_names_the_hooks_of_the_program_and_of_its_sources(logs, tmp_path):
    program = Program(JobSettings())
    program.add_checkpoint_hook(Hook())
    program.read(MarkedSource(logs, Marks(logs))).write(ps.parquet(tmp_path / "out"))
    plan = program.plan()
    assert plan.hooks == tuple(program.checkpoint_hooks) == ("outside", "marks")
    assert plan.rescaled(3).hooks == plan.with_key_groups(7).hooks == checkpoint_graph(plan).hooks == plan.hooks


def test_a_hook_is_named_by_its_class_unless_it_says_otherwise():
    program = Program(JobSettings())
    program.add_checkpoint_hook(Nameless())
    assert list(program.checkpoint_hooks) == ["nameless"]


def test_sources_may_share_a_hook(logs, tmp_path):
    program, hook = Program(JobSettings()), Marks(logs)
    for name in ("one", "two"):
        program.read(MarkedSource(logs, hook), name).write(ps.parquet(tmp_path / name))
    assert program.plan().hooks == ("marks",)


def test_two_hooks_of_one_name_are_refused():
    program = Program(JobSettings())
    program.add_checkpoint_hook(Hook())
    with pytest.raises(UsageError, match="two checkpoint hooks have the name 'outside'"):
        program.add_checkpoint_hook(Hook())


@pytest.mark.parametrize(
    ("given", "said"),
    [(print, "takes a CheckpointHook"), (Hook(""), "give a text that is not empty"), (Hook(7), "is 7; give a text")],
)
def test_what_is_no_hook_or_has_no_name_is_refused(given, said):
    with pytest.raises(UsageError, match=said):
        Program(JobSettings()).add_checkpoint_hook(given)


def test_hooks_must_be_back_before_slots_are_given_up():
    settings = JobSettings(
        checkpoint=CheckpointSettings(hook_timeout_ms=5_000), slot=SlotSettings(deploy_timeout_ms=5_000)
    )
    program = Program(settings)
    with pytest.raises(SettingsError, match="hook_timeout is 5000 ms; with hooks it must be below deploy_timeout_ms"):
        program.add_checkpoint_hook(Hook())


def test_the_time_limit_of_hooks_is_a_duration(tmp_path):
    chosen = ps.Checkpointing(directory=tmp_path, hook_timeout="2s")
    assert chosen.settings.hook_timeout_ms == 2_000
    with pytest.raises(SettingsError, match="hook_timeout is 1 ms; the least is 10 ms"):
        ps.Checkpointing(directory=tmp_path, hook_timeout="1ms")

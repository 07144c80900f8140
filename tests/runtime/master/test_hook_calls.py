"""Calls of checkpoint hooks: which are made, in which order, and what comes of what they return or raise."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest
from hooks_rig import HooksRig, make_hooks, triggered

from penstock.api.hold import ASK_AGAIN_MS, Hold
from penstock.api.hooks import CheckpointHook
from penstock.core.coordinator.events import HookFailed, HookTriggered
from penstock.core.errors import StorageError
from penstock.core.ids import CheckpointId, Epoch, Instant
from penstock.core.reasons import CheckpointFailure

ONE, TWO = CheckpointId(1), CheckpointId(2)
AWAY = StorageError("the records are away")


@pytest.fixture
def rig():
    return HooksRig()


def nothing() -> None:
    """What follows a restore, where nobody looks."""


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_what_a_hook_returns_is_its_state(rig):
    rig.a.answer = b"offset 7"
    rig.hooks.trigger(triggered("a", 1))
    rig.hooks.trigger(triggered("b", 1))
    rig.perform()
    assert rig.story == [("a", "trigger", 1, 77), ("b", "trigger", 1, 77)]
    assert rig.events == [
        HookTriggered(hook="a", checkpoint=ONE, state=b"offset 7"),
        HookTriggered(hook="b", checkpoint=ONE, state=None),
    ]


def test_what_a_hook_raises_fails_the_checkpoint_and_is_logged(rig, caplog):
    rig.a.answer = ValueError("no such topic")
    rig.hooks.trigger(triggered("a", 1))
    with caplog.at_level(logging.WARNING):
        rig.perform()
    assert rig.events == [HookFailed(hook="a", checkpoint=ONE, error="ValueError: no such topic")]
    assert "hook 'a' failed checkpoint 1: ValueError: no such topic" in caplog.text
    assert rig.failed == []


@pytest.mark.parametrize("error", [ConnectionError("away"), TimeoutError("slow"), AWAY])
def test_an_outside_system_that_is_away_counts_as_storage_does(rig, error):
    rig.a.answer = error
    rig.hooks.trigger(triggered("a", 1))
    rig.perform()
    (failed,) = rig.events
    assert failed.reason is CheckpointFailure.IO


def test_what_is_no_state_fails_the_checkpoint(rig):
    rig.a.answer = {"offset": 7}
    rig.hooks.trigger(triggered("a", 1))
    rig.perform()
    (failed,) = rig.events
    assert "hook 'a' returned {'offset': 7} from trigger; trigger must return bytes or None" in failed.error


def test_a_call_whose_checkpoint_was_aborted_before_its_turn_is_not_made(rig):
    """1. `a` hangs over checkpoint 1, which is aborted. 2. It is asked for 2, too, which is aborted. 3. It comes back
    when checkpoint 3 waits for it."""
    for checkpoint in (1, 2, 3):
        rig.hooks.trigger(triggered("a", checkpoint))
        if checkpoint < 3:
            rig.hooks.aborted(CheckpointId(checkpoint))
    rig.perform()
    assert rig.story == [("a", "trigger", 3, 77)]


def test_an_abort_of_an_older_checkpoint_does_not_keep_a_call_from_being_made(rig):
    rig.hooks.trigger(triggered("a", 2))
    rig.hooks.aborted(ONE)
    rig.perform()
    assert rig.story == [("a", "trigger", 2, 77)]


# --- restores --------------------------------------------------------------------------------------------------------


def test_tasks_are_deployed_when_all_hooks_are_back(rig):
    deployed = []
    rig.hooks.restore(ONE, {"b": b"offset 7"}, Epoch(2), lambda: deployed.append("now"))
    rig.perform("b")
    assert deployed == []
    rig.perform("a")
    assert deployed == ["now"]
    assert sorted(rig.story) == [("a", "restore", 1, None), ("b", "restore", 1, b"offset 7")]


def test_without_a_checkpoint_hooks_go_back_to_the_beginning(rig):
    rig.hooks.restore(None, {}, Epoch(1), nothing)
    rig.perform()
    assert rig.story == [("a", "reset"), ("b", "reset")]


def test_without_hooks_nobody_waits():
    deployed = []
    make_hooks({}).restore(ONE, {}, Epoch(1), lambda: deployed.append("now"))
    assert deployed == ["now"]


def test_a_hook_that_cannot_go_back_fails_the_attempt(rig):
    deployed = []
    rig.a.answer = ValueError("no such topic")
    rig.hooks.restore(ONE, {}, Epoch(1), lambda: deployed.append("now"))
    rig.perform()
    (cause,) = rig.failed
    assert (cause.text, cause.operator, cause.user_code) == ("ValueError: no such topic", "hook a", True)
    assert "no such topic" in cause.traceback
    assert deployed == []


def test_a_hook_that_does_not_come_back_in_time_fails_the_attempt_by_name(rig):
    deployed = []
    rig.hooks.turn(Instant(5_000))
    rig.hooks.restore(ONE, {}, Epoch(1), lambda: deployed.append("now"))
    rig.perform("b")
    assert rig.hooks.next_deadline() == 6_000
    rig.hooks.turn(Instant(5_999))
    assert rig.failed == []
    rig.hooks.turn(Instant(6_000))
    assert [cause.text for cause in rig.failed] == ["after 1000 ms these hooks were not restored: 'a'"]
    rig.perform("a")
    assert deployed == []


def test_a_restore_whose_attempt_is_over_is_not_made_and_changes_nothing(rig):
    """1. `a` hangs. 2. The attempt ends, and the next one begins, from a newer checkpoint. 3. `a` comes back."""
    deployed = []
    rig.hooks.restore(ONE, {}, Epoch(1), lambda: deployed.append("first"))
    rig.perform("b")
    rig.hooks.stop()
    rig.hooks.restore(TWO, {}, Epoch(2), lambda: deployed.append("second"))
    rig.perform()
    assert [call for call in rig.story if call[0] == "a"] == [("a", "restore", 2, None)]
    assert deployed == ["second"]


def test_in_doubt_who_has_the_job_a_restore_is_tried_again_and_a_checkpoint_fails(rig):
    deployed = []
    rig.looks = [AWAY, None]
    rig.hooks.restore(ONE, {}, Epoch(1), lambda: deployed.append("now"))
    rig.perform()
    assert rig.story == [("b", "restore", 1, None)]
    assert rig.hooks.next_deadline() == ASK_AGAIN_MS
    rig.hooks.turn(Instant(ASK_AGAIN_MS))
    rig.perform()
    assert (deployed, rig.failed) == (["now"], [])
    rig.looks = [AWAY]
    rig.hooks.trigger(triggered("a", 2))
    rig.perform()
    (failed,) = rig.events
    assert "the records are away" in failed.error


# --- the end, and another driver -------------------------------------------------------------------------------------


def test_a_driver_that_has_lost_the_job_calls_no_hook_and_is_told_so(rig):
    rig.take_away()
    rig.hooks.trigger(triggered("a", 1))
    rig.hooks.trigger(triggered("b", 1))
    rig.perform()
    assert (rig.story, rig.events, rig.lost) == ([], [], 1)


def test_a_hook_that_looks_again_is_stopped_right_before_it_acts(rig):
    class Careful(CheckpointHook):
        name = "careful"

        def trigger(self, checkpoint, timestamp_ms):
            rig.take_away()
            self.hold.check()
            rig.story.append("acted")

    rig.hooks = make_hooks(
        {"careful": Careful()}, hold=Hold(rig._look), background=rig._background, taken_over=rig._lose
    )
    rig.hooks.trigger(triggered("careful", 1))
    rig.perform("careful")
    assert (rig.story, rig.lost) == ([], 1)


def test_hooks_are_closed_once_behind_what_is_under_way(rig):
    rig.hooks.trigger(triggered("a", 1))
    assert not rig.hooks.have_ended
    rig.hooks.end()
    rig.hooks.end()
    assert not rig.hooks.have_ended
    rig.perform()
    assert rig.story == [("a", "close"), ("b", "close")]
    assert rig.hooks.have_ended
    assert rig.hooks.next_deadline() is None


def test_also_those_of_a_driver_that_has_lost_the_job(rig):
    rig.hold.let_go()
    rig.hooks.end()
    rig.perform()
    assert rig.story == [("a", "close"), ("b", "close")]


def test_one_that_cannot_be_closed_or_hangs_does_not_keep_the_job_from_ending(rig, caplog):
    rig.a.answer = ValueError("gone")
    rig.hooks.turn(Instant(5_000))
    rig.hooks.end()
    with caplog.at_level(logging.WARNING):
        rig.perform("a")
        rig.hooks.turn(Instant(5_999))
        assert not rig.hooks.have_ended
        rig.hooks.turn(Instant(6_000))
    assert rig.hooks.have_ended
    assert "hook 'a' could not be closed: ValueError: gone" in caplog.text
    assert "hooks that did not close in time were left alone: b" in caplog.text


def test_a_hook_that_is_frozen_gets_its_hold_too():
    @dataclass(frozen=True)
    class Frozen(CheckpointHook):
        calls: list = field(default_factory=list)

        def trigger(self, checkpoint, timestamp_ms):
            return None

    hook, hold = Frozen(), Hold()
    make_hooks({"frozen": hook}, hold=hold)
    assert hook.hold is hold

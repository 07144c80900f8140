"""Which handler a task gets."""

from __future__ import annotations

import pytest

from penstock.core.barrier.aligned import AlignedHandler
from penstock.core.barrier.alternating import AlternatingHandler
from penstock.core.barrier.select import make_handler
from penstock.core.barrier.tracker import BarrierTracker
from penstock.core.errors import InvariantError
from penstock.settings import CheckpointSettings, Mode


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (CheckpointSettings(interval_ms=1_000), AlignedHandler),
        (CheckpointSettings(interval_ms=1_000, max_concurrent=3), AlignedHandler),
        (CheckpointSettings(interval_ms=1_000, unaligned=True), AlternatingHandler),
        (CheckpointSettings(interval_ms=1_000, unaligned=True, aligned_timeout_ms=50), AlternatingHandler),
        (CheckpointSettings(interval_ms=1_000, mode=Mode.AT_LEAST_ONCE), BarrierTracker),
        (None, BarrierTracker),
    ],
)
def test_the_mode_chooses_the_handler(settings, kind):
    assert type(make_handler(settings, channels=2)) is kind


def test_checkpoints_on_request_promise_what_the_mode_says():
    assert type(make_handler(CheckpointSettings(interval_ms=None), channels=2)) is AlignedHandler


@pytest.mark.parametrize(
    "settings",
    [
        CheckpointSettings(unaligned=True, mode=Mode.AT_LEAST_ONCE),
        CheckpointSettings(unaligned=True, max_concurrent=2),
        CheckpointSettings(aligned_timeout_ms=5),
    ],
)
def test_settings_that_cannot_be_are_a_bug_here(settings):
    with pytest.raises(InvariantError, match=r"wrong settings: .*(unaligned|aligned_timeout)"):
        make_handler(settings, channels=2)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("unaligned", [False, True])
def test_whether_a_channel_may_end_during_a_checkpoint_is_a_setting(bench, mode, unaligned):
    if unaligned and mode is Mode.AT_LEAST_ONCE:
        return
    for goes_on in (True, False):
        settings = CheckpointSettings(mode=mode, unaligned=unaligned, after_tasks_finish=goes_on)
        task = bench(make_handler(settings, channels=2))
        task.feed("B1@0 E@1")
        assert (task.triggered, task.aborted) == (([1], []) if goes_on else ([], [1]))

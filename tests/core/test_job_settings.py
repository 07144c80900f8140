"""Settings that contradict themselves or cannot work are refused, all of them at once, with what to change."""

from __future__ import annotations

import pytest

from penstock.settings import CheckpointSettings, JobSettings, Mode, NetworkSettings, SlotSettings


def test_the_defaults_are_sound():
    assert JobSettings().problems() == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (JobSettings(parallelism=0), "parallelism is 0"),
        (JobSettings(parallelism=9, max_parallelism=8), "above max_parallelism 8"),
        (JobSettings(max_parallelism=40_000), "between 1 and 32768"),
        (JobSettings(source_batch_rows=0), "source_batch_rows is 0"),
        (JobSettings(network=NetworkSettings(transport="pigeon")), "'auto', 'ipc' or 'tcp'"),
        (JobSettings(slot=SlotSettings(heartbeat_timeout_ms=1_000)), "the least is 2000 ms"),
        (JobSettings(slot=SlotSettings(log_level="info")), "log_level is 'info'; use one of DEBUG, INFO"),
        (JobSettings(slot=SlotSettings(stuck_after_ms=900)), "stuck_after is 900 ms; the least is 1000 ms"),
        (JobSettings(slot=SlotSettings(stuck_timeout_ms=5_000)), "below stuck_after, 10000 ms"),
        (JobSettings(checkpoint=CheckpointSettings(interval_ms=5)), "the least is 10 ms"),
        (JobSettings(checkpoint=CheckpointSettings(timeout_ms=5)), "timeout is 5 ms"),
        (JobSettings(checkpoint=CheckpointSettings(min_pause_ms=-1)), "cannot be negative"),
        (JobSettings(checkpoint=CheckpointSettings(max_concurrent=0)), "max_concurrent is 0"),
        (JobSettings(checkpoint=CheckpointSettings(num_retained=0)), "num_retained is 0"),
        (JobSettings(checkpoint=CheckpointSettings(tolerable_failures=-1)), "use None"),
        (JobSettings(checkpoint=CheckpointSettings(delete_attempts=0)), "delete_attempts is 0"),
        (JobSettings(checkpoint=CheckpointSettings(delete_retry_ms=1)), "delete_retry is 1 ms"),
        (JobSettings(checkpoint=CheckpointSettings(unaligned=True, mode=Mode.AT_LEAST_ONCE)), "need mode exactly-once"),
        (JobSettings(checkpoint=CheckpointSettings(unaligned=True, max_concurrent=2)), "set max_concurrent to 1"),
        (JobSettings(checkpoint=CheckpointSettings(aligned_timeout_ms=10)), "without unaligned=True"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_change(settings: JobSettings, said: str):
    (problem,) = settings.problems()
    assert said in problem


def test_all_problems_are_told_at_once():
    assert len(JobSettings(parallelism=0, checkpoint=CheckpointSettings(interval_ms=1, timeout_ms=1)).problems()) == 3

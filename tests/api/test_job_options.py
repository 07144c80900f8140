"""Checkpointing and restart strategies as users give them: durations in, settings out, all problems at once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from penstock.api.checkpointing import Checkpointing
from penstock.api.restarts import exponential_delay, failure_rate, fixed_delay, no_restart
from penstock.core.errors import SettingsError
from penstock.settings import CheckpointSettings, ExponentialDelay, FailureRate, FixedDelay, Mode, NoRestart, Retention


def test_defaults_differ_from_those_of_a_job_only_in_the_interval():
    assert Checkpointing(directory="/data").settings == CheckpointSettings(interval_ms=1_000)


def test_every_argument_arrives_in_the_settings():
    given = Checkpointing(
        directory="/data",
        interval=timedelta(seconds=5),
        timeout="2 min",
        min_pause="500ms",
        max_concurrent=1,
        tolerable_failures=3,
        unaligned=True,
        aligned_timeout="1s",
        retain=4,
        keep="keep-on-failure",
    )
    assert given.settings == CheckpointSettings(
        interval_ms=5_000,
        timeout_ms=120_000,
        min_pause_ms=500,
        max_concurrent=1,
        tolerable_failures=3,
        unaligned=True,
        aligned_timeout_ms=1_000,
        num_retained=4,
        retention=Retention.KEEP_ON_FAILURE,
    )


def test_none_switches_off():
    settings = Checkpointing(directory="/data", interval=None, tolerable_failures=None).settings
    assert (settings.interval_ms, settings.tolerable_failures) == (None, None)


def test_the_mode_is_one_readable_text():
    assert Checkpointing(directory="/data", mode="at-least-once").settings.mode is Mode.AT_LEAST_ONCE


def test_a_relative_folder_starts_where_the_driver_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert Checkpointing(directory="checkpoints").location == str(tmp_path / "checkpoints")
    assert Checkpointing(directory=Path("checkpoints")).location == str(tmp_path / "checkpoints")


def test_a_uri_stays_as_it_is():
    assert Checkpointing(directory="s3://bucket/checkpoints").location == "s3://bucket/checkpoints"


def test_all_problems_are_told_at_once():
    with pytest.raises(SettingsError) as caught:
        Checkpointing(
            directory="",
            interval=5,  # type: ignore[arg-type]
            timeout="soon",
            max_concurrent=0,
            tolerable_failures=-1,
            mode="exactly once",  # type: ignore[arg-type]
            unaligned="yes",  # type: ignore[arg-type]
            retain=True,
            keep="forever",  # type: ignore[arg-type]
        )
    starts = [problem.split(";")[0] for problem in caught.value.problems]
    assert starts == [
        "directory is ''",
        "interval is 5, which has no unit",
        "timeout is 'soon', which is no duration",
        "max_concurrent is 0",
        "tolerable_failures is -1",
        "mode is 'exactly once'",
        "unaligned is 'yes'",
        "retain is True",
        "keep is 'forever'",
    ]


def test_values_that_do_not_go_together_are_refused():
    with pytest.raises(SettingsError) as caught:
        Checkpointing(directory="/data", interval="1ms", mode="at-least-once", unaligned=True, max_concurrent=2)
    assert len(caught.value.problems) == 3
    with pytest.raises(SettingsError, match="aligned_timeout has no effect without unaligned=True"):
        Checkpointing(directory="/data", aligned_timeout="1s")


def test_restart_strategies_take_durations():
    assert no_restart() == NoRestart()
    assert fixed_delay(3) == FixedDelay(attempts=3, delay_ms=1_000)
    assert fixed_delay(3, timedelta(seconds=10)) == FixedDelay(attempts=3, delay_ms=10_000)
    assert exponential_delay() == ExponentialDelay()
    assert exponential_delay(
        initial="100ms", multiplier=2, maximum="10s", jitter=0, reset_after="5 min", attempts=7
    ) == ExponentialDelay(initial_ms=100, multiplier=2, max_ms=10_000, jitter=0, reset_after_ms=300_000, attempts=7)


def test_restart_strategies_tell_all_problems_at_once():
    with pytest.raises(SettingsError) as caught:
        fixed_delay(0, "soon")
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "attempts is 0",
        "delay is 'soon', which is no duration",
    ]
    with pytest.raises(SettingsError) as caught:
        exponential_delay(initial="1 min", maximum="1s", multiplier=0.5, jitter=2, attempts=0)
    assert len(caught.value.problems) == 4
    with pytest.raises(SettingsError) as caught:
        exponential_delay(initial="1 min", maximum="soon")
    assert len(caught.value.problems) == 1


def test_a_rate_of_failures_is_checked_as_a_whole():
    assert failure_rate(3, "5 min", delay="2s") == FailureRate(max_failures=3, interval_ms=300_000, delay_ms=2_000)
    with pytest.raises(SettingsError) as caught:
        failure_rate(0, "0s", delay="soon")
    assert all(text in str(caught.value) for text in ("max_failures", "within", "delay"))

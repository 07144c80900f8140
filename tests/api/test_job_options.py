"""Checkpointing and restart strategies as users give them: durations in, settings out, all problems at once."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.api.checkpointing import Checkpointing
from penstock.api.restarts import exponential_delay, failure_rate, fixed_delay, no_restart
from penstock.core.errors import SettingsError
from penstock.settings import (
    BacklogInterval,
    CheckpointSettings,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    Mode,
    NoRestart,
    Retention,
)


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


def test_what_few_people_change_can_be_changed_too():
    settings = Checkpointing(
        directory="/data",
        interval="1s",
        interval_during_backlog="1 min",
        after_tasks_finish=False,
        inline_threshold_bytes=0,
        delete_attempts=3,
        delete_retry="2s",
    ).settings
    assert settings.during_backlog == BacklogInterval(interval_ms=60_000)
    assert (settings.after_tasks_finish, settings.inline_threshold_bytes) == (False, 0)
    assert (settings.delete_attempts, settings.delete_retry_ms) == (3, 2_000)


def test_every_checkpoint_setting_can_be_set_by_a_user():
    """A setting that only tests can reach is none."""
    given = {"retain": "num_retained", "keep": "retention", "interval_during_backlog": "during_backlog"}
    ours = {given.get(field.name, field.name) for field in fields(Checkpointing)}
    units = {name.removesuffix("_ms") for name in (field.name for field in fields(CheckpointSettings))}
    # Whether a source may find more data when the program is run again is known by the source.
    of_sources = {"goes_on_when_finished"}
    assert units - ours == of_sources


def test_the_interval_during_backlog_is_the_same_another_or_none():
    assert Checkpointing(directory="/data").settings.during_backlog is None
    off = Checkpointing(directory="/data", interval_during_backlog=None).settings
    assert off.during_backlog == BacklogInterval(interval_ms=None)
    with pytest.raises(SettingsError, match="shorter than the interval of 1000 ms"):
        Checkpointing(directory="/data", interval_during_backlog="999ms")
    with pytest.raises(SettingsError, match="shorter than the interval of None ms"):
        Checkpointing(directory="/data", interval=None, interval_during_backlog="1s")
    with pytest.raises(SettingsError, match="interval_during_backlog is 'often', which is no duration"):
        Checkpointing(directory="/data", interval_during_backlog="often")


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


# --- seals -----------------------------------------------------------------------------------------------------------


def test_a_key_is_given_or_read_from_a_file_that_only_its_user_can_read(tmp_path):
    key, file = b"0123456789abcdef", tmp_path / "key"
    file.write_bytes(key + b"\n")
    file.chmod(0o600)
    assert Checkpointing(directory=tmp_path).seal_key is None
    for given in (key, file, str(file)):
        made = Checkpointing(directory=tmp_path, seal=given)
        assert made.seal_key == key
        assert "0123456789" not in repr(made)


@pytest.mark.parametrize(
    ("seal", "said"),
    [
        (b"short", "seal has 5 bytes; give a key of at least 16"),
        ("missing", "cannot be read: No such file or directory"),
        ("wide", "other users can read the key file"),
        (7, "seal is a int"),
    ],
)
def test_a_key_that_is_none_is_refused(tmp_path, seal, said):
    (tmp_path / "wide").write_bytes(b"0123456789abcdef")
    (tmp_path / "wide").chmod(0o644)
    with pytest.raises(SettingsError, match=said):
        Checkpointing(directory=tmp_path, seal=str(tmp_path / seal) if isinstance(seal, str) else seal)


def test_who_may_read_is_one_of_three(tmp_path):
    with pytest.raises(SettingsError, match="readable_by is 'me'; choose one of 'owner', 'group', 'all'"):
        Checkpointing(directory=tmp_path, readable_by="me")

"""Durations are exact, always have a unit, and say what is wrong with them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.durations import duration_ms, duration_ms_or_problem, duration_us
from penstock.core.errors import UsageError


@pytest.mark.parametrize(
    ("given_text", "microseconds"),
    [
        ("10s", 10_000_000),
        ("500ms", 500_000),
        ("7us", 7),
        ("7µs", 7),
        ("1.5 min", 90_000_000),
        (" 2 H ", 7_200_000_000),
        ("1d", 86_400_000_000),
        ("1 hour 30 minutes", 5_400_000_000),
        ("1h30m", 5_400_000_000),
        ("0.1s", 100_000),
        ("0s", 0),
        (timedelta(minutes=2, microseconds=3), 120_000_003),
        (timedelta(0), 0),
    ],
)
def test_a_duration_is_exact(given_text, microseconds):
    assert duration_us(given_text, argument="delay") == microseconds


@given(st.integers(min_value=0, max_value=10**9), st.integers(min_value=0, max_value=999))
def test_decimals_are_not_rounded(seconds, millis):
    assert duration_ms(f"{seconds}.{millis:03}s", argument="delay") == seconds * 1_000 + millis


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        (10, "delay is 10, which has no unit"),
        (1.5, "delay is 1.5, which has no unit"),
        (None, "delay is None, which has no unit"),
        ("10", "delay is '10', which is no duration"),
        ("", "delay is '', which is no duration"),
        ("s", "delay is 's', which is no duration"),
        ("10s later", "delay is '10s later', which is no duration"),
        ("-10s", "delay is '-10s', which is no duration"),
        ("10 parsecs", "delay is '10 parsecs'; 'parsecs' is no unit of time"),
        (timedelta(seconds=-1), "a duration cannot be negative"),
        ("0.5us", "delay is '0.5us', which is no whole number of microseconds"),
        ("200000000000 days", "which is longer than 292,000 years"),
    ],
)
def test_an_error_names_the_argument_what_was_given_and_what_is_accepted(wrong, fact):
    with pytest.raises(UsageError) as caught:
        duration_us(wrong, argument="delay")
    assert caught.value.message.startswith("delay is ")
    assert fact in caught.value.message
    assert "such as '10s'" in (caught.value.hint or "")


def test_milliseconds_are_whole():
    assert duration_ms("1500us 500us", argument="delay") == 2
    with pytest.raises(UsageError, match="delay is '1500us', which is no whole number of milliseconds"):
        duration_ms("1500us", argument="delay")


def test_a_problem_can_be_gathered_instead_of_raised():
    problems: list[str] = []
    assert duration_ms_or_problem("1s", argument="timeout", problems=problems) == 1_000
    assert problems == []
    assert duration_ms_or_problem("soon", argument="timeout", problems=problems) is None
    assert len(problems) == 1
    assert problems[0].startswith("timeout is 'soon', which is no duration; write a number and a unit")

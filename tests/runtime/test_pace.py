"""The line about a running job: rates over the last seconds, and nothing that is not known."""

from __future__ import annotations

import dataclasses

import pytest
from job_views import make_view

from penstock.core.job.events import JobState
from penstock.runtime.pace import LONGEST_LAG_MS, Pacing, rate_text

NOW = 1_763_000_000_000


def test_the_line_says_how_fast_how_late_and_how_safe_the_job_is():
    pacing = Pacing()
    pacing.look(make_view(), NOW)
    view = make_view(rows_in=20_000, completed=7, triggered_ms=NOW + 1_000)
    view = dataclasses.replace(view, watermark_us=(NOW - 500) * 1_000, restarts=2)
    pace = pacing.look(view, NOW + 2_000)
    assert pace.line() == (
        "10,000 events/s · watermark 2.5 s behind · checkpoint 1.0 s ago · 2 restarts · 2 checkpoints failed · "
        "20,000 read"
    )


def test_a_rate_forgets_what_is_long_ago():
    pacing = Pacing()
    for second in range(20):
        pace = pacing.look(make_view(rows_in=1_000 * min(second, 10)), NOW + second * 1_000)
    assert pace.rows_per_second == 0


def test_before_the_job_runs_there_is_no_rate_and_the_state_is_told():
    pacing = Pacing()
    pacing.look(make_view(state=JobState.DEPLOYING), NOW)
    pace = pacing.look(make_view(state=JobState.DEPLOYING), NOW + 1_000)
    assert pace.rows_per_second is None
    assert pace.line().startswith(f"{JobState.DEPLOYING.value} · ")


@pytest.mark.parametrize(
    ("watermark_us", "words"),
    [
        (None, ""),
        (-(2**63), ""),
        (2**63 - 1, ""),
        ((NOW - 2 * LONGEST_LAG_MS) * 1_000, "watermark 2023-"),
        ((NOW + 3_000) * 1_000, "watermark 0 ms behind"),
    ],
)
def test_data_of_long_ago_has_a_time_and_no_lag(watermark_us, words):
    view = dataclasses.replace(make_view(), watermark_us=watermark_us)
    line = Pacing().look(view, NOW).line()
    assert (words in line) if words else ("watermark" not in line)


@pytest.mark.parametrize(
    ("rate", "text"), [(0, "0"), (12.34, "12.3"), (950, "950"), (1_234.4, "1,234"), (2_345_678, "2.35 M")]
)
def test_rates_are_short(rate, text):
    assert rate_text(rate) == text

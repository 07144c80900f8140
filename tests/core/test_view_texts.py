"""Numbers are shown as people read them."""

from __future__ import annotations

import pytest

from penstock.core.view_texts import count_of, duration_text, size_text, time_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (9_960, "10 kB"),
        (999_600, "1.0 MB"),
        (23_400_000, "23 MB"),
        (5e15, "5.0 PB"),
        (5e19, "50000 PB"),
    ],
)
def test_sizes(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 ms"),
        (12.3, "12 ms"),
        (999.6, "1.0 s"),
        (59_900, "59.9 s"),
        (59_999, "1 min 0 s"),
        (125_000, "2 min 5 s"),
        (11_040_000, "3 h 4 min"),
    ],
)
def test_durations(duration_ms, text):
    assert duration_text(duration_ms) == text


def test_times_and_counts():
    assert time_text(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert time_text((1 << 63) // 1_000) == f"{(1 << 63) // 1_000} ms"
    assert (count_of(1, "slot"), count_of(2_000, "slot")) == ("1 slot", "2,000 slots")

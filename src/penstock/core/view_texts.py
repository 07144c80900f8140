"""Numbers, sizes, durations and times of views as texts for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def count_of(number: int, noun: str) -> str:
    """`1 slot`, `2 slots`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(size: float) -> str:
    """`0 B`, `1.5 kB`, `23 MB`: two or three digits, by powers of 1,000."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1_000, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 9.95 else f"{size:.1f} {_UNITS[unit]}"


def duration_text(duration_ms: float) -> str:
    """`0 ms`, `12 ms`, `3.4 s`, `2 min 5 s`, `3 h 4 min`."""
    if duration_ms < 999.5:
        return f"{duration_ms:.0f} ms"
    if duration_ms < 59_950:
        return f"{duration_ms / 1_000:.1f} s"
    minutes, seconds = divmod(round(duration_ms / 1_000), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def time_text(instant_ms: int) -> str:
    """`2026-11-18 04:33:11 UTC`. A time beyond the calendar is given as a number of milliseconds."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=instant_ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{instant_ms} ms"

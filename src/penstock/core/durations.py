"""Durations as users write them: "10s", "500 ms", "1.5 min", "1h 30min" or a `timedelta`. The program counts in
integers.

A bare number is refused, because a bare number does not show whether seconds or milliseconds are meant.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from penstock.core.errors import UsageError

Duration = str | timedelta
"""What every duration argument takes."""

_MICROSECONDS = {
    **dict.fromkeys(("us", "µs", "μs", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
}
_ACCEPTED = "write a number and a unit (us, ms, s, min, h, d) such as '10s', '500ms' or '1.5 min', or give a timedelta"
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµμ]+)\s*", re.IGNORECASE)
_LARGEST_US = 2**63 - 1


def duration_us(given: Duration, *, argument: str) -> int:
    """The duration in whole microseconds, never negative. Raises `UsageError` naming `argument`."""
    microseconds = _exact_us(given, argument)
    if microseconds.denominator != 1:
        raise UsageError(f"{argument} is {given!r}, which is no whole number of microseconds", hint=_ACCEPTED)
    return int(microseconds)


def duration_ms(given: Duration, *, argument: str) -> int:
    """The duration in whole milliseconds, never negative. Raises `UsageError` naming `argument`."""
    milliseconds = _exact_us(given, argument) / 1_000
    if milliseconds.denominator != 1:
        raise UsageError(f"{argument} is {given!r}, which is no whole number of milliseconds", hint=_ACCEPTED)
    return int(milliseconds)


def duration_ms_or_problem(given: Duration, *, argument: str, problems: list[str]) -> int | None:
    """The duration in whole milliseconds. If the duration is wrong: None, and the reason is appended to `problems`."""
    try:
        return duration_ms(given, argument=argument)
    except UsageError as error:
        problems.append(f"{error.message}; {error.hint}")
        return None


def _exact_us(given: Duration, argument: str) -> Fraction:
    if isinstance(given, timedelta):
        microseconds = Fraction(given // timedelta(microseconds=1))
    elif isinstance(given, str):
        microseconds = _parsed_us(given, argument)
    else:
        raise UsageError(f"{argument} is {given!r}, which has no unit", hint=_ACCEPTED)
    if microseconds < 0:
        raise UsageError(f"{argument} is {given!r}; a duration cannot be negative", hint=_ACCEPTED)
    if microseconds > _LARGEST_US:
        raise UsageError(f"{argument} is {given!r}, which is longer than 292,000 years", hint=_ACCEPTED)
    return microseconds


def _parsed_us(text: str, argument: str) -> Fraction:
    total = Fraction(0)
    position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            break
        number, unit = part.groups()
        factor = _MICROSECONDS.get(unit.lower())
        if factor is None:
            raise UsageError(f"{argument} is {text!r}; {unit!r} is no unit of time", hint=_ACCEPTED)
        total += Fraction(number) * factor
        position = part.end()
    if position == 0 or position < len(text):
        raise UsageError(f"{argument} is {text!r}, which is no duration", hint=_ACCEPTED)
    return total


_UNITS = ((86_400_000_000, "day"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms"))


def readable(text: str) -> str:
    """The text with each number of microseconds in the largest unit in which the number is whole."""

    def in_unit(found: re.Match[str]) -> str:
        us = int(found[1])
        size, unit = next((each for each in _UNITS if us % each[0] == 0), (1, "us")) if us else (1, "s")
        return f"{us // size} {unit}"

    return re.sub(r"(-?\d+) us\b", in_unit, text)

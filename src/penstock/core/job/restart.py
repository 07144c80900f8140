"""When a failed job is started again: one small machine per strategy.

`failed(now, draw)` is told of each failure and answers with the pause before the restart, or None to give up. `draw` is
a number in [0, 1): chance comes in from outside.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, assert_never

from penstock.core.ids import Instant
from penstock.settings import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restart


class RestartStrategy(Protocol):
    """Decides on one failure after another."""

    def failed(self, now: Instant, draw: float) -> int | None:
        """Milliseconds to wait before the next attempt; None to give up."""
        ...

    @property
    def why_not(self) -> str:
        """Why the last answer was None, for the error text."""
        ...


class _Never:
    why_not = "no restart strategy is set"

    def failed(self, now: Instant, draw: float) -> int | None:  # noqa: ARG002
        return None


class _Fixed:
    def __init__(self, settings: FixedDelay) -> None:
        self._settings = settings
        self._used = 0

    @property
    def why_not(self) -> str:
        return f"all {self._settings.attempts} restarts of the fixed-delay strategy are used up"

    def failed(self, now: Instant, draw: float) -> int | None:  # noqa: ARG002
        if self._used >= self._settings.attempts:
            return None
        self._used += 1
        return self._settings.delay_ms


class _Exponential:
    def __init__(self, settings: ExponentialDelay) -> None:
        self._settings = settings
        self._used = 0
        self._pause_ms = float(settings.initial_ms)
        self._last: Instant | None = None

    @property
    def why_not(self) -> str:
        return f"all {self._settings.attempts} restarts of the exponential-delay strategy are used up"

    def failed(self, now: Instant, draw: float) -> int | None:
        settings = self._settings
        if self._last is not None and now - self._last >= settings.reset_after_ms + self._pause_ms:
            self._pause_ms = float(settings.initial_ms)
            self._used = 0
        self._last = now
        if settings.attempts is not None and self._used >= settings.attempts:
            return None
        self._used += 1
        pause_ms = min(self._pause_ms, settings.max_ms)
        self._pause_ms = min(self._pause_ms * settings.multiplier, settings.max_ms)
        return max(0, round(pause_ms * (1 + settings.jitter * (2 * draw - 1))))


class _Rate:
    def __init__(self, settings: FailureRate) -> None:
        self._settings = settings
        self._recent: deque[Instant] = deque()

    @property
    def why_not(self) -> str:
        settings = self._settings
        return f"more than {settings.max_failures} failures came within {settings.interval_ms} ms"

    def failed(self, now: Instant, draw: float) -> int | None:  # noqa: ARG002
        recent, settings = self._recent, self._settings
        recent.append(now)
        while now - recent[0] > settings.interval_ms:
            recent.popleft()
        return None if len(recent) > settings.max_failures else settings.delay_ms


def make_restart_strategy(settings: Restart) -> RestartStrategy:
    """The strategy that the settings name."""
    match settings:
        case NoRestart():
            return _Never()
        case FixedDelay():
            return _Fixed(settings)
        case ExponentialDelay():
            return _Exponential(settings)
        case FailureRate():
            return _Rate(settings)
        case _:
            assert_never(settings)

"""When a failed job is started again: one small machine per strategy.

`failed(now, draw)` is told of each failure and answers with the pause before the restart, or None to give up. `draw` is
a number in [0, 1): chance comes in from outside.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, assert_never

from penstock.core.ids import Instant
from penstock.settings import DEFAULT_RESTART, ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restart


class RestartStrategy(Protocol):
    """Decides on one failure after another."""

    def failed(self, now: Instant, draw: float) -> int | None:
        """Milliseconds to wait before the next attempt; None to give up."""
        ...

    def progressed(self) -> None:
        """A checkpoint has completed since the last failure."""
        ...

    @property
    def why_not(self) -> str:
        """Why the last answer was None, for the error text."""
        ...


class _Never:
    why_not = "no_restart() was given"

    def progressed(self) -> None:
        """Nothing to do: this strategy counts nothing."""

    def failed(self, now: Instant, draw: float) -> int | None:  # noqa: ARG002
        return None


class _Fixed:
    def __init__(self, settings: FixedDelay) -> None:
        self._settings = settings
        self._used = 0

    @property
    def why_not(self) -> str:
        return f"all {self._settings.attempts} restarts of the fixed-delay strategy are used up"

    def progressed(self) -> None:
        """Nothing to do: all restarts count, also restarts before a completed checkpoint."""

    def failed(self, now: Instant, draw: float) -> int | None:  # noqa: ARG002
        if self._used >= self._settings.attempts:
            return None
        self._used += 1
        return self._settings.delay_ms


class _Exponential:
    def __init__(self, settings: ExponentialDelay) -> None:
        self._settings = settings
        self._used = 0
        self._pause_ms = float(min(settings.initial_ms, settings.max_ms))
        self._restarted: Instant | None = None
        """When the last pause ends. The time without failures, `reset_after_ms`, is counted from here."""

    @property
    def why_not(self) -> str:
        return f"{self._settings.attempts} restarts in a row have not led to a completed checkpoint"

    def progressed(self) -> None:
        """Count restarts from zero again: only restarts without a completed checkpoint between them count."""
        # The pause is not reset: a job that fails again and again must not restart faster because it completes
        # checkpoints.
        self._used = 0

    def failed(self, now: Instant, draw: float) -> int | None:
        settings = self._settings
        if self._restarted is not None and now - self._restarted >= settings.reset_after_ms:
            self._pause_ms = float(min(settings.initial_ms, settings.max_ms))
            self._used = 0
        if settings.attempts is not None and self._used >= settings.attempts:
            return None
        self._used += 1
        varied_ms = self._pause_ms * (1 + settings.jitter * (2 * draw - 1))
        pause_ms = max(0, min(round(varied_ms), settings.max_ms))
        self._pause_ms = min(self._pause_ms * settings.multiplier, settings.max_ms)
        self._restarted = Instant(now + pause_ms)
        return pause_ms


class _Rate:
    def __init__(self, settings: FailureRate) -> None:
        self._settings = settings
        self._recent: deque[Instant] = deque()

    @property
    def why_not(self) -> str:
        settings = self._settings
        return f"more than {settings.max_failures} failures came within {settings.interval_ms} ms"

    def progressed(self) -> None:
        """Nothing to do: only the times of the failures count."""

    def failed(self, now: Instant, draw: float) -> int | None:  # noqa: ARG002
        recent, settings = self._recent, self._settings
        recent.append(now)
        while now - recent[0] > settings.interval_ms:
            recent.popleft()
        return None if len(recent) > settings.max_failures else settings.delay_ms


def make_restart_strategy(settings: Restart | None) -> RestartStrategy:
    """The strategy that the settings name."""
    match settings:
        case None:
            return _Exponential(DEFAULT_RESTART)
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

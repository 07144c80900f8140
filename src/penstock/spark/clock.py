"""Time and random numbers for the Spark shell. No other module of the shell reads a clock or draws a random number."""

from __future__ import annotations

import random
import secrets
import time

from penstock.core.ids import Instant


class WallClock:
    """The machine's clock, read once. From then on the time goes on evenly, even if somebody sets the machine's clock:
    otherwise every time-out of the process could run out at once, or never."""

    def __init__(self) -> None:
        self._ahead_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> Instant:
        """Milliseconds since 1970. The time never goes back."""
        return Instant((time.monotonic_ns() + self._ahead_ns) // 1_000_000)

    def precise_ms(self) -> float:
        """A finer clock, for durations within this process only."""
        return time.perf_counter() * 1_000


def draws(count: int = 64) -> tuple[float, ...]:
    """Random numbers in [0, 1)."""
    return tuple(random.random() for _ in range(count))


def fresh_token() -> str:
    """Eight random hexadecimal digits, for names that no other process uses."""
    return secrets.token_hex(4)

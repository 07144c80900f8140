"""Time and chance of the real shell. No other module of it reads a clock or draws a number."""

from __future__ import annotations

import random
import secrets
import time

from penstock.core.ids import Instant


class WallClock:
    """The machine's clock as it was when this was made, and goes on from there: one that is set meanwhile would let
    every time-out of the process run out at once, or none."""

    def __init__(self) -> None:
        self._ahead_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> Instant:
        """Milliseconds since 1970; never goes back."""
        return Instant((time.monotonic_ns() + self._ahead_ns) // 1_000_000)

    def precise_ms(self) -> float:
        """A finer clock, for durations within this process only."""
        return time.perf_counter() * 1_000


def draws(count: int = 64) -> tuple[float, ...]:
    """Numbers in [0, 1) for decisions that need chance."""
    return tuple(random.random() for _ in range(count))


def fresh_token() -> str:
    """Eight hexadecimal digits that nobody has used before."""
    return secrets.token_hex(4)

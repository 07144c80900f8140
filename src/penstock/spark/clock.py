"""Time and chance of the real shell. No other module of it reads a clock or draws a number."""

from __future__ import annotations

import random
import secrets
import time

from penstock.core.ids import Instant


class WallClock:
    """The machine's clock, made never to go back."""

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> Instant:
        """Milliseconds since 1970."""
        self._last = max(self._last, time.time_ns() // 1_000_000)
        return Instant(self._last)

    def precise_ms(self) -> float:
        """A finer clock, for durations within this process only."""
        return time.perf_counter() * 1_000


def draws(count: int = 64) -> tuple[float, ...]:
    """Numbers in [0, 1) for decisions that need chance."""
    return tuple(random.random() for _ in range(count))


def fresh_token() -> str:
    """Eight hexadecimal digits that nobody has used before."""
    return secrets.token_hex(4)

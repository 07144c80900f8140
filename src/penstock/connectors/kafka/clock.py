"""The times that clients of Kafka need: how long a call may still take, and when records were prepared. A cluster
answers in its own time: so this is the time of this host, also in a simulated job that writes to a real cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


def now_ms() -> int:
    """The time of this host, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Deadline:
    """A moment that is `within_s` from now."""

    within_s: float
    _at_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_at_s", time.monotonic() + self.within_s)

    @property
    def is_over(self) -> bool:
        """Whether the moment has come."""
        return time.monotonic() >= self._at_s

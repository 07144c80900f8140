"""The totals of tasks a few seconds ago, and the rates that follow from them.

A slot says with each report how much time its tasks have accounted for. Rates are over that time, and not over the time
between two looks, so that reports which come early or late do not make a rate jump.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

Past = Mapping[str, Mapping[str, float]]
"""Task id as text -> name -> total."""

RATES_OVER_MS = 5_000
LEAST_MS = 1_500
"""Totals that are younger than this may be those of the same report."""
_SHARES = {"busy": "busy_ms", "waiting": "waiting_ms", "blocked": "blocked_ms", "idle": "idle_ms"}
_RATED = ("rows_in", "rows_out", "bytes_in", "bytes_out")


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a task has been, and what part of its time went to what."""

    per_s: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


def rates_of(now: Mapping[str, float], before: Mapping[str, float] | None) -> Rates:
    """The rates of a task between two reports. Without an earlier report of the same deployment, the rates are those
    since the deployment."""
    before = before or {}
    parts = {share: now.get(name, 0.0) - before.get(name, 0.0) for share, name in _SHARES.items()}
    passed_ms = sum(parts.values())
    if before and any(part < 0 for part in parts.values()):
        # The totals of another deployment.
        return rates_of(now, None)
    if passed_ms <= 0:
        return Rates()
    per_s = {name: max(0.0, (now.get(name, 0.0) - before.get(name, 0.0)) * 1_000 / passed_ms) for name in _RATED}
    return Rates(per_s, {share: part / passed_ms for share, part in parts.items()})


class RecentTotals:
    """The totals of the last seconds of one job."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int, Past]] = deque()

    def past(self, now: int, epoch: int) -> Past:
        """The totals of `RATES_OVER_MS` ago, or as near to that as is known; of the same attempt only. Empty if
        nothing is known that is old enough: rates are those since the deployment then."""
        while len(self._seen) > 1 and self._seen[1][0] <= now - RATES_OVER_MS:
            self._seen.popleft()
        while self._seen and self._seen[0][1] != epoch:
            self._seen.popleft()
        return self._seen[0][2] if self._seen and now - self._seen[0][0] >= LEAST_MS else {}

    def add(self, now: int, epoch: int, totals: Past) -> None:
        """Remember totals."""
        if not self._seen or now - self._seen[-1][0] >= 500:
            self._seen.append((now, epoch, totals))

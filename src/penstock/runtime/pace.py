"""How fast a running job goes: a line about the job, made from one view after another. Nothing here reads a clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.core.job.events import JobState
from penstock.core.recovery.tenure import attempt_of
from penstock.core.view_texts import count_of, duration_text, time_text
from penstock.runtime.views import JobView

OVER_MS = 5_000
"""A rate is the mean over about this long."""
LONGEST_LAG_MS = 400 * 24 * 3_600_000
"""An event time that is further behind is no lag, but the time of old data, and is shown as a time."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """A job at one moment."""

    state: str
    attempt: int
    rows_read: int
    rows_per_second: float | None
    """None until two views of the running job were seen."""
    lag_ms: int | None
    """How far the watermark is behind the clock; None if there is no watermark, or if it is no time of our days."""
    watermark_ms: int | None
    checkpoint_age_ms: int | None
    """Since the newest completed checkpoint was triggered: what a failure now would have the job do again."""
    checkpoints: int
    checkpoints_failed: int
    restarts: int

    def line(self) -> str:
        """The pace in one line."""
        # What matters most comes first: a narrow terminal cuts the end of the line off.
        parts = [] if self.rows_per_second is not None else [self.state]
        if self.rows_per_second is not None:
            parts.append(f"{rate_text(self.rows_per_second)} events/s")
        if self.lag_ms is not None:
            parts.append(f"watermark {duration_text(self.lag_ms)} behind")
        elif self.watermark_ms is not None:
            parts.append(f"watermark {time_text(self.watermark_ms).removesuffix(' UTC')}")
        if self.checkpoint_age_ms is not None:
            parts.append(f"checkpoint {duration_text(self.checkpoint_age_ms)} ago")
        if self.restarts:
            parts.append(count_of(self.restarts, "restart"))
        if self.checkpoints_failed:
            parts.append(f"{count_of(self.checkpoints_failed, 'checkpoint')} failed")
        parts.append(f"{self.rows_read:,} read")
        return " · ".join(parts)


class Pacing:
    """Follows one job."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque()
        """The time of each view, and what had been read until then."""

    def look(self, view: JobView, now_ms: int) -> Pace:
        """The pace of the job at `now_ms`."""
        self._seen.append((now_ms, view.rows_read))
        while len(self._seen) > 2 and self._seen[1][0] <= now_ms - OVER_MS:
            self._seen.popleft()
        before_ms, before = self._seen[0]
        is_running = view.state is JobState.RUNNING
        rate = (view.rows_read - before) / (now_ms - before_ms) * 1_000 if now_ms > before_ms and is_running else None
        watermark_ms = _calendar_ms(view.watermark_us)
        lag_ms = None if watermark_ms is None else now_ms - watermark_ms
        latest = view.checkpoints.latest_completed
        counts = view.checkpoints.counts
        return Pace(
            state=view.state.value,
            attempt=attempt_of(view.epoch),
            rows_read=view.rows_read,
            rows_per_second=rate,
            lag_ms=max(0, lag_ms) if lag_ms is not None and abs(lag_ms) < LONGEST_LAG_MS else None,
            watermark_ms=watermark_ms,
            checkpoint_age_ms=None if latest is None else max(0, now_ms - latest.triggered),
            checkpoints=counts.completed,
            checkpoints_failed=counts.failed,
            restarts=view.restarts,
        )


def rate_text(rate: float) -> str:
    """`0`, `12.3`, `950`, `1,234`, `2.34 M`."""
    if rate >= 999_500:
        return f"{rate / 1_000_000:.2f} M"
    return f"{rate:,.0f}" if rate >= 100 or rate == 0 else f"{rate:.1f}"


def _calendar_ms(time_us: int | None) -> int | None:
    """A time within the years that a calendar has; the first and the last watermark are outside."""
    if time_us is None or not -62_000_000_000_000_000 < time_us < 250_000_000_000_000_000:
        return None
    return time_us // 1_000

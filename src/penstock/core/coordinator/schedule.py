"""When a checkpoint is asked for without anybody asking: periodically, and once all data has been seen.

The period is fixed-rate: the next time is one interval behind the last one that was due, not behind the moment it was
noticed. Times that passed while nobody looked give one request, not many.

    start     first time: at random between the minimum pause and the interval; later: after the minimum pause
    backlog   a source that works through old data may lengthen the period, or switch it off; a change only ever pulls
              the next time closer
"""

from __future__ import annotations

import msgspec

from penstock.core.errors import UsageError
from penstock.core.ids import Instant, OperatorId

FINAL_RETRY_MS = 1_000
"""After this long a failed last checkpoint is tried again: without it the tasks would wait for ever."""


class BacklogInterval(msgspec.Struct, frozen=True, kw_only=True):
    """The period while at least one source works through old data."""

    interval_ms: int | None
    """None: no periodic checkpoints meanwhile."""


class PeriodicSchedule:
    """The times of periodic checkpoints."""

    def __init__(self, *, interval_ms: int | None, min_pause_ms: int, during_backlog: BacklogInterval | None) -> None:
        self._min_pause_ms = min_pause_ms
        self._interval_ms = None if interval_ms is None else max(interval_ms, self._min_pause_ms)
        backlog_ms = during_backlog.interval_ms if during_backlog else None
        if backlog_ms is not None and (interval_ms is None or backlog_ms < interval_ms):
            raise UsageError(
                f"checkpoint interval during backlog is {backlog_ms} ms, shorter than the interval of {interval_ms} ms",
                hint="make it longer, or None for no periodic checkpoints during backlog",
            )
        self._during_backlog = during_backlog
        self._backlogged: dict[OperatorId, None] = {}
        self._has_started_before = False
        self.is_on = False
        self.next_trigger: Instant | None = None

    @property
    def _current_interval_ms(self) -> int | None:
        if self._interval_ms is None or self._during_backlog is None or not self._backlogged:
            return self._interval_ms
        backlog_ms = self._during_backlog.interval_ms
        return None if backlog_ms is None else max(backlog_ms, self._interval_ms)

    def start(self, now: Instant, draw: float) -> None:
        """Begin, or begin again; `draw` is a random number in [0, 1)."""
        self.is_on = True
        if self._interval_ms is None or self._current_interval_ms is None:
            return
        spread_ms = 0 if self._has_started_before else int(draw * (self._interval_ms - self._min_pause_ms + 1))
        self._has_started_before = True
        self.next_trigger = Instant(now + self._min_pause_ms + spread_ms)

    def stop(self) -> None:
        """No more times until `start`."""
        self.is_on = False
        self.next_trigger = None

    def is_due(self, now: Instant) -> bool:
        """Whether a checkpoint is due; if so, moves on to the next time, which is in the future."""
        if self.next_trigger is None or now < self.next_trigger:
            return False
        interval_ms = self._current_interval_ms
        if interval_ms is None:
            self.next_trigger = None
        else:
            missed = (now - self.next_trigger) // interval_ms
            self.next_trigger = Instant(self.next_trigger + (missed + 1) * interval_ms)
        return True

    def retry_after(self, delay_ms: int, now: Instant) -> None:
        """The request was too early: ask again then, and go on from there."""
        if self.is_on:
            self.next_trigger = Instant(now + delay_ms)

    def change_backlog(self, operator: OperatorId, now: Instant, *, backlog: bool) -> None:
        """A source fell behind or caught up."""
        if backlog:
            self._backlogged[operator] = None
        else:
            self._backlogged.pop(operator, None)
        interval_ms = self._current_interval_ms
        if not self.is_on or interval_ms is None:
            return
        sooner = Instant(now + interval_ms)
        if self.next_trigger is None or sooner < self.next_trigger:
            self.next_trigger = sooner

    def forget_backlog(self) -> None:
        """All sources start anew and will say so if they are behind."""
        self._backlogged.clear()


class FinalTrigger:
    """The checkpoint that is asked for, once per attempt, when all tasks have seen all their data."""

    def __init__(self) -> None:
        self._has_fired = False
        self.at: Instant | None = None

    def reset(self) -> None:
        """A new attempt begins: its tasks have to see their data again."""
        self._has_fired = False
        self.at = None

    def arm(self, now: Instant) -> None:
        """All data has been seen. Only the first time counts."""
        if not self._has_fired:
            self._has_fired = True
            self.at = now

    def retry(self, now: Instant, delay_ms: int = FINAL_RETRY_MS) -> None:
        """The checkpoint failed; tasks still wait for one."""
        if self._has_fired:
            self.at = Instant(now + delay_ms)

    def is_due(self, now: Instant) -> bool:
        """Whether to ask now; if so, it is asked only once."""
        if self.at is None or now < self.at:
            return False
        self.at = None
        return True

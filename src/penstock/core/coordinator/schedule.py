"""When the coordinator itself asks for a checkpoint: periodically, and once when all data has been seen.

The period has a fixed rate: the next time is one interval after the last time that was due, not after the moment when
that time was noticed. Times that passed without a tick give one request together.

    start     first start: at a random time between the minimum pause and the interval; later: after the minimum pause
    backlog   a source that works through old data may lengthen the period, or switch the period off; a change of the
              backlog makes the next time earlier or leaves the time as it is, never later
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.core.ids import Instant, OperatorId, TaskId
from penstock.settings import BacklogInterval

FINAL_RETRY_MS = 1_000
"""After this time a last checkpoint that failed is tried again: without a last checkpoint the tasks would wait for
ever."""


Catching = tuple[OperatorId, TaskId | None]
"""The part of a source that is catching up: a subtask; without a task, the enumerator."""


class PeriodicSchedule:
    """The times of periodic checkpoints."""

    def __init__(self, *, interval_ms: int | None, min_pause_ms: int, during_backlog: BacklogInterval | None) -> None:
        self._min_pause_ms = min_pause_ms
        self._interval_ms = None if interval_ms is None else max(interval_ms, self._min_pause_ms)
        self._during_backlog = during_backlog
        self._backlogged: dict[Catching, None] = {}
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
        """Switch the schedule on. `draw`, a random number in [0, 1), chooses the time of the first checkpoint when the
        schedule is started for the first time."""
        self.is_on = True
        if self._interval_ms is None or self._current_interval_ms is None:
            return
        spread_ms = 0 if self._has_started_before else int(draw * (self._interval_ms - self._min_pause_ms + 1))
        self._has_started_before = True
        self.next_trigger = Instant(now + self._min_pause_ms + spread_ms)

    def stop(self) -> None:
        """Switch the schedule off until the next `start`."""
        self.is_on = False
        self.next_trigger = None

    def is_due(self, now: Instant) -> bool:
        """Whether a checkpoint is due. If a checkpoint is due, the schedule moves on to the next time in the future."""
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
        """The request was too early: the next time is `delay_ms` from now, and the period goes on from that time."""
        if self.is_on:
            self.next_trigger = Instant(now + delay_ms)

    def change_backlog(self, who: Catching, now: Instant, *, backlog: bool) -> None:
        """A part of a source fell behind or caught up."""
        if backlog:
            self._backlogged[who] = None
        else:
            self._backlogged.pop(who, None)
        self._pull_closer(now)

    def _pull_closer(self, now: Instant) -> None:
        interval_ms = self._current_interval_ms
        if not self.is_on or interval_ms is None:
            return
        sooner = Instant(now + interval_ms)
        if self.next_trigger is None or sooner < self.next_trigger:
            self.next_trigger = sooner

    def forget_backlog(self, now: Instant, tasks: Collection[TaskId] | None = None) -> None:
        """Count these tasks as not behind: they have ended, or start anew and will report if they are behind. None: all
        sources start anew."""
        left = {who: None for who in self._backlogged if tasks is not None and who[1] not in tasks}
        if len(left) < len(self._backlogged):
            self._backlogged = left
            self._pull_closer(now)


class FinalTrigger:
    """The checkpoint that is asked for, once per attempt, when all tasks have seen all their data."""

    def __init__(self) -> None:
        self._has_fired = False
        self.at: Instant | None = None

    def reset(self) -> None:
        """A new attempt begins: the tasks of the new attempt have to see their data again."""
        self._has_fired = False
        self.at = None

    def arm(self, now: Instant) -> None:
        """All data has been seen: ask for the last checkpoint now. Only the first call of an attempt counts."""
        if not self._has_fired:
            self._has_fired = True
            self.at = now

    def retry(self, now: Instant) -> None:
        """The last checkpoint failed: ask again later, because tasks still wait for it."""
        if self._has_fired:
            self.at = Instant(now + FINAL_RETRY_MS)

    def give_up(self) -> None:
        """No task waits for a last checkpoint any more."""
        self.at = None

    def is_due(self, now: Instant) -> bool:
        """Whether to ask for the last checkpoint now. The answer is True only once for each time that was set."""
        if self.at is None or now < self.at:
            return False
        self.at = None
        return True

"""The progress of a job from one view to the next: how far the job is, how fast it reads, and what has happened.

Each view comes with the time at which it was taken; nothing here reads a clock.

A view counts the events that the sources have read since the attempt began. How far the *job* is must be computed: an
attempt that was restored from a checkpoint begins where the sources were when that checkpoint was triggered. Where the
sources were at that time is estimated from the views before and after that time. Slots report twice a second, so the
estimate is not exact.
"""

from __future__ import annotations

from collections import deque

from penstock.core.job.events import JobState
from penstock.core.views import CheckpointView
from penstock.runtime.views import FailureView, JobView
from penstock.terminal.screen import LastCheckpoint, Progress

RATE_OVER_MS = 2_000
RATE_EVERY_MS = 500
RATES_KEPT = 40
LOOKS_KEPT = 4_096
LAG_MS = 300
"""How old the counts in a view are, on average: slots report twice a second, and views are made ten times a second."""


class Watch:
    """Follows one job of `events` records from `start_ms` on."""

    def __init__(self, *, events: int, start_ms: int) -> None:
        self._events = events
        self._start_ms = start_ms
        self._looks: deque[tuple[int, int]] = deque(maxlen=LOOKS_KEPT)
        """The time of each view of this attempt and the events read up to that time, oldest first."""
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._rated_at_ms = start_ms
        self._epoch: int | None = None
        self._base = 0
        """How many events had been read when this attempt began."""
        self._triggered: dict[int, int] = {}
        """When each completed checkpoint was triggered."""
        self._failures: set[tuple[int, int]] = set()
        self.first_read_ms: int | None = None
        """The time of the first view in which events had been read; None before that."""

    def look(self, view: JobView, now_ms: int) -> tuple[Progress, list[str]]:
        """The progress of the job at `now_ms`, and a sentence for each event since the last call."""
        notes = self._new_failures(view.failures)
        if view.checkpoints.latest_completed is not None:
            self._remember(view.checkpoints.latest_completed)
        if view.epoch != self._epoch:
            notes += self._new_attempt(view)
        position = self._position(view)
        self._looks.append((now_ms, position))
        if self.first_read_ms is None and view.rows_in:
            self.first_read_ms = now_ms
        rate = self._rate(now_ms) if view.state is JobState.RUNNING else 0.0
        if now_ms >= self._rated_at_ms + RATE_EVERY_MS:
            self._rated_at_ms = now_ms
            self._rates.append(rate)
        latest = view.checkpoints.latest_completed
        progress = Progress(
            state=view.state.value,
            elapsed_s=(now_ms - self._start_ms) / 1_000,
            events_read=position,
            events_total=self._events,
            events_per_second=rate,
            rates=tuple(self._rates),
            watermark_us=view.watermark_us,
            checkpoint=_last_checkpoint(latest) if latest is not None else None,
            completed=view.checkpoints.counts.completed,
            failed=view.checkpoints.counts.failed,
            restarts=view.restarts,
        )
        return progress, notes

    def _position(self, view: JobView) -> int:
        if view.state is JobState.FINISHED:
            return self._events
        if view.epoch != self._epoch or not view.rows_in:
            # Between two attempts nothing is read: the last known position is shown.
            return self._looks[-1][1] if self._looks else self._base
        return min(self._base + view.rows_in, self._events)

    def _new_failures(self, failures: tuple[FailureView, ...]) -> list[str]:
        notes: list[str] = []
        for failure in failures:
            known = (failure.epoch, failure.when)
            if known not in self._failures:
                self._failures.add(known)
                next_step = "giving up" if failure.restart_in_ms is None else "restarting"
                notes.append(f"{failure.text.splitlines()[0] if failure.text else 'failed'}; {next_step}")
        return notes

    def _remember(self, checkpoint: CheckpointView) -> None:
        self._triggered.setdefault(checkpoint.checkpoint, checkpoint.triggered)

    def _new_attempt(self, view: JobView) -> list[str]:
        """Begin to follow an attempt when its tasks run. Before that the view does not say which checkpoint the attempt
        is restored from."""
        if view.state is not JobState.RUNNING:
            return []
        first = self._epoch is None
        self._epoch = view.epoch
        restored = view.restored_checkpoint
        triggered_ms = self._triggered.get(restored) if restored is not None else None
        self._base = self._position_at(triggered_ms + LAG_MS) if triggered_ms is not None else 0
        self._looks.clear()
        if first:
            return ["all slots are up, the job runs"]
        return [f"restored from checkpoint {restored}" if restored is not None else "started from the beginning"]

    def _position_at(self, time_ms: int) -> int:
        """How many events had been read at `time_ms`, estimated from the views before and after that time."""
        before = (self._start_ms, 0)
        for after in self._looks:
            if after[0] >= time_ms:
                span = max(after[0] - before[0], 1)
                return before[1] + (after[1] - before[1]) * (time_ms - before[0]) // span
            before = after
        return before[1]

    def _rate(self, now_ms: int) -> float:
        oldest = next((look for look in self._looks if look[0] >= now_ms - RATE_OVER_MS), None)
        if oldest is None or now_ms <= oldest[0]:
            return 0.0
        return (self._looks[-1][1] - oldest[1]) / (now_ms - oldest[0]) * 1_000


def _last_checkpoint(view: CheckpointView) -> LastCheckpoint:
    size = view.totals.checkpointed_bytes + view.metadata_bytes
    return LastCheckpoint(number=view.checkpoint, duration_ms=view.duration_ms, size_bytes=size)

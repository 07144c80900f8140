"""Frozen pictures of a running job, for the terminal and for pages."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from penstock.core.ids import Epoch, Instant, JobId, SlotId
from penstock.core.job.events import AttemptEnded, FailureCause, JobState, RegionEnded
from penstock.core.messages import Register
from penstock.core.recovery.tenure import attempt_of
from penstock.core.view_texts import count_of, duration_text, time_text
from penstock.core.views import CheckpointsView


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """One slot."""

    number: int
    incarnation: int
    host: str | None
    """None until it has called in."""
    pid: int | None


@dataclass(frozen=True, kw_only=True)
class FailureView:
    """Why an attempt ended."""

    epoch: Epoch
    when: Instant
    text: str
    operator: str | None
    subtask: int | None
    traceback: str
    user_code: bool
    restart_in_ms: int | None
    """None: the job gave up."""


@dataclass(frozen=True, kw_only=True)
class StuckView:
    """A slot whose loop does not turn, since code that it called has not come back. Its process lives."""

    slot: int
    """Its number."""
    stuck_ms: int
    """How long it had not turned when it last said so."""
    operator: str | None
    """The step whose code it is in; None if it is in none."""
    subtask: int | None
    step_ms: int
    """How long it had been in that code."""
    stack: str
    """Where in that code: file, line and function of each call, the innermost last."""


@dataclass(frozen=True, kw_only=True, repr=False)
class JobView:
    """A job at one moment. Printed it is a few lines; all of it is in its fields."""

    job: JobId
    state: JobState
    epoch: Epoch
    restarts: int
    slots: tuple[SlotView, ...]
    rows_in: int
    """Records that the sources of this attempt have read since it began."""
    rows_read: int
    """The same over all attempts: records read again after a failure count again."""
    rows_out: int
    """Records that came to the tasks that end in a sink, in this attempt."""
    watermark_us: int | None
    """How far event time has come at the slowest task that knows it."""
    late_dropped: int = 0
    """Results of this attempt that came after their window had closed, and were dropped."""
    timeless_dropped: int = 0
    """Records of this attempt that had no event time, and were dropped before a window."""
    beyond_time_dropped: int = 0
    """Records of this attempt so near to the limits of 64 bits that their window does not fit, which were dropped."""
    restored_checkpoint: int | None
    """What this attempt started from."""
    checkpoints: CheckpointsView
    failures: tuple[FailureView, ...]
    """The last ones, oldest first."""
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    """Task id -> running totals of this attempt."""
    spares: tuple[SlotView, ...] = ()
    """Slots that are up and stand by."""
    stuck: tuple[StuckView, ...] = ()
    """Slots whose loops have not turned for longer than `SlotSettings.stuck_after_ms`."""
    finished_tasks: int = 0
    """How many tasks of the running attempt have ended for good."""

    def __repr__(self) -> str:
        return "\n".join(f"{name + ':':<14}{text}" for name, text in self._lines())

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        rows = "".join(f"<tr><td>{name}</td><td>{html.escape(text)}</td></tr>" for name, text in self._lines())
        return f"<table>{rows}</table>"

    def _lines(self) -> list[tuple[str, str]]:
        spares = f" and {count_of(len(self.spares), 'spare slot')}" if self.spares else ""
        restarts = f", {count_of(self.restarts, 'restart')}" if self.restarts else ""
        late = f", {self.late_dropped:,} late results dropped" if self.late_dropped else ""
        again = f" ({self.rows_read:,} with those of earlier attempts)" if self.rows_read != self.rows_in else ""
        lines = [
            ("job", f"{self.job}: {self.state.value}"),
            ("attempt", f"{attempt_of(self.epoch)} on {count_of(len(self.slots), 'slot')}{spares}{restarts}"),
            ("rows", f"{self.rows_in:,} read{again}, {self.rows_out:,} at the sinks{late}"),
        ]
        if self.timeless_dropped or self.beyond_time_dropped:
            timeless = f"{self.timeless_dropped:,} without event time"
            lines.append(("no window", f"{timeless}, {self.beyond_time_dropped:,} beyond all windows"))
        if self.watermark_us is not None:
            lines.append(("event time", time_text(self.watermark_us // 1_000)))
        lines.append(("checkpoints", _checkpoints_text(self.checkpoints)))
        for stuck in self.stuck:
            where = "" if stuck.operator is None else f" in step {stuck.operator!r}, subtask {stuck.subtask}"
            lines.append(("stuck", f"slot {stuck.slot} for {duration_text(stuck.stuck_ms)}{where}"))
        if self.failures:
            last = self.failures[-1]
            where = "" if last.operator is None else f" in {last.operator!r}"
            lines.append(
                ("last failure", f"attempt {attempt_of(last.epoch)}{where}: {(last.text.splitlines() or [''])[0]}")
            )
        return lines


def tell_dropped(name: str, view: JobView) -> list[str]:
    """What was dropped of a job that has ended, and what can be done about it."""
    told = [
        (
            view.late_dropped,
            "result",
            "came after the window had closed; give watermark() more delay",
        ),
        (
            view.timeless_dropped,
            "record",
            "had no event time and so no window; see to it that the column of watermark() is never null",
        ),
        (
            view.beyond_time_dropped,
            "record",
            "had a time so near to the limits of 64 bits that its window does not fit; change it before watermark()",
        ),
    ]
    return [f"job {name!r} dropped {count_of(count, noun)} that {why}" for count, noun, why in told if count]


def _checkpoints_text(view: CheckpointsView) -> str:
    counts, latest = view.counts, view.latest_completed
    failed = f", {counts.failed} failed" if counts.failed else ""
    under_way = f", {counts.in_progress} under way" if counts.in_progress else ""
    last = "" if latest is None else f"; last: {latest.checkpoint} in {duration_text(latest.duration_ms)}"
    return f"{counts.completed} completed{failed}{under_way}{last}"


def slot_view(slot: SlotId, registered: Register | None) -> SlotView:
    """A slot that has called in, or not yet."""
    return SlotView(
        number=slot.number,
        incarnation=slot.incarnation,
        host=registered.host if registered is not None else None,
        pid=registered.pid if registered is not None else None,
    )


def place_of(cause: FailureCause) -> str:
    """Where in the program it went wrong, to be put behind "failed"; empty if it was not in the program."""
    if cause.operator is None:
        return ""
    where = "on the driver" if cause.subtask is None else f"subtask {cause.subtask}"
    return f" in {cause.operator!r}{'' if cause.subtask is None else ','} {where}"


def failure_view(ended: AttemptEnded | RegionEnded, now: Instant) -> FailureView:
    """An attempt that has failed, or a part of it."""
    cause = ended.cause
    return FailureView(
        epoch=ended.epoch,
        when=now,
        text=cause.text,
        operator=cause.operator,
        subtask=cause.subtask,
        traceback=cause.traceback,
        user_code=cause.user_code,
        restart_in_ms=ended.restart_in_ms,
    )

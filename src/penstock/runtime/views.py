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
from penstock.runtime.user_metrics import UserMetric, user_metrics


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """One slot."""

    number: int
    incarnation: int
    host: str | None
    """None until the slot has registered with the master."""
    pid: int | None


@dataclass(frozen=True, kw_only=True)
class FailureView:
    """The failure of an attempt, or of a region of an attempt."""

    epoch: Epoch
    when: Instant
    text: str
    operator: str | None
    subtask: int | None
    traceback: str
    user_code: bool
    restart_in_ms: int | None
    """The pause before the restart; None: no restart follows."""


@dataclass(frozen=True, kw_only=True)
class StuckView:
    """A slot whose loop does not turn, because code that the loop called has not returned. The slot's process lives."""

    slot: int
    """The number of the slot."""
    stuck_ms: int
    """How long the loop had not turned, by the last report of the slot."""
    operator: str | None
    """The step whose code the loop is in; None if the loop is in no step."""
    subtask: int | None
    step_ms: int
    """How long the loop had been in the code of `operator`, by the last report of the slot."""
    stack: str
    """Where the loop is: file, line and function of each call, the innermost call last."""


@dataclass(frozen=True, kw_only=True, repr=False)
class JobView:
    """A job at one moment. The printed view is a few lines; the fields have everything."""

    job: JobId
    state: JobState
    epoch: Epoch
    restarts: int
    slots: tuple[SlotView, ...]
    rows_in: int
    """Records that the sources have read since this attempt began."""
    rows_read: int
    """Records that the sources have read in all attempts: records that are read again after a failure count again."""
    rows_out: int
    """Records that have reached the tasks that end in a sink, in this attempt."""
    watermark_us: int | None
    """The watermark of the task whose watermark is furthest behind; None if no task has a watermark."""
    late_dropped: int = 0
    """Partial results, one per key and window of a batch, that came in this attempt after their window had closed, and
    were dropped."""
    timeless_dropped: int = 0
    """Records of this attempt that had no event time, and were dropped before a window."""
    beyond_time_dropped: int = 0
    """Records of this attempt that were dropped because their event time is so near to the limits of 64 bits that the
    window does not fit."""
    lines_skipped: int = 0
    """Lines of files that could not be read in this attempt, and were skipped as the program says."""
    restored_checkpoint: int | None
    """The checkpoint that this attempt started from; None: the attempt started from the beginning of the job."""
    checkpoints: CheckpointsView
    failures: tuple[FailureView, ...]
    """The last failures, oldest first."""
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    """Task id -> name -> running total of this attempt."""
    spares: tuple[SlotView, ...] = ()
    """The spare slots that are up."""
    stuck: tuple[StuckView, ...] = ()
    """Slots whose loops have not turned for longer than `SlotSettings.stuck_after_ms`."""
    finished_tasks: int = 0
    """How many tasks of the running attempt have ended for good."""

    @property
    def metrics(self) -> dict[str, dict[str, UserMetric]]:
        """The metrics of the program's functions (`context.metrics`), over all subtasks of the running attempt:
        operator id -> name -> metric."""
        return user_metrics(self.tasks)

    def __repr__(self) -> str:
        return "\n".join(f"{name + ':':<14}{text}" for name, text in self._lines())

    def _repr_html_(self) -> str:
        """The lines of the printed view as a table, for notebooks."""
        rows = "".join(f"<tr><td>{name}</td><td>{html.escape(text)}</td></tr>" for name, text in self._lines())
        return f"<table>{rows}</table>"

    def _lines(self) -> list[tuple[str, str]]:
        spares = f" and {count_of(len(self.spares), 'spare slot')}" if self.spares else ""
        restarts = f", {count_of(self.restarts, 'restart')}" if self.restarts else ""
        late = f", {self.late_dropped:,} late results dropped" if self.late_dropped else ""
        skipped = f", {count_of(self.lines_skipped, 'line')} skipped" if self.lines_skipped else ""
        again = f" ({self.rows_read:,} in all attempts)" if self.rows_read != self.rows_in else ""
        lines = [
            ("job", f"{self.job}: {self.state.value}"),
            ("attempt", f"{attempt_of(self.epoch)} on {count_of(len(self.slots), 'slot')}{spares}{restarts}"),
            ("rows", f"{self.rows_in:,} read{again}, {self.rows_out:,} at the sinks{late}{skipped}"),
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
    """What a job that has ended has dropped, and what a user can do about the loss, as texts for people."""
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
            "had a time so near to the limits of 64 bits that no window fits; change the time before watermark()",
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
    """The view of a slot; `registered` is None if the slot has not registered with the master yet."""
    return SlotView(
        number=slot.number,
        incarnation=slot.incarnation,
        host=registered.host if registered is not None else None,
        pid=registered.pid if registered is not None else None,
    )


def place_of(cause: FailureCause) -> str:
    """Where in the program the cause lies, to be put behind "failed"; empty if the cause does not lie in the
    program."""
    if cause.operator is None:
        return ""
    where = "on the driver" if cause.subtask is None else f"subtask {cause.subtask}"
    return f" in {cause.operator!r}{'' if cause.subtask is None else ','} {where}"


def failure_view(ended: AttemptEnded | RegionEnded, now: Instant) -> FailureView:
    """The view of a failed attempt, or of a failed region."""
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

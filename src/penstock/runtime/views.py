"""Frozen pictures of a running job, for the terminal and for pages."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.ids import Epoch, Instant, JobId, SlotId
from penstock.core.job.events import AttemptEnded, FailureCause, JobState, RegionEnded
from penstock.core.messages import Register
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
class JobView:
    """A job at one moment."""

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
    restored_checkpoint: int | None
    """What this attempt started from."""
    checkpoints: CheckpointsView
    failures: tuple[FailureView, ...]
    """The last ones, oldest first."""
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    """Task id -> running totals of this attempt."""
    spares: tuple[SlotView, ...] = ()
    """Slots that are up and stand by."""


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

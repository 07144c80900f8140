"""Views of jobs that never ran, for what looks at them."""

from __future__ import annotations

from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import SnapshotKind
from penstock.core.views import (
    CheckpointCounts,
    CheckpointStatus,
    CheckpointsView,
    CheckpointTotals,
    CheckpointView,
    SummaryView,
)
from penstock.runtime.views import FailureView, JobView, SlotView


def _checkpoint(number: int, triggered_ms: int) -> CheckpointView:
    return CheckpointView(
        checkpoint=number,
        kind=SnapshotKind.CHECKPOINT,
        status=CheckpointStatus.COMPLETED,
        triggered=triggered_ms,
        queued_ms=0,
        duration_ms=37,
        canonical=False,
        totals=CheckpointTotals(checkpointed_bytes=1_200),
        vertices=(),
        metadata_bytes=34,
    )


def make_view(
    *,
    state: JobState = JobState.RUNNING,
    epoch: int = 1,
    rows_in: int = 0,
    completed: int = 0,
    triggered_ms: int = 0,
    restored: int | None = None,
    failures: tuple[FailureView, ...] = (),
    slots: int = 2,
) -> JobView:
    """A view whose newest checkpoint, if any, has the number `completed` and was triggered at `triggered_ms`."""
    return JobView(
        job="demo-1",
        state=state,
        epoch=epoch,
        restarts=epoch - 1,
        slots=tuple(SlotView(number=i, incarnation=1, host="here", pid=4_710 + i) for i in range(slots)),
        rows_in=rows_in,
        rows_read=rows_in,
        rows_out=0,
        watermark_us=None,
        restored_checkpoint=restored,
        checkpoints=CheckpointsView(
            counts=CheckpointCounts(completed=completed, failed=2),
            summary=SummaryView(),
            history=(),
            latest_completed=_checkpoint(completed, triggered_ms) if completed else None,
        ),
        failures=failures,
    )

"""Frozen pictures of the machines, for pages, the terminal and metrics. A page that has a view never has a live
machine."""

from __future__ import annotations

from enum import Enum
from html import escape

import msgspec

from penstock.core.ids import CheckpointId, Instant, TaskId, VertexId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind
from penstock.core.timeline_html import timeline_html
from penstock.core.view_texts import count_of, duration_text, size_text, time_text


class CheckpointStatus(Enum):
    """Where a checkpoint is in its life."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How the values of a number are spread. All fields are zero if there was no value."""

    min: float = 0
    max: float = 0
    avg: float = 0
    p50: float = 0
    p90: float = 0
    p95: float = 0
    p99: float = 0
    p999: float = 0


class CheckpointCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many checkpoints there were since this driver began to run the job."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


class CheckpointTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The sums over all acknowledgements of a checkpoint, or over the acknowledgements of one vertex in a
    checkpoint."""

    num_subtasks: int = 0
    num_acknowledged: int = 0
    latest_ack: Instant | None = None
    checkpointed_bytes: int = 0
    """Bytes written for this checkpoint."""
    state_bytes: int = 0
    """Bytes that a restore of this checkpoint reads."""
    processed_bytes: int = 0
    """Bytes of input consumed while aligning."""
    persisted_bytes: int = 0
    """Bytes of in-flight data saved."""
    unaligned: bool = False
    """At least one subtask saved in-flight data instead of aligning."""


class VertexView(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex in one checkpoint."""

    vertex: VertexId
    status: CheckpointStatus
    duration_ms: int
    """From the trigger to the last acknowledgement."""
    totals: CheckpointTotals


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint."""

    checkpoint: CheckpointId
    kind: SnapshotKind
    status: CheckpointStatus
    triggered: Instant
    queued_ms: int
    """How long the request for the checkpoint had waited."""
    duration_ms: int
    """From the trigger to the last acknowledgement."""
    canonical: bool
    totals: CheckpointTotals
    vertices: tuple[VertexView, ...]
    path: str | None = None
    """The metadata file of a completed checkpoint."""
    metadata_bytes: int = 0
    discarded: bool = False
    """The files of the completed checkpoint have been deleted."""
    ended: Instant | None = None
    """When the checkpoint completed or failed."""
    failure: CheckpointFailure | None = None
    failure_text: str = ""

    def summary(self) -> str:
        """The checkpoint in one line."""
        name = f"{self.kind.value.lower()} {self.checkpoint}"
        totals = self.totals
        acknowledged = f"{totals.num_acknowledged} of {count_of(totals.num_subtasks, 'subtask')}"
        unaligned = ", unaligned" if totals.unaligned else ""
        if self.status is CheckpointStatus.IN_PROGRESS:
            return f"{name}: {acknowledged} acknowledged since {time_text(self.triggered)}{unaligned}"
        if self.status is CheckpointStatus.FAILED:
            return f"{name}: failed at {acknowledged}: {self.why_failed()}"
        sizes = f"{size_text(totals.checkpointed_bytes)} written, {size_text(totals.state_bytes)} in all"
        return f"{name}: completed in {duration_text(self.duration_ms)}, {sizes}{unaligned}"

    def why_failed(self) -> str:
        """Why the checkpoint failed; empty if the checkpoint did not fail."""
        reason = "" if self.failure is None else self.failure.text
        return ": ".join(text for text in (reason, self.failure_text) if text)


class SubtaskView(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask in one checkpoint."""

    subtask: int
    acknowledged: Instant | None
    """When the subtask acknowledged the checkpoint; None if the subtask has not acknowledged it."""
    duration_ms: int = 0
    checkpointed_bytes: int = 0
    state_bytes: int = 0
    processed_bytes: int = 0
    persisted_bytes: int = 0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    alignment_ms: int = 0
    start_delay_ms: int = 0
    unaligned: bool = False
    aborted: bool = False
    """The subtask acknowledged after the checkpoint had already failed."""
    waited_for: TaskId | None = None
    """The upstream task whose barrier came last, if the subtask had to wait for the barriers of several."""
    rows_in: int = 0
    """How many records the subtask of a source had read at the barrier, since the attempt began."""
    operators: dict[str, int] = {}
    """The bytes of state of each operator that has state, by the id of the operator."""


class SubtasksView(VertexView, frozen=True, kw_only=True):
    """One vertex in one checkpoint, with all its subtasks, and how their numbers are spread."""

    durations_ms: Spread
    checkpointed_bytes: Spread
    state_bytes: Spread
    processed_bytes: Spread
    persisted_bytes: Spread
    sync_ms: Spread
    async_ms: Spread
    alignment_ms: Spread
    start_delay_ms: Spread
    subtasks: tuple[SubtaskView, ...]


class CheckpointDetails(CheckpointView, frozen=True, kw_only=True):
    """One checkpoint, with the subtasks of its vertices."""

    vertices: tuple[SubtasksView, ...]

    def __repr__(self) -> str:
        return f"<{self.summary()}>"

    def _repr_html_(self) -> str:
        """The checkpoint with the timeline of its subtasks, for notebooks."""
        return f"<div><strong>{escape(self.summary())}</strong>{timeline_html(self)}</div>"


class RestoredView(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint or savepoint that the job was last restored from."""

    checkpoint: CheckpointId
    kind: SnapshotKind
    restored: Instant
    path: str


class SummaryView(msgspec.Struct, frozen=True, kw_only=True):
    """How the numbers of completed checkpoints are spread."""

    duration_ms: Spread = Spread()
    checkpointed_bytes: Spread = Spread()
    state_bytes: Spread = Spread()
    processed_bytes: Spread = Spread()
    persisted_bytes: Spread = Spread()


class CheckpointsView(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints of a job."""

    counts: CheckpointCounts
    summary: SummaryView
    history: tuple[CheckpointView, ...]
    """Newest first: the checkpoints in progress and the last checkpoints that ended."""
    latest_completed: CheckpointView | None = None
    latest_savepoint: CheckpointView | None = None
    latest_failed: CheckpointView | None = None
    latest_restored: RestoredView | None = None
    waiting: int = 0
    """Requests that wait for their turn."""
    next_trigger: Instant | None = None
    """When the next periodic checkpoint is due."""

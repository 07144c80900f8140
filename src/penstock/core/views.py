"""Frozen pictures of the machines, for pages, the terminal and metrics. Who looks at one never holds a live machine."""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.core.ids import CheckpointId, Instant, VertexId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind


class CheckpointStatus(Enum):
    """Where a checkpoint is in its life."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a number is spread. All zero if it was never seen."""

    min: float = 0
    max: float = 0
    avg: float = 0
    p50: float = 0
    p90: float = 0
    p95: float = 0
    p99: float = 0
    p999: float = 0


class CheckpointCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many checkpoints there were since this driver runs the job."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


class CheckpointTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What was acknowledged: by all subtasks of a checkpoint, or by those of one vertex."""

    num_subtasks: int = 0
    num_acknowledged: int = 0
    latest_ack: Instant | None = None
    checkpointed_bytes: int = 0
    """Written for this checkpoint."""
    state_bytes: int = 0
    """Read by a restore of it."""
    processed_bytes: int = 0
    """Input consumed while aligning."""
    persisted_bytes: int = 0
    """In-flight data saved."""
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
    """How long its request had waited."""
    duration_ms: int
    """From the trigger to the last acknowledgement."""
    canonical: bool
    totals: CheckpointTotals
    vertices: tuple[VertexView, ...]
    path: str | None = None
    """Completed: its metadata file."""
    metadata_bytes: int = 0
    discarded: bool = False
    """Completed: its files are gone."""
    ended: Instant | None = None
    """When it completed or failed."""
    failure: CheckpointFailure | None = None
    failure_text: str = ""


class SubtaskView(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask in one checkpoint."""

    subtask: int
    acknowledged: Instant | None
    """None: not yet, or never."""
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
    """It answered when the checkpoint had already failed."""


class SubtasksView(msgspec.Struct, frozen=True, kw_only=True):
    """All subtasks of a vertex in one checkpoint, and how their numbers are spread."""

    vertex: VertexView
    duration_ms: Spread
    checkpointed_bytes: Spread
    state_bytes: Spread
    processed_bytes: Spread
    persisted_bytes: Spread
    sync_ms: Spread
    async_ms: Spread
    alignment_ms: Spread
    start_delay_ms: Spread
    subtasks: tuple[SubtaskView, ...]


class RestoredView(msgspec.Struct, frozen=True, kw_only=True):
    """What the job was last restored from."""

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
    """Newest first: those in progress and the last ones that ended."""
    latest_completed: CheckpointView | None = None
    latest_savepoint: CheckpointView | None = None
    latest_failed: CheckpointView | None = None
    latest_restored: RestoredView | None = None
    waiting: int = 0
    """Requests that wait for their turn."""
    next_trigger: Instant | None = None
    """When the next periodic checkpoint is due."""

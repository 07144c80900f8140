"""Numbers about each checkpoint, its vertices and its subtasks, and the spread of the numbers over completed
checkpoints.

The cost of an acknowledgement does not grow with the number of subtasks: sorting and adding up happen when a view is
made. The history has the checkpoints in progress and a set number of ended checkpoints. The latest completed
checkpoint, the latest savepoint and the latest failed checkpoint are kept besides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.core.coordinator.pending import PendingCheckpoint
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, Instant, TaskId, VertexId
from penstock.core.messages import SnapshotMetrics, SubtaskState
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CompletedCheckpoint, SnapshotKind
from penstock.core.views import (
    CheckpointCounts,
    CheckpointDetails,
    CheckpointStatus,
    CheckpointsView,
    CheckpointTotals,
    CheckpointView,
    RestoredView,
    Spread,
    SubtasksView,
    SubtaskView,
    SummaryView,
    VertexView,
)

SUMMARY_WINDOW = 1_000
"""Percentiles are over this many of the last completed checkpoints. Minimum, maximum and mean are over all completed
checkpoints."""


class RunningSpread:
    """Collects the values of a number, one after another, and computes their spread."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=SUMMARY_WINDOW)
        self._count = 0
        self._sum = 0.0
        self._min = 0.0
        self._max = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self._min = value if self._count == 0 else min(self._min, value)
        self._max = max(self._max, value)
        self._sum += value
        self._count += 1
        self._window.append(value)

    def view(self) -> Spread:
        """The spread of the values so far."""
        if self._count == 0:
            return Spread()
        ordered = sorted(self._window)
        return Spread(
            min=self._min,
            max=self._max,
            avg=self._sum / self._count,
            p50=quantile(ordered, 0.5),
            p90=quantile(ordered, 0.9),
            p95=quantile(ordered, 0.95),
            p99=quantile(ordered, 0.99),
            p999=quantile(ordered, 0.999),
        )


def quantile(ordered: list[float], share: float) -> float:
    """The value below which that share of the values lies; interpolated between two neighbours. The values are sorted,
    and there is at least one value."""
    position = share * (len(ordered) + 1)
    if position < 1:
        return ordered[0]
    if position >= len(ordered):
        return ordered[-1]
    below = ordered[int(position) - 1]
    return below + (position - int(position)) * (ordered[int(position)] - below)


def spread_of(values: Iterable[float]) -> Spread:
    """The spread of some numbers."""
    running = RunningSpread()
    for value in values:
        running.add(value)
    return running.view()


@dataclass(slots=True)
class _VertexRecord:
    subtasks: list[int] = field(default_factory=list)
    """The subtasks that must acknowledge."""
    acks: dict[int, SubtaskView] = field(default_factory=dict)
    late: dict[int, SubtaskView] = field(default_factory=dict)
    """Acknowledgements that came after the checkpoint had ended."""
    latest_ack: Instant | None = None
    checkpointed_bytes: int = 0
    state_bytes: int = 0
    processed_bytes: int = 0
    persisted_bytes: int = 0
    unaligned: bool = False

    def add(self, view: SubtaskView, now: Instant) -> None:
        """Add the acknowledgement of a subtask."""
        self.acks[view.subtask] = view
        self.latest_ack = now
        self.checkpointed_bytes += view.checkpointed_bytes
        self.state_bytes += view.state_bytes
        self.processed_bytes += view.processed_bytes
        self.persisted_bytes += view.persisted_bytes
        self.unaligned = self.unaligned or view.unaligned

    def totals(self) -> CheckpointTotals:
        """The sums over the acknowledgements of the vertex that have come so far."""
        return CheckpointTotals(
            num_subtasks=len(self.subtasks),
            num_acknowledged=len(self.acks),
            latest_ack=self.latest_ack,
            checkpointed_bytes=self.checkpointed_bytes,
            state_bytes=self.state_bytes,
            processed_bytes=self.processed_bytes,
            persisted_bytes=self.persisted_bytes,
            unaligned=self.unaligned,
        )


@dataclass(slots=True)
class _Record:
    checkpoint: CheckpointId
    kind: SnapshotKind
    canonical: bool
    triggered: Instant
    queued_ms: int
    vertices: dict[VertexId, _VertexRecord]
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    path: str | None = None
    metadata_bytes: int = 0
    discarded: bool = False
    ended: Instant | None = None
    failure: CheckpointFailure | None = None
    failure_text: str = ""
    known: CheckpointDetails | None = None
    """The details of a checkpoint that has ended, as long as nothing has changed since they were asked for."""

    def vertex_view(self, vertex: VertexId) -> VertexView:
        """One vertex of the checkpoint."""
        totals = self.vertices[vertex].totals()
        complete = totals.num_acknowledged == totals.num_subtasks
        return VertexView(
            vertex=vertex,
            status=CheckpointStatus.COMPLETED if complete else self.status,
            duration_ms=self._duration_ms(totals),
            totals=totals,
        )

    def view(self) -> CheckpointView:
        """The checkpoint without its subtasks."""
        vertices = tuple(self.vertex_view(v) for v in self.vertices)
        totals = _added_up([v.totals for v in vertices])
        return CheckpointView(
            checkpoint=self.checkpoint,
            kind=self.kind,
            status=self.status,
            triggered=self.triggered,
            queued_ms=self.queued_ms,
            duration_ms=self._duration_ms(totals),
            canonical=self.canonical,
            totals=totals,
            vertices=vertices,
            path=self.path,
            metadata_bytes=self.metadata_bytes,
            discarded=self.discarded,
            ended=self.ended,
            failure=self.failure,
            failure_text=self.failure_text,
        )

    def subtasks_view(self, vertex: VertexId) -> SubtasksView:
        """One vertex of the checkpoint, with all subtasks of the vertex."""
        record = self.vertices[vertex]
        acks = record.acks.values()
        silent = {i: SubtaskView(subtask=i, acknowledged=None) for i in record.subtasks}
        everybody = silent | record.late | record.acks
        return SubtasksView(
            **_fields(self.vertex_view(vertex)),
            durations_ms=spread_of(a.duration_ms for a in acks),
            checkpointed_bytes=spread_of(a.checkpointed_bytes for a in acks),
            state_bytes=spread_of(a.state_bytes for a in acks),
            processed_bytes=spread_of(a.processed_bytes for a in acks),
            persisted_bytes=spread_of(a.persisted_bytes for a in acks),
            sync_ms=spread_of(a.sync_ms for a in acks),
            async_ms=spread_of(a.async_ms for a in acks),
            alignment_ms=spread_of(a.alignment_ms for a in acks),
            start_delay_ms=spread_of(a.start_delay_ms for a in acks),
            subtasks=tuple(everybody[i] for i in sorted(everybody)),
        )

    def details(self) -> CheckpointDetails:
        """The checkpoint with its subtasks."""
        if self.known is not None:
            return self.known
        vertices = tuple(self.subtasks_view(vertex) for vertex in self.vertices)
        found = CheckpointDetails(**{**_fields(self.view()), "vertices": vertices})
        if self.status is not CheckpointStatus.IN_PROGRESS:
            self.known = found
        return found

    def _duration_ms(self, totals: CheckpointTotals) -> int:
        return 0 if totals.latest_ack is None else totals.latest_ack - self.triggered


def _fields(view: VertexView | CheckpointView) -> dict[str, Any]:
    return {name: getattr(view, name) for name in view.__struct_fields__}


def _added_up(parts: list[CheckpointTotals]) -> CheckpointTotals:
    return CheckpointTotals(
        num_subtasks=sum(p.num_subtasks for p in parts),
        num_acknowledged=sum(p.num_acknowledged for p in parts),
        latest_ack=max((p.latest_ack for p in parts if p.latest_ack is not None), default=None),
        checkpointed_bytes=sum(p.checkpointed_bytes for p in parts),
        state_bytes=sum(p.state_bytes for p in parts),
        processed_bytes=sum(p.processed_bytes for p in parts),
        persisted_bytes=sum(p.persisted_bytes for p in parts),
        unaligned=any(p.unaligned for p in parts),
    )


class CheckpointStatistics:
    """Keeps the numbers of the checkpoints of one job."""

    def __init__(self, graph: CheckpointGraph, history_size: int) -> None:
        self._order = [v.vertex for v in graph.vertices]
        self._history_size = history_size
        self._in_progress: dict[CheckpointId, _Record] = {}
        self._ended: dict[CheckpointId, _Record] = {}
        self._latest_completed: _Record | None = None
        self._latest_savepoint: _Record | None = None
        self._latest_failed: _Record | None = None
        self._latest_restored: RestoredView | None = None
        self._num_restored = 0
        self._num_total = 0
        self._num_completed = 0
        self._num_failed = 0
        self._duration_ms = RunningSpread()
        self._checkpointed_bytes = RunningSpread()
        self._state_bytes = RunningSpread()
        self._processed_bytes = RunningSpread()
        self._persisted_bytes = RunningSpread()

    # --- what happens -------------------------------------------------------------------------------------------------

    def began(self, pending: PendingCheckpoint) -> None:
        """A checkpoint has begun."""
        vertices = {vertex: _VertexRecord() for vertex in self._order}
        for task in pending.plan.wait:
            vertices[task.vertex].subtasks.append(task.subtask)
        self._num_total += 1
        self._in_progress[pending.checkpoint] = _Record(
            checkpoint=pending.checkpoint,
            kind=pending.kind,
            canonical=pending.options.canonical,
            triggered=pending.created,
            queued_ms=pending.created - pending.request.submitted,
            vertices=vertices,
        )

    def acknowledged(
        self, checkpoint: CheckpointId, task: TaskId, now: Instant, state: SubtaskState | None, metrics: SnapshotMetrics
    ) -> None:
        """A task has acknowledged, in time or after the checkpoint had ended."""
        record = self._in_progress.get(checkpoint)
        late = record is None
        record = record or self._ended.get(checkpoint)
        if record is None or task.vertex not in record.vertices:
            return
        view = SubtaskView(
            subtask=task.subtask,
            acknowledged=now,
            duration_ms=now - record.triggered,
            checkpointed_bytes=metrics.checkpointed_bytes,
            state_bytes=0 if state is None else state.size,
            processed_bytes=metrics.bytes_processed,
            persisted_bytes=metrics.bytes_persisted,
            sync_ms=metrics.sync_ms,
            async_ms=metrics.async_ms,
            alignment_ms=metrics.alignment_ms,
            start_delay_ms=metrics.start_delay_ms,
            unaligned=metrics.unaligned,
            aborted=late,
            waited_for=metrics.waited_for,
            rows_in=metrics.rows_in,
            operators={} if state is None else {str(each.operator): each.size for each in state.operators},
        )
        if late:
            record.vertices[task.vertex].late[task.subtask] = view
            record.known = None
        else:
            record.vertices[task.vertex].add(view, now)

    def completed(self, completed: CompletedCheckpoint) -> None:
        """A checkpoint has completed."""
        record = self._end(completed.checkpoint, CheckpointStatus.COMPLETED, completed.completed)
        record.path = completed.path
        record.metadata_bytes = completed.metadata_size
        self._num_completed += 1
        if completed.kind.is_savepoint:
            self._latest_savepoint = record
        else:
            self._latest_completed = record
        view = record.view()
        self._duration_ms.add(view.duration_ms)
        self._checkpointed_bytes.add(view.totals.checkpointed_bytes)
        self._state_bytes.add(view.totals.state_bytes)
        self._processed_bytes.add(view.totals.processed_bytes)
        self._persisted_bytes.add(view.totals.persisted_bytes)

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailure, text: str, now: Instant) -> None:
        """A checkpoint was aborted."""
        record = self._end(checkpoint, CheckpointStatus.FAILED, now)
        record.failure = reason
        record.failure_text = text
        self._num_failed += 1
        self._latest_failed = record

    def _end(self, checkpoint: CheckpointId, status: CheckpointStatus, now: Instant) -> _Record:
        record = self._in_progress.pop(checkpoint)
        record.status = status
        record.ended = now
        self._ended[checkpoint] = record
        if len(self._ended) > self._history_size:
            del self._ended[next(iter(self._ended))]
        return record

    def discarded(self, checkpoint: CheckpointId) -> None:
        """The files of a completed checkpoint are being deleted."""
        for record in (self._ended.get(checkpoint), self._latest_completed):
            if record is not None and record.checkpoint == checkpoint:
                record.discarded = True
                record.known = None

    def restored(self, completed: CompletedCheckpoint, now: Instant) -> None:
        """Tasks start from this checkpoint or savepoint."""
        self._num_restored += 1
        self._latest_restored = RestoredView(
            checkpoint=completed.checkpoint, kind=completed.kind, restored=now, path=completed.path
        )

    # --- what is asked ------------------------------------------------------------------------------------------------

    def details(self) -> tuple[CheckpointDetails, ...]:
        """All checkpoints that are remembered, newest first, with their subtasks."""
        latest = (self._latest_completed, self._latest_savepoint, self._latest_failed)
        records = {record.checkpoint: record for record in latest if record is not None}
        records |= self._ended | self._in_progress
        return tuple(records[checkpoint].details() for checkpoint in sorted(records, reverse=True))

    def view(self, *, waiting: int, next_trigger: Instant | None) -> CheckpointsView:
        """All checkpoints."""
        records = {**self._ended, **self._in_progress}
        return CheckpointsView(
            counts=CheckpointCounts(
                restored=self._num_restored,
                total=self._num_total,
                in_progress=len(self._in_progress),
                completed=self._num_completed,
                failed=self._num_failed,
            ),
            summary=SummaryView(
                duration_ms=self._duration_ms.view(),
                checkpointed_bytes=self._checkpointed_bytes.view(),
                state_bytes=self._state_bytes.view(),
                processed_bytes=self._processed_bytes.view(),
                persisted_bytes=self._persisted_bytes.view(),
            ),
            history=tuple(records[c].view() for c in sorted(records, reverse=True)),
            latest_completed=_view_of(self._latest_completed),
            latest_savepoint=_view_of(self._latest_savepoint),
            latest_failed=_view_of(self._latest_failed),
            latest_restored=self._latest_restored,
            waiting=waiting,
            next_trigger=next_trigger,
        )


def _view_of(record: _Record | None) -> CheckpointView | None:
    return None if record is None else record.view()

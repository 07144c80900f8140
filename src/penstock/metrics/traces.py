"""The checkpoints of a job for OpenTelemetry: one trace per checkpoint, with a span for each subtask and for each
phase of a subtask's part.

    checkpoint 7                                     from the trigger until the checkpoint completed or failed
      window[1]                                      from the trigger until the acknowledgement
        start delay, alignment, freezing, writing, answer
      metadata                                       from the last acknowledgement to the end

A checkpoint is told when it has ended. The times are those of the driver's clock and of the slots' own measurements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider

from penstock.core.slowness import diagnosis, timeline
from penstock.core.views import CheckpointDetails, CheckpointStatus

LOOKED_AT_EVERY_S = 1.0
REMEMBERED = 10_000
_NS = 1_000_000


class CheckpointTraces:
    """Makes the traces of a job's checkpoints, each checkpoint once."""

    def __init__(self, job: str, name: str, provider: TracerProvider | None = None) -> None:
        """`provider` makes the tracer; None: the provider that the program has set up for OpenTelemetry."""
        self._tracer: Tracer = trace.get_tracer("penstock", tracer_provider=provider)
        self._about = {"penstock.job.id": job, "penstock.job.name": name}
        self._told: dict[tuple[int, int], None] = {}

    def tell(self, checkpoints: Sequence[CheckpointDetails]) -> int:
        """Make traces of the checkpoints that have ended and were not told before. Returns how many there were."""
        told = 0
        for details in reversed(checkpoints):
            # After a start over, a number may come again.
            known = (details.checkpoint, details.triggered)
            if details.status is CheckpointStatus.IN_PROGRESS or details.ended is None or known in self._told:
                continue
            self._told[known] = None
            self._tell(details)
            told += 1
        while len(self._told) > REMEMBERED:
            self._told.pop(next(iter(self._told)))
        return told

    def _tell(self, details: CheckpointDetails) -> None:
        began, ended = details.triggered * _NS, (details.ended or details.triggered) * _NS
        totals = details.totals
        root = self._tracer.start_span(
            f"{details.kind.value.lower()} {details.checkpoint}",
            # Each checkpoint is a trace of its own, whatever the program traces at present.
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            start_time=began,
            attributes={
                **self._about,
                "penstock.checkpoint.id": details.checkpoint,
                "penstock.checkpoint.kind": details.kind.value,
                "penstock.checkpoint.unaligned": totals.unaligned,
                "penstock.checkpoint.queued_ms": details.queued_ms,
                "penstock.checkpoint.written_bytes": totals.checkpointed_bytes,
                "penstock.checkpoint.state_bytes": totals.state_bytes,
                "penstock.checkpoint.in_flight_bytes": totals.persisted_bytes,
                "penstock.checkpoint.diagnosis": diagnosis(details),
            },
        )
        if details.status is CheckpointStatus.FAILED:
            root.set_status(Status(StatusCode.ERROR, details.why_failed()))
        last = self._subtasks(root, details, began)
        if details.status is CheckpointStatus.COMPLETED and last < ended:
            self._span("metadata", root, last, ended, {})
        root.end(end_time=ended)

    def _subtasks(self, root: Span, details: CheckpointDetails, began: int) -> int:
        """Make the spans of the subtasks that have acknowledged. Returns when the last of them did."""
        last = began
        for bar in timeline(details):
            if bar.is_missing:
                continue
            until = began + round(bar.total_ms * _NS)
            last = max(last, until)
            about: dict[str, Any] = {**self._about, "penstock.vertex": bar.vertex, "penstock.subtask": bar.subtask}
            span = self._tracer.start_span(
                bar.name, context=trace.set_span_in_context(root), start_time=began, attributes=about
            )
            at = began
            for phase, took_ms in bar.phases.items():
                # The clocks of two hosts differ: no phase may end after its subtask.
                end = min(until, at + round(took_ms * _NS))
                if end > at:
                    self._span(phase, span, at, end, about)
                at = end
            span.end(end_time=until)
        return last

    def _span(self, name: str, parent: Span, began: int, ended: int, about: dict[str, Any]) -> None:
        context = trace.set_span_in_context(parent)
        self._tracer.start_span(name, context=context, start_time=began, attributes=about).end(end_time=ended)


@contextmanager
def traced_checkpoints(job: Any, provider: TracerProvider | None = None) -> Iterator[None]:
    """While the block runs, tell of the checkpoints of a `penstock.Job` as they end; see `Job.traced`."""
    traces = CheckpointTraces(str(job.id), job.name, provider)
    over = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(traces, lambda: job.checkpoints, over), name="penstock-traces", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        traces.tell(job.checkpoints)


def _follow(
    traces: CheckpointTraces, checkpoints: Callable[[], Sequence[CheckpointDetails]], over: threading.Event
) -> None:
    while not over.wait(LOOKED_AT_EVERY_S):
        traces.tell(checkpoints())

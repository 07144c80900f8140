"""A checkpoint as a trace: spans for subtasks and phases, at the times at which they were."""

from __future__ import annotations

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from penstock.core.ids import CheckpointId, Instant, VertexId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind
from penstock.core.views import (
    CheckpointDetails,
    CheckpointStatus,
    CheckpointTotals,
    Spread,
    SubtasksView,
    SubtaskView,
)
from penstock.metrics.traces import CheckpointTraces, traced_checkpoints

NONE = Spread()
BEGAN = 1_700_000_000_000


def vertex(*subtasks: SubtaskView) -> SubtasksView:
    spreads = ("durations", "sync", "async", "alignment", "start_delay")
    sizes = ("checkpointed_bytes", "state_bytes", "processed_bytes", "persisted_bytes")
    return SubtasksView(
        vertex=VertexId("window"),
        status=CheckpointStatus.COMPLETED,
        duration_ms=300,
        totals=CheckpointTotals(),
        subtasks=subtasks,
        **{f"{name}_ms": NONE for name in spreads},
        **dict.fromkeys(sizes, NONE),
    )


DONE = CheckpointDetails(
    checkpoint=CheckpointId(7),
    kind=SnapshotKind.CHECKPOINT,
    status=CheckpointStatus.COMPLETED,
    triggered=Instant(BEGAN),
    ended=Instant(BEGAN + 350),
    queued_ms=3,
    duration_ms=300,
    canonical=False,
    totals=CheckpointTotals(state_bytes=5_000),
    vertices=(
        vertex(
            SubtaskView(
                subtask=0, acknowledged=Instant(BEGAN + 300), duration_ms=300, start_delay_ms=100, async_ms=150
            ),
            SubtaskView(subtask=1, acknowledged=None),
        ),
    ),
)


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    yield made
    made.shutdown()


@pytest.fixture
def traces(provider):
    return CheckpointTraces("orders-1", "orders", provider)


def spans(exporter):
    return {span.name: span for span in exporter.get_finished_spans()}


def times(span):
    return (span.start_time // 1_000_000 - BEGAN, span.end_time // 1_000_000 - BEGAN)


def test_each_phase_is_below_its_subtask_and_each_subtask_below_the_checkpoint(traces, exporter):
    assert traces.tell([DONE]) == 1
    found = spans(exporter)
    assert {name: times(span) for name, span in found.items()} == {
        "checkpoint 7": (0, 350),
        "window[0]": (0, 300),
        "start delay": (0, 100),
        "writing": (100, 250),
        "answer": (250, 300),
        "metadata": (300, 350),
    }
    parents = {name: span.parent and span.parent.span_id for name, span in found.items()}
    root, subtask = found["checkpoint 7"].context.span_id, found["window[0]"].context.span_id
    assert parents == {
        "checkpoint 7": None,
        "window[0]": root,
        "metadata": root,
        "start delay": subtask,
        "writing": subtask,
        "answer": subtask,
    }
    assert len({span.context.trace_id for span in found.values()}) == 1
    about = found["checkpoint 7"].attributes
    assert (about["penstock.job.name"], about["penstock.checkpoint.state_bytes"]) == ("orders", 5_000)
    assert found["writing"].attributes["penstock.subtask"] == 0


def test_a_checkpoint_is_told_once_and_not_before_it_has_ended(traces, exporter):
    under_way = msgspec.structs.replace(DONE, status=CheckpointStatus.IN_PROGRESS, ended=None)
    assert traces.tell([under_way]) == 0
    assert traces.tell([DONE]) == 1
    assert traces.tell([DONE]) == 0
    assert traces.tell([msgspec.structs.replace(DONE, checkpoint=CheckpointId(8)), DONE]) == 1
    roots = [span for span in exporter.get_finished_spans() if span.parent is None]
    assert len({span.context.trace_id for span in roots}) == 2


def test_a_failed_checkpoint_is_an_error_with_its_reason(traces, exporter):
    failed = msgspec.structs.replace(DONE, status=CheckpointStatus.FAILED, failure=CheckpointFailure.EXPIRED)
    traces.tell([failed])
    root = spans(exporter)["checkpoint 7"]
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, CheckpointFailure.EXPIRED.text)
    assert "metadata" not in spans(exporter)


def test_phases_that_add_up_to_too_much_do_not_outlive_their_subtask(traces, exporter):
    long = vertex(
        SubtaskView(subtask=0, acknowledged=Instant(0), duration_ms=300, start_delay_ms=250, alignment_ms=900)
    )
    traces.tell([msgspec.structs.replace(DONE, vertices=(long,))])
    assert times(spans(exporter)["alignment"]) == (250, 300)


def test_what_ends_while_a_job_is_followed_is_told_at_the_latest_at_the_end(provider, exporter):
    class Job:
        id, name = "orders-1", "orders"
        checkpoints = (DONE,)

    with traced_checkpoints(Job(), provider):
        pass
    assert "checkpoint 7" in spans(exporter)

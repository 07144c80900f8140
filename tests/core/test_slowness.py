"""Why a checkpoint took as long as it did: the sentence names the subtask and the phase, and whose barrier was late."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.ids import CheckpointId, Instant, VertexId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind
from penstock.core.slowness import diagnosis, timeline
from penstock.core.timeline_html import MOST_BARS, timeline_html
from penstock.core.views import (
    CheckpointDetails,
    CheckpointStatus,
    CheckpointTotals,
    Spread,
    SubtasksView,
    SubtaskView,
)

INPUTS = {"source": (), "window": ("source",), "sink": ("window",)}
TRIGGERED = Instant(1_000_000)


def subtask(index: int = 0, **times: Any) -> SubtaskView:
    """A subtask that acknowledged after the sum of its times, unless `duration_ms` says otherwise."""
    names = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms")
    duration = times.pop("duration_ms", int(sum(times.get(name, 0) for name in names)))
    return SubtaskView(subtask=index, acknowledged=Instant(TRIGGERED + duration), duration_ms=duration, **times)


def silent(index: int = 0) -> SubtaskView:
    return SubtaskView(subtask=index, acknowledged=None)


def vertex(name: str, *subtasks: SubtaskView) -> SubtasksView:
    spread = Spread()
    return SubtasksView(
        vertex=VertexId(name),
        status=CheckpointStatus.COMPLETED,
        duration_ms=max(one.duration_ms for one in subtasks),
        totals=CheckpointTotals(),
        durations_ms=spread,
        checkpointed_bytes=spread,
        state_bytes=spread,
        processed_bytes=spread,
        persisted_bytes=spread,
        sync_ms=spread,
        async_ms=spread,
        alignment_ms=spread,
        start_delay_ms=spread,
        subtasks=subtasks,
    )


def checkpoint(
    *vertices: SubtasksView,
    status: CheckpointStatus = CheckpointStatus.COMPLETED,
    finishing_ms: int = 5,
    **more: Any,
) -> CheckpointDetails:
    duration = max((one.duration_ms for one in vertices), default=0)
    has_ended = status is not CheckpointStatus.IN_PROGRESS
    return CheckpointDetails(
        **{
            "checkpoint": CheckpointId(7),
            "kind": SnapshotKind.CHECKPOINT,
            "status": status,
            "triggered": TRIGGERED,
            "queued_ms": 0,
            "duration_ms": duration,
            "canonical": False,
            "totals": CheckpointTotals(),
            "vertices": vertices,
            "ended": Instant(TRIGGERED + duration + finishing_ms) if has_ended else None,
            **more,
        }
    )


def test_the_slowest_subtask_comes_first_and_a_silent_one_before_all():
    one = checkpoint(
        vertex("source", subtask(0, async_ms=5), subtask(1, async_ms=9)),
        vertex("window", silent(0), subtask(1, start_delay_ms=3, async_ms=90, duration_ms=100)),
        status=CheckpointStatus.IN_PROGRESS,
    )
    assert [bar.name for bar in timeline(one)] == ["window[0]", "window[1]", "source[1]", "source[0]"]
    slowest = timeline(one)[1]
    assert slowest.phases == {"start delay": 3, "alignment": 0, "freezing": 0, "writing": 90, "answer": 7}
    assert sum(slowest.phases.values()) == slowest.total_ms


@pytest.mark.parametrize(
    ("vertices", "sentence"),
    [
        (
            [vertex("source", subtask(async_ms=5)), vertex("window", subtask(start_delay_ms=20))],
            "Nothing was slow: the checkpoint took 20 ms.",
        ),
        (
            [
                vertex("source", subtask(0, start_delay_ms=2), subtask(1, start_delay_ms=3)),
                vertex("window", subtask(0, start_delay_ms=5), subtask(1, start_delay_ms=5, alignment_ms=3_100)),
            ],
            (
                "window[1] waited 3.1 s for the barrier of source[1], which was 3.1 s on its way: the channel between "
                "them was full; an unaligned checkpoint would have taken about 3 ms."
            ),
        ),
        (
            [
                vertex("source", subtask(0, start_delay_ms=2, sync_ms=2_000)),
                vertex("window", subtask(0, start_delay_ms=2_010)),
                vertex("sink", subtask(0, start_delay_ms=2_020)),
            ],
            "window[0] waited 2.0 s for the barrier of source[0], which took 2.0 s to freeze its state.",
        ),
        (
            [vertex("source", subtask(0, start_delay_ms=2_000)), vertex("window", subtask(0, start_delay_ms=2_010))],
            (
                "source[0], a source, began 2.0 s after the trigger: its slot was busy with other work, such as a long "
                "call of a function."
            ),
        ),
        (
            [vertex("source", subtask(0, async_ms=4_000, checkpointed_bytes=38_000_000))],
            "source[0] took 4.0 s to write 38 MB.",
        ),
        (
            [vertex("source", subtask(0, sync_ms=400, async_ms=30))],
            "source[0] took 400 ms to freeze its state, and did nothing else meanwhile.",
        ),
        (
            [vertex("source", subtask(0, async_ms=30, duration_ms=900))],
            (
                "source[0] had written its state, and its acknowledgement came 870 ms later: the loop of its slot, or "
                "of the master, was busy."
            ),
        ),
    ],
)
def test_the_sentence_names_the_cause(vertices, sentence):
    assert diagnosis(checkpoint(*vertices), INPUTS) == sentence


def test_without_the_graph_the_subtask_and_its_wait_are_named():
    one = checkpoint(vertex("window", subtask(0, start_delay_ms=900)))
    assert diagnosis(one) == (
        "window[0] waited 900 ms for its barriers; an unaligned checkpoint would have taken about 0 ms."
    )


def test_the_time_before_and_behind_the_subtasks_counts():
    quick = vertex("source", subtask(async_ms=5))
    assert diagnosis(checkpoint(quick, finishing_ms=1_500), INPUTS) == (
        "All subtasks had acknowledged after 5 ms, and storing the metadata took 1.5 s more: the checkpoint storage is "
        "slow."
    )
    waited = "The request waited 2.5 s for its turn, behind other checkpoints."
    assert diagnosis(checkpoint(quick, queued_ms=2_500), INPUTS) == waited
    frozen = vertex("source", subtask(sync_ms=400))
    assert diagnosis(checkpoint(frozen, queued_ms=2_500), INPUTS) == (
        f"{waited} Then source[0] took 400 ms to freeze its state, and did nothing else meanwhile."
    )


def test_an_unfinished_checkpoint_is_where_its_first_missing_subtask_is():
    one = checkpoint(
        vertex("source", subtask(0)),
        vertex("window", subtask(0, start_delay_ms=1), silent(1)),
        vertex("sink", silent(0), silent(1)),
        status=CheckpointStatus.IN_PROGRESS,
    )
    assert diagnosis(one, INPUTS) == (
        "The checkpoint waits for sink[0], sink[1], window[1]; the barrier is at window[1]."
    )
    assert diagnosis(checkpoint(vertex("source", subtask(0)), status=CheckpointStatus.IN_PROGRESS), INPUTS) == (
        "All subtasks have acknowledged the checkpoint; its metadata are being written."
    )


def test_a_failed_checkpoint_says_why_and_who_was_missing():
    one = checkpoint(
        vertex("window", *(silent(number) for number in range(5))),
        status=CheckpointStatus.FAILED,
        failure=CheckpointFailure.EXPIRED,
    )
    said = diagnosis(one, INPUTS)
    assert said.startswith(f"The checkpoint failed: {CheckpointFailure.EXPIRED.text}; ")
    assert said.endswith("window[0], window[1], window[2] and 2 other subtasks had not acknowledged it.")


def test_in_a_notebook_no_name_can_say_anything_but_itself():
    one = checkpoint(vertex("<script>alert(1)</script>", subtask(0, async_ms=900, checkpointed_bytes=1)))
    shown = one._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert shown.count("<rect") == 1


def test_a_thousand_subtasks_make_a_short_picture():
    many = checkpoint(vertex("window", *(subtask(number, async_ms=number) for number in range(1_000))))
    shown = timeline_html(many)
    assert shown.count("<g>") == MOST_BARS
    assert f"{1_000 - MOST_BARS} subtasks more" in shown
    assert len(shown) < 30_000

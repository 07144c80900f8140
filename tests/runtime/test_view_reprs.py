"""Views are printed in a few lines."""

from __future__ import annotations

from dataclasses import replace

from penstock.core.ids import CheckpointId, Epoch, Instant, JobId
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
from penstock.runtime.views import FailureView, JobView, SlotView, StuckView, tell_dropped

LAST = CheckpointView(
    checkpoint=CheckpointId(9),
    kind=SnapshotKind.CHECKPOINT,
    status=CheckpointStatus.COMPLETED,
    triggered=Instant(0),
    queued_ms=0,
    duration_ms=34,
    canonical=False,
    totals=CheckpointTotals(),
    vertices=(),
)
SLOT = SlotView(number=0, incarnation=1, host="here", pid=1)
VIEW = JobView(
    job=JobId("counts-0123abcd"),
    state=JobState.RUNNING,
    epoch=Epoch(3),
    restarts=0,
    slots=(SLOT, SLOT),
    rows_in=1_100,
    rows_read=1_100,
    rows_out=20,
    watermark_us=None,
    restored_checkpoint=None,
    checkpoints=CheckpointsView(counts=CheckpointCounts(), summary=SummaryView(), history=()),
    failures=(),
)


def test_a_job_without_anything_special():
    assert str(VIEW).splitlines() == [
        "job:          counts-0123abcd: running",
        "attempt:      3 on 2 slots",
        "rows:         1,100 read, 20 at the sinks",
        "checkpoints:  0 completed",
    ]


def test_a_job_that_has_seen_much():
    failure = FailureView(
        epoch=Epoch(2),
        when=Instant(0),
        text="ValueError: <no>\nand more",
        operator="count",
        subtask=1,
        traceback="",
        user_code=True,
        restart_in_ms=1,
    )
    assert tell_dropped("counts", VIEW) == []
    stuck = StuckView(slot=1, stuck_ms=12_000, operator="count", subtask=1, step_ms=11_000, stack="")
    counts = CheckpointCounts(completed=7, failed=1, in_progress=1)
    seen = replace(
        VIEW,
        restarts=2,
        spares=(SLOT,),
        rows_read=3_000,
        late_dropped=100,
        timeless_dropped=1_200,
        beyond_time_dropped=3,
        watermark_us=1_700_000_000_000_000,
        checkpoints=CheckpointsView(counts=counts, summary=SummaryView(), history=(LAST,), latest_completed=LAST),
        failures=(failure,),
        stuck=(stuck, replace(stuck, operator=None)),
    )
    assert repr(seen).splitlines() == [
        "job:          counts-0123abcd: running",
        "attempt:      3 on 2 slots and 1 spare slot, 2 restarts",
        "rows:         1,100 read (3,000 in all attempts), 20 at the sinks, 100 late results dropped",
        "no window:    1,200 without event time, 3 beyond all windows",
        "event time:   2023-11-14 22:13:20 UTC",
        "checkpoints:  7 completed, 1 failed, 1 under way; last: 9 in 34 ms",
        "stuck:        slot 1 for 12.0 s in step 'count', subtask 1",
        "stuck:        slot 1 for 12.0 s",
        "last failure: attempt 2 in 'count': ValueError: <no>",
    ]
    assert "ValueError: &lt;no&gt;" in seen._repr_html_()
    assert [text.partition(";")[0] for text in tell_dropped("counts", replace(seen, beyond_time_dropped=1))] == [
        "job 'counts' dropped 100 results that came after the window had closed",
        "job 'counts' dropped 1,200 records that had no event time and so no window",
        "job 'counts' dropped 1 record that had a time so near to the limits of 64 bits that no window fits",
    ]


def test_the_attempts_of_a_program_that_was_run_again_are_counted_from_one():
    again = replace(VIEW, epoch=Epoch(2_000_003))
    assert repr(again).splitlines()[1] == "attempt:      3 on 2 slots"

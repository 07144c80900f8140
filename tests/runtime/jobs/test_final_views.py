"""What the last view of a job says of its rows is exact, however the job ended."""

from __future__ import annotations

import pyarrow as pa
import pytest
from json_splits import SplitReader, SplitSource
from threaded_jobs import settings, with_splits

import penstock as ps
from penstock.api.connector import End, Pause
from penstock.api.program import Program
from penstock.connectors.parquet import parquet
from penstock.core.ids import Epoch, Instant, JobId, TaskId, VertexId
from penstock.core.job.events import FailureCause, JobState, RegionEnded
from penstock.runtime.master.progress import JobProgress
from penstock.settings import SlotSettings

ROWS = 1_000
"""Of each of two splits."""
SCHEMA = pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])


class Reader(SplitReader):
    """Numbers from 0 on; says when the half is read, and reads the rest when the gate is open."""

    def poll(self, max_rows: int, now_ms: int):
        if not self._splits:
            return End()
        split = self._splits[0]
        if split["at"] == ROWS // 2 and not self._gate.exists():
            self._gate.with_name(f"half-{split['number']}").touch()
            return Pause(1)
        numbers = range(split["at"], split["at"] + 100)
        split["at"] += 100
        if split["at"] >= ROWS:
            self._splits.pop(0)
        # The last row of all is far behind.
        times = [0 if n == ROWS - 1 else 1_000_000 * n for n in numbers]
        return pa.record_batch([list(numbers), pa.array(times, SCHEMA.field("ts").type)], schema=SCHEMA)


@pytest.fixture
def job(threaded_job, tmp_path):
    """Its slots say how far they have come when they must, and not every now and then."""
    chosen = settings(slot=SlotSettings(heartbeat_interval_ms=3_600_000, heartbeat_timeout_ms=3_600_000))
    program = Program(chosen)
    source = SplitSource(SCHEMA, [{"number": i, "at": 0} for i in (0, 1)], Reader, tmp_path / "gate")
    counted = program.read(source).watermark("ts", delay="1s").key_by("n").window(ps.tumbling("10s"))
    counted.aggregate(count=ps.count()).write(parquet(str(tmp_path / "out")))
    return threaded_job(with_splits(program.plan()), chosen)


def test_a_job_that_has_finished(job, tmp_path):
    def open_at_half(running) -> None:
        # The last row of a split is late only if the other split has come far enough, too.
        if all((tmp_path / f"half-{number}").exists() for number in (0, 1)):
            (tmp_path / "gate").touch()

    assert job.run(open_at_half) is JobState.FINISHED
    view = job.driver.view()
    assert (view.rows_in, view.rows_read, view.late_dropped) == (2 * ROWS, 2 * ROWS, 2)


def test_a_job_that_was_cancelled(job, tmp_path):
    def cancel_at_half(running) -> None:
        if all((tmp_path / f"half-{number}").exists() for number in (0, 1)):
            running.driver.cancel()

    assert job.run(cancel_at_half) is JobState.CANCELLED
    view = job.driver.view()
    assert (view.rows_in, view.rows_read) == (ROWS, ROWS)


def test_a_job_that_has_failed_for_good(threaded_job, tmp_path):
    def fail_late(row):
        if row["n"] == ROWS - 1:
            raise ValueError("no")
        return row

    (tmp_path / "gate").touch()
    chosen = settings(
        restart=ps.no_restart(), slot=SlotSettings(heartbeat_interval_ms=3_600_000, heartbeat_timeout_ms=3_600_000)
    )
    program = Program(chosen)
    source = SplitSource(SCHEMA, [{"number": i, "at": 0} for i in (0, 1)], Reader, tmp_path / "gate")
    program.read(source).map(fail_late, schema="n bigint, ts timestamp").write(parquet(str(tmp_path / "out")))
    running = threaded_job(with_splits(program.plan()), chosen)
    assert running.run() is JobState.FAILED
    view = running.driver.view()
    # The slices of a batch that came before the row that failed belong to it.
    assert ROWS <= view.rows_in <= 2 * ROWS
    assert view.rows_read == view.rows_in


# --- what is told, one attempt after another -------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path):
    program = Program(settings())
    source = SplitSource(SCHEMA, [{"number": i, "at": 0} for i in (0, 1)], Reader, tmp_path / "gate")
    program.read(source).write(parquet(str(tmp_path / "out")))
    return with_splits(program.plan())


def told(plan, *rows: int) -> dict[str, dict[str, float]]:
    return {str(task): {"rows_in": count} for task, count in zip(plan.tasks, rows, strict=True)}


def totals(progress: JobProgress) -> tuple[int, int]:
    found = progress.totals()
    return found.rows_in, found.rows_read


def test_records_that_no_window_took_are_added_up_over_all_tasks(plan):
    progress = JobProgress(JobId("job"), plan)
    progress.begins(plan, None)
    for task, more in zip(plan.tasks, (1, 20), strict=True):
        dropped = {"late_dropped": more, "timeless_dropped": 2 * more, "beyond_time_dropped": 3 * more}
        progress.heard({str(task): {"rows_in": 0, **dropped}})
    found = progress.totals()
    assert (found.late_dropped, found.timeless_dropped, found.beyond_time_dropped) == (21, 42, 63)


def test_no_row_counts_twice_over_attempts(plan):
    progress = JobProgress(JobId("job"), plan)
    progress.begins(plan, None)
    progress.heard(told(plan, 10, 20))
    # The attempt has failed; what its slots say while they drop their tasks belongs to it.
    progress.heard(told(plan, 15, 25))
    assert totals(progress) == (40, 40)
    progress.begins(plan, None)
    assert totals(progress) == (0, 40)
    progress.heard(told(plan, 1, 2))
    assert totals(progress) == (3, 43)


def test_no_row_counts_twice_over_the_restart_of_a_region(plan):
    first, second = plan.tasks
    progress = JobProgress(JobId("job"), plan)
    progress.begins(plan, None)
    progress.heard(told(plan, 10, 20))
    cause = FailureCause(text="no")
    progress.region_failed(RegionEnded(epoch=Epoch(1), tasks=(second,), cause=cause, restart_in_ms=1), Instant(0))
    progress.heard({str(first): {"rows_in": 11}, str(second): {"rows_in": 25}})
    assert totals(progress) == (36, 36)
    progress.begins(plan, (second,))
    assert totals(progress) == (11, 36)
    progress.heard({str(first): {"rows_in": 12}, str(second): {"rows_in": 5}})
    assert totals(progress) == (17, 42)


def test_no_row_is_forgotten_when_the_parallelism_changes(plan):
    progress = JobProgress(JobId("job"), plan)
    progress.begins(plan, None)
    progress.heard(told(plan, 10, 20))
    fewer = plan.rescaled(1)
    progress.begins(fewer, None)
    progress.heard({str(TaskId(VertexId(plan.tasks[0].vertex), 0)): {"rows_in": 5}})
    assert totals(progress) == (5, 35)

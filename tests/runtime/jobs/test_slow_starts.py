"""Whole jobs whose tasks take longer to start than the time-out of a deployment."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from gated import ROWS, Gate, Numbers
from threaded_jobs import settings, with_splits

import penstock as ps
from penstock.api.program import Program
from penstock.core.job.events import JobState
from penstock.settings import SlotSettings

MAY_OPEN = threading.Event()
"""Set when the job has said for long enough that a function is in `open`."""


class SlowToOpen(ps.ProcessFunction):
    def open(self, context):
        MAY_OPEN.wait()

    def on_row(self, row, context):
        return {"row": row["row"]}


@pytest.fixture
def closed():
    MAY_OPEN.clear()
    yield
    MAY_OPEN.set()


def test_a_function_that_is_long_in_open_is_waited_for_and_told_with_its_stack(threaded_job, tmp_path, caplog, closed):
    gate = Gate(tmp_path / "gate")
    gate.open_to(ROWS)
    program = Program(settings())
    rows = program.read(Numbers(gate), name="rows").process(
        SlowToOpen(), schema=pa.schema([("row", pa.int64())]), name="slow"
    )
    rows.write(ps.parquet(str(tmp_path / "out")))
    limits = SlotSettings(deploy_timeout_ms=1_000, heartbeat_interval_ms=50)
    job = threaded_job(with_splits(program.plan()), settings(slot=limits))

    def each_turn(_):
        # The second report of a slot comes when the time-out of the deployment is over.
        told = [record.getMessage() for record in caplog.records if "restoring its tasks" in record.getMessage()]
        if len(told) == 4:
            MAY_OPEN.set()

    assert job.run(each_turn) is JobState.FINISHED
    assert job.driver.view().restarts == 0
    told = [record.getMessage() for record in caplog.records if "restoring its tasks" in record.getMessage()]
    assert {line.partition(" of job")[0] for line in told} == {"slot 0", "slot 1"}
    assert "step 'slow', subtask" in told[-1]
    assert "has been in open() for" in told[-1]
    assert "MAY_OPEN.wait()" in told[-1]

"""Slots that are stopped before Spark has a job of theirs, or when it is gone."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from penstock.core.ids import JobId, SlotId
from penstock.ports import SlotEnded
from penstock.spark.slots import SparkSlots

FIRST = SlotId(0, 1)


class FakeContext:
    """Spark as slots ask it to end jobs: a job that it has not yet it cannot end."""

    def __init__(self) -> None:
        self._jsc = object()
        self.asked = 0
        self.job = threading.Event()

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802  # Spark's name
        if self._jsc is None:
            raise AttributeError("'NoneType' object has no attribute 'cancelJobsWithTag'")
        self.asked += 1
        if self.asked > 1:
            self.job.set()


class LateJobs(SparkSlots):
    """Slots whose Spark jobs are there only when their end was asked for already."""

    def __init__(self, context: FakeContext) -> None:
        session = SimpleNamespace(sparkContext=context)
        super().__init__(session, job=JobId("j"), job_name="j", spec=lambda _: None, wake=lambda: None)

    def _submit(self, slot: SlotId) -> None:
        self._session.sparkContext.job.wait()


def test_spark_is_asked_again_to_end_a_job_that_was_not_there_when_its_slot_was_stopped():
    """1. A slot is started. 2. The job is cancelled, and the slot stopped. 3. Its Spark job is submitted."""
    context = FakeContext()
    slots = LateJobs(context)
    slots.start(FIRST)
    slots.stop(FIRST)
    slots.close(timeout_s=60)
    assert slots.ended() == [SlotEnded(FIRST, None)]


def test_a_slot_that_is_stopped_before_its_thread_runs_is_not_submitted():
    slots = SparkSlots(
        SimpleNamespace(sparkContext=FakeContext()), job=JobId("j"), job_name="j", spec=None, wake=lambda: None
    )
    slots.stop(FIRST)
    slots.start(FIRST)
    slots.close(timeout_s=60)
    assert slots.ended() == [SlotEnded(FIRST, None)], "nothing of Spark's was asked for, which would have failed here"


def test_a_session_that_was_stopped_is_not_asked_to_end_its_slots(caplog):
    context = FakeContext()
    context._jsc = None
    slots = LateJobs(context)
    slots._cancel(FIRST)
    assert (context.asked, caplog.records) == (0, [])

"""Slots that are stopped before Spark has a job of theirs, or when it is gone, or when it has started them again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from penstock.core.ids import JobId, SlotId
from penstock.ports import SlotEnded
from penstock.spark.slots import SparkSlots

FIRST = SlotId(0, 1)


class FakeContext:
    """Spark as slots ask it to end jobs: a job that it has not yet it cannot end."""

    def __init__(self) -> None:
        self._jsc = object()
        self.asked = 0
        self.tags: list[str] = []
        self.job = threading.Event()

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802  # Spark's name
        if self._jsc is None:
            raise AttributeError("'NoneType' object has no attribute 'cancelJobsWithTag'")
        self.asked += 1
        self.tags.append(tag)
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


class Stopped(FakeContext):
    """A context that is stopped by another than Python's session, as far as the session knows."""

    def __init__(self, *, is_stopped: bool) -> None:
        super().__init__()
        java = SimpleNamespace(isStopped=lambda: is_stopped)
        self._jsc = SimpleNamespace(sc=lambda: java)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802  # Spark's name
        raise RuntimeError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.")


@pytest.mark.parametrize("is_stopped", [True, False])
def test_that_spark_cannot_be_asked_is_told_with_the_job_unless_spark_was_stopped(is_stopped, caplog):
    LateJobs(Stopped(is_stopped=is_stopped))._cancel(FIRST)
    told = [record.getMessage().partition(": ")[0] for record in caplog.records if record.levelname == "WARNING"]
    assert told == ([] if is_stopped else ["Spark could not be asked to end slot-0.1.0 of job 'j'"])


def test_a_slot_that_spark_started_again_is_ended_by_the_spark_job_that_was_submitted():
    """1. A slot is started. 2. Spark tries its task again, and the second try calls in. 3. That one is stopped."""
    context = FakeContext()
    slots = LateJobs(context)
    slots.start(FIRST)
    slots.stop(FIRST._replace(attempt=1))
    slots.close(timeout_s=60)
    assert set(context.tags) == {"penstock-j-slot-0.1"}
    assert slots.ended() == [SlotEnded(FIRST, None)]


class FailingJobs(SparkSlots):
    """Slots whose Spark jobs fail at once."""

    def __init__(self, context: SimpleNamespace, error: str) -> None:
        self._error = error
        session = SimpleNamespace(sparkContext=context)
        super().__init__(session, job=JobId("j"), job_name="j", spec=lambda _: None, wake=lambda: None)

    def _submit(self, slot: SlotId) -> None:
        raise RuntimeError(self._error)

    def end_of_first(self) -> SlotEnded:
        self.start(FIRST)
        while not (ended := self.ended()):
            self.close(timeout_s=1)
        return ended[0]


def java_context(*, stopped: Callable[[], bool]) -> SimpleNamespace:
    return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=stopped)))


def nobody_listens() -> bool:
    raise ConnectionRefusedError("Connection refused")


def nobody_answers() -> bool:
    raise TimeoutError("timed out")


GONE = SlotEnded(FIRST, "the SparkSession was stopped", host_gone=True)


@pytest.mark.parametrize(
    ("context", "error", "ended"),
    [
        (SimpleNamespace(_jsc=None), "'NoneType' object has no attribute 'setJobGroup'", GONE),
        (java_context(stopped=lambda: True), "Cannot call methods on a stopped SparkContext.", GONE),
        (java_context(stopped=lambda: False), "Job 5 cancelled because SparkContext was shut down", GONE),
        (java_context(stopped=lambda: False), "no luck", SlotEnded(FIRST, "no luck")),
        (java_context(stopped=nobody_answers), "no luck", SlotEnded(FIRST, "no luck")),
        (java_context(stopped=nobody_listens), "no luck", SlotEnded(FIRST, "Spark's JVM is gone", host_gone=True)),
    ],
    ids=["forgotten", "stopped", "shutting down", "alive", "nobody answers", "nobody listens"],
)
def test_a_slot_says_that_no_other_can_follow_it_when_the_session_was_stopped(context, error, ended):
    assert FailingJobs(context, error).end_of_first() == ended

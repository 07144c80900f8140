"""Ctrl-C cancels what the main thread asked of Spark and no slot; a program that ends stops its jobs with a word."""

from __future__ import annotations

import signal
import threading

import pytest

from penstock.spark import interrupts
from penstock.spark.interrupts import Running, cancel_own, spare_jobs


class Context:
    """A Spark with jobs in groups, as one thread sees it."""

    def __init__(self, groups, own=None):
        self.groups, self.own, self.cancelled = groups, own, []
        self._jsc = self

    def statusTracker(self):  # noqa: N802
        return self

    def getLocalProperty(self, name):  # noqa: N802
        return self.own

    def getJobIdsForGroup(self, group):  # noqa: N802
        return [number for number, found in self.groups.items() if found == group]

    def getActiveJobsIds(self):  # noqa: N802
        return list(self.groups)

    def sc(self):
        return self

    def cancelJob(self, number):  # noqa: N802
        self.cancelled.append(number)


class Session:
    def __init__(self, context):
        self.sparkContext = context


GROUPS = {1: None, 2: "penstock-job", 3: "mine", 4: "penstock-on-driver"}


@pytest.mark.parametrize(("own", "cancelled"), [(None, [1]), ("mine", [1, 3])])
def test_only_what_has_no_group_or_that_of_the_main_thread_is_cancelled(own, cancelled):
    context = Context(GROUPS)
    cancel_own(context, own)
    assert context.cancelled == cancelled


@pytest.fixture
def jobs(monkeypatch):
    made = interrupts._Jobs()
    monkeypatch.setattr(interrupts, "JOBS", made)
    monkeypatch.setattr(interrupts.atexit, "register", lambda call: None)
    return made


@pytest.fixture
def _handler_kept():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def pysparks(calls):
    """What PySpark has answer Ctrl-C."""

    def signal_handler(number, frame):
        calls.append("all jobs cancelled")
        raise KeyboardInterrupt

    signal_handler.__module__ = interrupts.PYSPARK
    return signal_handler


@pytest.mark.usefixtures("_handler_kept")
def test_ctrl_c_spares_slots_while_a_job_runs_and_is_pysparks_otherwise(jobs):
    calls, context, over = [], Context(GROUPS), threading.Event()
    signal.signal(signal.SIGINT, pysparks(calls))
    spare_jobs(Session(context))
    jobs.add(Running(name="job", leave=lambda: "", over=over))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert (calls, context.cancelled) == ([], [1])
    over.set()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert (calls, context.cancelled) == (["all jobs cancelled"], [1])


@pytest.mark.usefixtures("_handler_kept")
def test_ctrl_c_gets_through_when_spark_cannot_be_asked(jobs):
    signal.signal(signal.SIGINT, pysparks([]))
    context = Context(GROUPS)
    spare_jobs(Session(context))
    context.groups = None
    jobs.add(Running(name="job", leave=lambda: "", over=threading.Event()))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("_handler_kept")
def test_a_handler_of_the_users_own_stays():
    def mine(number, frame):
        pass

    signal.signal(signal.SIGINT, mine)
    spare_jobs(Session(Context({})))
    assert signal.getsignal(signal.SIGINT) is mine


def test_a_program_that_ends_stops_its_jobs_in_order_and_says_so(jobs, caplog):
    over, ended = threading.Event(), threading.Event()
    ended.set()

    def leave():
        over.set()
        return "the job was stopped"

    jobs.add(Running(name="ended", leave=lambda: pytest.fail("it has ended"), over=ended))
    jobs.add(Running(name="runs", leave=leave, over=over))
    jobs.end_all()
    assert [record.getMessage() for record in caplog.records] == [
        "the program ended while job 'runs' ran, and the job was stopped"
    ]
    assert jobs.running == []

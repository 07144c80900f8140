"""The death of a worker's process is news at once where it can be seen, and news once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.core.ids import JobId, SlotId
from penstock.net.keys import make_job_keys
from penstock.net.zeromq import ZmqTransport
from penstock.ports import SlotEnded
from penstock.runtime.views import SlotView
from penstock.spark.slots import DIED, SparkSlots
from penstock.spark.worker_processes import WorkerProcesses, can_be_seen

FIRST, SECOND = SlotId(0, 1), SlotId(1, 1)


class Process:
    """A process that waits to be killed."""

    def __init__(self) -> None:
        self._child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.pid = self._child.pid

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        self._child.stdin.close()


@pytest.fixture
def process() -> Iterator[Process]:
    child = Process()
    yield child
    child.kill()


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[ZmqTransport]:
    with ZmqTransport("master", keys=make_job_keys(), ipc_dir=tmp_path / "s") as opened:
        yield opened


class HeldJobs(SparkSlots):
    """Slots whose Spark jobs end when they are told how."""

    def __init__(self, processes: WorkerProcesses) -> None:
        unused = lambda _: None  # noqa: E731
        super().__init__(None, job=JobId("j"), job_name="j", spec=unused, wake=lambda: None, processes=processes)
        self.outcomes = {FIRST: threading.Event()}

    def _submit(self, slot: SlotId) -> None:
        self.outcomes[slot].wait()
        raise RuntimeError("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")

    def end(self, slot: SlotId) -> None:
        """Have Spark say that the job of this slot has failed, and wait until it has said so."""
        thread = self._threads[slot]
        self.outcomes[slot].set()
        thread.join()


def view_of(slot: SlotId, process: Process) -> list[SlotView]:
    return [SlotView(number=slot.number, incarnation=slot.incarnation, host="h", pid=process.pid)]


# --- processes -------------------------------------------------------------------------------------------------------


def test_a_process_that_dies_ends_the_wait_and_is_told_once(transport, process):
    processes = WorkerProcesses(transport)
    processes.follow(FIRST, process.pid)
    processes.follow(FIRST, process.pid)
    assert processes.dead() == []
    killer = threading.Thread(target=process.kill)
    killer.start()
    # Would wait for ever, and the test with it, if the death did not end it.
    transport.wait(None)
    assert processes.dead() == [FIRST]
    assert processes.dead() == []
    killer.join()
    transport.wait(0)


def test_what_is_let_go_may_die_and_nobody_is_told(transport, process):
    processes = WorkerProcesses(transport)
    processes.follow(FIRST, process.pid)
    processes.let_go(FIRST)
    processes.let_go(FIRST)
    process.kill()
    assert processes.dead() == []


def test_a_process_that_is_dead_already_is_left_to_spark(transport, process):
    process.kill()
    processes = WorkerProcesses(transport)
    processes.follow(FIRST, process.pid)
    assert processes.dead() == []


def test_no_descriptor_is_left_open(transport, process):
    before = {entry.name for entry in Path("/proc/self/fd").iterdir()}
    processes = WorkerProcesses(transport)
    processes.follow(FIRST, process.pid)
    processes.follow(SECOND, process.pid)
    processes.let_go(SECOND)
    processes.close()
    assert {entry.name for entry in Path("/proc/self/fd").iterdir()} == before


@pytest.mark.parametrize(
    ("master", "seen"),
    [
        ("local", True),
        ("local[4]", True),
        ("local[*]", True),
        # Spark tries the task again by itself, as attempt 1 of the same slot.
        ("local[4,2]", False),
        ("local[*, 3]", False),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://host", False),
    ],
)
def test_spark_is_waited_for_where_it_tries_again_or_is_elsewhere(master, seen):
    assert can_be_seen(master) is seen


# --- slots -----------------------------------------------------------------------------------------------------------


def test_a_dead_worker_is_news_before_spark_says_so_and_not_again_when_it_does(transport, process):
    slots = HeldJobs(WorkerProcesses(transport))
    slots.start(FIRST)
    slots.follow(view_of(FIRST, process))
    process.kill()
    assert slots.ended() == [SlotEnded(FIRST, DIED)]
    # The view is a tenth of a second old, and still has the dead one.
    slots.follow(view_of(FIRST, process))
    slots.end(FIRST)
    assert slots.ended() == []
    slots.close(timeout_s=60)


def test_spark_may_be_first(transport, process):
    slots = HeldJobs(WorkerProcesses(transport))
    slots.start(FIRST)
    slots.follow(view_of(FIRST, process))
    slots.end(FIRST)
    assert slots.ended() == [SlotEnded(FIRST, DIED)]
    # Spark keeps the process for something else, which is none of our business.
    slots.follow(view_of(FIRST, process))
    process.kill()
    assert slots.ended() == []
    slots.close(timeout_s=60)


def test_the_end_of_the_job_waits_for_spark_to_be_done_with_a_dead_worker(transport, process):
    slots = HeldJobs(WorkerProcesses(transport))
    slots.start(FIRST)
    slots.follow(view_of(FIRST, process))
    process.kill()
    assert slots.ended() == [SlotEnded(FIRST, DIED)]
    thread = slots._threads[FIRST]
    wait_for_thread = thread.join

    def spark_is_done_meanwhile(timeout: float) -> None:
        slots.outcomes[FIRST].set()
        wait_for_thread(timeout)

    thread.join = spark_is_done_meanwhile
    slots.close(timeout_s=60)
    assert not thread.is_alive()


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


def test_a_session_that_was_stopped_is_not_asked_to_end_its_slots():
    context = FakeContext()
    context._jsc = None
    LateJobs(context).stop(FIRST)
    assert context.asked == 0

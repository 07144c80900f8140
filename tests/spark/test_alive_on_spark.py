"""Being alive on a real Spark: functions that do not come back, Ctrl-C, programs that end, what the terminal shows."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pytest
from bid_jobs import GatedBids, checkpointing, hot_auctions
from py4j.protocol import Py4JError
from waiting import wait_for_it, wait_until

import penstock as ps
from penstock.spark.slots import job_group

cloudpickle.register_pickle_by_value(sys.modules[__name__])

IMPATIENT = ps.SlotSettings(heartbeat_interval_ms=200, heartbeat_timeout_ms=8_000, stuck_after_ms=1_000)


class Dawdler:
    """A function for rows that does not come back for one of them while a file is not there."""

    def __init__(self, go: Path) -> None:
        self._go = go

    def __call__(self, row):
        while row["n"] == 7 and not self._go.exists():
            time.sleep(0.01)
        return row


def test_a_function_that_does_not_come_back_is_shown_and_its_slot_is_kept(spark, tmp_path, caplog):
    env = ps.Environment(
        spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=ps.no_restart(), slots=IMPATIENT
    )
    rows = spark.createDataFrame([(n,) for n in range(100)], "n long")
    env.from_dataframe(rows).rebalance().map(Dawdler(tmp_path / "go"), schema="n long", name="dawdle").write(
        ps.parquet(tmp_path / "out")
    )
    job = env.start("dawdling")
    # Much longer than a slot may be silent, to the master or to the other slot.
    view = wait_until(job, lambda v: v.stuck and v.stuck[0].stuck_ms > 2 * IMPATIENT.heartbeat_timeout_ms)
    shown = view.stuck[0]
    assert shown.operator == "dawdle"
    assert shown.subtask in (0, 1)
    assert "in __call__" in shown.stack
    assert "time.sleep(0.01)" in shown.stack
    (tmp_path / "go").touch()
    assert job.wait(120).restarts == 0
    assert sorted(row["n"] for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(100))
    told = [record.getMessage() for record in caplog.records if "process lives" in record.getMessage()]
    assert f"has been in the code of step 'dawdle', subtask {shown.subtask}" in told[0]
    assert "in __call__" in told[0]


def hold_the_lock(row):
    """For one row no Python thread of the process runs for twice as long as a slot may be silent."""
    if row["n"] == 7:
        ctypes.PyDLL(None).usleep(2_000 * IMPATIENT.heartbeat_timeout_ms)
    return row


def test_native_code_that_holds_the_lock_of_python_is_shown_and_its_slot_is_kept(spark, tmp_path, caplog):
    env = ps.Environment(
        spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=ps.no_restart(), slots=IMPATIENT
    )
    rows = spark.createDataFrame([(n,) for n in range(100)], "n long")
    env.from_dataframe(rows).rebalance().map(hold_the_lock, schema="n long").write(ps.parquet(tmp_path / "out"))
    job = env.start("locked")
    # Longer than a slot may be silent, to the master or to the other slot.
    view = wait_until(job, lambda v: v.stuck and v.stuck[0].stuck_ms > 1.6 * IMPATIENT.heartbeat_timeout_ms)
    assert view.stuck[0].stack.splitlines()[1].endswith("in hold_the_lock")
    assert job.wait(120).restarts == 0
    assert sorted(row["n"] for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(100))
    told = [record.getMessage() for record in caplog.records if "process lives" in record.getMessage()]
    assert "has been in native code that holds Python's lock" in told[0]
    assert "in hold_the_lock" in told[0]


@pytest.fixture
def _handler_kept(spark):
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
    # Py4J may have closed the connection of this thread. Spark then has another thread for it, without a session.
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


@pytest.mark.usefixtures("_handler_kept")
def test_a_job_survives_ctrl_c_in_wait_and_at_the_prompt(spark, tmp_path):
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=ps.no_restart())
    hot_auctions(env, GatedBids(tmp_path / "gate"), tmp_path / "out")
    job = env.start("survivor")
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 1)
    interrupt = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    interrupt.join()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    done = job.view().checkpoints.counts.completed
    after = wait_until(job, lambda v: v.checkpoints.counts.completed > done)
    assert (after.restarts, [slot.pid for slot in after.slots]) == (0, [slot.pid for slot in before.slots])
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)


def interrupted_in_an_action(spark, raised: tuple[type[BaseException], ...] = (KeyboardInterrupt,)) -> None:
    """The main thread waits for an action of Spark's when Ctrl-C comes."""
    tracker, main = spark.sparkContext.statusTracker(), threading.main_thread().ident

    def interrupt() -> None:
        known = set(tracker.getActiveJobsIds())
        waits.set()
        wait_for_it(lambda: set(tracker.getActiveJobsIds()) - known, "the action has begun")
        signal.pthread_kill(main, signal.SIGINT)

    waits = threading.Event()
    beside = threading.Thread(target=interrupt)
    beside.start()
    waits.wait()
    with pytest.raises(raised):
        spark.range(0, 10**13, 1, 1).selectExpr("sum(id % 7)").collect()
    beside.join()


def beside_slots(spark, job: ps.Job) -> set[int]:
    """The Spark jobs that run and are not known to be slots."""
    tracker = spark.sparkContext.statusTracker()
    return set(tracker.getActiveJobsIds()) - set(tracker.getJobIdsForGroup(job_group(job.id)))


@pytest.mark.usefixtures("_handler_kept")
def test_ctrl_c_in_an_action_starts_no_slot_a_second_time(spark, tmp_path):
    """Py4J would close the connections of all threads, and each thread would submit its slot again."""
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=ps.no_restart())
    hot_auctions(env, GatedBids(tmp_path / "gate"), tmp_path / "out")
    job = env.start("alone")
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 1)
    interrupted_in_an_action(spark)
    done = job.view().checkpoints.counts.completed
    after = wait_until(job, lambda v: v.checkpoints.counts.completed > done + 1)
    assert beside_slots(spark, job) == set()
    assert (after.restarts, [slot.pid for slot in after.slots]) == (0, [slot.pid for slot in before.slots])
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)


@pytest.mark.usefixtures("_handler_kept")
def test_a_slot_whose_connection_to_spark_is_closed_is_replaced_and_never_doubled(spark, tmp_path):
    """1. A notebook answers Ctrl-C itself. 2. Ctrl-C comes in an action. 3. Py4J closes the connections of all
    threads."""
    again = ps.fixed_delay(attempts=10, delay="0s")
    env = ps.Environment(spark, parallelism=1, checkpointing=checkpointing(tmp_path), restart=again)
    hot_auctions(env, GatedBids(tmp_path / "gate"), tmp_path / "out")
    job = env.start("replaced")
    wait_until(job, lambda v: v.checkpoints.counts.completed >= 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Py4J may also close the connection by which PySpark then cleans up after the action.
    interrupted_in_an_action(spark, (KeyboardInterrupt, Py4JError))
    [action] = beside_slots(spark, job)
    done = job.view().checkpoints.counts.completed
    view = wait_until(job, lambda v: v.epoch > 1 and v.checkpoints.counts.completed > done + 1)
    assert beside_slots(spark, job) == {action}
    assert all("repeated" not in str(failure) for failure in view.failures)
    spark.sparkContext._jsc.sc().cancelJob(action)
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)


PROGRAM = """
import logging, os, signal, sys, time
import penstock as ps
from pyspark.sql import SparkSession

logging.basicConfig(level=logging.INFO)
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
checkpointing = ps.Checkpointing(interval="200ms", directory=sys.argv[1] + "/checkpoints")
env = ps.Environment(spark, checkpointing=checkpointing, restart=ps.fixed_delay(attempts=3, delay="0s"))


def note(row):
    logging.getLogger("mine").info("saw %d", row["auction"])
    time.sleep(0.01)
    return {"auction": row["auction"]}


bids = env.read(ps.nexmark.bids(events=10**9), name="bids")
bids.map(note, schema="auction long", name="note").write(ps.parquet(sys.argv[1] + "/out"))
job = env.start("forgotten")


def until(true):
    while not true(job.view()):
        time.sleep(0.05)
        assert not job.is_over


until(lambda view: view.checkpoints.counts.completed >= 1)
os.kill(job.view().slots[0].pid, signal.SIGKILL)
until(lambda view: view.epoch == 2 and view.checkpoints.counts.completed >= 3)
print("THE END", flush=True)
"""


@pytest.mark.slow
def test_neither_a_killed_worker_nor_a_program_that_ends_shows_a_stack_trace_of_java(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "THE END"), ended.stderr
    assert [line for line in ended.stderr.splitlines() if line.startswith("\tat ")] == []
    assert "the program ended while job 'forgotten' ran, and the job was stopped; call job.wait()" in ended.stderr
    assert re.search(r"INFO:penstock.runtime.worker_logs.mine:slot 0, step 'note': saw \d+", ended.stderr)
    assert re.search(r"checkpoint 1 of job forgotten-\w+ completed in \d+ ms", ended.stderr)

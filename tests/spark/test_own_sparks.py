"""Jobs on a Spark of their own, which is taken from them, or which starts their slots again by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TIMEOUT_S = 300

BEGINNING = """
import os, signal, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
import penstock as ps

folder = Path(sys.argv[1])

def session(master):
    return SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()

def environment(spark, name, **settings):
    kept = ps.Checkpointing(interval="200ms", directory=str(folder / name))
    return ps.Environment(spark, parallelism=1, checkpointing=kept, **settings)

def wait_until(is_so):
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)

def endless(env):
    return env.read(ps.nexmark.bids(events=10**9)).where("price > 100000000000")
"""


def said_by(program: str, folder: Path) -> list[str]:
    """What a program prints, line by line."""
    path = folder / "program.py"
    path.write_text(BEGINNING + textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


def test_a_job_whose_session_is_stopped_or_whose_jvm_dies_fails_with_that_as_its_cause(tmp_path):
    """By default a job is restarted for ever, and it may take two minutes until all slots are there."""
    program = """
    for name in ("stopped", "killed"):
        spark = session("local[2]")
        env = environment(spark, name)
        endless(env).write(ps.parquet(str(folder / f"{name}-out")))
        job = env.start(name)
        wait_until(lambda: job.view().checkpoints.counts.completed)
        if name == "stopped":
            spark.stop()
        else:
            os.kill(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
        try:
            job.wait(60)
        except ps.JobFailed as failure:
            print(failure.cause_text, flush=True)
    # What is left of PySpark calls the JVM at the end.
    os._exit(0)
    """
    assert said_by(program, tmp_path) == ["the SparkSession was stopped", "Spark's JVM is gone"]


def test_a_slot_that_spark_started_again_and_that_hangs_is_killed_and_replaced(tmp_path):
    """1. The first worker dies before it has called in, and Spark tries the task again. 2. The worker of the second try
    is put to sleep. 3. It is given up, and killed by Spark."""
    program = """
    class DiesOnce:
        def __init__(self, marker):
            self.marker = marker

        def __call__(self, batch):
            return batch

        def __reduce__(self):
            return revived, (self.marker,)

    def revived(marker):
        import os
        from pyspark import TaskContext
        if TaskContext.get() is not None and not os.path.exists(marker):
            open(marker, "w").close()
            os._exit(1)
        return DiesOnce(marker)

    spark = session("local[2,4]")
    slots = ps.SlotSettings(heartbeat_timeout_ms=5_000)
    env = environment(spark, "again", slots=slots, restart=ps.fixed_delay(attempts=9, delay="0s"))
    stream = endless(env)
    stream.map_batches(DiesOnce(str(folder / "died")), schema=stream.schema).write(ps.parquet(str(folder / "out")))
    job = env.start("again")
    wait_until(lambda: job.view().checkpoints.counts.completed)
    (first,) = job.view().slots
    print(f"start {first.incarnation}, died: {(folder / 'died').exists()}", flush=True)
    os.kill(first.pid, signal.SIGSTOP)
    wait_until(lambda: job.view().epoch > 1 and job.view().state.value == "running")
    print(f"start {job.view().slots[0].incarnation}", flush=True)
    wait_until(lambda: not Path(f"/proc/{first.pid}").exists())
    job.cancel()
    job.finish()
    spark.stop()
    """
    assert said_by(program, tmp_path) == ["start 1, died: True", "start 2"]

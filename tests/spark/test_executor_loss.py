"""Whole executors die: real ones, each a JVM of its own, from Spark's cluster in miniature."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import penstock

pytestmark = pytest.mark.slow

TIMEOUT_S = 600

PROGRAM = """
import json, os, signal, sys
from pathlib import Path

import penstock as ps
from bid_jobs import GatedBids, checkpointing, committed, hot_auctions, reference, wait_for
from penstock.core.job.events import JobState
from pyspark.sql import SparkSession

work, packages = Path(sys.argv[1]), sys.argv[2]

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

spark = (
    SparkSession.builder.master("local-cluster[3,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.executorEnv.PYTHONPATH", packages)
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.warehouse.dir", str(work / "warehouse"))
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
gate = work / "gate"
env = ps.Environment(
    spark, parallelism=2, checkpointing=checkpointing(work), restart=ps.fixed_delay(attempts=9, delay="0s")
)
hot_auctions(env, GatedBids(gate), work / "out")
job = env.start("executors")
before = wait_for(job, lambda v: v.checkpoints.counts.completed >= 2)
workers = [slot.pid for slot in before.slots]
executors = [parent(parent(pid)) for pid in workers]
os.kill(executors[1], signal.SIGKILL)
after = wait_for(job, lambda v: v.state is JobState.RUNNING and v.epoch > before.epoch)
orphan = alive(workers[1])
gate.touch()
view = job.wait(300)
print(json.dumps({
    "different_executors": executors[0] != executors[1],
    "survivor_kept_its_process": after.slots[0].pid == workers[0],
    "replaced": after.slots[1].pid != workers[1],
    "orphan": orphan,
    "failures": [failure.text for failure in view.failures],
    "exactly_once": committed(spark, work / "out") == reference(spark),
    "state": view.state.value,
}))
spark.stop()
"""


def own_spark_home(folder: Path) -> Path:
    """The installed Spark under another path: its cluster in miniature writes below its home."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


def test_an_executor_that_is_killed_costs_its_slots_and_nothing_else(tmp_path):
    packages = os.pathsep.join([str(Path(penstock.__file__).parents[1]), str(Path(__file__).parents[1] / "support")])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), packages],
        env=os.environ
        | {
            "SPARK_HOME": str(own_spark_home(tmp_path / "spark-home")),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": packages,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    failures = found.pop("failures")
    assert found == {
        "different_executors": True,
        "survivor_kept_its_process": True,
        "replaced": True,
        "orphan": False,
        "exactly_once": True,
        "state": "finished",
    }
    assert any("slot 1 was lost" in failure for failure in failures)
    assert not (Path(pyspark.__file__).parent / "work").exists()

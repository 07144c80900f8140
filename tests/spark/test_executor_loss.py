"""Workers and whole executors die: real ones, each a JVM of its own, from Spark's cluster in miniature."""

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
import short_lived_jvms
from bid_jobs import GatedBids, checkpointing, committed, hot_auctions, reference
from waiting import wait_for_it, wait_until
from penstock.core.job.events import JobState
from pyspark.sql import SparkSession

work, packages = Path(sys.argv[1]), sys.argv[2]

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def connections(pid):
    # (own end, other end), as the kernel writes them.
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(os.readlink(entry))
        except FileNotFoundError:
            pass
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {(row[1], row[2]) for row in rows if f"socket:[{row[9]}]" in held}

def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

spark = (
    SparkSession.builder.master("local-cluster[2,2,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.extraJavaOptions", short_lived_jvms.options())
    .config("spark.executorEnv.PYTHONPATH", packages)
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.warehouse.dir", str(work / "warehouse"))
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
gate = work / "gate"
env = ps.Environment(
    spark,
    parallelism=3,
    spare_slots=1,
    checkpointing=checkpointing(work),
    restart=ps.fixed_delay(attempts=9, delay="0s"),
    network=ps.NetworkSettings(transport="tcp"),
)
hot_auctions(env, GatedBids(gate), work / "out")
job = env.start("executors")
def well(after_epoch=0):
    # All of them are up, and a checkpoint was taken since: the next failure is one of its own.
    reached = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch > after_epoch and v.spares)
    taken = reached.checkpoints.counts.completed
    return wait_until(job, lambda v: v.checkpoints.counts.completed > taken)

first = well()
os.kill(first.slots[1].pid, signal.SIGKILL)
before = well(first.epoch)
pids = [slot.pid for slot in first.slots]
pids[1] = first.spares[0].pid
spare_took_over = [slot.pid for slot in before.slots] == pids
workers = [slot.pid for slot in before.slots]
executors = [parent(parent(pid)) for pid in workers]
# Three slots on two executors of two cores: one has two of them.
doomed = max(executors, key=executors.count)
lost = [number for number, executor in enumerate(executors) if executor == doomed]
(kept,) = {0, 1, 2} - set(lost)
between = [
    any((far, near) in connections(workers[number]) for near, far in connections(workers[kept])) for number in lost
]
os.kill(doomed, signal.SIGKILL)
after = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch > before.epoch)
wait_for_it(lambda: not any(alive(workers[number]) for number in lost), "workers end with their executor")
again = [parent(parent(slot.pid)) for slot in after.slots]
gate.touch()
view = job.wait(300)
print(json.dumps({
    "spare_took_over": spare_took_over,
    "executors": len(set(executors)),
    "tcp_between_executors": between,
    "survivor_kept_its_process": after.slots[kept].pid == workers[kept],
    "replaced": [after.slots[number].pid != workers[number] for number in lost],
    "dead_executor_is_used": doomed in again,
    "told": any(f"slot {number} was lost" in failure.text for failure in view.failures for number in lost),
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


def test_a_killed_worker_costs_its_slot_and_a_killed_executor_its_slots_and_nothing_else(tmp_path):
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
    assert found == {
        # Spark tries a failed task again by itself there, and would have come later.
        "spare_took_over": True,
        "executors": 2,
        "tcp_between_executors": [True, True],
        "survivor_kept_its_process": True,
        "replaced": [True, True],
        "dead_executor_is_used": False,
        "told": True,
        "exactly_once": True,
        "state": "finished",
    }
    assert not (Path(pyspark.__file__).parent / "work").exists()

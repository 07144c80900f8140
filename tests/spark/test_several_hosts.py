"""Hosts that share nothing but a network and the checkpoint directory, under a real standalone master."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import hosts
import pyspark
import pytest
from waiting import wait_for_it

import penstock

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(hosts.missing()), reason=str(hosts.missing()))]

TIMEOUT_S = 400

PROGRAM = """
import json, subprocess, sys
from pathlib import Path

import penstock as ps
from bid_jobs import GatedBids, checkpointing, committed, hot_auctions, reference
from waiting import wait_for_it, wait_until
from penstock.core.job.events import JobState
from pyspark.sql import SparkSession

work, commands = Path(sys.argv[1]), json.loads(sys.argv[2])
master, own, packages = sys.argv[3:]

def do(what):
    subprocess.run(commands[what], check=True)

spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", own)
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .config("spark.executorEnv.PYTHONPATH", packages)
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.warehouse.dir", str(work / "warehouse"))
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
tracker = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
wait_for_it(lambda: tracker().size() == 4, "the driver and an executor on each host")
gate = work / "gate"
env = ps.Environment(
    spark,
    parallelism=3,
    checkpointing=checkpointing(work),
    restart=ps.fixed_delay(attempts=99, delay="0s"),
    slots=ps.SlotSettings(heartbeat_timeout_ms=4_000),
)
hot_auctions(env, GatedBids(gate), work / "out")
job = env.start("hosts")

def well():
    # A barrier has been through all of them, and so over each link.
    reached = wait_until(job, lambda v: v.state is JobState.RUNNING)
    taken = reached.checkpoints.counts.completed
    return wait_until(job, lambda v: v.state is JobState.RUNNING and v.checkpoints.counts.completed > taken + 1)

def failed_by(text):
    found = wait_until(job, lambda v: any(text in failure.text for failure in v.failures))
    return next(failure.text for failure in found.failures if text in failure.text)

well()
do("part the last two")
silent = failed_by("nothing came from it")
do("join the last two")
before = well()
do("pull the last cable")
lost = failed_by("not heard of")
do("plug the last cable")
after = well()
gate.touch()
view = job.wait(300)
print(json.dumps({
    "silent": silent,
    "lost": lost,
    "replaced": sum(slot.pid not in [old.pid for old in before.slots] for slot in after.slots) > 0,
    "exactly_once": committed(spark, work / "out") == reference(spark),
    "state": view.state.value,
}))
spark.stop()
"""


@pytest.fixture
def joined():
    with hosts.Hosts(3) as found:
        yield found


def test_slots_of_several_hosts_are_one_job_and_those_that_are_cut_off_cost_nothing_but_time(joined, tmp_path):
    """1. The driver's host has a slot, and two others have one each: checkpoints complete. 2. Two hosts cannot reach
    each other, and both can reach the driver. 3. A host cannot be reached by anyone, and comes back."""
    shared = tmp_path / "shared"
    shared.mkdir()
    home = shared / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    packages = os.pathsep.join([str(Path(penstock.__file__).parents[1]), str(Path(__file__).parents[1] / "support")])
    environment = {
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": packages,
    }
    master = f"spark://{joined.address(0)}:7077"
    spark_class = str(home / "bin" / "spark-class")
    logs = {}

    def start(number, name, *command):
        with (tmp_path / f"{name}.log").open("wb") as output:
            logs[name] = Path(output.name)
            return joined.start(number, command, environment=environment, output=output)

    start(0, "master", spark_class, "org.apache.spark.deploy.master.Master", "-h", joined.address(0), "-p", "7077")
    wait_for_it(lambda: b"I have been elected leader" in logs["master"].read_bytes(), "the master is up")
    for number in range(3):
        own = ["-h", joined.address(number), "-c", "1", "-m", "1g", "-d", str(tmp_path / f"work{number}"), master]
        start(number, f"worker{number}", spark_class, "org.apache.spark.deploy.worker.Worker", *own)
    program = [sys.executable, "-c", PROGRAM, str(shared), json.dumps(joined.commands())]
    driver = start(0, "driver", *program, master, joined.address(0), packages)
    assert driver.wait(TIMEOUT_S) == 0, logs["driver"].read_text()[-3_000:]
    found = json.loads(logs["driver"].read_text().splitlines()[-1])
    assert "can the two hosts reach each other?" in found.pop("silent")
    assert "was lost: not heard of for" in found.pop("lost")
    assert found == {"replaced": True, "exactly_once": True, "state": "finished"}

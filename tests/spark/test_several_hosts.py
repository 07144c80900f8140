"""Hosts that share nothing but a network and the checkpoint directory, under a real standalone master."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import connect_server
import hosts
import lasting_driver
import pyspark
import pytest
import short_lived_jvms
from driver_processes import Driver, check_output, says
from waiting import wait_for_it
from zookeeper_server import ZooKeeperServer

import penstock

pytestmark = pytest.mark.slow

TIMEOUT_S = 400
PACKAGES = os.pathsep.join([str(Path(penstock.__file__).parents[1]), str(Path(__file__).parents[1] / "support")])

PROGRAM = """
import json, os, subprocess, sys
from pathlib import Path

import penstock as ps
import short_lived_jvms
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
    .config("spark.executor.extraJavaOptions", short_lived_jvms.options())
    .config("spark.executor.cores", "1")
    .config("spark.executorEnv.PYTHONPATH", packages)
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.warehouse.dir", str(work / "warehouse"))
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
tracker = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
wait_for_it(lambda: tracker().size() == 4, "the driver and an executor on each host")
own_files = ps.Environment(
    spark,
    parallelism=3,
    checkpointing=checkpointing(Path(os.environ["TMPDIR"])),
    restart=ps.no_restart(),
)
hot_auctions(own_files, ps.nexmark.bids(events=10), work / "never")
try:
    own_files.run("own files")
except ps.JobFailed as error:
    refused = str(error)
gate = work / "gate"
env = ps.Environment(
    spark,
    parallelism=3,
    checkpointing=checkpointing(work),
    restart=ps.fixed_delay(attempts=99, delay="0s"),
    slots=ps.SlotSettings(heartbeat_timeout_ms=8_000),
)
hot_auctions(env, GatedBids(gate), work / "out")
job = env.start("hosts")

def well():
    # A barrier has been through all of them, and so over each link.
    reached = wait_until(job, lambda v: v.state is JobState.RUNNING)
    taken = reached.checkpoints.counts.completed
    return wait_until(job, lambda v: v.state is JobState.RUNNING and v.checkpoints.counts.completed > taken + 1)

def failed_by(fault, text):
    def told(view):
        return [failure.text for failure in view.failures if text in failure.text]
    before = len(told(job.view()))
    do(fault)
    return told(wait_until(job, lambda v: len(told(v)) > before))[-1]

well()
silent = failed_by("part the last two", "nothing came for")
do("join the last two")
before = well()
lost = failed_by("pull the last cable", "not heard of")
do("plug the last cable")
after = well()
gate.touch()
view = job.wait(300)
print(json.dumps({
    "refused": refused,
    "signs": [str(file) for file in work.rglob(".penstock-*")],
    "silent": silent,
    "lost": lost,
    "replaced": sum(slot.pid not in [old.pid for old in before.slots] for slot in after.slots) > 0,
    "exactly_once": committed(spark, work / "out") == reference(spark),
    "state": view.state.value,
}))
spark.stop()
"""


CLIENT = """
import json, os, signal, sys
from pathlib import Path

import penstock as ps
from bid_jobs import GatedBids, checkpointing, committed, hot_auctions, reference
from waiting import wait_until
from penstock.core.job.events import JobState
from pyspark.sql import SparkSession

work, address = Path(sys.argv[1]), sys.argv[2]
spark = SparkSession.builder.remote(address).getOrCreate()
gate = work / "gate"
again = ps.fixed_delay(attempts=9, delay="0s")
env = ps.Environment(spark, parallelism=3, checkpointing=checkpointing(work), restart=again)
hot_auctions(env, GatedBids(gate), work / "out")
job = env.start("connect")
first = wait_until(job, lambda v: v.checkpoints.counts.completed >= 2)
os.kill(first.slots[1].pid, signal.SIGKILL)
second = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch > first.epoch)
gate.touch()
view = job.wait(300)
taken = []
env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(work), restart=again)
rows = env.from_dataframe(spark.range(10_000))
rows.for_each_checkpoint(lambda frame, _: taken.extend(row["id"] for row in frame.collect()))
env.run("frames")
print(json.dumps({
    "kept": [old.pid == new.pid for old, new in zip(first.slots, second.slots)],
    "exactly_once": committed(spark, work / "out") == reference(spark),
    "state": view.state.value,
    "frames": sorted(taken) == list(range(10_000)),
}))
spark.stop()
"""


class Cluster:
    """Spark's standalone master on the first of some hosts, and a worker on each of them."""

    def __init__(self, joined: hosts.Hosts, folder: Path, *, cores: Mapping[int, int]) -> None:
        self.hosts = joined
        self._folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.home = Path(pyspark.__file__).parent
        first = min(cores)
        self.master = f"spark://{joined.address(first)}:7077"
        deploy, spark_class = "org.apache.spark.deploy", str(self.home / "bin" / "spark-class")
        self.start(first, "master", spark_class, f"{deploy}.master.Master", "-h", joined.address(first), "-p", "7077")
        self.wait_for("master", re.compile("I have been elected leader"))
        for number, count in cores.items():
            place = ["-h", joined.address(number), "-d", str(folder / f"work{number}")]
            room = ["-c", str(count), "-m", f"{count}g"]
            self.start(number, f"worker{number}", spark_class, f"{deploy}.worker.Worker", *place, *room, self.master)

    def start(self, number: int, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A process on one of the hosts."""
        environment = {
            "SPARK_HOME": str(self.home),
            "SPARK_SCALA_VERSION": "2.13",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": PACKAGES,
        }
        with (self._folder / f"{name}.log").open("wb") as output:
            return self.hosts.start(number, command, environment=environment, output=output)

    def said(self, name: str) -> str:
        """All that a process has said."""
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def wait_for(self, name: str, pattern: re.Pattern[str]) -> None:
        """Until a process has said this."""
        wait_for_it(lambda: pattern.search(self.said(name)), f"{name} says {pattern.pattern}")

    def result_of(self, program: str, *arguments: str) -> dict[str, object]:
        """What a program on the first host prints in the end."""
        process = self.start(0, "program", sys.executable, "-c", program, str(self.shared), *arguments)
        assert process.wait(TIMEOUT_S) == 0, self.said("program")[-3_000:]
        return json.loads(self.said("program").splitlines()[-1])


@pytest.fixture
def joined():
    if reason := hosts.missing():
        pytest.skip(reason)
    with hosts.Hosts(3) as found:
        yield found


def test_slots_of_several_hosts_are_one_job_and_those_that_are_cut_off_cost_nothing_but_time(joined, tmp_path):
    """1. A checkpoint directory that is another one on each host is refused. 2. The driver's host has a slot, and two
    others have one each: checkpoints complete. 3. Two hosts cannot reach each other, and both can reach the driver.
    4. A host cannot be reached by anyone, and comes back."""
    cluster = Cluster(joined, tmp_path, cores={0: 1, 1: 1, 2: 1})
    commands = json.dumps(joined.commands())
    found = cluster.result_of(PROGRAM, commands, cluster.master, joined.address(0), PACKAGES)
    assert "do not have this program's folder" in found.pop("refused")
    assert "check that the two hosts can reach each other" in found.pop("silent")
    assert "was lost: not heard of for" in found.pop("lost")
    assert found == {"signs": [], "replaced": True, "exactly_once": True, "state": "finished"}


def test_a_client_of_spark_connect_on_a_host_without_spark_has_its_slots_on_a_cluster(joined, tmp_path):
    cluster = Cluster(joined, tmp_path, cores={1: 2, 2: 2})
    settings = {
        "spark.driver.host": joined.address(1),
        "spark.connect.grpc.binding.port": "15002",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": short_lived_jvms.options(),
        "spark.executor.cores": "2",
        "spark.executorEnv.PYTHONPATH": PACKAGES,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(cluster.shared / "warehouse"),
    }
    cluster.start(1, "server", *connect_server.command_of(cluster.home, master=cluster.master, settings=settings))
    cluster.wait_for("server", connect_server.STARTED)
    found = cluster.result_of(CLIENT, f"sc://{joined.address(1)}:15002")
    assert found == {"kept": [True, False, True], "exactly_once": True, "state": "finished", "frames": True}


def test_a_driver_whose_host_is_cut_off_lets_go_of_its_job_and_never_do_two_commit(joined, tmp_path):
    """1. A driver has the job, one on another host waits, and ZooKeeper is on a third. 2. The cable of the first is
    pulled: it can still write to the storage, and the second takes the job over. 3. It is plugged in again."""
    server = ZooKeeperServer(tmp_path, address=joined.address(1), inside=joined.inside(1))
    first, second = drivers = [
        Driver(lasting_driver.__file__, tmp_path, server.hosts, inside=joined.inside(number)) for number in (2, 0)
    ]
    try:
        first.take_part()
        first.wait("running", says("running", "completed"))
        second.take_part()
        second.wait("standby", says("standby"))
        first.next_checkpoint()
        joined.do("pull the last cable")
        second.wait("where it goes on", says("restored "))
        second.next_checkpoint()
        joined.do("plug the last cable")
        told = first.wait("over", says("over "))
        (tmp_path / "gate").touch()
        assert second.wait("over", says("over ")) == "over finished"
        assert told.startswith("over JobTakenOver: this driver has lost job 'numbers'")
        check_output(tmp_path)
    finally:
        for driver in drivers:
            driver.close()
        server.close()

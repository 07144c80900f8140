"""Jobs of a program that is a client of Spark Connect. The server and the client are processes of their own: a client
and a classic session do not go together in one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from connect_server import ConnectServer

import penstock

pytestmark = pytest.mark.slow

TIMEOUT_S = 600
PACKAGES = os.pathsep.join([str(Path(penstock.__file__).parents[1]), str(Path(__file__).parents[1] / "support")])

BEGIN = """
import json, os, signal, subprocess, sys
from pathlib import Path

import penstock as ps
from bid_jobs import GatedBids, checkpointing, committed, hot_auctions, reference
from waiting import wait_for_it, wait_until
from penstock.core.job.events import JobState
from penstock.spark.connect import LEAF_PARALLELISM, default_parallelism
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
work = Path(sys.argv[2])
NO_PAUSE = ps.fixed_delay(attempts=9, delay="0s")

def message(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
"""

FAILURES = """
gate = work / "gate"
env = ps.Environment(
    spark,
    parallelism=2,
    checkpointing=checkpointing(work),
    restart=NO_PAUSE,
    slots=ps.SlotSettings(heartbeat_interval_ms=300, heartbeat_timeout_ms=10_000),
)
hot_auctions(env, GatedBids(gate), work / "out")
job = env.start("Hot auctions")
first = wait_until(job, lambda v: v.checkpoints.counts.completed >= 2)
os.kill(first.slots[1].pid, signal.SIGKILL)
second = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch == 2)
wait_until(job, lambda v: v.checkpoints.counts.completed > second.checkpoints.counts.completed)
hung = second.slots[0].pid
os.kill(hung, signal.SIGSTOP)
third = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch >= 3)
# Nobody wakes it: Spark must have been asked to kill it.
wait_for_it(lambda: not Path(f"/proc/{hung}").exists(), "the hung worker is gone")
listed = json.loads(subprocess.run(["penstock", "list", "--json"], capture_output=True, check=True).stdout)
gate.touch()
view = job.wait(200)
print(json.dumps({
    "listed": [found["slots"] for found in listed if found["id"] == job.id],
    "survivor_kept_its_process": second.slots[0].pid == first.slots[0].pid,
    "failures": [failure.text for failure in view.failures],
    "exactly_once": committed(spark, work / "out") == reference(spark),
    "state": view.state.value,
}))
"""

FRAMES = """
def passed(batch):
    return batch

frame = spark.range(0, 10_000).selectExpr("id", "id % 7 AS k", "timestamp_micros(id * 1000) AS ts")
env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(work), restart=NO_PAUSE)
env.from_dataframe(frame).where("k < 3").map_batches(passed).write(ps.parquet(str(work / "rows")))
env.run("frames")
read = spark.read.parquet(str(work / "rows"))
same = sorted(map(tuple, read.collect())) == sorted(map(tuple, frame.where("k < 3").collect()))

env = ps.Environment(spark, checkpointing=checkpointing(work), restart=NO_PAUSE)
hot_auctions(env, GatedBids(work / "gate"), work / "out")
job = env.start("Ended from outside")
wait_until(job, lambda v: v.checkpoints.counts.completed >= 1)
savepoint = ps.read_savepoint(spark, job.savepoint(work / "saved"))
states = [(o.id, info) for o in savepoint.operators() for info in savepoint.states(o.id)]
windows = [savepoint.state(o, info.name).count() == info.rows for o, info in states if info.name == "windows"]
subprocess.run(["penstock", "cancel", job.id], check=True, capture_output=True)
cancelled = message(lambda: job.wait(120), ps.JobCancelled)

wide = ps.Environment(
    spark, parallelism=3, spare_slots=2, network=ps.NetworkSettings(master_host="192.0.2.1")
)
hot_auctions(wide, ps.nexmark.bids(events=10), work / "wide")
refused = message(lambda: wide.start("wide"), ps.UsageError)

# What is asked on a Spark that is not local[n]; the user's setting must neither count nor be lost.
spark.conf.set(LEAF_PARALLELISM, "9")
planned, setting = default_parallelism(spark), spark.conf.get(LEAF_PARALLELISM)
spark.stop()
print(json.dumps({
    "same_rows": same,
    "slots": len(job.view().slots),
    "windows": windows,
    "planned": planned,
    "setting": setting,
    "cancelled": cancelled,
    "refused": refused,
    "stopped": message(lambda: ps.Environment(spark), ps.HostError),
}))
"""


WAYS = """
import socket

from documented_sources import Counter, Files, noted, rows_of_files
from penstock.spark import connect, streams
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

def environment(**options):
    return ps.Environment(spark, parallelism=2, checkpointing=checkpointing(work), restart=NO_PAUSE, **options)

def is_again(job):
    return wait_until(job, lambda v: v.restarts >= 1 and v.state is JobState.RUNNING)

def feed(batches):
    for batch in batches:
        spark.range(500 * batch, 500 * batch + 500).coalesce(2).write.mode("append").parquet(str(work / "in"))

# A stream in, a function on the client and a table out; a worker is killed.
handed = {}

def put(frame, checkpoint):
    frame.write.mode("overwrite").parquet(str(work / "put" / f"checkpoint={checkpoint}"))
    handed[checkpoint] = frame.count()

def ids(frame):
    return sorted(frame.select("id").toArrow()["id"].to_pylist())

feed(range(2))
env = environment()
followed = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(str(work / "in"))
followed = env.from_stream(followed.selectExpr("id", "timestamp_micros(id) AS at"), trigger="100ms")
followed.for_each_checkpoint(put)
followed.write(ps.table("numbers"))
job = env.start("streamed")
wait_until(job, lambda v: handed)
os.kill(job.view().slots[1].pid, signal.SIGKILL)
feed(range(2, 4))
is_again(job)
wait_until(job, lambda v: sum(handed.values()) >= 2_000)
job.stop(savepoint=str(work / "streamed"))
put_once = ids(spark.read.parquet(str(work / "put"))) == list(range(2_000))
table_once = ids(spark.table("numbers")) == list(range(2_000))
spark.sql("DROP TABLE numbers")

# A data source in, a processor of Spark's with initial state, a data sink out; a worker is killed. Workers take this
# program for one of another host.
socket.gethostname, connect.is_here = lambda: "elsewhere", lambda session: False

class Each(StatefulProcessor):
    def init(self, handle):
        self.seen = handle.getValueState("seen", "n bigint")

    def handleInitialState(self, key, initialState, timerValues):
        self.seen.update((initialState.n,))

    def handleInputRows(self, key, rows, timerValues):
        (seen,) = self.seen.get() or (0,)
        for _ in rows:
            seen += 1
            yield Row(k=key[0], n=seen)
        self.seen.update((seen,))

def counted(total, **options):
    given = {"total": total, "rowsPerBatch": 500, "notes": work / "notes", **options}
    env = environment()
    stream = env.read(ps.data_source(Counter, options=given, mode="available-now")).select("id % 7 AS k")
    before = spark.range(3).selectExpr("id AS k", "100 * id AS n")
    each = stream.key_by("k").transform_with_state(
        Each(), output_schema="k bigint, n bigint", initial_state=before, name="each"
    )
    each.write(ps.data_sink(Files, options={"path": work / "files", "notes": work / "notes"}))
    return env

(work / "notes").mkdir()
job = counted(1_400, gate=work / "gate").start("counted")
wait_until(job, lambda v: v.rows_read == 1_398 and noted(work / "notes", "commits"))
os.kill(job.view().slots[0].pid, signal.SIGKILL)
is_again(job)
saved = ps.read_savepoint(spark, job.savepoint(work / "counted"))
seen = saved.state("each", "seen")
(work / "gate").touch()
job.wait(100)
expected = [(k, 100 * k * (k < 3) + n) for k in range(7) for n in range(1, 201)]
values = sorted((row.k, row.value.n) for row in seen.collect())
changed = saved.with_state("each", "seen", seen.selectExpr("k", "struct(value.n + 1000 AS n) AS value"))
again = ps.read_savepoint(spark, changed.write(work / "changed")).state("each", "seen")
print(json.dumps({
    "put_once": put_once,
    "table_once": table_once,
    "queries_left": len(spark.streams.active),
    "sunk_once": rows_of_files(work / "files") == expected,
    "commits_once": len(noted(work / "notes", "commits")) == len(set(noted(work / "notes", "commits"))),
    "saved": 1_398 == sum(n - 100 * k * (k < 3) for k, n in values),
    "changed": sorted((row.k, row.value.n - 1_000) for row in again.collect()) == values,
    "types": ps.data_source(
        type("Odd", (Counter,), {"schema": lambda self: "id bigint, took interval day to second"})
    ).schema.names,
}), flush=True)

# A client that dies leaves a query behind.
streams.SIGN_MS, streams.UNFOLLOWED_S = 50, 2.0
env = environment()
env.from_stream(spark.readStream.format("rate").load()).write(ps.parquet(work / "left"))
job = env.start("left")
wait_until(job, lambda v: v.rows_read > 0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    made = ConnectServer(tmp_path_factory.mktemp("connect"), master="local[4]", packages=PACKAGES)
    yield made
    made.close()


def client(server: ConnectServer, program: str, work: Path, *, ends: int = 0) -> dict:
    """What a client printed last, before it ended with this code."""
    ran = subprocess.run(
        [sys.executable, "-c", BEGIN + program, server.address, str(work)],
        env=os.environ
        | {"PYTHONPATH": PACKAGES, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        cwd=work,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == ends, ran.stderr[-3_000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_job_survives_a_killed_and_a_hung_worker_with_exactly_once_results(server, tmp_path):
    found = client(server, FAILURES, tmp_path)
    killed, silent = found.pop("failures")[:2]
    assert killed == (
        "slot 1 was lost: the link to it broke: the process at the other end has died, or cannot be reached any more"
    )
    assert silent.startswith("slot 0 was lost: not heard of for")
    assert found == {
        "listed": [2],
        "survivor_kept_its_process": True,
        "exactly_once": True,
        "state": "finished",
    }


def test_dataframes_savepoints_commands_and_refusals_are_those_of_a_classic_session(server, tmp_path):
    found = client(server, FRAMES, tmp_path)
    refused = found.pop("refused")
    assert refused.startswith(
        "2 things keep Spark from hosting the job: the job needs 5 slots (2 of them spare), Spark (local[4]) has 4 "
        "cores: use local[6], or parallelism=2; the job master cannot listen at 192.0.2.1, where Spark's tasks would "
        "call the master: "
    )
    assert "network=NetworkSettings(master_host=...)" in refused
    assert found.pop("stopped").startswith("the SparkSession has been stopped")
    assert found == {
        "same_rows": True,
        "slots": 3,
        "windows": [True],
        "cancelled": "job 'Ended from outside' was cancelled",
        "planned": 4,
        "setting": "9",
    }


def test_every_way_in_and_out_is_exactly_once_and_a_dead_client_leaves_no_query(server, tmp_path):
    found = client(server, WAYS, tmp_path, ends=-signal.SIGKILL)
    assert found == {
        "put_once": True,
        "table_once": True,
        "queries_left": 0,
        "sunk_once": True,
        "commits_once": True,
        "saved": True,
        "changed": True,
        "types": ["id", "took"],
    }
    server.wait_for(re.compile(r"HostError: no program follows the streaming query that lands in \S+ any more"))

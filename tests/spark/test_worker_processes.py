"""Which program the workers of a job are, and who starts them: told by the workers themselves, of a Spark of its own
that was not told which Python to use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

pytestmark = pytest.mark.slow

TIMEOUT_S = 600

PROGRAM = """
import json, os, signal, sys
from pathlib import Path

import cloudpickle
from gated import EVERYTHING, ROWS, Gate, Numbers
from pyspark.sql import SparkSession
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState
from penstock.spark.warm_daemon import WARM_SETTINGS

folder = Path(sys.argv[1])
cloudpickle.register_pickle_by_value(sys.modules[__name__])

def tell(row):
    started = Path(f"/proc/{os.getppid()}")
    return row | {
        "pid": os.getpid(),
        "main": sys.modules["__main__"].__spec__.name,
        "interpreter": sys.executable,
        "starter": started.joinpath("cmdline").read_text(),
        "starter_has_polars": "polars" in started.joinpath("maps").read_text(),
    }

builder = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false")
for name, value in WARM_SETTINGS.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
gate = Gate(folder / "gate")
env = ps.Environment(
    spark,
    parallelism=2,
    checkpointing=ps.Checkpointing(interval="200ms", directory=folder / "checkpoints"),
    restart=ps.fixed_delay(attempts=3, delay="0s"),
)
schema = "split bigint, row bigint, pid bigint, main string, interpreter string, starter string, "
env.read(Numbers(gate)).map(tell, schema=schema + "starter_has_polars boolean").write(ps.parquet(folder / "out"))
job = env.start("told")
gate.open_to(1_000)
before = wait_until(job, lambda v: v.rows_in > 0 and v.checkpoints.counts.completed >= 2)
os.kill(before.slots[1].pid, signal.SIGKILL)
again = wait_until(job, lambda v: v.restarts == 1 and v.state is JobState.RUNNING)
gate.open_to(ROWS)
job.wait(300)
rows = spark.read.parquet(str(folder / "out")).collect()
print(json.dumps({
    "each_row_once": sorted((row.split, row.row) for row in rows) == EVERYTHING,
    "replaced": before.slots[1].pid != again.slots[1].pid and again.slots[1].pid in {row.pid for row in rows},
    "mains": sorted({row.main for row in rows}),
    "interpreters": sorted({row.interpreter for row in rows}),
    "starters": sorted({row.starter for row in rows}),
    "starters_have_polars": sorted({row.starter_has_polars for row in rows}),
}))
spark.stop()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What workers said of a job of which one was killed. The `python3` that Spark would take by itself does not
    work."""
    folder = tmp_path_factory.mktemp("own-session")
    other = folder / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    told = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env=told
        | {
            "PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}",
            # Or its scripts would look for it, with that `python3`.
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(Path(__file__).parents[1] / "support"),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["each_row_once"]
    assert found["replaced"]
    return found


def test_workers_have_the_interpreter_of_the_program_whatever_spark_would_take(found):
    assert found["interpreters"] == [sys.executable]


def test_workers_come_from_the_warm_daemon_also_those_that_replace_others(found):
    assert found["mains"] == ["penstock.spark.warm_daemon"]
    (starter,) = found["starters"]
    assert "penstock.spark.warm_daemon" in starter.split("\0")
    assert found["starters_have_polars"] == [True], "what a slot needs was imported before it was forked"

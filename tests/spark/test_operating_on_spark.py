"""A job that is started by its import string on a real Spark, and looked at from outside while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PENSTOCK = str(Path(sys.executable).parent / "penstock")
MODULE = """
import logging
import penstock as ps

class Count(ps.KeyedFunction):
    seen = ps.value_state("seen", "bigint", default=0)
    def open(self, context):
        logging.getLogger("mine").warning("opened in subtask %d", context.subtask)
        print("printed in a slot")
    def on_row(self, row, context):
        context.metrics.counter("rows").add()
        context.metrics.histogram("prices", buckets=(100, 1000)).record(row["price"])
        self.seen.set(self.seen.get() + 1)

def count_bids(env):
    bids = env.read(ps.nexmark.bids(events=EVENTS, rate=RATE))
    bids.key_by("auction").process(Count(), schema="auction bigint", name="count").write(ps.collect())
"""
SCRIPT = """
import sys
from pyspark.sql import SparkSession
import penstock as ps
from bids_program import count_bids

spark = SparkSession.builder.getOrCreate()
env = ps.Environment(spark, parallelism=1, checkpointing=ps.Checkpointing(interval="1s", directory=sys.argv[1]))
count_bids(env)
view = env.run("submitted", quiet=True)
print("submitted", view.state.value, view.rows_read)
"""


@pytest.fixture
def folder(tmp_path):
    def write(events, rate):
        text = MODULE.replace("EVENTS", str(events)).replace("RATE", str(rate))
        (tmp_path / "bids_program.py").write_text(text)
        (tmp_path / "submit.py").write_text(SCRIPT)
        return tmp_path

    return write


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "160",
    }


def penstock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PENSTOCK, *arguments]
    return subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)


def wait_for(condition):
    deadline = time.monotonic() + 240
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    return found


def test_a_job_is_run_looked_at_and_stopped_from_the_command_line(folder):
    place = folder(events=100_000_000, rate=2_000)
    options = ("--master", "local[4]", "--parallelism", "2", "--name", "bids", "--json")
    settings = ("--set", "checkpointing.directory=checkpoints", "--set", "checkpointing.interval=300ms")
    command = [PENSTOCK, "run", "bids_program:count_bids", *options, *settings]
    with subprocess.Popen(
        command, cwd=place, env=environment(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:

            def info():
                asked = penstock(place, "info", "bids", "--json")
                found = json.loads(asked.stdout) if asked.returncode == 0 else {}
                is_counted = any("/counter/rows/" in name for task in found.get("tasks", {}).values() for name in task)
                return found if found.get("checkpoints_completed", 0) >= 2 and is_counted else None

            found = wait_for(info)
            assert (found["state"], found["slots"], found["settings"]["parallelism"]) == ("running", 2, 2)
            lines = [json.loads(line) for line in penstock(place, "logs", "bids", "--json").stdout.splitlines()]
            said = {(line["logger"], line["text"], line["operator"], line["subtask"]) for line in lines}
            for subtask in (0, 1):
                assert ("mine", f"opened in subtask {subtask}", "count", subtask) in said
                assert ("stdout", "printed in a slot", "count", subtask) in said
            assert "count[1]" in penstock(place, "logs", "bids", "--slot", "1").stdout
            shown = penstock(place, "checkpoints", "bids", "--timeline")
            assert shown.returncode == 0
            assert "completed" in shown.stdout.splitlines()[0]
            top = penstock(place, "top", "bids", "--once", "--json")
            assert json.loads(top.stdout)["steps"][0]["events_in_per_second"] > 0
            assert penstock(place, "report", "bids", "-o", "r.html").returncode == 0
            assert "window" not in shown.stdout
            assert "hash by auction" in (place / "r.html").read_text()
            assert penstock(place, "stop", "bids", "--savepoint", "saved").returncode == 0
            output, errors = running.communicate(timeout=120)
        finally:
            running.kill()
    assert running.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert (summary["state"], summary["restarts"]) == ("finished", 0)
    assert summary["rows_read"] > 0


def test_spark_submit_runs_a_script(folder):
    place = folder(events=5_000, rate=100_000)
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    ended = subprocess.run(
        [str(submit), "--master", "local[3]", "--conf", "spark.ui.enabled=false", "submit.py", str(place / "ck")],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    assert "submitted finished 5000" in ended.stdout


def test_the_doctor_finds_a_local_spark_well(folder):
    place = folder(events=1, rate=1)
    seen = penstock(place, "doctor", "--master", "local[3]", "--directory", str(place), "--json", "--parallelism", "2")
    found = json.loads(seen.stdout.splitlines()[-1])
    assert (seen.returncode, found["faults"]) == (0, 0), found
    grades = {one["what"]: one["grade"] for one in found["findings"]}
    assert grades["Spark"] in ("ok", "warning")
    assert any(name.startswith("executor ") and grade == "ok" for name, grade in grades.items())

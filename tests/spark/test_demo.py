"""The demo, whole, on a real Spark: workers are killed, every row is there once, and damage does not go unnoticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EVENTS = 200_000
TIMEOUT_S = 600

# The demo, with an output that something damages between the end of the job and the comparison.
DAMAGED = """
import sys
from penstock.cli import main

demo = sys.modules["penstock.cli.demo"]
compare_output = demo.compare_output

def damaged(spark, bids, output):
    sorted(output.glob("*.parquet"))[0].unlink()
    return compare_output(spark, bids, output)

demo.compare_output = damaged
sys.argv = ["penstock", "demo", *sys.argv[1:]]
main()
"""

# Spark raises in the middle of a command.
FAILING = """
from penstock.terminal.failures import reported_failures
from penstock.terminal.session import SessionOptions, spark_session, work_directory

with reported_failures(), work_directory(None, keep=False, prefix="penstock-test-") as work:
    with spark_session(SessionOptions(application="test", cores=1, work=work)) as spark:
        spark.sql("SELECT nothing FROM nowhere")
"""


def penstock(*arguments: str, program: tuple[str, ...], work: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: Spark is one per process, and the tests have theirs."""
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=work,
        env=os.environ | {"TMPDIR": str(work)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


COMMAND = ("-c", "from penstock.cli import main; main()", "demo")


def test_the_demo_kills_a_worker_and_loses_nothing(tmp_path):
    result = penstock("--events", str(EVENTS), "--kills", "1", "--json", program=COMMAND, work=tmp_path)
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert list(found) == [
        "events",
        "events_per_second",
        "checkpoints_completed",
        "checkpoints_failed",
        "workers_killed",
        "recovery_seconds",
        "lost",
        "duplicated",
        "different",
        "exactly_once",
    ]
    assert found["events"] == EVENTS
    assert found["events_per_second"] > 0
    assert found["checkpoints_completed"] >= 2
    assert found["workers_killed"] == 1
    assert 0 < found["recovery_seconds"] < TIMEOUT_S
    assert (found["lost"], found["duplicated"], found["different"]) == (0, 0, 0)
    assert found["exactly_once"] is True
    assert "(SIGKILL)" in result.stderr
    assert "restored from checkpoint" in result.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_damaged_output_is_noticed(tmp_path):
    result = penstock("--events", "50000", "--kills", "0", "--json", program=("-c", DAMAGED), work=tmp_path)
    assert result.returncode == 1, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["exactly_once"] is False
    assert found["lost"] > 0
    assert (found["duplicated"], found["different"]) == (0, 0)


def test_an_interrupt_ends_everything(tmp_path):
    process = subprocess.Popen(
        [sys.executable, *COMMAND, "--events", "2000000000", "--kills", "0"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "running" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert errors == "penstock: interrupted\n"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_an_error_of_spark_ends_with_one_line_and_its_log(tmp_path):
    result = penstock(program=("-c", FAILING), work=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("penstock: Spark failed: [TABLE_OR_VIEW_NOT_FOUND]")
    (kept,) = tmp_path.iterdir()
    assert f"(the log of Spark is {kept}/spark.log)" in line

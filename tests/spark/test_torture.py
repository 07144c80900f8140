"""Exactly once on a real Spark, under fire: random workers get SIGKILL at random moments, whatever they are doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from penstock.bench.sequences import Damage
from penstock.bench.torture import Round, run_round

pytestmark = pytest.mark.slow

KILLS = 5
TIMEOUT_S = 600


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_killed_workers_leave_no_gap_no_repeat_and_no_disorder(spark, tmp_path, mode):
    story: list[str] = []
    result = run_round(spark, Round(mode=mode, kills=KILLS, seed=11), tmp_path / "round", say=story.append)
    assert result.damage == Damage(), "\n".join(story)
    assert result.kills == KILLS
    assert result.checkpoints_completed > KILLS
    assert (result.most_persisted_bytes > 0) == (mode == "unaligned")
    assert sum("(SIGKILL)" in line for line in story) == KILLS
    assert not any("in '" in line for line in story if "failed" in line), f"a task failed by itself: {story}"


def test_an_interrupt_ends_everything_and_what_was_committed_is_judged(tmp_path):
    command = [sys.executable, "-c", "from penstock.cli import main; main()", "torture", "--minutes", "60", "--json"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "running again" in line:
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, errors
    found = json.loads(output)
    assert list(found) == ["kills", "checkpoints_completed", "lost", "duplicated", "out_of_order"]
    assert found["kills"] >= 1
    assert found["checkpoints_completed"] >= 1
    assert (found["lost"], found["duplicated"], found["out_of_order"]) == (0, 0, 0)
    assert errors.endswith("penstock: interrupted\n")
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"

"""The recovery benchmark, once each way, from the warm daemon: that it runs, not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

TIMEOUT_S = 800
COMMAND = ("-c", "from penstock.cli import main; main()", "bench", "recovery", "--rounds", "1", "--json", "--warm")


def test_it_fails_in_every_way_recovers_and_prints_one_line_of_json(tmp_path):
    ran = subprocess.run(
        [sys.executable, *COMMAND],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert set(found) == {"in_place_seconds", "replacement_seconds", "spare_seconds", "spark_restart_seconds"}
    assert all(seconds > 0 for seconds in found.values())
    assert list(tmp_path.iterdir()) == []

"""A host without Java is told in one line, whoever makes the session. No Spark is started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import penstock as ps
from pyspark.sql import SparkSession

env = ps.Environment({given})
"""


@pytest.mark.parametrize("given", ["", "SparkSession.builder.master('local[1]')"], ids=["nothing", "a builder"])
def test_an_environment_says_that_java_is_missing_in_the_line_that_the_demo_has(tmp_path, given):
    script = tmp_path / "main.py"
    script.write_text(SCRIPT.format(given=given))
    bare = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_REMOTE")}
    ran = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env=bare | {"PATH": str(tmp_path)},
    )
    assert ran.returncode == 1
    lines = ran.stderr.strip().splitlines()
    assert lines[-2].endswith("HostError: java was not found, neither by JAVA_HOME nor by PATH")
    assert lines[-1].strip().startswith("hint: install a JDK 17 or later")
    assert sum(line.startswith('  File "') for line in lines) == 1

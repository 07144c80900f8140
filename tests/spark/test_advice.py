"""What is advised when a job has failed for what Spark has to do with. Needs no Spark."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from penstock.core.job.events import FailureCause
from penstock.spark.preflight import advice_on

STOPPED = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec="/opt/other/python3"))
"""A session that says nothing but with what it starts workers."""
LOST = "slot 0 was lost: "


@pytest.mark.parametrize(
    "text",
    [
        "ModuleNotFoundError: No module named 'penstock'",
        "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than in driver",
        'java.io.IOException: Cannot run program "/opt/other/python3": error=2, No such file or directory',
    ],
    ids=["a package is missing", "another version", "no such interpreter"],
)
def test_a_wrong_interpreter_is_named_with_what_to_set(text):
    advice = advice_on(FailureCause(text=LOST + text), STOPPED)
    assert advice is not None
    assert advice.startswith(
        f"Spark starts workers with /opt/other/python3, and this program runs with {sys.executable}: set "
        "PYSPARK_PYTHON before the session is made (with spark-submit: spark.pyspark.python) to a Python "
    )


def test_a_client_of_spark_connect_is_told_where_the_interpreter_is_set():
    class Session:
        pass

    Session.__module__ = "pyspark.sql.connect.session"
    advice = advice_on(FailureCause(text=f"{LOST}ModuleNotFoundError: No module named 'penstock'"), Session())
    assert advice is not None
    assert advice.startswith(
        "the Connect server decides how workers are started: set PYSPARK_PYTHON of the server to a Python "
    )


def test_room_is_spoken_of_only_when_slots_did_not_come_up_in_time():
    late = FailureCause(text="only 1 of 2 slots came up in 1000 ms (missing: 1)", lacks_room=True)
    assert advice_on(late, STOPPED) == "the SparkSession does not answer any more"
    lacking = FailureCause(text=f"{LOST}Spark's workers (there) do not have this program's folder /checkpoints")
    assert advice_on(lacking, STOPPED) is None


def test_a_module_that_a_function_of_the_program_does_not_find_is_its_own_matter():
    raised = FailureCause(text="ModuleNotFoundError: No module named 'mine'", operator="map", subtask=0, user_code=True)
    assert advice_on(raised, STOPPED) is None

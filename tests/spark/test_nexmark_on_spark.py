"""Every query of Nexmark gives, row for row, what Spark SQL gives over the same events."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

import penstock as ps
from penstock.bench.nexmark_queries import QUERIES, Events, add_query, compare_with_spark
from penstock.bench.watched_jobs import run_job, slowed
from penstock.terminal.screen import make_display
from penstock.testing import run

EVENTS = Events(events=24_000, seed=3, events_per_second=300, base_time=datetime(2026, 1, 1, 23, 59, 20, tzinfo=UTC))
"""Eighty seconds, over midnight."""
KILLED = ("q4", "q5", "q17")
"""A join that keeps everything below two results that change, windows over windows with a join, and a result that
changes."""
COMMAND = "from penstock.cli import main; main()"
TIMEOUT_S = 600


# A process that the kit lets die leaves its files to the garbage collector, as a process that dies leaves them to the
# system.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_the_rows_of_spark_whatever_dies(spark, tmp_path, name):
    query = QUERIES[name]
    sources = EVENTS.sources(query)

    def program(env):
        add_query(env, query, sources, ps.parquet(tmp_path / "out", partition_by=query.partition_by))

    run(program, parallelism=3, crashes=2)
    found = compare_with_spark(spark, query, EVENTS, tmp_path / "out")
    assert found.rows > 0
    assert found.exactly_once, found


@pytest.mark.parametrize("name", KILLED)
def test_workers_are_killed_and_the_job_goes_on_at_another_parallelism(spark, tmp_path, name):
    query = QUERIES[name]
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=ps.Checkpointing(interval="200ms", directory=tmp_path / "checkpoints", unaligned=True),
        restart=ps.fixed_delay(3, "10ms"),
    )
    made = EVENTS.sources(query)
    sources = slowed([(source, source.events) for source in made.values()], stops=5, interval_ms=200, parallelism=2)
    add_query(env, query, dict(zip(made, sources, strict=True)), ps.parquet(tmp_path / "out"))
    with make_display(io.StringIO(), title="", quiet=True) as display:
        done = run_job(env, display, name=name, events=EVENTS.rows(query), kills=1, rescale_to=3)
    assert (done.workers_killed, done.rescaled) == (1, True)
    assert compare_with_spark(spark, query, EVENTS, tmp_path / "out").exactly_once


def test_the_command_ends_with_what_is_known_about_the_rows(tmp_path):
    """In a process of its own: Spark is one per process, and the tests have theirs."""
    given = ("q18", "--events", "20000", "--kills", "1", "--interval", "200ms", "--check")
    result = subprocess.run(
        [sys.executable, "-c", COMMAND, "nexmark", *given],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    rows, speed = found.pop("rows"), found.pop("events_per_second")
    assert found == {"query": "q18", "events": 20_000, "lost": 0, "duplicated": 0, "different": 0}
    assert min(rows, speed) > 0
    assert "workers killed: 1" in result.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"

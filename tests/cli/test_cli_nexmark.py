"""`penstock nexmark`: what it refuses, and what it prints for programs."""

from __future__ import annotations

import inspect
import json

import pytest
from click.testing import CliRunner

from penstock.bench.comparison import Comparison
from penstock.bench.nexmark_queries import QUERIES
from penstock.bench.watched_jobs import JobRun
from penstock.cli import main
from penstock.cli.nexmark import NexmarkOptions, check_kills, summary
from penstock.connectors import nexmark
from penstock.core.errors import UsageError

RUN = JobRun(
    seconds=2.0, checkpoints_completed=7, checkpoints_failed=0, workers_killed=1, recovery_seconds=0.5, rescaled=True
)
OPTIONS = NexmarkOptions(
    query="q3",
    events=1_000,
    parallelism=2,
    kills=1,
    check=True,
    seed=1,
    events_per_second=10_000,
    interval="1s",
    directory=None,
    keep=False,
    as_json=True,
    quiet=True,
)


def command(*arguments: str):
    return CliRunner().invoke(main, ("nexmark", *arguments))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("q99", "there is no query 'q99'"),
        ("window", "the queries are q0, q1, q2, q3, q4, q5, q7"),
        ("q6", "the public runner of the benchmark does not run q6"),
    ],
)
def test_a_query_that_does_not_exist_is_refused_with_the_queries_that_exist(query, said):
    result = command(query)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments", [("--events", "0"), ("--kills", "-1"), ("--parallelism", "0"), ("--events-per-second", "0")]
)
def test_numbers_below_what_makes_sense_are_refused(arguments):
    result = command("q5", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


def test_an_interval_that_is_no_time_is_refused_before_spark_starts():
    result = command("q5", "--interval", "soon")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--interval is 'soon'" in result.stderr


def test_the_queries_are_listed_with_a_sentence_each():
    listed = json.loads(command("--json").stdout)
    assert list(listed) == [f"q{number}" for number in range(24) if number != 6]
    assert all(sentence.endswith(".") for sentence in listed.values())
    lines = command().stdout.splitlines()
    assert len(lines) == len(listed)
    assert lines[5].startswith("q5   Every two seconds")


def test_every_public_query_can_be_run():
    public = [name for name in nexmark.__all__ if name.startswith("q")]
    assert list(QUERIES) == public
    for name, query in QUERIES.items():
        assert query.build is getattr(nexmark, name)
        assert set(inspect.signature(query.build).parameters) <= {"persons", "auctions", "bids"}


def test_what_programs_read_has_these_keys_in_this_order():
    right = Comparison(rows=5, lost=0, duplicated=0, different=0)
    assert list(summary(OPTIONS, 80, RUN, right).items()) == [
        ("query", "q3"),
        ("events", 1_000),
        ("events_per_second", 40),
        ("rows", 5),
        ("lost", 0),
        ("duplicated", 0),
        ("different", 0),
    ]
    assert list(summary(OPTIONS, 80, RUN, None)) == ["query", "events", "events_per_second"]


@pytest.mark.parametrize(
    ("killed", "rescaled", "said"),
    [
        (0, False, "0 of 1 workers were killed, and it was not rescaled"),
        (1, False, "1 of 1 workers were killed, and it was not rescaled"),
    ],
)
def test_a_job_that_ends_before_the_kills_are_done_is_no_success(killed, rescaled, said):
    run = JobRun(
        seconds=2.0,
        checkpoints_completed=7,
        checkpoints_failed=0,
        workers_killed=killed,
        recovery_seconds=0.5,
        rescaled=rescaled,
    )
    with pytest.raises(UsageError, match=said):
        check_kills(OPTIONS, run)
    check_kills(OPTIONS, RUN)

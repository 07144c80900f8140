"""The benchmark of processors computes its ratios the right way round, and prints what programs can read."""

from __future__ import annotations

import itertools
import json
import socket

import pytest
from click.testing import CliRunner

from penstock.bench import processor_runs, state_rows
from penstock.bench.latency import KEYS, Latency
from penstock.bench.processor import summary
from penstock.bench.processor_runs import ProcessorResult
from penstock.cli import main
from penstock.core.errors import HostError

RESULT = ProcessorResult(
    rows_per_second=400_000.0,
    spark_rows_per_second=50_000.0,
    latency=Latency(records=10, p50_ms=2.0, p99_ms=5.0),
    spark_latency=Latency(records=10, p50_ms=300.0, p99_ms=600.0),
)


def run(*arguments: str):
    return CliRunner().invoke(main, ("bench", "processor", *arguments))


def test_ratios_say_how_much_better_penstock_is():
    found = summary(RESULT)
    assert (found["rows_ratio"], found["latency_p99_ratio"]) == (8.0, 120.0)


def test_json_is_one_line_with_the_two_ratios_first(monkeypatch):
    given = []
    monkeypatch.setattr(processor_runs, "measure", lambda work, **options: given.append(options) or RESULT)
    result = run("--json", "--rows", "5000", "--latency-seconds", "2", "--parallelism", "3")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert list(json.loads(line))[:2] == ["rows_ratio", "latency_p99_ratio"]
    del given[0]["screen"]
    assert given == [{"rows": 5_000, "parallelism": 3, "cores": 5, "rate": 1_000, "seconds": 2.0}]


def test_without_json_the_ratios_come_in_words(monkeypatch):
    monkeypatch.setattr(processor_runs, "measure", lambda work, **_: RESULT)
    assert "8.00 times the rows, 120.0 times shorter at p99" in run().stdout


@pytest.mark.parametrize("option", ["--rows", "--parallelism", "--latency-seconds"])
def test_a_size_that_cannot_be_is_refused(option):
    result = run(option, "0")
    assert result.exit_code == 2
    assert option in result.stderr


def test_what_spark_needs_is_asked_for_before_it_is_started(monkeypatch, tmp_path):
    monkeypatch.setattr(state_rows, "find_spec", lambda name: None)
    with pytest.raises(HostError, match="protobuf"):
        processor_runs.measure(tmp_path, rows=1, parallelism=1, cores=1, rate=1, seconds=1, screen=None)


def test_lines_are_sent_when_they_are_due():
    with processor_runs.PacedLines(1_000) as lines, socket.create_connection(("127.0.0.1", lines.port)) as caller:
        text = caller.makefile()
        found = [tuple(map(int, text.readline().split())) for _ in range(20)]
    keys, created = zip(*found, strict=True)
    assert len(set(keys)) == 20
    assert max(keys) < KEYS
    assert [b - a for a, b in itertools.pairwise(created)] == [1_000] * 19


def test_a_server_that_nobody_calls_can_be_closed():
    with processor_runs.PacedLines(1_000):
        pass

"""The benchmark of Nexmark computes ratios the right way round, reads the same events on both sides, measures whole
processes, and prints what programs can read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.api.connector import End
from penstock.bench import nexmark, processor_time
from penstock.bench.limited_reads import LimitedReads
from penstock.bench.nexmark import Measured, summary
from penstock.bench.nexmark_queries import QUERIES, Events
from penstock.bench.nexmark_runs import Refusal, RunOptions, Runs, Speed, _first_sentence
from penstock.bench.nexmark_streaming import STREAMING, micro_batch_events, whole_rounds
from penstock.bench.processor_time import Process, ProcessorTime, used_ticks
from penstock.bench.structured_streaming import StreamOutput, StreamSize
from penstock.cli import main
from penstock.connectors.nexmark import bids, shares
from penstock.connectors.nexmark.bid_rows import WHOLE_SCHEMA


def speed(events_per_second, cpu=1.0):
    return Speed(events_per_second=events_per_second, cpu_seconds_per_million=cpu)


MEASURED = {
    "q0": Measured(
        penstock=[speed(100.0, 2.0), speed(300.0, 2.0), speed(100.0, 2.0)],
        spark=[speed(50.0, 6.0), speed(50.0, 6.0), speed(50.0, 8.0)],
    ),
    "q4": Measured(penstock=[speed(70.0)], spark=[], refusal=Refusal(reason="two aggregates")),
    "q5": Measured(penstock=[speed(80.0, 1.0)], spark=[speed(10.0, 12.0)]),
}


def bench(*arguments: str):
    return CliRunner().invoke(main, ("bench", "nexmark", *arguments))


def test_ratios_are_penstock_over_spark_and_a_refused_query_has_none():
    found = summary(MEASURED)
    assert list(found) == ["geomean_ratio", "geomean_cpu_ratio", "queries"]
    assert (found["geomean_ratio"], found["geomean_cpu_ratio"]) == (4.0, 6.0)
    assert found["queries"] == {
        "q0": {
            "penstock_events_per_second": 100,
            "penstock_cpu_seconds_per_million": 2.0,
            "spark_events_per_second": 50,
            "spark_cpu_seconds_per_million": 6.0,
            "ratio": 2.0,
            "cpu_ratio": 3.0,
        },
        "q4": {
            "penstock_events_per_second": 70,
            "penstock_cpu_seconds_per_million": 1.0,
            "spark_refuses": "two aggregates",
        },
        "q5": {
            "penstock_events_per_second": 80,
            "penstock_cpu_seconds_per_million": 1.0,
            "spark_events_per_second": 10,
            "spark_cpu_seconds_per_million": 12.0,
            "ratio": 8.0,
            "cpu_ratio": 12.0,
        },
    }
    assert summary({"q4": MEASURED["q4"]})["geomean_ratio"] is None


def test_json_is_one_line_and_the_queries_are_as_asked_for(monkeypatch):
    asked = []

    def measured(options, names, screen):
        asked.append((names, options.seconds))
        return MEASURED

    monkeypatch.setattr(nexmark, "_measured", measured)
    result = bench("--json", "--only", "q5", "--only", "Q0", "--seconds", "5")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["geomean_ratio"] == 4.0
    assert "q4: Spark refuses: two aggregates" in bench().stdout
    assert asked == [(["q0", "q5"], 5.0), (list(QUERIES), nexmark.DEFAULT_SECONDS)]


@pytest.mark.parametrize("arguments", [("--only", "q6"), ("--only", "q99"), ("--events", "10"), ("--seconds", "0")])
def test_wrong_arguments_are_refused_before_spark_starts(arguments):
    result = bench(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert arguments[1] in result.stderr


def test_every_query_has_a_form_for_structured_streaming():
    assert list(STREAMING) == list(QUERIES)


def test_a_query_that_spark_refuses_is_measured_here_in_every_round_and_asked_for_once():
    class Counted:
        asked = 0

        def penstock(self, query):
            return speed(10.0)

        def spark(self, query):
            self.asked += 1
            return Refusal(reason="no")

    runs = Counted()
    with Path(os.devnull).open("w") as screen:
        found = nexmark._of_query(runs, QUERIES["q4"], 3, screen)
    assert (len(found.penstock), found.spark, found.refusal, runs.asked) == (3, [], Refusal(reason="no"), 1)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[NOT_GOOD] A function is not supported. Use\nanother. SQLSTATE: 42KDE;", "A function is not supported"),
        ("Distinct aggregations are not supported;\nAggregate", "Distinct aggregations are not supported"),
    ],
)
def test_a_reason_is_the_first_sentence_of_what_spark_says(said, reason):
    assert _first_sentence(said) == reason


def test_micro_batches_are_whole_rounds_and_there_are_at_least_four():
    assert (whole_rounds(1), whole_rounds(149)) == (50, 100)
    assert micro_batch_events(1_000) == 250
    assert micro_batch_events(10**9) == 4_000_000


def test_a_query_is_stopped_at_its_last_row_or_when_its_time_is_over():
    size = StreamSize(rows=100, rows_per_batch=25, seconds=10)
    assert [size.is_enough(batches, 0) for batches in (0, 3, 4)] == [False, False, True]
    assert [size.is_enough(batches, 10) for batches in (0, 1, 2)] == [False, False, True]
    assert [size.is_enough(batches, 30) for batches in (0, 1)] == [True, True]
    assert not StreamSize(rows=100, rows_per_batch=25).is_enough(3, 1e9)


def test_a_reader_ends_when_its_time_is_over():
    source = LimitedReads(bids(events=1_000_000, splits=1), 2.0)
    assert (source.schema, source.name) == (source.inner.schema, source.inner.name)
    reader = source.open(source.splits(1))
    assert reader.poll(100, 5_000).num_rows == 100
    assert reader.poll(100, 6_999).num_rows == 100
    assert isinstance(reader.poll(100, 7_000), End)
    again = source.open(reader.snapshot())
    assert again.poll(100, 7_000).column("ts")[0].value > 0


# --- processor time --------------------------------------------------------------------------------------------------


def put(folder, pid, parent, ticks, *, started=1, name="java"):
    fields = ["S", parent, *[0] * 9, ticks - 1, 1, 500, 500, *[0] * 4, started]
    (folder / str(pid)).mkdir(exist_ok=True)
    (folder / str(pid) / "stat").write_text(f"{pid} ({name}) " + " ".join(map(str, fields)))


def test_the_processes_below_a_process_count_however_deep_and_whatever_their_names(tmp_path):
    put(tmp_path, 1, 0, 1_000)
    put(tmp_path, 10, 1, 5)
    put(tmp_path, 11, 10, 7, name="a) R 1 (b")
    put(tmp_path, 12, 11, 9)
    put(tmp_path, 20, 1, 50)
    (tmp_path / "meminfo").write_text("")
    (tmp_path / "30").mkdir()
    assert used_ticks(10, processes=tmp_path) == {Process(10, 1): 5, Process(11, 1): 7, Process(12, 1): 9}


def test_the_time_of_a_process_that_has_ended_stays_and_its_number_may_be_used_again(tmp_path):
    own = os.getpid()
    put(tmp_path, own, 1, 100)
    put(tmp_path, own + 1, own, 40)
    used = ProcessorTime(processes=tmp_path)
    used._look()
    put(tmp_path, own + 1, own, 5, started=2)
    put(tmp_path, own, 1, 130)
    used._look()
    start_ns, end_ns = used._at_ns
    assert used.between(start_ns, end_ns) == pytest.approx(35 / processor_time._TICKS_PER_SECOND)
    assert used.between(start_ns - 10**9, start_ns) == 0


def test_work_in_this_process_is_seen():
    with ProcessorTime() as used:
        start_ns, busy_until = time.time_ns(), time.process_time() + 0.3
        while time.process_time() < busy_until:
            pass
        end_ns = time.time_ns()
        time.sleep(0.3)
    assert used.between(start_ns, end_ns + 300_000_000) > 0.1


# --- on Spark --------------------------------------------------------------------------------------------------------

REFUSED = {
    "q4": "correctness",
    "q15": "Distinct aggregations are not supported",
    "q16": "Distinct aggregations are not supported",
}


def test_structured_streaming_runs_a_query_or_says_why_not(spark, tmp_path):
    runs = Runs(spark, RunOptions(events=4_000, seconds=100, parallelism=1, seed=1), tmp_path)
    found = {name: runs.spark(QUERIES[name]).reason for name in REFUSED}
    assert {name: reason for name, reason in found.items() if REFUSED[name] not in reason} == {}
    for name in QUERIES.keys() - REFUSED.keys():
        output = StreamOutput(directory=tmp_path / name, mode=STREAMING[name].mode, is_kept=False)
        # Spark refuses a query when it starts.
        output.started(runs._frame(QUERIES[name], 500)()).stop()


def test_the_forms_for_structured_streaming_give_the_same_rows(spark):
    """Over all events at once, where both forms are allowed."""
    events = Events(events=6_000, events_per_second=300)
    for kind, rows in shares(events.events).items():
        numbers = spark.range(rows).withColumnRenamed("id", "n")
        numbers.selectExpr(*events.columns_sql(kind, WHOLE_SCHEMA.names)).createOrReplaceTempView(kind)
    for name in ("q5", "q7", "q8", "q9", "q18", "q19"):
        expected = spark.sql(QUERIES[name].sql)
        # Nothing but their price tells which of two bids with the same price is among the ten highest.
        columns = ["auction", "price", "rank_number"] if name == "q19" else expected.columns
        ours, theirs = (frame.select(*columns) for frame in (expected, spark.sql(STREAMING[name].sql)))
        assert ours.exceptAll(theirs).count() == theirs.exceptAll(ours).count() == 0, name
        assert ours.count() > 0, name


def test_both_sides_of_a_query_are_measured(spark, tmp_path):
    runs = Runs(spark, RunOptions(events=100_000, seconds=60, parallelism=1, seed=1), tmp_path)
    for found in (runs.penstock(QUERIES["q2"]), runs.spark(QUERIES["q2"])):
        assert isinstance(found, Speed)
        assert found.events_per_second > 0
        assert found.cpu_seconds_per_million > 0
    assert list(tmp_path.iterdir()) == [], "the folders of the runs are removed"

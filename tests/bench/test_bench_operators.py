"""The benchmark of operators computes ratios and costs the right way round, reads the same bids in the runs that it
compares, and prints what programs can read."""

from __future__ import annotations

import json
import sys
from itertools import pairwise

import pyarrow as pa
import pytest
from click.testing import CliRunner

import penstock as ps
from penstock.api.connector import End
from penstock.bench import operator_runs, operators
from penstock.bench.keyed_bids import KeyedBids
from penstock.bench.nexmark_queries import Events
from penstock.bench.operator_queries import (
    DEDUPLICATE,
    INTERVAL_JOIN,
    RUNNING,
    SESSION,
    SLIDING,
    STATIC_JOIN,
    events_read,
    penstock_event_query,
    penstock_query,
    streaming_event_query,
    windowed_query,
)
from penstock.bench.operator_runs import RunOptions, Runs
from penstock.bench.operators import summary
from penstock.bench.row_functions import CountRecords, prices_in_list, prices_yielded
from penstock.bench.window_query import BidInput
from penstock.cli import main
from penstock.connectors import nexmark
from penstock.core.errors import HostError
from penstock.testing import collect, run

MEASURED = {
    "sliding": {"penstock": [100.0, 300.0, 100.0], "spark": [10.0, 10.0, 10.0]},
    "string-keys": {"string": [5.0], "integer": [10.0]},
    "many-keys": {"many": [5.0], "few": [10.0]},
    "rows": {"generator": [8.0], "list": [10.0], "counting": [60.0], "bytewax": [20.0]},
}


def bench(*arguments: str):
    return CliRunner().invoke(main, ("bench", "operators", *arguments))


def batches_of(source) -> pa.Table:
    reader, found = source.open(source.splits(1)), []
    while not isinstance(batch := reader.poll(10_000, 0), End):
        found.append(batch)
    return pa.Table.from_batches(found)


def test_ratios_are_penstock_over_its_competitor_and_costs_are_times_of_a_row():
    found = summary(MEASURED)
    assert {name: found[name] for name in list(found)[:5]} == {
        "sliding_ratio": 10.0,
        "string_key_cost": 2.0,
        "many_keys_cost": 2.0,
        "generator_cost": 1.25,
        "bytewax_ratio": 3.0,
    }
    assert found["sliding_penstock_rows_per_second"] == 100
    assert found["string_keys_integer_rows_per_second"] == 10


def test_what_was_not_measured_is_not_in_the_result():
    assert "bytewax_ratio" not in summary({"rows": {"generator": [8.0], "list": [10.0], "counting": [60.0]}})
    assert list(summary({"session": MEASURED["sliding"]})) == [
        "session_ratio",
        "session_penstock_rows_per_second",
        "session_spark_rows_per_second",
    ]


def test_json_is_one_line_and_the_parts_are_as_asked_for(monkeypatch):
    asked = []

    def measured(options, screen):
        asked.append(options.parts)
        return MEASURED

    monkeypatch.setattr(operators, "_measured", measured)
    result = bench("--json", "--only", "rows", "--only", "sliding")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["sliding_ratio"] == 10.0
    bench()
    assert asked == [("sliding", "rows"), operators.PARTS]


def test_an_unknown_part_is_refused():
    result = bench("--only", "tumbling")
    assert result.exit_code == 2
    assert "many-keys" in result.stderr


def test_every_part_has_the_runs_that_its_figures_compare(tmp_path):
    options = RunOptions(events=1_000, parallelism=1, seed=1, bytewax=tmp_path)
    runs = Runs(None, options, tmp_path, sys.stderr)
    for figure in operators.FIGURES:
        assert {figure.over, figure.under} <= runs.of_part(figure.part).keys()
    without = Runs(None, RunOptions(events=1_000, parallelism=1, seed=1, bytewax=None), tmp_path, sys.stderr)
    assert "bytewax" not in without.of_part("rows")


def test_both_keys_of_a_bid_are_the_same_number():
    table = batches_of(KeyedBids(events=20_000))
    bids = batches_of(BidInput(events=20_000).source())
    assert table.column("number").to_pylist() == bids.column("auction").to_pylist()
    assert table.column("text").to_pylist() == list(map(str, bids.column("auction").to_pylist()))
    assert table.select(["price", "ts"]) == bids.select(["price", "ts"])


@pytest.mark.parametrize(("keys", "distinct"), [(100, 100), (10_000_000, 19_980)])
def test_there_are_as_many_distinct_keys_as_asked_for(keys, distinct):
    numbers = batches_of(KeyedBids(events=20_000, keys=keys)).column("number").to_pylist()
    assert 0 <= min(numbers) <= max(numbers) < keys
    assert distinct - 60 <= len(set(numbers)) <= distinct + 20
    texts = batches_of(KeyedBids(events=20_000, keys=keys)).column("text").to_pylist()
    assert texts == list(map(str, numbers))


def test_a_key_without_text_has_no_column_of_text():
    assert batches_of(KeyedBids(events=10, has_text=False)).schema.names == ["number", "price", "ts"]


@pytest.mark.parametrize("kind", [SLIDING, SESSION])
def test_the_queries_count_every_bid(kind):
    rows = run(lambda env: penstock_query(env, BidInput(events=2_000).source(), collect(), kind=kind))
    overlap = 10 if kind == SLIDING else 1
    assert sum(row["n"] for row in rows) == 2_000 * overlap


def test_the_running_query_has_a_count_of_every_auction():
    rows = run(lambda env: penstock_query(env, BidInput(events=2_000).source(), collect(), kind=RUNNING))
    last = {row["auction"]: row["n"] for row in rows if row["row_kind"] != "update_before"}
    assert sum(last.values()) == 2_000


EVENTS = Events(events=3_000, events_per_second=100)
"""Half a minute."""


def event_rows(kind):
    """The results of a query of events by Penstock."""
    given = {"seed": EVENTS.seed, "events_per_second": EVENTS.events_per_second}
    make = {"bids": nexmark.bids, "auctions": nexmark.auctions}
    sources = [make[each](events=rows, **given) for each, rows in events_read(kind, EVENTS).items()]
    return run(lambda env: penstock_event_query(env, *sources, collect(), kind=kind), parallelism=1)


def test_the_join_has_the_bids_of_ten_seconds_and_the_table_has_a_value_for_each_bid():
    pairs = event_rows(INTERVAL_JOIN)
    assert len(pairs) > 1_000
    assert all(0 <= (row["bid_ts"] - row["ts"]).total_seconds() <= 10 for row in pairs)
    valued = event_rows(STATIC_JOIN)
    assert len(valued) == EVENTS.events // 50 * 46
    assert all(row["value"] == f"value {row['auction']}" for row in valued)


def test_bids_of_a_person_for_an_auction_are_ten_seconds_apart():
    kept: dict[tuple[int, int], list] = {}
    for row in event_rows(DEDUPLICATE):
        kept.setdefault((row["bidder"], row["auction"]), []).append(row["ts"])
    assert any(len(times) > 1 for times in kept.values())
    for times in map(sorted, kept.values()):
        assert all((b - a).total_seconds() >= 10 for a, b in pairwise(times))


@pytest.mark.parametrize("kind", [INTERVAL_JOIN, STATIC_JOIN])
def test_spark_gives_the_same_rows_of_events(spark, tmp_path, kind):
    frame = streaming_event_query(spark, kind=kind, events=EVENTS, parallelism=2)
    query = frame.writeStream.format("memory").queryName("found").option("checkpointLocation", str(tmp_path)).start()
    try:
        while not query.recentProgress and query.exception() is None:
            query.awaitTermination(0.2)
    finally:
        query.stop()
    ours = pa.Table.from_pylist(event_rows(kind))
    theirs = spark.table("found").select(*ours.column_names)
    # The first micro-batch has as many events as were asked for; another may have begun.
    last = ours.column("bid_ts" if kind == INTERVAL_JOIN else "ts").to_pylist()
    names = ours.column_names
    theirs = theirs.where(f"{'bid_ts' if kind == INTERVAL_JOIN else 'ts'} <= TIMESTAMP '{max(last).isoformat()}'")
    order = [(name, "ascending") for name in names]
    assert theirs.toArrow().cast(ours.schema).sort_by(order).equals(ours.sort_by(order))


def test_keys_as_text_and_as_numbers_give_the_same_windows():
    def windows(key):
        source = KeyedBids(events=5_000, keys=50)
        rows = run(lambda env: windowed_query(env, source, collect(), key=key, window=ps.tumbling("100ms")))
        return sorted((str(row[key]), row["window_start"], row["n"], row["top"]) for row in rows)

    assert windows("text") == windows("number")


def test_the_generator_and_the_list_give_the_same_rows():
    row = {"number": 1, "price": 2}
    assert list(prices_yielded(row)) == prices_in_list(row) == [{"number": 1, "price": 3}]


def test_records_of_each_key_are_counted():
    source = KeyedBids(events=1_000, keys=10)

    def program(env):
        counted = env.read(source).select("text").key_by("text").process(CountRecords(), schema="key string, n bigint")
        counted.write(collect())

    rows = run(program)
    assert sum(1 for row in rows if row["n"] == 1) == 10
    assert len(rows) == 1_000


def test_a_bytewax_that_fails_is_told_with_the_option(tmp_path):
    options = RunOptions(events=1_000, parallelism=1, seed=1, bytewax=tmp_path / "python")
    (tmp_path / "python").write_text("#!/bin/sh\necho no module bytewax >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(HostError, match="no module bytewax") as raised:
        Runs(None, options, tmp_path, sys.stderr).of_part("rows")["bytewax"]()
    assert "--bytewax" in str(raised.value.hint)


def test_bytewax_counts_as_many_rows_as_the_function(tmp_path):
    options = RunOptions(events=1_000 * operator_runs.ROW_SHARE, parallelism=1, seed=1, bytewax=tmp_path / "python")
    (tmp_path / "python").write_text('#!/bin/sh\ntest "$2 $3 $4" = "1000 10000 0.25" && echo 12.5\n')
    (tmp_path / "python").chmod(0o755)
    assert Runs(None, options, tmp_path, sys.stderr).of_part("rows")["bytewax"]() == 12.5

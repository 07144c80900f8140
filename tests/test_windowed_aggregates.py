"""Every kind of aggregate gives in every kind of window what Python computes from the records of the window."""

from __future__ import annotations

import datetime
import math
import statistics
from collections import defaultdict

import polars as pl
import pytest

import penstock as ps
from penstock.testing import collect, pause, run, scripted

NOON = datetime.datetime(2026, 1, 1, 12)  # noqa: DTZ001  # a column without a time zone
GAP_S = 5
RECORDS = [
    {"user": user, "n": (7 * i) % 11, "ts": NOON + datetime.timedelta(seconds=s)}
    for i, (user, s) in enumerate(
        [
            ("ann", 0),
            ("ann", 3),
            ("bob", 4),
            ("ann", 7),
            ("bob", 21),
            ("ann", 14),
            ("ann", 30),
            ("bob", 22),
            ("ann", 31),
        ]
    )
]
CLICKS = scripted(RECORDS, schema="user string, n bigint, ts timestamp_ntz")


class Product(ps.AggregateFunction):
    """The product of a column."""

    state_type = "bigint"
    result_type = "bigint"

    def create(self):
        return 1

    def add(self, state, row):
        return state * row["n"]

    def merge(self, a, b):
        return a * b

    def result(self, state):
        return state


AGGREGATES = {
    "count": ps.count(),
    "total": ps.sum("n"),
    "least": ps.min("n"),
    "mean": ps.mean("n"),
    "spread": ps.stddev("n"),
    "first": ps.first("n"),
    "last": ps.last("n"),
    "newest": ps.max_by("n", "ts"),
    "odd": ps.count(where="n % 2 = 1"),
    "distinct": ps.count_distinct("n"),
    "middle": ps.median("n", exact=True),
    "best": ps.top_n("n", 2),
    "list": ps.collect_list("n"),
    "product": Product("n"),
}


def of(records):
    """The aggregates of the records of a window."""
    ordered = [record["n"] for record in sorted(records, key=lambda record: record["ts"])]
    return {
        "count": len(ordered),
        "total": sum(ordered),
        "least": min(ordered),
        "mean": pytest.approx(statistics.mean(ordered)),
        "spread": pytest.approx(statistics.stdev(ordered)) if len(ordered) > 1 else None,
        "first": ordered[0],
        "last": ordered[-1],
        "newest": ordered[-1],
        "odd": sum(n % 2 for n in ordered),
        "distinct": len(set(ordered)),
        "middle": statistics.median(ordered),
        "best": sorted(ordered, reverse=True)[:2],
        "list": sorted(ordered),
        "product": math.prod(ordered),
    }


def seconds(record):
    return int((record["ts"] - NOON).total_seconds())


def by_session():
    found = defaultdict(list)
    for user in ("ann", "bob"):
        last = start = None
        for record in sorted((r for r in RECORDS if r["user"] == user), key=lambda r: r["ts"]):
            if last is None or seconds(record) - last > GAP_S:
                start = seconds(record)
            last = seconds(record)
            found[user, start].append(record)
    return found


def by_start(starts_of):
    found = defaultdict(list)
    for record in RECORDS:
        for start in starts_of(seconds(record)):
            found[record["user"], start].append(record)
    return found


WINDOWS = {
    "tumbling": (ps.tumbling("10s"), by_start(lambda s: [s // 10 * 10])),
    "sliding": (ps.sliding("10s", "5s"), by_start(lambda s: [s // 5 * 5, s // 5 * 5 - 5])),
    "session": (ps.session(f"{GAP_S}s"), by_session()),
}


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("crashes", [0, 2])
def test_each_aggregate_of_each_window_is_what_python_computes(kind, crashes):
    window, expected = WINDOWS[kind]

    def program(env):
        clicks = env.read(CLICKS).watermark("ts", delay="20s")
        clicks.key_by("user").window(window).aggregate(**AGGREGATES).write(collect())

    rows = run(program, crashes=crashes, parallelism=2)
    found = {(row["user"], seconds({"ts": row["window_start"]})): row for row in rows}
    assert len(rows) == len(expected)
    for place, records in expected.items():
        row = found[place]
        row["list"] = sorted(row["list"])
        assert {name: row[name] for name in AGGREGATES} == of(records), place


def test_late_records_of_sessions_are_a_stream_and_count_nowhere_else():
    late = {"user": "ann", "n": 100, "ts": NOON}
    clicks = scripted([*RECORDS, late], schema="user string, n bigint, ts timestamp_ntz")

    def program(env):
        timed = env.read(clicks).watermark("ts", delay="2s")
        sessions = timed.key_by("user").window(ps.session(f"{GAP_S}s")).aggregate(total=ps.sum("n"))
        sessions.late().select("n").write(collect())

    assert [row["n"] for row in run(program, parallelism=1) if row["n"] == 100] == [100]


def test_two_conditions_whose_texts_polars_shortens_alike_are_two_conditions():
    numbers = scripted([{"n": n, "ts": NOON} for n in range(1, 15)], schema="n bigint, ts timestamp_ntz")
    conditions = {"x": pl.col("n").is_in([1, 2, 3, 4, 5, 14]), "z": pl.col("n").is_in([1, 2, 9, 14])}

    def program(env):
        timed = env.read(numbers).watermark("ts")
        counts = {name: ps.count(where=condition) for name, condition in conditions.items()}
        timed.window(ps.tumbling("10s")).aggregate(**counts).select("x", "z").write(collect())

    assert run(program) == [{"x": 6, "z": 4}]


@pytest.mark.parametrize("window", [ps.tumbling("10s"), ps.sliding("10s", "5s"), ps.session("5s")], ids=str)
def test_an_error_of_an_aggregate_in_a_snapshot_names_the_step(window):
    class Bad(Product):
        def merge(self, a, b):
            raise RuntimeError("cannot merge")

    records = [{"user": "ann", "n": n, "ts": NOON} for n in range(4)]
    clicks = scripted(
        [*records[:2], pause(300), *records[2:], pause(2_000)], schema="user string, n bigint, ts timestamp_ntz"
    )

    def program(env):
        timed = env.read(clicks).watermark("ts")
        timed.key_by("user").window(window).aggregate(product=Bad("n")).name("products").write(collect())

    with pytest.raises(ps.JobFailed, match="cannot merge") as caught:
        run(program, parallelism=1, checkpoint_interval="100ms")
    assert "products" in str(caught.value)

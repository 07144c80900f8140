"""Windows of every type, against the windows of Spark over the same rows."""

from __future__ import annotations

import datetime
import random

import pytest

import penstock as ps
from penstock.testing import collect, run, scripted

pytestmark = pytest.mark.slow

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SCHEMA = "k string, v bigint, ts timestamp"
ANSWERS = {"n": ps.count(), "known": ps.count("v"), "total": ps.sum("v"), "low": ps.min("v"), "high": ps.max("v")}
SQL = "count(*) AS n, count(v) AS known, sum(v) AS total, min(v) AS low, max(v) AS high"


def micros(moment):
    return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


def drawn(seed, count=400):
    """Rows in an order that is not the order of event time, with silences, and with times that are equal or at the
    bounds of windows."""
    chance = random.Random(seed)
    moment, rows = 0, []
    for _ in range(count):
        moment += chance.choice([0, 0, 1, 500_000, 1_000_000, 1_000_000, 2_700_000, 60_000_000])
        key, value = chance.choice(["a", "b", "", None, "ü"]), chance.choice([None, 0, 1, -7, 2**40])
        early = datetime.timedelta(microseconds=moment - chance.choice([0, 0, 0, 900_000, 3_000_000]))
        rows.append({"k": key, "v": value, "ts": BEGIN + early})
    return rows


def ours(rows, build):
    def program(env):
        build(env.read(scripted(rows, schema=SCHEMA)).watermark("ts", delay="1h")).write(collect())

    found = run(program, seed=1, parallelism=2)
    return sorted((told(row) for row in found), key=repr)


def told(row):
    return tuple(micros(value) if isinstance(value, datetime.datetime) else value for value in row.values())


def theirs(spark, rows, sql):
    frame = spark.createDataFrame([(row["k"], row["v"], row["ts"]) for row in rows], SCHEMA)
    frame.createOrReplaceTempView("given")
    return sorted((tuple(row) for row in spark.sql(sql).collect()), key=repr)


def windows_sql(window, keys="k, ", table="given"):
    group = f"{keys}{window}"
    return (
        f"SELECT {keys}unix_micros(w.start), unix_micros(w.end), n, known, total, low, high FROM "
        f"(SELECT {keys}{window} AS w, {SQL} FROM {table} GROUP BY {group})"
    )


SLIDING = [("10s", "1s", "0s"), ("10s", "4s", "0s"), ("10s", "10s", "3s"), ("7s", "3s", "2s"), ("90s", "31s", "11s")]


@pytest.mark.parametrize(("size", "slide", "offset"), SLIDING)
def test_sliding_windows_are_those_of_spark(spark, size, slide, offset):
    rows = drawn(f"{size} {slide}")
    found = ours(rows, lambda s: s.key_by("k").window(ps.sliding(size, slide, offset=offset)).aggregate(**ANSWERS))
    seconds = [f"'{text[:-1]} seconds'" for text in (size, slide, offset)]
    assert found == theirs(spark, rows, windows_sql(f"window(ts, {', '.join(seconds)})"))


@pytest.mark.parametrize(("size", "step", "offset"), [(12, 4, 0), (60, 10, 7)])
def test_cumulative_windows_are_the_windows_of_spark_up_to_each_step(spark, size, step, offset):
    """Spark has no cumulative windows: all rows of a tumbling window with a time before each of its steps."""
    rows = drawn(size)
    window = ps.cumulative(f"{size}s", f"{step}s", offset=f"{offset}s")
    found = ours(rows, lambda s: s.key_by("k").window(window).aggregate(**ANSWERS))
    sql = (
        f"WITH cut AS (SELECT *, window(ts, '{size} seconds', '{size} seconds', '{offset} seconds').start AS s "
        f"FROM given), grown AS (SELECT *, explode(sequence(1, {size // step})) AS i FROM cut), "
        f"placed AS (SELECT *, unix_micros(s) AS a, unix_micros(s) + i * {step}000000 AS b FROM grown) "
        f"SELECT k, a, b, {SQL} FROM placed WHERE unix_micros(ts) < b GROUP BY k, a, b"
    )
    assert found == theirs(spark, rows, sql)


@pytest.mark.parametrize("gap", ["1s", "2s", "20s"])
def test_sessions_are_those_of_spark(spark, gap):
    rows = drawn(gap)
    found = ours(rows, lambda s: s.key_by("k").window(ps.session(gap)).aggregate(**ANSWERS))
    assert found == theirs(spark, rows, windows_sql(f"session_window(ts, '{gap[:-1]} seconds')"))


@pytest.mark.parametrize(
    ("window", "sql"),
    [
        (ps.tumbling("10s"), "window(ts, '10 seconds')"),
        (ps.sliding("10s", "4s"), "window(ts, '10 seconds', '4 seconds')"),
        (ps.session("3s"), "session_window(ts, '3 seconds')"),
    ],
    ids=str,
)
def test_windows_without_a_key_are_those_of_spark(spark, window, sql):
    rows = drawn(sql)
    found = ours(rows, lambda s: s.window(window).aggregate(**ANSWERS))
    assert found == theirs(spark, rows, windows_sql(sql, keys=""))


@pytest.mark.parametrize(
    ("first", "sql"),
    [
        (ps.tumbling("10s"), "window(ts, '10 seconds')"),
        (ps.sliding("10s", "4s"), "window(ts, '10 seconds', '4 seconds')"),
        (ps.session("2s"), "session_window(ts, '2 seconds')"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("second", "sql_of_second"),
    [
        (ps.tumbling("20s"), "window(t, '20 seconds')"),
        (ps.sliding("30s", "10s"), "window(t, '30 seconds', '10 seconds')"),
        (ps.session("20s"), "session_window(t, '20 seconds')"),
    ],
    ids=str,
)
def test_windows_over_windows_are_those_of_spark(spark, first, sql, second, sql_of_second):
    rows = drawn(f"{sql} {sql_of_second}")

    def build(stream):
        counted = stream.key_by("k").window(first).aggregate(v=ps.count())
        return counted.key_by("k").window(second).aggregate(**ANSWERS)

    # The time of a window is the last microsecond before its end.
    counted = f"SELECT k, {sql} AS w, count(*) AS v FROM given GROUP BY k, {sql}"
    table = f"(SELECT k, v, timestamp_micros(unix_micros(w.end) - 1) AS t FROM ({counted}))"
    assert ours(rows, build) == theirs(spark, rows, windows_sql(sql_of_second, table=table))

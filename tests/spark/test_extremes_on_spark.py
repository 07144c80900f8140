"""Aggregates and keys at their extremes, against Spark itself."""

from __future__ import annotations

import datetime
import decimal
import math

import pytest

import penstock as ps
from penstock.testing import collect, run, scripted

pytestmark = pytest.mark.slow

NAN, INF = math.nan, math.inf
TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

VALUES = [NAN, -NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, None]
KEYS = {
    "double": [NAN, -NAN, 0.0, -0.0, INF, -INF, None, 1.0],
    "float": [NAN, 0.0, -0.0, None],
    "string": ["", None, " ", "a", "\x00", "ä", "𝄞"],
    "binary": [b"", None, b"\x00", b"\x00\x00"],
    "boolean": [True, False, None],
    "bigint": [-(2**63), 2**63 - 1, 0, None],
    "date": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1970, 1, 1), None],
    "timestamp": [
        datetime.datetime(1, 1, 3, tzinfo=datetime.UTC),
        datetime.datetime(9999, 12, 29, 23, 59, 59, 999_999, tzinfo=datetime.UTC),
        None,
    ],
    "decimal(38,10)": [decimal.Decimal("-9999999999999999999999999999.9999999999"), decimal.Decimal("0E-10"), None],
}


def plain(value):
    """Something that is equal where values are: there is one NaN and one zero."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return bytes(value) if isinstance(value, bytearray) else value


def ours(rows, kind):
    def build(env):
        windows = (
            env.read(scripted(rows, schema=f"k {kind}, v double, ts timestamp"))
            .watermark("ts")
            .key_by("k")
            .window(ps.tumbling("1h"))
        )
        windows.aggregate(
            n=ps.count(),
            known=ps.count("v"),
            total=ps.sum("v"),
            low=ps.min("v"),
            high=ps.max("v"),
            average=ps.mean("v"),
        ).write(collect())

    return {
        plain(row["k"]): tuple(plain(row[name]) for name in ("n", "known", "total", "low", "high", "average"))
        for row in run(build, seed=1, parallelism=2)
    }


@pytest.mark.parametrize("kind", KEYS)
def test_keys_and_aggregates_are_those_of_spark(spark, kind):
    rows = [{"k": key, "v": value, "ts": TIME} for key in KEYS[kind] for value in VALUES]
    rows += [{"k": KEYS[kind][0], "v": value, "ts": TIME} for value in VALUES]
    rows += [{"k": KEYS[kind][-1], "v": None, "ts": TIME}]
    frame = spark.createDataFrame([(row["k"], row["v"]) for row in rows], f"k {kind}, v double")
    frame.createOrReplaceTempView("extremes")
    found = spark.sql("SELECT k, count(*), count(v), sum(v), min(v), max(v), avg(v) FROM extremes GROUP BY k").collect()
    theirs = {plain(row[0]): tuple(map(plain, row[1:])) for row in found}
    if kind == "timestamp":
        # What Spark hands to Python is without zone, in that of the process.
        theirs = {key if key is None else key.astimezone(datetime.UTC): row for key, row in theirs.items()}
    assert ours(rows, kind) == theirs


@pytest.mark.parametrize("values", [[NAN], [NAN, 1.0], [None], [None, NAN], [-0.0], [INF, NAN], [-INF, INF]])
def test_few_values_are_aggregated_as_spark_does(spark, values):
    rows = [{"k": 1, "v": value, "ts": TIME} for value in values]
    frame = spark.createDataFrame([(value,) for value in values], "v double")
    frame.createOrReplaceTempView("extremes")
    (row,) = spark.sql("SELECT count(*), count(v), sum(v), min(v), max(v), avg(v) FROM extremes").collect()
    assert ours(rows, "bigint") == {1: tuple(map(plain, row))}

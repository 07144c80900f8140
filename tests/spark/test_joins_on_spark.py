"""Joins are those of Spark: the same rows as a batch join of Spark SQL, also of nulls, NaN and -0.0."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock as ps

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = [None, 0.0, -0.0, float("nan"), 1.5, 7.0]
LEFT = [(KEYS[n % 6], n, START + timedelta(seconds=n * 7 % 40)) for n in range(60)]
RIGHT = [(KEYS[n * 5 % 6], n, START + timedelta(seconds=n * 11 % 40)) for n in range(40)]
CONDITIONS = {
    "interval": "b.rt BETWEEN a.lt - INTERVAL 3 SECONDS AND a.lt + INTERVAL 8 SECONDS",
    "window": "date_trunc('MINUTE', a.lt) = date_trunc('MINUTE', b.rt)",
    "table": "TRUE",
    "regular": "TRUE",
    "changing": "TRUE",
}
KINDS = {"inner": "INNER", "left": "LEFT", "right": "RIGHT", "full": "FULL", "semi": "LEFT SEMI", "anti": "LEFT ANTI"}


def test_every_kind_of_join_gives_the_rows_of_a_batch_join(spark: Any, tmp_path: Any):
    left = spark.createDataFrame(LEFT, "k double, l bigint, lt timestamp")
    right = spark.createDataFrame(RIGHT, "k double, r bigint, rt timestamp")
    left.createOrReplaceTempView("a")
    right.createOrReplaceTempView("b")
    checkpointing = ps.Checkpointing(interval="1s", directory=tmp_path / "checkpoints")
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing)
    lefts = env.from_dataframe(left, name="left").watermark("lt", delay="1 min")
    rights = env.from_dataframe(right, name="right").watermark("rt", delay="1 min")
    found = {}
    for how in KINDS:
        columns = ["l"] if how in ("semi", "anti") else ["l", "r"]
        words: dict[str, Any] = {"on": "k", "how": how, "where": "l % 5 < 4"}
        made = {
            "interval": lefts.join(rights, within=("-3s", "8s"), name=f"interval {how}", **words),
            "window": lefts.join(rights, window=ps.tumbling("1 min"), name=f"window {how}", **words),
        }
        made["regular"] = lefts.join(rights, ttl=None, name=f"regular {how}", **words)
        # Both sides change while the job runs: each row replaces another row of its number.
        changing = (_newest(lefts, "l", "lt", f"lefts {how}"), _newest(rights, "r", "rt", f"rights {how}"))
        made["changing"] = changing[0].join(changing[1], ttl=None, name=f"changing {how}", **words)
        if how not in ("right", "full"):
            made["table"] = lefts.join(right, name=f"table {how}", **words)
        for kind, joined in made.items():
            found[kind, how] = ps.collect()
            joined.select(*columns).name(f"{kind} {how} columns").write(found[kind, how], name=f"{kind} {how} rows")
    held = ps.collect()
    lefts.join(rights.versioned("k"), on="k", as_of="lt", how="left", name="held").select("l", "r").write(held)
    env.run("joins")
    oracle = spark.sql(
        "SELECT a.l, max_by(b.r, b.rt) FROM a LEFT JOIN b ON a.k = b.k AND b.rt <= a.lt GROUP BY a.l"
    ).collect()
    assert Counter(tuple(row.values()) for row in held.rows) == Counter(map(tuple, oracle))
    for (kind, how), sink in found.items():
        columns = "a.l" if how in ("semi", "anti") else "a.l, b.r"
        where = f"a.k = b.k AND {CONDITIONS[kind]} AND a.l % 5 < 4"
        oracle = spark.sql(f"SELECT {columns} FROM a {KINDS[how]} JOIN b ON {where}").collect()
        assert Counter(tuple(row.values()) for row in sink.rows) == Counter(map(tuple, oracle)), (kind, how)


def _newest(stream: Any, number: str, time: str, name: str) -> Any:
    """A changelog that comes to the rows of the stream: a row comes, is replaced, and is replaced again."""
    thrice = stream.select("k", number, time, later="explode(array(2, 0, 1))")
    newest = thrice.key_by("k", number).aggregate(last=ps.max("later"), n=ps.count()).name(name)
    return newest.where("last >= 0").select("k", number)

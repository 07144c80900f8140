"""The testing kit runs every step of a program through crashes: the rows are those of a run without a crash."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import run

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
COUNT = 60


def at(second: int) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=second)


def rows(env: Any, name: str = "rows") -> Any:
    """A record each second, but every tenth record, which is half a minute late."""
    made = [
        {"id": n, "k": n % 3, "v": (n * 7) % 11, "tags": [n, n + 1], "ts": at(n - 30 if n % 10 == 9 else n)}
        for n in range(COUNT)
    ]
    return env.from_iterable(made, name=name)


def timed(env: Any, name: str = "rows", delay: str = "60s") -> Any:
    return rows(env, name).watermark("ts", delay=delay)


def rights(env: Any, delay: str = "60s") -> Any:
    made = [{"rid": n % 7, "k": n % 3, "w": n, "at": at(n)} for n in range(0, COUNT, 4)]
    return env.from_iterable(made, name="rights").watermark("at", delay=delay)


async def ask(row: Any) -> Any:
    return {"id": row["id"], "twice": 2 * row["id"]}


async def name_of(key: Any) -> Any:
    return {"name": f"name of {key['k']}"}


class Sums(ps.KeyedFunction):
    sum = ps.value_state("sum", "bigint", default=0)

    def on_row(self, row, context):
        self.sum.set(self.sum.get() + row["v"])
        if row["id"] % 5 == 0:
            context.emit("fifth", {"id": row["id"]})

    def on_end(self, context):
        return None


class Both(ps.KeyedCoFunction):
    seen = ps.value_state("seen", "bigint", default=0)

    def on_left(self, row, context):
        return {"k": row["k"], "n": row["id"]}

    def on_right(self, row, context):
        return {"k": row["k"], "n": -row["w"]}


class Rules(ps.KeyedBroadcastFunction):
    rules = ps.broadcast_state("rules", key="bigint", value="bigint")

    def on_row(self, row, context):
        return {"k": row["k"], "n": self.rules.get(row["k"], 0)}

    def on_broadcast(self, row, context):
        self.rules[row["k"]] = max(self.rules.get(row["k"], 0), row["w"])


def aggregated(window: Any, **how: Any) -> Callable[[Any], Any]:
    aggregates = {"n": ps.count(), "most": ps.max("v"), "kinds": ps.count_distinct("v")}
    return lambda env: timed(env).key_by("k").window(window, **how).aggregate(**aggregates)


RISING = ps.pattern("low", where="v < 3").followed_by("high", where="v > 7").within("20s")

STEPS: dict[str, Callable[[Any], Any]] = {
    "tumbling": aggregated(ps.tumbling("10s")),
    "sliding": aggregated(ps.sliding("10s", "5s")),
    "session": aggregated(ps.session("2s")),
    "cumulative": aggregated(ps.cumulative("20s", "5s")),
    "count window": lambda env: rows(env).key_by("id").window(ps.count_window(1)).aggregate(n=ps.count()),
    "global window": aggregated(ps.global_window()),
    "without a key": lambda env: timed(env).window(ps.tumbling("10s")).aggregate(n=ps.count()),
    "windows over windows": lambda env: (
        timed(env)
        .key_by("k")
        .window(ps.tumbling("5s"))
        .aggregate(n=ps.count())
        .key_by("k")
        .window(ps.tumbling("20s"))
        .aggregate(most=ps.max("n"))
    ),
    "updates": lambda env: aggregated(ps.tumbling("10s"), allowed_lateness="1 min")(env).updates(),
    "final": lambda env: aggregated(ps.tumbling("10s"), allowed_lateness="1 min")(env).final(),
    "apply": lambda env: (
        timed(env).key_by("k").window(ps.tumbling("10s")).apply(lambda batch: batch.select(["id"]), schema="id bigint")
    ),
    "top of a window": lambda env: timed(env).key_by("k").window(ps.tumbling("10s")).top(2, by="v", descending=True),
    "running aggregate": lambda env: rows(env).key_by("k").aggregate(n=ps.count(), total=ps.sum("v")),
    "aggregate of an aggregate": lambda env: (
        rows(env).key_by("v").aggregate(n=ps.count()).key_by("n").aggregate(kinds=ps.count())
    ),
    "split": lambda env: rows(env).split(low="v < 3").low,
    "side": lambda env: (
        rows(env).key_by("k").process(Sums(), schema="k bigint", sides={"fifth": "id bigint"}).side("fifth")
    ),
    "async_map": lambda env: rows(env).async_map(ask, schema="id bigint, twice bigint"),
    "filter": lambda env: rows(env).filter(lambda row: row["v"] > 3),
    "global_": lambda env: rows(env).global_().map_batches(lambda batch: batch.select(["id"]), schema="id bigint"),
    "partition": lambda env: (
        rows(env)
        .partition(lambda batch, subtasks: [0] * batch.num_rows)
        .map(lambda row: {"id": row["id"]}, schema="id bigint")
    ),
    "with_parallelism": lambda env: rows(env).rebalance().where("v > 3").with_parallelism(1),
    "explode": lambda env: rows(env).explode("tags"),
    "generator": lambda env: rows(env).select("id", tag="explode(tags)"),
    "sample": lambda env: rows(env).sample(0.5, by="id"),
    "distinct": lambda env: rows(env).distinct("v").select("v"),
    "limit": lambda env: rows(env).limit(COUNT),
    "interval join": lambda env: timed(env).join(rights(env), on="k", within=("-5s", "5s"), how="full"),
    "window join": lambda env: timed(env).join(rights(env), on="k", window=ps.tumbling("10s"), how="left"),
    "regular join": lambda env: rows(env).join(rights(env), on="k", how="left", ttl=None),
    "join of counts": lambda env: rows(env).join(
        rights(env).key_by("k").aggregate(n=ps.count()), on="k", how="full", ttl=None
    ),
    "versions": lambda env: timed(env).join(rights(env).versioned("k"), on="k", as_of="ts"),
    "table join": lambda env: rows(env).join(pa.table({"k": [0, 1], "name": ["a", "b"]}), on="k", how="left"),
    "lookup": lambda env: rows(env).lookup(name_of, on="k", schema="name string"),
    "deduplicate": lambda env: timed(env).deduplicate("k", within="1 h").select("k"),
    "last of each": lambda env: timed(env).deduplicate("k", within="1 h", keep="last"),
    "top": lambda env: rows(env).key_by("k").top(2, by=("v", "id")),
    "sort": lambda env: timed(env).key_by("k").sort(),
    "connect": lambda env: (
        timed(env).key_by("k").connect(rights(env).key_by("k")).process(Both(), schema="k bigint, n bigint")
    ),
    "broadcast": lambda env: (
        rows(env).key_by("k").connect(rights(env), wait="end").process(Rules(), schema="k bigint, n bigint")
    ),
    "match": lambda env: timed(env).key_by("k").match(RISING).select("k", a="low.id", b="high.id"),
    "timed out": lambda env: timed(env).key_by("k").match(RISING).timed_out().select("k", a="low.id"),
    "late of a window": lambda env: aggregated(ps.tumbling("10s"))(env).late().select("id"),
    "late of a join": lambda env: timed(env).join(rights(env), on="k", within="1s").late().select("id"),
}


def found(step: Callable[[Any], Any], **how: Any) -> Counter[str]:
    sink = ps.collect()
    run(lambda env: step(env).write(sink), **how)
    return Counter(str(sorted(row.items())) for row in sink.rows)


@pytest.mark.parametrize("name", STEPS)
def test_rows_are_the_same_through_crashes(name: str):
    step = STEPS[name]
    undisturbed = found(step, parallelism=1)
    assert undisturbed or name.startswith("late")
    for seed in (1, 2):
        assert found(step, parallelism=2, crashes=2, seed=seed) == undisturbed

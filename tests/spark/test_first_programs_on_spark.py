"""The programs that a new user writes first, on a real Spark: each line runs, and gives the right rows."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import cloudpickle
import pytest
from bid_jobs import checkpointing
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState

pytestmark = pytest.mark.slow

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.fixture
def env(spark, tmp_path):
    return ps.Environment(spark, parallelism=2, checkpointing=checkpointing(tmp_path))


async def call_model(row):
    await asyncio.sleep(0)
    return {"id": row["id"], "score": row["ms"] / 2}


def test_sessions_of_a_folder_that_grows(env, tmp_path):
    """1. Two files are there. 2. A third file comes, with a click that is far too late. 3. The job is drained."""
    folder, late, found = tmp_path / "clicks", tmp_path / "late", ps.collect()
    folder.mkdir()

    def put(name: str, *clicks: tuple[str, str, float]) -> None:
        lines = [json.dumps({"user": u, "url": url, "ts": at(s).isoformat()}) for u, url, s in clicks]
        (folder / f".{name}").write_text("\n".join(lines) + "\n")
        (folder / f".{name}").rename(folder / name)

    put("1.json", ("ann", "/a", 0), ("bob", "/a", 10), ("ann", "/b", 600))
    put("2.json", ("ann", "/a", 3_000), ("bob", "/b", 3_010))
    clicks = env.read(
        ps.files(str(folder), format="json", schema="user string, url string, ts timestamp", follow=True)
    ).watermark("ts", delay="10s", idle_after="3s")
    sessions = (
        clicks.key_by("user")
        .window(ps.session("15 min"))
        .aggregate(n=ps.count(), pages=ps.count_distinct("url"), since=ps.min("ts"))
    )
    sessions.late().write(ps.json(str(late)))  # what came too late, as a stream
    sessions.write(found)
    job = env.start("clicks")
    wait_until(job, lambda _: len(found) >= 2)
    put("3.json", ("ann", "/late", 1), ("ann", "/c", 3_100))
    wait_until(job, lambda view: view.rows_read >= 7)
    job.stop(drain=True)
    assert sorted((row["user"], row["n"], row["pages"], row["since"]) for row in found.rows) == [
        ("ann", 2, 2, at(0)),
        ("ann", 2, 2, at(3_000)),
        ("bob", 1, 1, at(10)),
        ("bob", 1, 1, at(3_010)),
    ]
    lines = [json.loads(line) for path in late.rglob("*.json") for line in path.read_text().splitlines()]
    assert [(row["user"], row["url"]) for row in lines] == [("ann", "/late")]


def test_updates_totals_parts_and_calls_in_one_program(env, capfd):
    trades = env.from_iterable(
        [{"symbol": "x", "price": float(price), "ts": at(second)} for second, price in enumerate((2, 4, 6))],
        name="trades",
    ).watermark("ts", delay="1s")
    orders = env.from_iterable([{"customer": f"c{n % 2}", "amount": n} for n in range(10)], name="orders")
    events = env.from_iterable(
        [{"id": n, "level": "ERROR" if n % 5 == 0 else "INFO", "ms": 400 * n} for n in range(10)],
        schema="id bigint, level string, ms bigint",
        name="events",
    )

    average = (
        trades.key_by("symbol")
        .window(ps.sliding("5 min", "10s"), allowed_lateness="1 min")
        .aggregate(price=ps.mean("price"))
        .updates()
    )
    totals = orders.key_by("customer").aggregate(total=ps.sum("amount"))  # a changelog
    parts = events.split(errors="level = 'ERROR'", slow="ms > 1000")
    parts.errors.print()
    scored = events.async_map(call_model, concurrency=200, timeout="2s", schema="id bigint, score double")

    sinks = {name: ps.collect() for name in ("average", "totals", "slow", "scored")}
    for stream, name in ((average, "average"), (totals, "totals"), (parts.slow, "slow"), (scored, "scored")):
        stream.write(sinks[name], name=name)
    assert env.run("first").state is JobState.FINISHED
    assert len(sinks["average"].rows) == 30
    assert {(row["symbol"], row["price"]) for row in sinks["average"].rows} == {("x", 4.0)}
    assert sorted((row["customer"], row["total"]) for row in sinks["totals"].rows) == [("c0", 20), ("c1", 25)]
    assert sorted(row["id"] for row in sinks["slow"].rows) == [3, 4, 6, 7, 8, 9]
    assert sorted((row["id"], row["score"]) for row in sinks["scored"].rows) == [(n, 200.0 * n) for n in range(10)]
    printed = [line for line in capfd.readouterr().out.splitlines() if "ERROR" in line]
    assert sorted(set(printed)) == ["{id: 0, level: ERROR, ms: 0}", "{id: 5, level: ERROR, ms: 2000}"]


def test_words_are_counted_in_one_line(env):
    found = (
        env.from_iterable(["a b", "b"], schema="line string")
        .select(word="explode(split(line, ' '))")
        .key_by("word")
        .aggregate(n=ps.count())
        .collect()
    )
    assert Counter({row["word"]: row["n"] for row in found}) == {"a": 1, "b": 2}


def numbers(first, count):
    return {"n": range(first, first + count)}


def test_a_limit_ends_a_stream_that_has_no_end(env):
    found = env.read(ps.generate(numbers, schema="n bigint")).limit(5).collect()
    assert len(found) == len({row["n"] for row in found}) == 5


def test_joins_tops_and_patterns_in_one_program(env, spark):
    orders = env.from_iterable(
        [{"order_id": n, "currency": "EUR", "ts": at(60 * n)} for n in range(4)], name="orders"
    ).watermark("ts", delay="1s")
    payments = env.from_iterable(
        [{"order_id": 0, "paid": 5, "at": at(600)}, {"order_id": 1, "paid": 6, "at": at(60 + 901)}], name="payments"
    ).watermark("at", delay="1s")
    rates = env.from_iterable(
        [{"currency": "EUR", "rate": 1.0, "since": at(-60)}, {"currency": "EUR", "rate": 2.0, "since": at(100)}],
        name="rates",
    ).watermark("since", delay="1s")
    bids = env.from_iterable(
        [{"auction": n % 2, "item": f"i{n % 3}", "price": n, "ts": at(n)} for n in range(20)], name="bids"
    ).watermark("ts", delay="1s")
    spark.createDataFrame([("i0", "pen"), ("i1", "cup")], "item string, title string").createOrReplaceTempView("items")
    events = env.from_iterable([{"id": n % 3, "ts": at(n)} for n in range(9)], name="events").watermark(
        "ts", delay="1s"
    )
    amounts = ((0, 0.5), (60, 10.0), (120, 900.0), (3_000, 0.1), (3_900, 800.0))
    cards = env.from_iterable(
        [{"card": "c", "amount": amount, "ts": at(second)} for second, amount in amounts], name="cards"
    ).watermark("ts", delay="1s")

    paid = orders.join(payments, on="order_id", within=("0s", "15 min"), how="left")  # payments up to 15 min behind
    rated = orders.join(rates.versioned("currency"), on="currency", as_of="ts")  # the rate that held
    named = bids.join(spark.table("items"), on="item", how="left")  # a static DataFrame
    once = events.deduplicate("id", within="1 h")
    best = bids.key_by("auction").window(ps.tumbling("10s")).top(3, by="price", descending=True)
    fraud = (
        ps.pattern("small", where="amount < 1")
        .followed_by("large", where="amount > 500 AND card = small.card")
        .within("10 min")
    )
    alerts = cards.key_by("card").match(fraud).select("small.ts", "large.amount")

    streams = {"paid": paid, "rated": rated, "named": named, "once": once, "best": best, "alerts": alerts}
    sinks = {name: ps.collect() for name in streams}
    for name, stream in streams.items():
        stream.write(sinks[name], name=name)
    assert env.run("second").state is JobState.FINISHED
    rows = {name: sink.rows for name, sink in sinks.items()}
    assert sorted((row["order_id"], row["paid"]) for row in rows["paid"] if row["paid"] is not None) == [(0, 5)]
    assert sorted(row["order_id"] for row in rows["paid"]) == [0, 1, 2, 3]
    assert sorted((row["order_id"], row["rate"]) for row in rows["rated"]) == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)]
    titles = Counter(row["title"] for row in rows["named"])
    assert titles == {"pen": 7, "cup": 7, None: 6}
    assert sorted(row["id"] for row in rows["once"]) == [0, 1, 2]
    tops = sorted((row["auction"], row["price"]) for row in rows["best"])
    assert tops == sorted(
        (auction, 10 * w + 8 + auction - 2 * n) for auction in (0, 1) for w in (0, 1) for n in range(3)
    )
    assert [tuple(row.values()) for row in rows["alerts"]] == [(at(0), 900.0)]

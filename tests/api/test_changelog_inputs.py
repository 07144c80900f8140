"""Each step and each sink either takes a changelog as it is, or refuses a changelog when the program is built. A step
that is in neither table of this file makes a test fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.program import Program
from penstock.api.streams.keyed_stream import KeyedStream
from penstock.api.streams.windowed_stream import WindowedStream
from penstock.core.errors import UsageError

SCHEMA = "k bigint, n bigint"


class Process(ps.ProcessFunction):
    def on_row(self, row, context):
        return row


class Keyed(ps.KeyedFunction):
    def on_row(self, row, context):
        return row


class Both(ps.KeyedCoFunction):
    def on_left(self, row, context):
        return row

    def on_right(self, row, context):
        return row


class Rules(ps.KeyedBroadcastFunction):
    def on_row(self, row, context):
        return row

    def on_broadcast(self, row, context):
        return None


async def ask(row: Any) -> Any:
    return row


def program() -> tuple[ps.Stream, ps.Stream]:
    """A changelog by `k`, whose other column is `n`; and plain records with event time."""
    env = Program()
    rows = env.from_iterable([{"k": 1}], schema="k bigint", name="rows")
    plain = env.from_iterable([{"k": 1, "n": 2, "ms": 3}], schema="k bigint, n bigint, ms bigint", name="plain")
    timed = plain.with_columns(ts="timestamp_millis(ms)").watermark("ts")
    return rows.key_by("k").aggregate(n=ps.count()), timed


Call = Callable[[Any, Any], Any]

TAKES: dict[str, list[Call]] = {
    "Stream.select": [lambda s, _: s.select("k", m="n + 1")],
    "Stream.with_columns": [lambda s, _: s.with_columns(m="n + 1")],
    "Stream.drop": [lambda s, _: s.drop("n")],
    "Stream.rename": [lambda s, _: s.rename({"n": "m"})],
    "Stream.where": [lambda s, _: s.where("n > 1")],
    "Stream.union": [lambda s, _: s.union(s.where("n > 1"))],
    "Stream.global_": [lambda s, _: s.global_()],
    "Stream.key_by": [lambda s, _: s.key_by("n").aggregate(m=ps.count())],
    "Stream.aggregate": [lambda s, _: s.aggregate(m=ps.sum("n"))],
    "Stream.join": [
        lambda s, plain: s.join(plain.drop("n"), on="k", ttl=None),
        lambda s, plain: plain.drop("n").join(s, on="k", how="full", ttl="1h"),
    ],
    "Stream.changes": [lambda s, _: s.changes()],
    "Stream.upserts": [lambda s, _: s.upserts()],
    "Stream.print": [lambda s, _: s.print(), lambda s, _: s.print(3)],
    "Stream.for_each_checkpoint": [lambda s, _: s.for_each_checkpoint(lambda frame, number: None)],
    "KeyedStream.aggregate": [lambda s, _: s.key_by("n").aggregate(most=ps.max("k"))],
    "KeyedStream.top": [lambda s, _: s.key_by("k").top(1, by="n")],
}
"""The steps that take changes, and how each is called on a changelog."""

REFUSES: dict[str, list[Call]] = {
    "Stream.async_map": [lambda s, _: s.async_map(ask, schema=SCHEMA)],
    "Stream.broadcast": [lambda s, _: s.broadcast()],
    "Stream.deduplicate": [lambda s, _: s.deduplicate("k"), lambda s, _: s.deduplicate("k", keep="last")],
    "Stream.distinct": [lambda s, _: s.distinct("k")],
    "Stream.explode": [lambda s, _: s.with_columns(l="array(n)").explode("l")],
    "Stream.filter": [lambda s, _: s.filter(bool)],
    "Stream.flat_map": [lambda s, _: s.flat_map(list, schema=SCHEMA)],
    "Stream.join": [
        lambda s, plain: s.join(pa.table({"k": [1]}), on="k"),
        lambda s, plain: plain.drop("n").join(s, on="k", within="1s"),
        lambda s, plain: s.join(plain.drop("n"), on="k", within="1s"),
        lambda s, plain: s.join(plain.drop("n").versioned("k"), on="k", as_of="ts"),
    ],
    "Stream.limit": [lambda s, _: s.limit(3)],
    "Stream.lookup": [lambda s, _: s.lookup(ask, on="k", schema="name string")],
    "Stream.map": [lambda s, _: s.map(dict, schema=SCHEMA)],
    "Stream.map_batches": [lambda s, _: s.map_batches(lambda batch: batch)],
    "Stream.partition": [lambda s, _: s.partition(lambda batch, subtasks: [0])],
    "Stream.process": [lambda s, _: s.process(Process(), schema=SCHEMA)],
    "Stream.rebalance": [lambda s, _: s.rebalance()],
    "Stream.repartition": [lambda s, _: s.repartition("k")],
    "Stream.sample": [lambda s, _: s.sample(0.5)],
    "Stream.sort": [lambda s, _: s.sort("n")],
    "Stream.split": [lambda s, _: s.split(a="n > 1")],
    "Stream.versioned": [lambda s, _: s.versioned("k")],
    "Stream.watermark": [lambda s, _: s.with_columns(ts="timestamp_millis(n)").watermark("ts")],
    "Stream.window": [lambda s, _: s.window(ps.count_window(3))],
    "Stream.write": [lambda s, _: s.write(ps.json("out"))],
    "KeyedStream.connect": [
        lambda s, plain: s.key_by("k").connect(plain.key_by("k")).process(Both(), schema=SCHEMA),
        lambda s, plain: plain.key_by("k").connect(s.key_by("k")).process(Both(), schema=SCHEMA),
        lambda s, plain: s.key_by("k").connect(plain).process(Rules(), schema=SCHEMA),
        lambda s, plain: plain.key_by("k").connect(s).process(Rules(), schema=SCHEMA),
    ],
    "KeyedStream.match": [lambda s, _: s.key_by("k").match(ps.pattern("a"))],
    "KeyedStream.process": [lambda s, _: s.key_by("k").process(Keyed(), schema=SCHEMA)],
    "KeyedStream.reduce": [lambda s, _: s.key_by("k").reduce(lambda a, b: b)],
    "KeyedStream.sort": [lambda s, _: s.key_by("k").sort()],
    "KeyedStream.transform_with_state": [
        lambda s, _: s.key_by("k").transform_with_state(object(), output_schema=SCHEMA)
    ],
    "KeyedStream.window": [
        lambda s, _: s.key_by("k").window(ps.count_window(3)),
        lambda s, _: s.key_by("k").window(ps.tumbling("1s", time="processing")),
        lambda s, _: s.key_by("k").window(ps.global_window()),
    ],
}
"""The steps that refuse a changelog, and how each is called on a changelog."""

NO_STEPS = {
    "Stream": {
        *("collect", "show", "take", "explain", "schema"),  # look at a stream
        *("name", "with_parallelism"),  # say something about the step before
        *("late", "side", "timed_out", "final", "updates"),  # say what of the step before is wanted
    },
    "KeyedStream": {"schema"},
    "WindowedStream": {"aggregate", "apply", "top"},  # behind `window`, which refuses
}


def methods(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def every_step() -> set[str]:
    names = {f"Stream.{name}" for name in dir(ps.Stream) if not name.startswith("_")}
    return names | {f"{kind.__name__}.{name}" for kind in (KeyedStream, WindowedStream) for name in methods(kind)}


def test_every_step_is_known_to_take_or_to_refuse_changes():
    known = {*TAKES, *REFUSES, *(f"{kind}.{name}" for kind, names in NO_STEPS.items() for name in names)}
    assert every_step() == known


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in TAKES.items() for call in calls])
def test_a_step_that_takes_changes_takes_them(name: str, call: Call):
    changes, plain = program()
    call(changes, plain)


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in REFUSES.items() for call in calls])
def test_a_step_that_takes_no_changes_is_refused_when_the_program_is_built(name: str, call: Call):
    changes, plain = program()
    with pytest.raises(UsageError) as refused:
        call(changes, plain)
    assert "changelog" in str(refused.value)


@pytest.mark.parametrize("make", [ps.json, ps.csv, ps.parquet, ps.table])
def test_a_sink_that_cannot_change_rows_is_refused_when_the_program_is_built(make: Any):
    changes, _ = program()
    with pytest.raises(UsageError, match="cannot change rows that it has written"):
        changes.write(make("out"))


@pytest.mark.parametrize("made", [ps.collect])
def test_a_sink_that_takes_changes_takes_them(made: Any):
    changes, _ = program()
    changes.write(made())

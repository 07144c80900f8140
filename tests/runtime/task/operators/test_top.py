"""The first records of each key, as a changelog: what comes out on both back ends, of records and of changelogs."""

from __future__ import annotations

import math
import random
from collections import Counter

import pyarrow as pa
import pytest
from state_rig import LOCAL_DIRECTORY

from penstock.api.changelog import with_row_kind
from penstock.api.running_schema import running_partial_schema
from penstock.api.steps import RunningCombineStep, TopStep
from penstock.api.streams.ranking import TopWords, checked_top, listed_rows
from penstock.runtime.task.operators import running
from penstock.runtime.task.partitioning import key_groups
from penstock.settings import StateSettings

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.float64()), ("s", pa.string()), ("n", pa.int32())])
LISTS = SCHEMA.append(pa.field("v", pa.list_(pa.int64())))
SETTINGS = {
    "memory": StateSettings(),
    "rocksdb": StateSettings(backend="rocksdb", local_directory=LOCAL_DIRECTORY),
}
both = pytest.mark.parametrize("backend", SETTINGS)


def steps(most, by, descending, *, rank=None, retracts=False, schema=SCHEMA):
    words = TopWords(most=most, by=by, descending=descending, rank=rank)
    calls = (listed_rows(words, checked_top(words, schema, ("k",)), schema, ("k",)),)
    partial = running_partial_schema(schema, keys=("k",), aggregates=calls, retracts=retracts)
    ranks = [] if rank is None else [pa.field(rank, pa.int32())]
    how = {"keys": ("k",), "aggregates": calls, "input_schema": schema, "retracts": retracts}
    shown = with_row_kind(pa.schema([*schema, *ranks]))
    return RunningCombineStep(**how, schema=partial), TopStep(
        **how, partial=partial, schema=shown, most=most, rank=rank
    )


def feed(rig, rigs, combine, rows):
    """Process rows in one batch, and return the changes that come out of all subtasks."""
    half = rig(combine)
    half.operator.process(pa.RecordBatch.from_pylist(rows, with_row_kind(SCHEMA) if combine.retracts else SCHEMA))
    half.operator.before_barrier()
    found = []
    for part in half.output.items:
        groups = key_groups(part, ["k"], 128)
        for made in rigs:
            made.output.clear()
            first, last = made.context.key_groups
            work = made.operator.process(part.filter(pa.array((groups >= first) & (groups <= last))))
            while work is not None and work.go_on():
                pass
            found += made.output.rows
    return found


def place(value, *, descending):
    """Where Spark puts a value: null is less than every value, and NaN is greater than every number."""
    if value is None:
        return (0,) if not descending else (2,)
    if isinstance(value, str):
        return (1, (*(-ord(c) for c in value), 1) if descending else (*map(ord, value), -1))
    number = math.inf if value != value else value  # NaN
    return (1, -number if descending else number, (value != value) != descending)


def first_rows(rows, most, by, descending):
    """The first records, by sorting all records."""
    ties = [name for name in SCHEMA.names if name not in by]

    def key(row):
        return [place(row[name], descending=d) for name, d in zip(by, descending, strict=True)] + [
            place(row[name], descending=False) for name in ties
        ]

    return sorted(rows, key=key)[:most]


def some_row(chance, key):
    return {
        "k": key,
        "x": chance.choice((None, math.nan, -1.5, 0.0, -0.0, 2.0)),
        "s": chance.choice((None, "a", "ab", "b")),
        "n": chance.choice((None, 1, 2, -3)),
    }


def text(row):
    """A row in which NaN equals NaN, and 0.0 equals -0.0."""
    return str({name: value + 0.0 if isinstance(value, float) else value for name, value in row.items()})


ORDERS = [(["x"], [True]), (["x", "s"], [False, True]), (["n"], [False]), (["s", "n"], [True, False])]


@both
@pytest.mark.parametrize("retracts", [False, True])
@pytest.mark.parametrize("rank", [None, "rank"])
@pytest.mark.parametrize(("most", "order"), [(1, ORDERS[0]), (3, ORDERS[1]), (2, ORDERS[2]), (5, ORDERS[3])])
def test_the_table_is_that_of_a_sort_at_any_parallelism(rig, backend, retracts, rank, most, order):
    chance = random.Random(most)
    by, descending = order
    combine, step = steps(most, by, descending, rank=rank, retracts=retracts)
    rigs = [rig(step, state=SETTINGS[backend])]
    files, model, table = rigs[0].files, {}, Counter()
    for round_ in range(16):
        rows = []
        for _ in range(chance.choice((1, 5, 40))):
            key = chance.choice((None, "a", "b", "c", "d"))
            held = model.setdefault(key, [])
            if retracts and held and chance.random() < 0.45:
                rows.append(
                    {**held.pop(chance.randrange(len(held))), "row_kind": chance.choice(("delete", "update_before"))}
                )
            else:
                held.append(some_row(chance, key))
                rows.append(
                    {**held[-1], **({"row_kind": chance.choice(("insert", "update_after"))} if retracts else {})}
                )
        for row in feed(rig, rigs, combine, rows):
            kind = row.pop("row_kind")
            table[text(row)] += 1 if kind in ("insert", "update_after") else -1
            assert table[text(row)] >= 0
        expected = Counter()
        for held in model.values():
            firsts = first_rows(held, most, by, descending)
            expected += Counter(
                text(row if rank is None else {**row, rank: number}) for number, row in enumerate(firsts, 1)
            )
        assert +table == expected
        if round_ % 4 == 3:
            states = [made.snapshot(round_) for made in rigs]
            for made in rigs:
                made.operator.close()
            count = chance.choice((1, 2, 3))
            rigs = [
                rig(step, subtask=n, parallelism=count, restored=states, files=files, state=SETTINGS[backend])
                for n in range(count)
            ]
    for made in rigs:
        made.operator.close()


def numbers(found):
    return [(row["n"], *([row["rank"]] if "rank" in row else []), row["row_kind"]) for row in found]


def test_a_record_that_comes_in_is_an_insert_and_a_record_that_goes_a_delete(rig):
    combine, step = steps(2, "n", True)  # descending
    rigs = [rig(step)]
    rows = [{"k": "a", "x": 0.0, "s": "", "n": n} for n in (3, 1, 2, 9, 2)]
    assert numbers(feed(rig, rigs, combine, rows[:2])) == [(3, "insert"), (1, "insert")]
    assert numbers(feed(rig, rigs, combine, rows[2:3])) == [(1, "delete"), (2, "insert")]
    assert feed(rig, rigs, combine, rows[1:2]) == []
    assert numbers(feed(rig, rigs, combine, rows[3:])) == [(2, "delete"), (9, "insert")]


def test_with_ranks_records_take_each_others_places(rig):
    combine, step = steps(2, "n", True, rank="rank")  # descending
    rigs = [rig(step)]
    rows = [{"k": "a", "x": 0.0, "s": "", "n": n} for n in (3, 9, 9)]
    assert numbers(feed(rig, rigs, combine, rows[:1])) == [(3, 1, "insert")]
    assert numbers(feed(rig, rigs, combine, rows[1:2])) == [
        (3, 1, "update_before"),
        (9, 1, "update_after"),
        (3, 2, "insert"),
    ]
    # The record that moves to the second place is equal to the record that comes first.
    assert numbers(feed(rig, rigs, combine, rows[2:])) == [(3, 2, "update_before"), (9, 2, "update_after")]


def test_columns_without_an_order_are_kept_and_do_not_order(rig):
    combine, step = steps(2, "n", True, schema=LISTS)  # descending
    made = rig(step)
    half = rig(combine)
    rows = [{"k": "a", "x": 0.0, "s": "", "n": 1, "v": [number]} for number in (5, 4, 3)]
    half.operator.process(pa.RecordBatch.from_pylist(rows, LISTS))
    half.operator.before_barrier()
    made.operator.process(half.output.items[0])
    assert [row["v"] for row in made.output.rows] == [[5], [4]]


def test_lists_that_are_slow_to_merge_are_merged_a_few_at_a_time(rig, monkeypatch):
    """A list may have a million records: how many lists are merged at once follows from how long it takes."""
    combine, step = steps(2, ["x"], [True])
    half, made, now_ms = rig(combine), rig(step), [0.0]
    made.operator.slice.run_by(lambda: now_ms[0], 65_536)
    change, sizes = made.operator._change, []

    def slow(store, part):
        sizes.append(part.num_rows)
        now_ms[0] += part.num_rows
        change(store, part)

    monkeypatch.setattr(made.operator, "_change", slow)
    rows = [{"k": str(number), "x": 1.0, "s": "a", "n": 1} for number in range(5_000)]
    feed_into(half, made, rows)
    assert sum(sizes) == 5_000
    assert max(sizes[-10:]) <= 20


def test_large_lists_are_made_one_row_per_key_in_pieces(rig, monkeypatch):
    monkeypatch.setattr(running, "_BYTES_AT_ONCE", 1_000)
    combine, step = steps(2, ["x"], [True])
    half, made = rig(combine), rig(step)
    distinct, sizes = made.operator._merging.distinct, []
    monkeypatch.setattr(made.operator._merging, "distinct", lambda part: sizes.append(part.num_rows) or distinct(part))
    rows = [{"k": str(number % 100), "x": float(number), "s": "a", "n": 1} for number in range(300)]
    found = feed_into(half, made, rows)
    assert max(sizes) < 30
    assert sum(sizes) == 100
    assert {row["k"]: row["x"] for row in found if row["x"] >= 200} == {str(n): 200.0 + n for n in range(100)}


def feed_into(half, made, rows):
    half.operator.process(pa.RecordBatch.from_pylist(rows, SCHEMA))
    half.operator.before_barrier()
    for part in half.output.items:
        work = made.operator.process(part)
        while work is not None and work.go_on():
            pass
    return made.output.rows

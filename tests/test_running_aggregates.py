"""Running aggregates in whole jobs, with crashes: every kind of aggregate, of records that stay and of changelogs. What
is expected is computed from the input alone."""

from __future__ import annotations

import datetime
import decimal
import math
import random
import statistics
from collections import defaultdict

import pytest

import penstock as ps
from penstock.api.changelog import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from penstock.core.errors import UsageError
from penstock.testing import pause, run, scripted

SCHEMA = "k string, i bigint, x double, s string, b boolean"
CALLS = {
    "n": ps.count(),
    "some": ps.count("i"),
    "odd": ps.count(where="i % 2 = 1"),
    "i_sum": ps.sum("i"),
    "i_mean": ps.mean("i"),
    "x_sum": ps.sum("x"),
    "x_mean": ps.mean("x", where="i > 0"),
    "least": ps.min("i"),
    "most": ps.max("x"),
    "first_s": ps.min("s"),
    "any_b": ps.any("b"),
    "all_b": ps.all("b"),
    "sets": ps.collect_set("s"),
    "lists": ps.collect_list("i"),
    "distinct": ps.count_distinct("i"),
    "half": ps.quantile("i", 0.5, exact=True),
    "spread": ps.stddev("i"),
    "s_of_most": ps.max_by("s", "i"),
    "top": ps.top_n("i", 2),
}


def some_rows(seed, count=80, *, keys=5):
    chance = random.Random(seed)

    def maybe(value):
        return None if chance.random() < 0.15 else value

    return [
        {
            "k": maybe(f"k{chance.randrange(keys)}"),
            # Different numbers: max_by and top_n have one answer.
            "i": maybe(number * 7 - 90),
            "x": maybe(chance.choice((0.5, 1.0, -0.0, 2.0, math.nan, math.inf, 8.25))),
            "s": maybe(chance.choice("abcde")),
            "b": maybe(chance.random() < 0.7),
        }
        for number in chance.sample(range(count), count)
    ]


def same(left, right):
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, sorted(left), sorted(right)))
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or left == right or math.isclose(left, right, rel_tol=1e-9)
    return left == right and (left is None) == (right is None)


def added(values):
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def mean(values):
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def expected_row(rows):
    numbers = [row["i"] for row in rows if row["i"] is not None]
    texts = [row["s"] for row in rows if row["s"] is not None]
    floats = [row["x"] for row in rows if row["x"] is not None]
    flags = [row["b"] for row in rows if row["b"] is not None]
    best = max((row for row in rows if row["i"] is not None), key=lambda row: row["i"], default={"s": None})
    return {
        "n": len(rows),
        "some": len(numbers),
        "odd": sum(math.fmod(number, 2) == 1 for number in numbers),
        "i_sum": added(numbers),
        "i_mean": mean(numbers),
        "x_sum": added(floats),
        "x_mean": mean([row["x"] for row in rows if row["i"] is not None and row["i"] > 0]),
        "least": min(numbers, default=None),
        "most": math.nan if any(map(math.isnan, floats)) else max(floats, default=None),
        "first_s": min(texts, default=None),
        "any_b": any(flags) if flags else None,
        "all_b": all(flags) if flags else None,
        "sets": sorted(set(texts)),
        "lists": numbers,
        "distinct": len(set(numbers)),
        "half": statistics.median(numbers) if numbers else None,
        "spread": statistics.stdev(numbers) if len(numbers) > 1 else None,
        "s_of_most": best["s"],
        "top": sorted(numbers, reverse=True)[:2],
    }


def check(found, expected, key="k"):
    by_key = {row.pop(key): row for row in found}
    assert set(by_key) == set(expected)
    for value, row in expected.items():
        wrong = {name: (by_key[value][name], row[name]) for name in row if not same(by_key[value][name], row[name])}
        assert not wrong, f"{value}: {wrong}"


def by_key(rows, key="k"):
    groups = defaultdict(list)
    for row in rows:
        groups[row[key]].append(row)
    return groups


def check_changes(changes, keys):
    """Every change fits the row that the changes before have left. Returns the rows."""
    table = {}
    for change in changes:
        row = dict(change)
        kind = row.pop("row_kind")
        key = tuple(row[name] for name in keys)
        if kind in (INSERT, UPDATE_AFTER):
            assert (key in table) == (kind == UPDATE_AFTER), change
            table[key] = row
        else:
            assert kind in (UPDATE_BEFORE, DELETE)
            assert repr(table[key]) == repr(row), change
            if kind == DELETE:
                del table[key]
    for before, after in zip(changes, [*changes[1:], None], strict=True):
        if before["row_kind"] == UPDATE_BEFORE:
            assert after is not None
            assert after["row_kind"] == UPDATE_AFTER
            assert [before[key] for key in keys] == [after[key] for key in keys]
            assert repr({**before, "row_kind": ""}) != repr({**after, "row_kind": ""}), "nothing has changed"
    return list(table.values())


# --- records that stay -----------------------------------------------------------------------------------------------


def test_a_word_count_is_a_few_lines():
    found = []

    def program(env):
        lines = env.from_iterable(["a b", "b"], schema="line string")
        words = lines.select(word="explode(split(line, ' '))")
        counts = words.key_by("word").aggregate(n=ps.count())
        found.extend(counts.collect())
        counts.write(ps.collect())

    assert len(run(program)) == 2
    assert sorted(found, key=str) == [{"word": "a", "n": 1}, {"word": "b", "n": 2}]


@pytest.mark.parametrize("seed", range(6))
def test_every_kind_of_aggregate_is_of_all_records_of_the_key_whatever_dies(seed):
    rows, sink = some_rows(seed), ps.collect()

    def program(env):
        given = env.read(scripted(rows[:30], rows[30:], schema=SCHEMA))
        given.key_by("k").aggregate(**CALLS).write(sink)

    run(program, seed=seed, crashes=seed % 3, parallelism=1 + seed % 3)
    check_changes(sink.changes, ["k"])
    check(sink.rows, {key: expected_row(group) for key, group in by_key(rows).items()})


@pytest.mark.parametrize("key", ["i", "x", "s", "b", "d", "t", "m"])
def test_keys_may_be_of_any_type_that_has_equality(key):
    base = datetime.datetime(2026, 1, 1)  # noqa: DTZ001  # timestamps without a time zone
    values = {
        "i": [1, -(2**60), None, 0],
        "x": [0.0, -0.0, math.nan, None],
        "s": ["", "\u00e9", None, "b"],
        "b": [True, False, None],
        "d": [base.date(), None],
        "t": [base, base + datetime.timedelta(microseconds=1), None],
        "m": [None, 7],
    }[key]
    kind = {"i": "bigint", "x": "double", "s": "string", "b": "boolean", "d": "date", "t": "timestamp_ntz", "m": "int"}
    rows = [{"k": value} for value in values for _ in range(3)]

    def program(env):
        env.from_iterable(rows, schema=f"k {kind[key]}").key_by("k").aggregate(n=ps.count()).write(ps.collect())

    found = run(program, crashes=1)
    counts = defaultdict(int)
    for value in values:
        counts["nan" if value != value else (value + 0.0 if key == "x" and value is not None else value)] += 3
    assert {"nan" if row["k"] != row["k"] else row["k"]: row["n"] for row in found} == counts


def test_several_key_columns_and_columns_behind_them():
    rows, sink = some_rows(3), ps.collect()

    def program(env):
        given = env.from_iterable(rows, schema=SCHEMA)
        given.key_by("k", "s").aggregate(n=ps.count(), i=ps.sum("i")).write(sink)

    run(program, crashes=2)
    check_changes(sink.changes, ["k", "s"])
    groups = defaultdict(list)
    for row in rows:
        groups[row["k"], row["s"]].append(row["i"])
    assert {(row["k"], row["s"]): (row["n"], row["i"]) for row in sink.rows} == {
        key: (len(group), added(group)) for key, group in groups.items()
    }


def test_an_aggregate_without_a_key_is_one_row():
    rows, sink = some_rows(4), ps.collect()
    run(lambda env: env.from_iterable(rows, schema=SCHEMA).aggregate(**CALLS).write(sink), crashes=2, parallelism=3)
    check_changes(sink.changes, [])
    check([{**row, "k": 0} for row in sink.rows], {0: expected_row(rows)})
    empty = ps.collect()
    run(lambda env: env.from_iterable([], schema=SCHEMA).aggregate(n=ps.count()).write(empty))
    assert empty.rows == []


def test_a_result_that_stays_as_it_is_is_no_change():
    sink = ps.collect()

    def program(env):
        given = scripted([{"k": "a", "i": 5}, pause(200), {"k": "a", "i": 5}, pause(200), {"k": "a", "i": 7}])
        env.read(given).key_by("k").aggregate(most=ps.max("i")).write(sink)

    run(program)
    assert [(row["most"], row["row_kind"]) for row in sink.changes] == [
        (5, INSERT),
        (5, UPDATE_BEFORE),
        (7, UPDATE_AFTER),
    ]


BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TYPES = {
    "decimal(12,3)": [decimal.Decimal(n) / 8 for n in (5, -3, 12, 12, 0)],
    "decimal(30,2)": [decimal.Decimal(n) for n in (5, -3, 10**25, 12, 0)],
    "boolean": [True, False, True, True, False],
    "timestamp": [BASE + datetime.timedelta(days=n) for n in (5, -3, 12, 12, 0)],
    "date": [(BASE + datetime.timedelta(days=n)).date() for n in (5, -3, 12, 12, 0)],
    "string": ["b", "", "z", "\u00e9", "b"],
    "tinyint": [5, -128, 127, 0, 0],
    "float": [0.5, -2.0, 8.0, math.inf, 0.25],
}


@pytest.mark.parametrize("kind", TYPES)
def test_the_least_and_the_greatest_value_of_every_type_that_has_an_order(kind):
    values, first, second = TYPES[kind], ps.collect(), ps.collect()
    script = [row for n, v in enumerate(values) for row in ({"k": n % 2, "v": v}, pause(60), {"k": n % 2, "v": None})]

    def program(env):
        given = env.read(scripted(script, schema=f"k int, v {kind}"))
        extremes = given.key_by("k").aggregate(low=ps.min("v"), high=ps.max("v"))
        extremes.write(first)
        extremes.aggregate(low=ps.min("low"), high=ps.max("high"), n=ps.count_distinct("high")).write(second)

    run(program, crashes=1)
    expected = {n: (min(values[n::2]), max(values[n::2])) for n in (0, 1)}
    assert {row["k"]: (row["low"], row["high"]) for row in first.rows} == expected
    (row,) = second.rows
    assert (row["low"], row["high"]) == (min(values), max(values))
    assert row["n"] == len({high for _, high in expected.values()})
    check_changes(first.changes, ["k"])


def test_a_sum_that_does_not_fit_fails_the_job():
    given = [{"k": 1, "i": 2**62}, pause(100), {"k": 1, "i": 2**62}]
    with pytest.raises(Exception, match="does not fit"):
        run(lambda env: env.read(scripted(given)).key_by("k").aggregate(s=ps.sum("i")).write(ps.collect()))


def test_first_and_last_are_taken_of_event_time():
    start = datetime.datetime(2026, 1, 1)  # noqa: DTZ001  # timestamps without a time zone
    rows = [{"k": 1, "s": "x" * n, "ts": start + datetime.timedelta(seconds=n)} for n in (3, 1, 9, 2)]

    def program(env):
        timed = env.from_iterable(rows, schema="k int, s string, ts timestamp_ntz").watermark("ts")
        timed.key_by("k").aggregate(first=ps.first("s"), last=ps.last("s")).write(ps.collect())

    assert run(program, crashes=1) == [{"k": 1, "first": "x", "last": "x" * 9}]


# --- changelogs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_an_aggregate_of_an_aggregate_is_exact(seed):
    rows, sink = some_rows(seed, 120, keys=12), ps.collect()

    def program(env):
        given = env.read(scripted(rows[:50], rows[50:], schema=SCHEMA))
        firsts = given.key_by("k").aggregate(
            i=ps.sum("i"), x=ps.max("x"), s=ps.max("s"), b=ps.any("b"), size=ps.count("i")
        )
        firsts.with_columns(size="size % 4").key_by("size").aggregate(**CALLS).write(sink)

    run(program, seed=seed, crashes=seed % 4, parallelism=1 + seed % 3)
    check_changes(sink.changes, ["size"])
    firsts = []
    for group in by_key(rows).values():
        row = expected_row(group)
        flags = row["any_b"]
        last = max((r["s"] for r in group if r["s"] is not None), default=None)
        firsts.append({"i": row["i_sum"], "x": row["most"], "s": last, "b": flags, "size": row["some"] % 4})
    check(sink.rows, {key: expected_row(group) for key, group in by_key(firsts, "size").items()}, "size")


def test_a_key_that_no_row_is_left_of_is_deleted():
    sink = ps.collect()

    def program(env):
        given = scripted([{"w": "a"}, pause(200), {"w": "a"}, pause(200), {"w": "b"}])
        counts = env.read(given).key_by("w").aggregate(n=ps.count())
        counts.key_by("n").aggregate(words=ps.count(), some=ps.collect_list("w")).write(sink)

    run(program, parallelism=1)
    changes = [(row["n"], row["words"], row["some"], row["row_kind"]) for row in sink.changes]
    assert sorted(changes, key=str) == sorted(
        [(1, 1, ["a"], INSERT), (1, 1, ["a"], DELETE), (2, 1, ["a"], INSERT), (1, 1, ["b"], INSERT)], key=str
    )
    assert sorted(row["n"] for row in sink.rows) == [1, 2]


def test_a_condition_between_two_aggregates_takes_rows_in_and_out():
    rows, sink = [{"w": n % 7} for n in range(60)], ps.collect()

    def program(env):
        counts = env.from_iterable(rows).key_by("w").aggregate(n=ps.count())
        counts.where("n % 2 = 0").aggregate(words=ps.count(), n=ps.sum("n")).write(sink)

    run(program, crashes=2, seed=3)
    counts = [60 // 7 + (w < 60 % 7) for w in range(7)]
    even = [n for n in counts if n % 2 == 0]
    assert sink.rows == [{"words": len(even), "n": sum(even)}]


def test_the_union_of_two_changelogs_can_be_aggregated():
    def program(env):
        one = env.from_iterable(["a", "b", "a"], schema="w string", name="first").key_by("w").aggregate(n=ps.count())
        two = env.from_iterable(["b", "b", "c"], schema="w string").key_by("w").aggregate(n=ps.count()).name("two")
        one.union(two).key_by("w").aggregate(n=ps.sum("n")).write(ps.collect())

    assert sorted((row["w"], row["n"]) for row in run(program, crashes=2)) == [("a", 2), ("b", 3), ("c", 1)]


# --- time to live ----------------------------------------------------------------------------------------------------


def test_a_key_that_has_been_silent_for_its_time_to_live_begins_anew():
    sink = ps.collect()

    def program(env):
        given = scripted([{"k": "a"}, pause(100), {"k": "a"}, {"k": "b"}, pause(5_000), {"k": "a"}])
        env.read(given).key_by("k").aggregate(n=ps.count(), ttl="2s").write(sink)

    run(program)
    of_a = [(row["n"], row["row_kind"]) for row in sink.changes if row["k"] == "a"]
    assert of_a == [(1, INSERT), (1, UPDATE_BEFORE), (2, UPDATE_AFTER), (1, INSERT)]
    assert sorted((row["k"], row["n"]) for row in sink.rows) == [("a", 1), ("b", 1)]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (lambda s: s.key_by("k").aggregate(), "at least one aggregate"),
        (lambda s: s.key_by("k").aggregate(k=ps.count()), "two columns named 'k'"),
        (lambda s: s.key_by("k").aggregate(row_kind=ps.count()), "'row_kind' of their own"),
        (lambda s: s.key_by("k").aggregate(n=ps.sum("s")), "has no sum"),
        (lambda s: s.key_by("k").aggregate(n=ps.sum("ii")), "did you mean 'i'"),
        (lambda s: s.key_by("k").aggregate(n=ps.first("i")), "needs event time"),
        (lambda s: s.key_by("k").aggregate(n=ps.count(), ttl="never"), "ttl"),
        (lambda s: s.key_by("k").aggregate(n=ps.count(), ttl=ps.ttl("1s", on="read-and-write")), "give a duration"),
        (lambda s: s.key_by("k").aggregate(n=3), "is no aggregate"),
        (
            lambda s: s.key_by("k").aggregate(n=ps.count()).aggregate(d=ps.approx_count_distinct("n")),
            "cannot take a record back.*count, sum, min",
        ),
        (
            lambda s: s.key_by("k").aggregate(n=ps.collect_list("i")).aggregate(d=ps.collect_list("n")),
            "cannot be taken back",
        ),
        (lambda s: s.key_by("k").aggregate(n=ps.count()).upserts().aggregate(n=ps.count()), "has left that out"),
        (lambda s: s.key_by("k").aggregate(n=ps.count()).write(ps.json("out")), "cannot change rows"),
    ],
)
def test_mistakes_are_found_when_the_program_is_built(program, told):
    with pytest.raises(UsageError, match=f"(?s){told}"):
        run(lambda env: program(env.from_iterable(some_rows(1), schema=SCHEMA)))

"""Splits and side outputs: which record is in which stream, what the streams know, and what is refused."""

from __future__ import annotations

import copy

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.core.errors import UsageError
from penstock.testing import run

ROWS = [{"n": n, "level": "ERROR" if n % 5 == 0 else None if n % 7 == 0 else "INFO"} for n in range(60)]


def parts_of(split, rows=ROWS, *, schema="n bigint, level string", **how):
    """The numbers in each part that `split` makes of a stream of `rows`, by the name of the part."""
    sinks = {}

    def program(env):
        for name, part in split(env.from_iterable(rows, schema=schema)).items():
            sinks[name] = ps.collect()
            part.write(sinks[name])

    run(program, **how)
    return {name: sorted(row["n"] for row in sink.rows) for name, sink in sinks.items()}


# --- split -----------------------------------------------------------------------------------------------------------


def test_a_record_goes_to_the_first_condition_that_is_true_and_otherwise_to_the_rest():
    found = parts_of(lambda stream: stream.split(errors="level = 'ERROR'", early="n < 20"))
    assert found == {
        "errors": list(range(0, 60, 5)),
        "early": [n for n in range(20) if n % 5],
        "rest": [n for n in range(20, 60) if n % 5],
    }


def test_a_condition_that_is_null_is_not_true():
    found = parts_of(lambda stream: stream.split(other="level <> 'ERROR'"))
    nulls = [n for n in range(60) if n % 7 == 0 and n % 5]
    assert sorted(set(found["rest"]) - set(range(0, 60, 5))) == nulls
    assert found["other"] == [n for n in range(60) if n % 5 and n % 7]


def test_conditions_may_be_polars_expressions():
    assert parts_of(lambda stream: stream.split(few=pl.col("n") < 3))["few"] == [0, 1, 2]


@settings(max_examples=10, deadline=None)
@given(numbers=st.lists(st.integers(-5, 5), max_size=30), bounds=st.lists(st.integers(-6, 6), min_size=1, max_size=4))
def test_every_record_is_in_exactly_one_part(numbers, bounds):
    rows = [{"n": n, "level": "x"} for n in numbers]
    found = parts_of(lambda stream: stream.split(**{f"p{i}": f"n < {bound}" for i, bound in enumerate(bounds)}), rows)
    assert sorted(n for part in found.values() for n in part) == sorted(numbers)
    for i, bound in enumerate(bounds):
        assert found[f"p{i}"] == sorted(n for n in numbers if n < bound and all(n >= b for b in bounds[:i]))


@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_in_one_part_once_whatever_dies(seed):
    found = parts_of(lambda stream: stream.split(errors="level = 'ERROR'", early="n < 20"), seed=seed, crashes=3)
    assert sorted(n for part in found.values() for n in part) == list(range(60))


def test_a_part_is_a_stream_like_any_other():
    def program(env):
        parts = env.from_iterable(ROWS, schema="n bigint, level string").split(even="n % 2 = 0", fives="n % 5 = 0")
        both = parts.even.rebalance().select("n", kind="'even'").union(parts.fives.select("n", kind="'five'"))
        both.key_by("kind").reduce(lambda a, b: {**b, "n": a["n"] + b["n"]}).write(ps.collect())

    last = {row["kind"]: row["n"] for row in run(program)}
    assert last == {"even": sum(range(0, 60, 2)), "five": sum(n for n in range(0, 60, 5) if n % 2)}


def test_parts_that_nothing_reads_are_left_out():
    found = parts_of(lambda stream: {"errors": stream.split(errors="level = 'ERROR'", early="n < 20").errors})
    assert found == {"errors": list(range(0, 60, 5))}


def test_a_part_can_be_looked_at():
    seen = []

    def program(env):
        parts = env.from_iterable(ROWS, schema="n bigint, level string").split(few="n < 3")
        seen.append(sorted(row["n"] for row in parts.few.collect()))
        parts.rest.write(ps.collect())

    run(program)
    assert seen == [[0, 1, 2]]


def test_a_part_may_be_the_broadcast_side_of_a_connection():
    class Known(ps.KeyedBroadcastFunction):
        rules = ps.broadcast_state("rules", key="bigint", value="bigint")

        def on_broadcast(self, row, context):
            self.rules.set(row["n"], 1)

        def on_row(self, row, context):
            return {"n": row["n"], "known": len(list(self.rules.items()))}

    def program(env):
        parts = env.from_iterable(ROWS, schema="n bigint, level string").split(rules="n < 10")
        joined = parts.rest.key_by("n").connect(parts.rules, wait="end")
        joined.process(Known(), schema="n bigint, known bigint").write(ps.collect())

    assert sorted((row["n"], row["known"]) for row in run(program)) == [(n, 10) for n in range(10, 60)]


def test_parts_keep_the_event_time(bids):
    parts = bids.watermark("ts").split(high="price > 100")
    for part in (parts.high, parts.rest):
        assert part.schema == bids.schema
        part.key_by("auction").window(ps.tumbling("1s"))


def test_a_step_behind_a_part_has_an_id_with_the_name_of_the_part(program, bids, make_sink):
    parts = bids.watermark("ts").split(high="price > 100", low="price < 10")
    for name, part in parts.items():
        counts = part.key_by("auction").window(ps.tumbling("1s")).aggregate(n=ps.count())
        counts.write(make_sink(), name=f"to {name}")
    ids = {operator.operator for vertex in program.plan().vertices for operator in vertex.operators}
    assert {"bids.window-auction", "bids.high.window-auction", "bids.low.window-auction"} <= ids


def test_parts_say_what_they_are(bids):
    parts = bids.split(high="price > 100")
    assert (list(parts), len(parts), "high" in parts, "low" in parts) == (["high", "rest"], 2, True, False)
    assert repr(parts) == "<Parts high, rest>"
    assert dir(parts) == ["high", "rest"]
    assert repr(parts.high).startswith("<Stream 'high' of 'split': auction")
    assert parts["high"] is parts.high
    assert list(copy.copy(parts)) == ["high", "rest"]


@pytest.mark.parametrize("look", [lambda parts: parts.hihg, lambda parts: parts["hihg"]])
def test_a_part_that_does_not_exist_is_refused_with_the_likely_name(bids, look):
    with pytest.raises(UsageError, match="there is no part 'hihg'; there are high, low, rest") as caught:
        look(bids.split(high="price > 100", low="price < 10"))
    assert caught.value.hint == "did you mean 'high'?"


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ({}, "at least one condition"),
        ({"rest": "price > 1"}, "rest is the part with the records that are in no other part"),
        ({"_x": "price > 1"}, "'_x' cannot be the name"),
        ({"high": "price"}, "condition 'high' 'price' is of type int64, and a condition must be boolean"),
        ({"high": "prise > 1"}, "prise"),
    ],
)
def test_a_split_that_cannot_work_is_refused_where_it_is_written(bids, conditions, text):
    with pytest.raises(UsageError, match=text):
        bids.split(**conditions)


def test_a_split_of_which_no_part_is_used_is_refused(program, bids):
    bids.split(high="price > 100")
    with pytest.raises(UsageError, match="nothing is done with the results of 'split'"):
        program.plan()

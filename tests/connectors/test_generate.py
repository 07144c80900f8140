"""Rows that a function makes from their numbers: each number once, at the rate that was asked for."""

from __future__ import annotations

import itertools
import random
import threading

import cloudpickle
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.connector import End, Pause, UserCodeRaised
from penstock.core.errors import UsageError
from penstock.testing import collect, run

NUMBERS = "n bigint"


def numbers(first, count):
    return {"n": np.arange(first, first + count)}


def drain(source, splits, max_rows=1000):
    reader, rows = source.open(splits), []
    while not isinstance(polled := reader.poll(max_rows, 0), End):
        rows += polled.to_pylist()
    return rows


@given(st.integers(0, 300), st.integers(1, 12), st.sampled_from([None, 1, 5000]), st.integers(0, 2**32))
def test_every_number_is_made_once_whatever_is_restored(rows, parallelism, rate, seed):
    chance = random.Random(seed)
    source = cloudpickle.loads(cloudpickle.dumps(ps.generate(numbers, schema=NUMBERS, rows=rows, rate=rate)))
    left, read, now_ms = source.splits(parallelism), [], 0
    while left:
        parallelism = chance.randint(1, 4)
        readers = [source.open(left[i::parallelism]) for i in range(parallelism)]
        for _ in range(chance.randint(1, 30)):
            now_ms += chance.randint(0, 2000)
            polled = chance.choice(readers).poll(chance.randint(1, 40), now_ms)
            if isinstance(polled, pa.RecordBatch):
                assert polled.num_rows
                read += polled.column("n").to_pylist()
        left = list(itertools.chain(*(reader.snapshot() for reader in readers)))
    assert sorted(read) == list(range(rows))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_all_subtasks_together_keep_the_rate_and_the_order(parallelism):
    source = ps.generate(numbers, schema=NUMBERS, rate=2000)
    parts = source.splits(parallelism)
    readers = [source.open(parts[i::parallelism]) for i in range(parallelism)]
    read = []
    for now_ms in range(1001):
        for reader in readers:
            while not isinstance(polled := reader.poll(100, now_ms), Pause):
                read += polled.column("n").to_pylist()
            assert polled.wait_ms >= 1
    assert sorted(read) == list(range(2000))
    first_half = read[:1000]
    assert max(first_half) < 1020


def test_rows_without_a_number_never_end():
    source = ps.generate(numbers, schema=NUMBERS)
    reader = source.open(source.splits(1))
    read = [n for _ in range(50) for n in reader.poll(10_000, 0).column("n").to_pylist()]
    assert read == list(range(len(read)))


@pytest.mark.parametrize(
    "function",
    [
        lambda first, count: {"s": ["x"] * count, "n": range(first, first + count)},
        lambda first, count: pa.table({"n": pa.array(range(first, first + count), pa.int32()), "s": ["x"] * count}),
        lambda first, count: pa.record_batch({"n": list(range(first, first + count)), "s": ["x"] * count}),
        lambda first, count: pl.DataFrame({"n": range(first, first + count), "s": ["x"] * count}),
        lambda first, count: pd.DataFrame({"n": range(first, first + count), "s": ["x"] * count}),
        lambda first, count: {"n": np.arange(first, first + count, dtype=np.int32), "s": np.array(["x"] * count)},
    ],
)
def test_the_function_may_return_columns_of_any_kind(function):
    source = ps.generate(function, schema="n bigint, s string", rows=5)
    found = drain(source, source.splits(2))
    assert sorted(row["n"] for row in found) == list(range(5))
    assert {row["s"] for row in found} == {"x"}


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (5, {}, "takes a function, not 5"),
        (lambda: None, {}, r"raised TypeError for function\(0, 1\)"),
        (lambda first, count: None, {}, r"returned, for function\(0, 1\), a NoneType"),
        (lambda first, count: {"m": [1]}, {}, "the columns m; the schema has n"),
        (lambda first, count: {"n": [1, 2]}, {}, "2 values in column 'n'; there must be 1"),
        (lambda first, count: {"n": ["x"]}, {}, "'n' that does not fit the type int64"),
        (lambda first, count: {"n": np.array([1.5])}, {}, "'n' that does not fit the type int64"),
        (lambda first, count: {"n": [1.5]}, {}, r"'n' that does not fit the type int64: value 0 is 1.5 \(float\)"),
        (lambda first, count: {"n": np.array([1.5], object)}, {}, "int64 takes no float"),
        (lambda first, count: {"n": [None]}, {"schema": "n int NOT NULL"}, "nulls in column 'n'"),
        (numbers, {"rate": 0}, "rate is 0; give a whole number from 1"),
        (numbers, {"rows": -1}, "rows is -1"),
        (numbers, {"rows": 1.5}, "rows is 1.5"),
        (numbers, {"schema": "n"}, "schema"),
    ],
)
def test_mistakes_are_told_when_the_program_is_written(function, options, text):
    with pytest.raises(UsageError, match=text):
        ps.generate(function, **({"schema": NUMBERS} | options))


def test_a_function_that_cannot_be_sent_is_refused():
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to the workers"):
        ps.generate(lambda first, count: {"n": [lock]}, schema=NUMBERS)


def test_a_function_that_gives_another_row_after_a_failure_is_refused():
    before = ps.generate(numbers, schema=NUMBERS, rows=100)
    reader = before.open(before.splits(1))
    reader.poll(5, 0)
    places = reader.snapshot()
    assert sorted(row["n"] for row in drain(before, places)) == list(range(5, 100))
    changed = ps.generate(lambda first, count: {"n": np.arange(first, first + count) + 1}, schema=NUMBERS, rows=100)
    with pytest.raises(UsageError, match="did not give the same row again: row 4 differs now"):
        drain(changed, places)


def test_what_the_function_raises_is_the_users_error():
    def rows(first, count):
        if first:
            raise KeyError("gone")
        return numbers(first, count)

    source = ps.generate(rows, schema=NUMBERS, rows=100)
    with pytest.raises(UserCodeRaised, match=r"ps.generate for function\(5, 5\)"):
        drain(source, source.splits(1), max_rows=5)


# A run reads at most 1,000 rows at a time: so many rows are read in many steps, with checkpoints between them.
COUNT = 40_000


@pytest.mark.parametrize("seed", range(24))
def test_generated_rows_come_out_once_whoever_dies(seed):
    source = ps.generate(numbers, schema=NUMBERS, rows=COUNT, rate=None if seed % 2 else 400_000)
    found = run(lambda env: env.read(source).write(collect()), seed=seed, crashes=2, checkpoint_interval="10ms")
    assert sorted(row["n"] for row in found) == list(range(COUNT))


def test_sources_that_may_never_end_say_so(tmp_path):
    def numbers(first, count):
        return {"n": np.arange(first, first + count)}

    (tmp_path / "a.txt").write_text("line\n")
    assert ps.generate(numbers, schema="n bigint").is_unbounded
    assert ps.files(tmp_path, format="text", follow=True).is_unbounded
    assert ps.socket("127.0.0.1", 9).is_unbounded
    assert not ps.generate(numbers, schema="n bigint", rows=5).is_unbounded
    assert not ps.files(tmp_path, format="text").is_unbounded

"""Rows of the program itself: what is taken for a row, what is told of rows that do not fit, and who reads which."""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading
from collections import namedtuple
from datetime import UTC, datetime
from decimal import Decimal

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

import penstock as ps
from penstock.api.connector import End, Pause, UserCodeRaised
from penstock.api.fetching import ROWS_AHEAD, Fetcher
from penstock.api.iterables import iterable_source
from penstock.sql.ddl import TIMESTAMP
from penstock.testing import collect, run

LIMIT_S = 60


@dataclasses.dataclass
class Word:
    word: str
    n: int


Named = namedtuple("Named", ["word", "n"])  # what people have


def drained(source, parallelism=2, max_rows=7):
    parts = source.splits(parallelism)
    rows = []
    for subtask in range(parallelism):
        reader = source.open(parts[subtask::parallelism])
        rows += drain(reader, max_rows)
        reader.close()
    return rows


def drain(reader, max_rows=7, limit=None):
    """The rows until the end, or until there are `limit` rows."""
    rows, waiting = [], threading.Event()
    while limit is None or len(rows) < limit:
        polled = reader.poll(max_rows if limit is None else min(max_rows, limit - len(rows)), 0)
        if isinstance(polled, End):
            break
        if isinstance(polled, Pause):
            waiting.wait(0.001)
        else:
            rows += polled.to_pylist()
    return rows


# --- what is a row ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [{"word": "to", "n": 1}, {"word": "be", "n": 2}],
        [Word("to", 1), Word("be", 2)],
        [Row(word="to", n=1), Row(word="be", n=2)],
        [Named("to", 1), Named("be", 2)],
        ({"word": word, "n": n} for word, n in (("to", 1), ("be", 2))),
    ],
)
def test_columns_of_rows_with_names_are_told_from_the_rows(rows):
    source = iterable_source(rows, None)
    assert source.schema == pa.schema([("word", pa.string()), ("n", pa.int64())])
    assert drained(source) == [{"word": "to", "n": 1}, {"word": "be", "n": 2}]


@pytest.mark.parametrize(
    "rows",
    [
        [("to", 1), ("be", 2)],
        [["to", 1], ["be", 2]],
        [Row("to", 1), {"n": 2, "word": "be"}],
        [Word("to", 1), ("be", 2)],
    ],
)
def test_rows_without_names_are_taken_in_the_order_of_the_schema(rows):
    source = iterable_source(rows, "word string, n int")
    assert drained(source) == [{"word": "to", "n": 1}, {"word": "be", "n": 2}]
    assert source.schema.field("n").type == pa.int32()


def test_a_single_column_takes_single_values():
    assert drained(iterable_source(["to", None, ("be",)], "word string")) == [{"word": w} for w in ("to", None, "be")]
    assert drained(iterable_source(range(3), {"n": int})) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert drained(iterable_source([[1, 2], []], "tags array<int>")) == [{"tags": [1, 2]}, {"tags": []}]


def test_a_column_that_a_dict_leaves_out_is_null():
    assert drained(iterable_source([{"a": 1}, {"b": 2}], None)) == [{"a": 1, "b": None}, {"a": None, "b": 2}]


def test_times_are_told_as_utc():
    moment = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001  # as people write it
    source = iterable_source([{"at": moment}], None)
    assert source.schema.field("at").type == TIMESTAMP
    assert drained(source) == [{"at": moment.replace(tzinfo=UTC)}]


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "schema", "text", "hint"),
    [
        ([], None, "no rows to tell the columns from", "schema"),
        ([("to", 1)], None, r"row 0 is \('to', 1\) \(tuple\), which has no names", "give dicts, or a schema"),
        ([{"a": 1}, {"a": "x"}, {"a": 2}], None, r"'a' cannot be told: row 1 has 'x' \(str\)", "schema"),
        ([{"a": 1, "b": None}], None, "'b' cannot be told: no row has a value", "type of 'b'"),
        ([{"a": [[]]}], None, "'a' cannot be told", "schema"),
        ([{1: 2}], None, "row 0 has a column named 1", None),
        ([{"a": 1}, {"b": 1}], "a int", "row 1: there is no column 'b'", None),
        ([{"word": 1}, {"words": 1}], "word int", "row 1: there is no column 'words'", "'word'"),
        ([(1, "x"), (2, 3)], "a int, b string", r"row 1 has 3 \(int\) in column 'b', which is of type string", "mend"),
        ([{"a": 1}, {"a": 2.5}], "a int", r"row 1 has 2.5 \(float\) in column 'a', which is of type int32", "mend"),
        ([{"at": 1}, {"at": 1.5}], "at timestamp", r"row 1 has 1.5 \(float\) in column 'at'", "mend"),
        ([datetime(2026, 1, 2, tzinfo=UTC)], "day date", "row 0 has datetime.datetime", "mend"),
        ([{"a": 2**40}], "a int", r"row 0 has 1099511627776 \(int\) in column 'a'", "mend"),
        ([{"a": Decimal("1.234")}], "a decimal(3, 1)", r"row 0 has Decimal\('1.234'\)", "mend"),
        ([(1,)], "a int, b int", "row 0 has 1 values, and the schema has 2 columns: a, b", "None is null"),
        ([5], "a int, b int", r"row 0 is 5 \(int\); a row needs values for a, b", "tuple"),
        ([{"a": 1}, {"a": None}], "a int NOT NULL", "row 1 has no value in column 'a'", "NOT NULL"),
        ("to be", "word string", "takes rows, and got a str", "list of rows"),
        ({"a": [1]}, "a int", "takes rows, and got a dict", "list of rows"),
        (pa.table({"a": [1]}), None, "got a Table", "to_pylist"),
        (lambda: iter(()), None, "needs a schema", "schema="),
        (lambda first: iter(()), "a int", "called without arguments", "partial"),
        (5, "a int", "takes a function, not 5", None),
    ],
)  # fmt: skip
def test_mistakes_are_told_when_the_program_is_written(program, rows, schema, text, hint):
    with pytest.raises(ps.UsageError, match=text) as raised:
        program.from_iterable(rows, schema=schema)
    assert (hint or "") in (raised.value.hint or "")
    assert len(raised.traceback) == 2


def test_an_async_function_is_refused(program):
    async def rows():
        yield 1

    with pytest.raises(ps.UsageError, match="is async"):
        program.from_iterable(rows, schema="n int")


def test_a_function_that_cannot_be_sent_is_refused(program):
    lock = threading.Lock()
    with pytest.raises(ps.UsageError, match="cannot be sent to the workers"):
        program.from_iterable(lambda: iter([lock]), schema="n int")


# --- who reads which -------------------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(1, 5), st.integers(0, 2**32))
def test_every_row_of_a_list_is_read_once_whatever_is_restored(count, parallelism, seed):
    chance = random.Random(seed)
    source = cloudpickle.loads(cloudpickle.dumps(iterable_source(range(count), "n bigint")))
    parts = source.splits(parallelism)
    assert len(parts) == min(count, parallelism)
    read, left = [], parts
    while left:
        parallelism = chance.randint(1, 4)
        readers = [source.open(left[i::parallelism]) for i in range(parallelism)]
        for _ in range(chance.randint(1, 12)):
            reader = chance.choice(readers)
            if not isinstance(polled := reader.poll(chance.randint(1, 9), 0), End):
                read += polled.column("n").to_pylist()
                progress = reader.progress()
                assert list(progress.open) == list(progress.ready)
        left = list(itertools.chain(*(reader.snapshot() for reader in readers)))
    assert sorted(read) == list(range(count))


def test_a_job_does_not_go_on_with_another_list():
    before = iterable_source([{"n": n} for n in range(10)], None)
    reader = before.open(before.splits(1))
    reader.poll(3, 0)
    for changed in ([{"n": n} for n in range(11)], [{"n": n + 1} for n in range(10)], [{"m": n} for n in range(10)]):
        with pytest.raises(ps.UsageError, match="not the rows that the job began with: rows 3 to 9"):
            iterable_source(changed, None).open(reader.snapshot())
    same = iterable_source(({"n": n} for n in range(10)), None)
    assert drain(same.open(reader.snapshot())) == [{"n": n} for n in range(3, 10)]


def test_a_function_is_read_by_one_subtask_and_again_from_its_position():
    source = cloudpickle.loads(cloudpickle.dumps(iterable_source(lambda: iter(range(5000)), "n bigint")))
    (part,) = source.splits(4)
    assert source.open([]).poll(5, 0) == End()
    reader = source.open([part])
    first = drain(reader, limit=3210)
    places = reader.snapshot()
    reader.close()
    again = source.open(places)
    assert again.snapshot() == places
    rest = drain(again, max_rows=1000)
    assert again.snapshot() == []
    assert [row["n"] for row in first + rest] == list(range(5000))


@pytest.mark.parametrize(
    ("after", "text"),
    [(lambda n: -n, "row 9 differs now"), (None, "the function now ends after 4 rows")],
)
def test_a_function_that_gives_other_rows_after_a_failure_is_refused(after, text):
    schema = "n bigint"
    reader = (before := iterable_source(lambda: iter(range(100)), schema)).open(before.splits(1))
    drain(reader, limit=10)
    places = reader.snapshot()
    reader.close()
    changed = (lambda: iter(range(4))) if after is None else (lambda: map(after, range(100)))
    with pytest.raises(ps.UsageError, match=text) as raised:
        drain(iterable_source(changed, schema).open(places))
    assert "10 rows were handed on" in str(raised.value)


def test_a_function_that_blocks_does_not_hold_up_the_loop_and_is_not_read_far_ahead():
    given_rows, go_on = [0], threading.Event()

    def rows():
        yield 1
        assert go_on.wait(LIMIT_S)
        for n in itertools.count(2):
            given_rows[0] = n
            yield n

    # The function of a source is pickled: the test could not look into its copy.
    reader = Fetcher(rows, name="test")
    taken = []
    while not taken:
        taken = reader.take(5) or []
    assert (taken, reader.take(5), reader.has_ended) == ([1], None, False)
    go_on.set()
    waiting = threading.Event()
    while given_rows[0] < ROWS_AHEAD:
        waiting.wait(0.001)
    assert given_rows[0] <= ROWS_AHEAD + 2
    reader.close()
    while not reader.has_ended:
        waiting.wait(0.001)


def test_what_a_function_raises_comes_after_its_rows_as_the_users_error():
    def rows():
        yield 1
        raise KeyError("gone")

    source = iterable_source(rows, "n bigint")
    reader = source.open(source.splits(1))
    assert drain(reader, limit=1) == [{"n": 1}]
    with pytest.raises(UserCodeRaised, match="the function of from_iterable") as raised:
        drain(reader)
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_row_of_a_function_that_does_not_fit_is_named():
    source = iterable_source(lambda: iter([1, 2, "three"]), "n bigint")
    with pytest.raises(ps.UsageError, match=r"row 2 has 'three' \(str\) in column 'n'"):
        drain(source.open(source.splits(1)), max_rows=2)


@pytest.mark.parametrize("wrong", [None, "text", 5])
def test_a_function_that_returns_no_iterator_is_refused(wrong):
    source = iterable_source(lambda: wrong, "n bigint")
    with pytest.raises(ps.UsageError, match=f"returned a {type(wrong).__name__}"):
        drain(source.open(source.splits(1)))


# --- in a job --------------------------------------------------------------------------------------------------------


# A run reads at most 1,000 rows at a time: so many rows are read in many steps, with checkpoints between them.
COUNT = 40_000


@pytest.mark.parametrize("seed", range(24))
def test_rows_of_a_list_come_out_once_whoever_dies(seed):
    def program(env):
        env.from_iterable(range(COUNT), schema="n bigint").where("n >= 0").write(collect())

    found = run(program, seed=seed, crashes=2, checkpoint_interval="10ms")
    assert sorted(row["n"] for row in found) == list(range(COUNT))


@pytest.mark.parametrize("seed", range(24))
def test_rows_of_a_function_come_out_once_and_in_order_whoever_dies(seed):
    def program(env):
        env.from_iterable(lambda: iter(range(COUNT)), schema="n bigint", name="numbers").write(collect())

    found = run(program, seed=seed, crashes=2, checkpoint_interval="10ms")
    assert [row["n"] for row in found] == list(range(COUNT))


def test_a_job_fails_with_what_the_function_raised():
    def rows():
        yield 1
        raise KeyError("gone")

    def program(env):
        env.from_iterable(rows, schema="n bigint", name="numbers").write(collect())

    with pytest.raises(ps.JobFailed, match="in 'numbers', subtask") as raised:
        run(program)
    assert "gone" in str(raised.value)


def test_a_run_leaves_no_thread_of_a_process_that_died(monkeypatch):
    started, begin = [], threading.Thread.start

    def remembering(thread):
        started.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", remembering)

    def program(env):
        env.from_iterable(lambda: iter(range(COUNT)), schema="n bigint").write(collect())

    run(program, crashes=2)
    own = [thread for thread in started if thread.name.startswith("penstock-read")]
    for thread in own:
        thread.join(LIMIT_S)
    assert len(own) >= 2
    assert not any(thread.is_alive() for thread in own)

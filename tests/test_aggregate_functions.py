"""Aggregates that users write, in whole jobs: exactly once whatever dies, and errors name the method."""

from __future__ import annotations

import datetime
from collections import Counter

import pytest

import penstock as ps
from penstock.api.program import Program
from penstock.api.steps import RunningStep
from penstock.runtime.task.operators.build import build_operator
from penstock.settings import JobSettings
from penstock.testing import collect, run, scripted

TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ROWS = [{"k": number % 3, "v": number, "ts": TIME + datetime.timedelta(seconds=number % 40)} for number in range(300)]
SCHEMA = "k bigint, v bigint, ts timestamp"


class Seen(ps.AggregateFunction):
    """How often each value was seen, as any Python object."""

    state_type = object
    result_type = "bigint"

    def create(self):
        return Counter()

    def add(self, state, row):
        state[row["v"]] += 1
        return state

    def merge(self, a, b):
        a.update(b)
        return a

    def result(self, state):
        assert set(state.values()) <= {1}, "no record is added twice"
        return len(state)


class SeenTyped(Seen):
    """The same number, with a state of a declared type, by batches."""

    state_type = "bigint"

    def create(self):
        return 0

    def add_batch(self, state, batch):
        return state + batch.num_rows

    def merge(self, a, b):
        return a + b

    def result(self, state):
        return state


def program(env, **aggregates):
    halves = ROWS[::2], ROWS[1::2]
    stream = env.read(scripted(*halves, schema=SCHEMA)).watermark("ts", delay="40s")
    stream.key_by("k").window(ps.tumbling("10s")).aggregate(**aggregates).write(collect())


@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_added_once_whatever_dies(seed):
    calls = {
        "seen": Seen("v"),
        "typed": SeenTyped("v"),
        "some": Seen("v", where="v % 2 = 0"),
        "none": Seen("v", where="v < 0"),
    }
    rows = run(lambda env: program(env, **calls), seed=seed, crashes=2)
    expected = Counter((row["k"], row["ts"].second // 10) for row in ROWS)
    even = Counter((row["k"], row["ts"].second // 10) for row in ROWS if row["v"] % 2 == 0)
    assert {(row["k"], row["window_start"].second // 10): row["seen"] for row in rows} == dict(expected)
    assert all(row["typed"] == row["seen"] and row["none"] == 0 for row in rows)
    assert {(row["k"], row["window_start"].second // 10): row["some"] for row in rows} == {
        place: even[place] for place in expected
    }


def raising(method):
    def broken(self, *args):
        raise ValueError(f"{method} is broken")

    return type("Broken", (Seen,), {method: broken})


@pytest.mark.parametrize("method", ["create", "add", "merge", "result"])
def test_an_error_of_a_method_names_the_class_and_the_error(method):
    with pytest.raises(ps.JobFailed) as caught:
        run(lambda env: program(env, x=raising(method)("v")))
    assert f"of Broken raised ValueError: {method} is broken" in str(caught.value)


def test_a_method_that_returns_no_state_is_told_so():
    forgetful = type("Forgetful", (Seen,), {"add": lambda self, state, row: None})
    with pytest.raises(ps.JobFailed, match="the method returned None instead of the state"):
        run(lambda env: program(env, x=forgetful("v")))


def test_a_result_that_does_not_fit_its_type_is_told_so():
    wrong = type("Wrong", (Seen,), {"result": lambda self, state: "many"})
    with pytest.raises(ps.JobFailed, match="result of Wrong raised"):
        run(lambda env: program(env, x=wrong("v")))


def test_a_result_that_would_be_cut_is_refused_with_the_value():
    halved = type("Halved", (Seen,), {"result": lambda self, state: 2.5})
    said = r"result of Halved raised TypeError: the result of aggregate 'x' must be of type int64; got 2.5 \(float\)"
    with pytest.raises(ps.JobFailed, match=said):
        run(lambda env: program(env, x=halved("v")))


@pytest.mark.parametrize("method", ["add_batch", "merge"])
def test_a_state_that_would_be_cut_is_refused_with_the_value(method):
    halved = type("Halved", (SeenTyped,), {method: lambda self, *given: 2.5})
    with pytest.raises(ps.JobFailed, match=r"the state of aggregate 'x' must be of type int64; got 2.5 \(float\)"):
        run(lambda env: program(env, x=halved("v")))


@pytest.mark.parametrize(("function", "by_row"), [(Seen, True), (SeenTyped, False), (None, False)])
@pytest.mark.parametrize(
    "aggregated",
    [
        lambda stream: stream.key_by("k").window(ps.tumbling("10s")),
        lambda stream: stream.key_by("k").window(ps.session("10s")),
        lambda stream: stream.window(ps.sliding("20s", "10s")),
        lambda stream: stream.key_by("k"),
    ],
    ids=["tumbling", "session", "sliding", "running"],
)
@pytest.mark.parametrize("late", [False, True])
def test_records_are_cut_into_slices_for_add_and_not_for_add_batch(aggregated, function, by_row, late):
    env = Program(JobSettings())
    stream = aggregated(env.read(scripted(ROWS, schema=SCHEMA)).watermark("ts", delay="40s"))
    results = stream.aggregate(x=function("v") if function else ps.count())
    results.write(collect())
    if late and not hasattr(stream, "window"):  # running aggregates have no late records
        results.late().write(collect())
    steps = [operator.step for vertex in env.plan().vertices for operator in vertex.operators]
    # The second half of a running aggregate gets partials: `merge` is called with each of them.
    steps = [step for step in steps if not isinstance(step, RunningStep)]
    assert any(build_operator(step).is_row_wise for step in steps) is by_row

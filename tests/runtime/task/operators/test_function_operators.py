from __future__ import annotations

import sys

import polars as pl
import pyarrow as pa
import pytest

from penstock.api.steps import MapBatchesStep, MapStep
from penstock.core.errors import UsageError, UserCodeError
from penstock.runtime.task.slices import Slice

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
BATCH = pa.record_batch({"n": [1, 2, 3], "text": ["a", "b", None]}, schema=SCHEMA)


def run(rig, step, batch=BATCH):
    made = rig(step, subtask=1, parallelism=2)
    made.operator.process(batch)
    assert all(item.schema == step.schema for item in made.output.items)
    return made.output.rows


def batches(function, *, kind="arrow", schema=SCHEMA):
    return MapBatchesStep(function=function, kind=kind, schema=schema)


def rows(function, *, flat=False, schema=SCHEMA):
    return MapStep(function=function, flat=flat, schema=schema)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_function_over_arrow_batches(rig):
    assert run(rig, batches(lambda b: b.slice(1, 1))) == [{"n": 2, "text": "b"}]
    assert run(rig, batches(lambda b: pa.Table.from_batches([b, b]))) == BATCH.to_pylist() * 2


def test_a_function_over_polars_frames(rig):
    schema = pa.schema([("text", pa.string()), ("n", pa.int64())])
    found = run(rig, batches(lambda df: df.with_columns(pl.col("n") * 10), kind="polars", schema=schema))
    assert found == [{"text": "a", "n": 10}, {"text": "b", "n": 20}, {"text": None, "n": 30}]


def test_a_function_over_pandas_frames(rig):
    pytest.importorskip("pandas")
    found = run(rig, batches(lambda df: df.assign(n=df.n + 1), kind="pandas"))
    assert [row["n"] for row in found] == [2, 3, 4]
    with pytest.raises(UserCodeError, match="column 'n' must be of type int64; int64 takes no float"):
        run(rig, batches(lambda df: df.assign(n=[1, 2.5, None]).astype(object), kind="pandas"))


def test_pandas_that_is_not_there_is_said_when_the_operator_is_built(rig, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="needs pandas"):
        rig(batches(lambda df: df, kind="pandas"))


def test_nothing_and_several_are_results_too(rig):
    assert run(rig, batches(lambda b: None)) == []
    assert run(rig, batches(lambda b: [b.slice(0, 1), b.slice(2)])) == [BATCH.to_pylist()[0], BATCH.to_pylist()[2]]
    assert run(rig, batches(lambda b: (b.slice(i, 1) for i in (2, 0)))) == [BATCH.to_pylist()[2], BATCH.to_pylist()[0]]
    assert run(rig, batches(lambda b: b.slice(0, 0))) == []


def test_columns_may_come_in_any_order(rig):
    assert run(rig, batches(lambda b: b.select(["text", "n"]))) == BATCH.to_pylist()


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (lambda b: b.to_pylist(), "arrow", "expected a pyarrow RecordBatch or Table; got dict"),
        (lambda b: 5, "arrow", "expected a pyarrow RecordBatch or Table; got int"),
        (lambda b: b.select(["n"]), "arrow", "expected columns n: int64, text: string; got n: int64$"),
        (
            lambda b: b.set_column(0, "n", b.column(0).cast(pa.int32())),
            "arrow",
            "expected columns n: int64, text: string; got n: int32, text: string",
        ),
        (lambda df: df.to_arrow(), "polars", "expected a polars DataFrame; got pyarrow.lib.Table"),
        (
            lambda df: df.with_columns(pl.col("n").cast(pl.Float64)),
            "polars",
            "expected columns n: Int64, text: String; got n: Float64, text: String",
        ),
    ],
)
def test_a_wrong_result_says_what_was_expected_and_what_came(rig, function, kind, text):
    with pytest.raises(UserCodeError, match=text):
        run(rig, batches(function, kind=kind))


def test_an_unknown_kind_is_refused(rig):
    with pytest.raises(UsageError, match="kind 'numpy'"):
        rig(batches(lambda b: b, kind="numpy"))


# --- rows ------------------------------------------------------------------------------------------------------------


def test_a_function_from_row_to_row(rig):
    found = run(rig, rows(lambda row: {"text": row["text"], "n": row["n"] * 2}))
    assert [row["n"] for row in found] == [2, 4, 6]


def test_a_function_from_row_to_rows(rig):
    schema = pa.schema([("m", pa.int32())])
    found = run(rig, rows(lambda row: ({"m": i} for i in range(row["n"] - 1)), flat=True, schema=schema))
    assert found == [{"m": 0}, {"m": 0}, {"m": 1}]
    assert run(rig, rows(lambda row: [], flat=True, schema=schema)) == []


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_function_that_raises_stop_iteration_fails_instead_of_leaving_out_the_rows_behind(rig, number):
    """A call that is chained with others would otherwise end them all, even the last call."""

    def stops(row):
        return [row] if row["n"] != number else [next(iter(()))]

    with pytest.raises(UserCodeError, match="the function raised StopIteration"):
        run(rig, rows(stops, flat=True))


def test_calls_are_made_in_turn_each_behind_the_rows_of_the_call_before(rig):
    seen = []

    def noted(row):
        seen.append(("called", row["n"]))
        yield row
        seen.append(("read", row["n"]))

    run(rig, rows(noted, flat=True))
    assert seen == [(what, n) for n in (1, 2, 3) for what in ("called", "read")]


def test_calls_that_make_few_rows_are_not_cut_however_many_there_are(rig):
    made = rig(rows(lambda row: ({"n": n} for n in range(2)), flat=True, schema=pa.schema([("n", pa.int64())])))
    made.operator.slice = Slice()
    made.operator.slice.run_by(lambda: 1e9, 1)
    made.operator.slice.begin()
    assert made.operator.process(pa.record_batch({"n": list(range(500))})) is None
    assert [batch.num_rows for batch in made.output.items] == [1_000]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda row: None, "expected a dict with n, text; got None"),
        (lambda row: {"n": 1}, "expected a dict with n, text; got a dict with n$"),
        (lambda row: {"n": 1, "text": "", "x": 1}, "expected a dict with n, text; got a dict with n, text, x"),
        (lambda row: {"n": "one", "text": ""}, r"column 'n' must be of type int64; got 'one' \(str\)"),
        (lambda row: {"n": 2**70, "text": ""}, r"column 'n' must be of type int64; got 1180591620717411303424 \(int\)"),
        (lambda row: {"n": 2.5, "text": ""}, r"column 'n' must be of type int64; got 2.5 \(float\): int64 takes no"),
        (lambda row: {"n": 1, "text": 5}, r"column 'text' must be of type string; got 5 \(int\)"),
    ],
)
def test_a_wrong_row_says_what_was_expected_and_what_came(rig, function, text):
    with pytest.raises(UserCodeError, match=text):
        run(rig, rows(function))


# --- errors ----------------------------------------------------------------------------------------------------------


def deep_in_user_code(_):
    raise KeyError("user's mistake")


def fails_on_the_way(batch):
    yield batch
    deep_in_user_code(batch)


@pytest.mark.parametrize(
    "step",
    [
        batches(deep_in_user_code),
        batches(fails_on_the_way),
        batches(deep_in_user_code, kind="polars"),
        rows(deep_in_user_code),
        rows(deep_in_user_code, flat=True),
    ],
)
def test_what_user_code_raises_names_the_operator_and_shows_its_traceback(rig, step):
    with pytest.raises(UserCodeError) as caught:
        run(rig, step)
    error = caught.value
    assert (error.operator, error.subtask) == ("the step", 1)
    assert error.traceback_text.rstrip().endswith('KeyError: "user\'s mistake"')
    assert "deep_in_user_code" in error.traceback_text
    assert "_guarded" not in error.traceback_text
    assert isinstance(error.__cause__, KeyError)

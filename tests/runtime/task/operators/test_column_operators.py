from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.steps import SelectStep, UnionStep, WhereStep
from penstock.core.errors import UserCodeError

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("small", pa.int8()),
        ("ts", pa.timestamp("us", "UTC")),
        ("parts", pa.list_(pa.int32())),
    ]
)


def batch_of(numbers):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    texts = [None if n is None else f"t{n}" for n in numbers]
    rows = [{"n": n, "text": t, "small": 1, "ts": moment, "parts": [1, 2]} for n, t in zip(numbers, texts, strict=True)]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@given(st.lists(st.none() | st.integers(-5, 5), max_size=30))
def test_where_keeps_what_is_true_and_the_schema(rig, numbers):
    made = rig(WhereStep(condition=pl.col("n") > 0, schema=SCHEMA))
    made.operator.process(batch_of(numbers))
    assert [row["n"] for row in made.output.rows] == [n for n in numbers if n is not None and n > 0]
    assert all(item.schema == SCHEMA and item.num_rows for item in made.output.items)


def test_where_hands_on_the_batch_itself_if_all_is_true(rig):
    made = rig(WhereStep(condition=pl.col("n") > 0, schema=SCHEMA))
    batch = batch_of([1, 2])
    made.operator.process(batch)
    assert made.output.items[0] is batch


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (pl.lit(value=True), [1, None, 3]),
        (pl.lit(value=False), []),
        (pl.any_horizontal(pl.col("^n$", "small") > 2), [3]),
        (pl.col("n").is_null() | (pl.col("text") == "t1"), [1, None]),
        (pl.col("ts").dt.year() == 2026, [1, None, 3]),
    ],
)
def test_conditions_over_any_columns_or_none(rig, condition, kept):
    made = rig(WhereStep(condition=condition, schema=SCHEMA))
    made.operator.process(batch_of([1, None, 3]))
    assert [row["n"] for row in made.output.rows] == kept


def test_select_gives_exactly_the_columns_of_the_schema(rig):
    schema = pa.schema([("double", pa.int32()), ("upper", pa.string()), ("one", pa.int8())])
    columns = (pl.col("n") * 2, pl.col("text").str.to_uppercase().alias("upper"), pl.lit(1).alias("one"))
    made = rig(SelectStep(columns=(columns[0].alias("double"), *columns[1:]), keep=False, schema=schema))
    made.operator.process(batch_of([1, None]))
    (found,) = made.output.items
    assert found.schema == schema
    assert found.to_pylist() == [{"double": 2, "upper": "T1", "one": 1}, {"double": None, "upper": None, "one": 1}]


def test_constants_alone_have_a_row_for_every_record(rig):
    schema = pa.schema([("one", pa.int64())])
    made = rig(SelectStep(columns=(pl.lit(1).alias("one"),), keep=False, schema=schema))
    made.operator.process(batch_of([1, 2, 3]))
    assert made.output.rows == [{"one": 1}] * 3


def test_with_columns_leaves_the_others_the_arrays_they_were(rig):
    schema = SCHEMA.set(0, pa.field("n", pa.float64())).append(pa.field("more", pa.int64()))
    columns = ((pl.col("n") / 2).alias("n"), (pl.col("n") + 1).alias("more"))
    made = rig(SelectStep(columns=columns, keep=True, schema=schema))
    batch = batch_of([2, 4])
    made.operator.process(batch)
    (found,) = made.output.items
    assert found.schema == schema
    # Both new columns see the record as it came in.
    assert [(row["n"], row["more"]) for row in found.to_pylist()] == [(1.0, 3), (2.0, 5)]
    for name in ("text", "small", "ts", "parts"):
        assert [b and b.address for b in found.column(name).buffers()] == [
            b and b.address for b in batch.column(name).buffers()
        ]


def test_an_expression_may_stand_for_several_columns(rig):
    schema = pa.schema([("n", pa.int64()), ("small", pa.int8())])
    made = rig(SelectStep(columns=(pl.col("n", "small"),), keep=False, schema=schema))
    made.operator.process(batch_of([1]))
    assert made.output.rows == [{"n": 1, "small": 1}]
    assert made.output.items[0].schema == schema


def test_empty_batches_are_not_handed_on(rig):
    for step in (
        WhereStep(condition=pl.col("n") > 0, schema=SCHEMA),
        SelectStep(columns=(pl.col("n"),), keep=True, schema=SCHEMA),
    ):
        made = rig(step)
        made.operator.process(batch_of([]))
        assert made.output.items == []


@pytest.mark.parametrize(
    "step",
    [
        WhereStep(condition=pl.col("text").cast(pl.Int64) > 0, schema=SCHEMA),
        SelectStep(
            columns=(pl.col("text").cast(pl.Int64).alias("x"),), keep=False, schema=pa.schema([("x", pa.int64())])
        ),
        SelectStep(columns=((pl.col("n") + 1000).alias("x"),), keep=False, schema=pa.schema([("x", pa.int8())])),
    ],
)
def test_an_expression_that_fails_on_data_is_the_programs_error(rig, step):
    made = rig(step, subtask=2, parallelism=3)
    with pytest.raises(UserCodeError, match="user function of 'the step' failed in subtask 2"):
        made.operator.process(batch_of([1]))


# --- union -----------------------------------------------------------------------------------------------------------


def test_a_union_hands_on_all_inputs_under_one_schema(rig):
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False)], metadata={"from": "one"})
    common = pa.schema([pa.field("n", pa.int64())])
    made = rig(UnionStep(schema=common))
    made.operator.process(pa.record_batch({"n": [1]}, schema=strict))
    made.operator.process(pa.record_batch({"n": [None]}, schema=common))
    assert [row["n"] for row in made.output.rows] == [1, None]
    assert all(item.schema.equals(common, check_metadata=True) for item in made.output.items)

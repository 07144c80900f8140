"""A record of each element of an array, whatever the length of the arrays. Which records is tested against Spark."""

from __future__ import annotations

import pickle

import cloudpickle
import polars as pl
import pyarrow as pa
import pytest

from penstock.api.steps import Explosion, SelectStep
from penstock.runtime.task.slices import Slice

SCHEMA = pa.schema([("id", pa.int64()), ("xs", pa.list_(pa.int64()))])


@pytest.fixture
def step():
    made = SelectStep(
        columns=(pl.col("id"), pl.col("xs").alias("x")),
        keep=False,
        schema=pa.schema([("id", pa.int64()), ("i", pa.int32()), ("x", pa.int64())]),
        explosion=Explosion(column="x", position="i"),
    )
    return pickle.loads(cloudpickle.dumps(made))


def batch(*rows):
    return pa.RecordBatch.from_pylist([dict(zip(("id", "xs"), row, strict=True)) for row in rows], schema=SCHEMA)


def test_long_arrays_leave_in_batches_of_bounded_size(rig, step):
    made = rig(step)
    # A slice: the elements of the first array are in the buffers, and are no elements of the batch.
    given = batch((0, [8, 9]), (1, list(range(200_000))), (2, None), (3, [7])).slice(1)
    work = made.operator.process(given)
    while work is not None and work.go_on():
        pass
    assert [item.num_rows for item in made.output.items] == [65_536, 65_536, 65_536, 3_393]
    whole = pa.Table.from_batches(made.output.items)
    assert whole.column("x").to_pylist() == [*range(200_000), 7]
    assert whole.column("i").to_pylist() == [*range(200_000), 0]
    assert whole.column("id").to_pylist() == [1] * 200_000 + [3]


def test_the_batches_of_long_arrays_leave_in_slices(rig, step):
    made = rig(step)
    made.operator.slice = Slice()
    made.operator.slice.run_by(lambda: 0.0, most=1)
    made.operator.slice.begin()
    made.operator.slice.end()
    work = made.operator.process(batch((1, list(range(100_000)))))
    assert [item.num_rows for item in made.output.items] == [65_536]
    assert not work.may_snapshot
    work.go_on()
    assert [item.num_rows for item in made.output.items] == [65_536, 34_464]


def test_a_batch_without_elements_gives_nothing(rig, step):
    made = rig(step)
    made.operator.process(batch((0, [])))
    made.operator.process(batch())
    assert made.output.items == []

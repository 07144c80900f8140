"""Joins of a stream with a table: the results are those of a loop over all records and rows."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_rig import Output, same_key

from penstock.api.join_steps import JoinKind, TableJoinStep
from penstock.api.static_tables import GivenTable
from penstock.api.streams.join_words import ColumnsByKey, pair_columns
from penstock.core.ids import Epoch, Instant, JobId, TaskId, VertexId
from penstock.plan.key_groups import range_of
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.build import build_operator
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.slices import Slice

GROUPS = 16
KINDS = [JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI]
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bigint": (pa.int64(), [None, 0, 1, 2**40, 7]),
    "double": (pa.float64(), [None, 0.0, -0.0, math.nan, 2.5]),
    "string": (pa.string(), [None, "", "Aa", "BB"]),
}


def step_of(how: JoinKind, key: pa.DataType, table: list[Any], *, by_key: bool, where: Any = None) -> TableJoinStep:
    schema = pa.schema([("k", key), ("l", pa.int64())])
    rows = pa.table({"rk": pa.array(table, key), "r": pa.array(range(len(table)), pa.int64())})
    pairs = pair_columns(
        ColumnsByKey(keys=("k",), schema=schema), ColumnsByKey(keys=("rk",), schema=rows.schema), suffix=None
    )
    return TableJoinStep(
        keys=("k",),
        table_keys=("rk",),
        table=GivenTable(rows),
        by_key=by_key,
        how=how,
        columns=pairs if how.has_pairs else tuple(column for column in pairs if column.left is not None),
        where=where,
        where_columns=() if where is None else pairs,
    )


def results(step: TableJoinStep, batches: list[list[Any]], *, parallelism: int = 1, most: int | None = None) -> Any:
    """The results of records with these keys; the records are numbered."""
    output, operators = Output(), []
    unused: Any = None
    for subtask in range(parallelism):
        operator = build_operator(step)
        context = OperatorContext(
            job=JobId("job"),
            epoch=Epoch(1),
            task=TaskId(VertexId("join"), subtask),
            operator="join",
            name="join",
            parallelism=parallelism,
            max_parallelism=GROUPS,
            key_groups=range_of(subtask, parallelism=parallelism, groups=GROUPS),
            now=lambda: Instant(0),
            background=unused,
            restored=(),
            fresh=True,
            reader=unused,
            fail=unused,
        )
        operator.slice = Slice()
        if most is not None:
            operator.slice.run_by(lambda: 0.0, most)
        operator.load(context)
        operator.open(context, output)
        operators.append(operator)
    number = 0
    for keys in batches:
        numbers = pa.array(range(number, number + len(keys)), pa.int64())
        number += len(keys)
        batch = pa.record_batch({"k": pa.array(keys, step.columns[0].field.type), "l": numbers})
        parts = partition(batch, ("k",), parallelism=parallelism, groups=GROUPS) if step.by_key else [batch]
        for operator, part in zip(operators, parts, strict=False):
            operator.slice.begin()
            work = None if part is None else operator.process(part)
            while work is not None:
                operator.slice.begin()
                work = work if work.go_on() else None
    at = [step.schema.names.index(name) for name in ("l", "r") if name in step.schema.names]
    return Counter(tuple(row[i] for i in at) for row in output.rows)


def expected(step: TableJoinStep, keys: list[Any], table: list[Any]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for number, key in enumerate(keys):
        met = [row for row, other in enumerate(table) if same_key(key, other)]
        if step.how.has_pairs:
            found.update((number, row) for row in met)
            found.update([(number, None)] if step.how is JoinKind.LEFT and not met else [])
        else:
            found.update([(number,)] if bool(met) is (step.how is JoinKind.SEMI) else [])
    return found


@pytest.mark.parametrize("how", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_results_are_those_of_a_loop(how: JoinKind, data: Any):
    key, values = KEYS[data.draw(st.sampled_from(sorted(KEYS)))]
    table = data.draw(st.lists(st.sampled_from(values), max_size=8))
    batches = data.draw(st.lists(st.lists(st.sampled_from(values), max_size=8), max_size=4))
    by_key = data.draw(st.booleans())
    step = step_of(how, key, table, by_key=by_key)
    parallelism = data.draw(st.integers(1, 3)) if by_key else 1
    found = results(step, batches, parallelism=parallelism, most=data.draw(st.sampled_from((None, 1, 3))))
    assert found == expected(step, [key for keys in batches for key in keys], table)


def test_many_rows_of_many_and_of_few_keys():
    draw = np.random.default_rng(1)
    for keys in (20, 100_000):
        table = draw.integers(0, keys, 2_000).tolist()
        batches = [draw.integers(0, keys, 300).tolist() for _ in range(3)]
        step = step_of(JoinKind.LEFT, pa.int64(), table, by_key=False)
        assert results(step, batches) == expected(step, [key for each in batches for key in each], table)


def test_a_condition_decides_which_rows_match():
    step = step_of(JoinKind.LEFT, pa.int64(), [1, 1, 2], by_key=False, where=pl.col("l") == pl.col("r"))
    assert results(step, [[1, 1, 1, 2]]) == {(0, 0): 1, (1, 1): 1, (2, None): 1, (3, None): 1}


def test_a_record_of_a_hot_key_is_handed_on_in_slices():
    step = step_of(JoinKind.INNER, pa.int64(), [1] * 100, by_key=False)
    assert results(step, [[1] * 10], most=7).total() == 1_000


def test_people_may_look_before_the_table_has_been_read():
    operator = build_operator(step_of(JoinKind.INNER, pa.int64(), [1], by_key=False))
    assert operator.metrics() == {"table_rows": 0}


def test_a_subtask_keeps_the_rows_of_its_keys_alone():
    step = step_of(JoinKind.INNER, pa.int64(), list(range(100)), by_key=True)
    assert results(replace(step), [list(range(100))], parallelism=3).total() == 100

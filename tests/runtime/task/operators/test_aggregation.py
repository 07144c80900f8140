from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.steps import Aggregate
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.core.errors import UsageError
from penstock.runtime.task.operators import dense
from penstock.runtime.task.operators.aggregation import group
from penstock.runtime.task.operators.dense import Calculation, group_dense, int64_values, order_of

UTC_TIME = pa.timestamp("us", "UTC")
SIZE = 1_000
CALCULATIONS = [
    Calculation(None, "count", "n"),
    Calculation("v", "count", "known"),
    Calculation("v", "sum", "total"),
    Calculation("v", "min", "low"),
    Calculation("v", "max", "high"),
]


def table_of(rows, *, chunks=1):
    """(key, window number, value) as a table, in as many pieces as asked for."""
    columns = list(zip(*rows, strict=True))
    table = pa.table(
        {
            "k": pa.array(columns[0], pa.int64()),
            "window_start": pa.array([n * SIZE for n in columns[1]]).cast(UTC_TIME),
            "v": pa.array(columns[2], pa.int64()),
        }
    )
    length = -(-len(rows) // chunks)
    return pa.concat_tables([table.slice(i, length) for i in range(0, len(rows), length)])


def by_definition(rows):
    found = {}
    for key, window, value in rows:
        found.setdefault((window, key), []).append(value)
    return [(key, w, len(v), len(v), sum(v), min(v), max(v)) for (w, key), v in sorted(found.items())]


def flat(table):
    starts = int64_values(table.column("window_start")) // SIZE
    names = ["n", "known", "total", "low", "high"]
    columns = [table.column("k").to_pylist(), starts.tolist(), *(table.column(c).to_pylist() for c in names)]
    return list(zip(*columns, strict=True))


ROWS = st.lists(
    st.tuples(st.integers(-20, 20), st.integers(-3, 3), st.integers(-(2**40), 2**40)), min_size=1, max_size=60
)


@given(ROWS, st.integers(1, 3))
def test_addressing_gives_what_the_definition_says_in_order(rows, chunks):
    keys = ["k", "window_start"]
    found = group_dense(table_of(rows, chunks=chunks), keys, CALCULATIONS, spacing_us=SIZE)
    assert flat(found) == by_definition(rows)
    assert found.schema.field("window_start").type == UTC_TIME


@given(ROWS, st.integers(1, 3), st.sampled_from([1, 7, 100]))
def test_sorting_gives_the_same_rows_as_addressing_in_pieces_of_any_size(rows, chunks, piece_rows):
    """Keys far apart are sorted. A piece ends where the rows of a key and window end."""
    far = [(key * 2**40, window, value) for key, window, value in [*rows, (20, 0, 5), (-21, 1, 5)]]
    table = table_of(far, chunks=chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "_PIECE_ROWS", piece_rows)
        patch.setattr(dense, "_addressed", None)
        found = group_dense(table, ["k", "window_start"], CALCULATIONS, spacing_us=SIZE)
        alone = group_dense(table.drop_columns(["window_start"]), ["k"], CALCULATIONS, spacing_us=None)
    assert flat(found) == by_definition(far)
    assert found.schema.field("window_start").type == UTC_TIME
    assert alone.column("total").to_pylist() == [row[4] for row in by_definition([(k, 0, v) for k, _, v in far])]


@given(st.lists(st.integers(0, 2**20) | st.integers(0, 2**63 - 1), max_size=200))
def test_numbers_are_put_in_order_however_large_they_are(numbers):
    codes = np.array(numbers, np.int64)
    assert codes[order_of(codes)].tolist() == sorted(numbers)


@given(ROWS)
def test_hashing_gives_the_same_rows_as_addressing(rows):
    """Keys far apart are hashed: the same rows, keys aside, in whatever order."""
    far = [(key * 2**50, window, value) for key, window, value in rows]
    table = table_of([*far, (2**62, 0, 0)])
    assert group_dense(table, ["k", "window_start"], CALCULATIONS, spacing_us=SIZE) is None
    found = group(table, ["k", "window_start"], CALCULATIONS, window=TumblingWindow(size_us=SIZE))
    assert sorted(flat(found), key=lambda row: (row[1], row[0])) == by_definition([*far, (2**62, 0, 0)])


@given(ROWS)
def test_without_a_window_keys_alone_are_grouped(rows):
    table = table_of(rows).drop_columns(["window_start"])
    found = group_dense(table, ["k"], CALCULATIONS, spacing_us=SIZE)
    expected = by_definition([(key, 0, value) for key, _, value in rows])
    assert found.column("k").to_pylist() == [row[0] for row in expected]
    assert found.column("total").to_pylist() == [row[4] for row in expected]


def test_addressing_is_not_for_nulls_other_types_or_nothing():
    plain = table_of([(1, 0, 1), (2, 0, 2)])
    nulls = plain.set_column(0, "k", pa.array([1, None]))
    null_values = plain.set_column(2, "v", pa.array([None, 1]))
    texts = plain.set_column(0, "k", pa.array(["a", "b"]))
    small = plain.set_column(2, "v", pa.array([1, 2], pa.int32()))
    for table in (nulls, null_values, texts, small, plain.slice(0, 0)):
        assert group_dense(table, ["k", "window_start"], CALCULATIONS, spacing_us=SIZE) is None
    assert group_dense(plain, ["k", "v"], CALCULATIONS[:1], spacing_us=SIZE) is None


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1), st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_time_falls_into_the_window_that_starts_at_or_before_it(times, size, offset):
    array = int64_values(pa.array(times))
    starts = TumblingWindow(size_us=size, offset_us=offset).assign(array).tolist()
    for time, start in zip(times, starts, strict=True):
        assert start <= time < start + size
        assert (start - offset) % size == 0
    assert array.tolist() == times


# --- columns ---------------------------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("i", pa.int16()),
        ("u", pa.uint64()),
        ("f", pa.float32()),
        ("ts", UTC_TIME),
        ("s", pa.string()),
    ]
)


def aggregate(kind, column, name="x"):
    return Aggregate(name=name, kind=kind, column=column)


def shape(*aggregates, keys=("k",), time="ts", schema=SCHEMA):
    arguments = {"keys": keys, "time_column": time, "aggregates": aggregates}
    partial, result = partial_schema(schema, **arguments), result_schema(schema, **arguments)
    return {f.name: f.type for f in partial}, {f.name: f.type for f in result}


def test_partials_and_results_have_these_columns():
    partial, result = shape(
        aggregate("count", None, "n"),
        aggregate("sum", "i", "total"),
        aggregate("sum", "f", "weight"),
        aggregate("min", "s", "first"),
        aggregate("mean", "i", "average"),
    )
    common = {"k": pa.string(), "window_start": UTC_TIME}
    values = {"n": pa.int64(), "total": pa.int64(), "weight": pa.float64(), "first": pa.string()}
    assert partial == {**common, **values, "average": pa.int64(), "average__count": pa.int64()}
    assert result == {**common, "window_end": UTC_TIME, **values, "average": pa.float64()}
    assert list(result) == ["k", "window_start", "window_end", "n", "total", "weight", "first", "average"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"aggregates": (aggregate("sum", "s"),)}, "column 's' of type string has no sum"),
        ({"aggregates": (aggregate("sum", "u"),)}, "column 'u' of type uint64 has no sum"),
        ({"aggregates": (aggregate("mean", "ts"),)}, "column 'ts' of type timestamp.* has no mean"),
        ({"aggregates": (aggregate("max", None),)}, "max needs a column"),
        ({"aggregates": (aggregate("median", "i"),)}, "unknown kind 'median'"),
        ({"aggregates": (aggregate("max", "nope"),)}, "column 'nope' does not exist"),
        ({"aggregates": ()}, "at least one aggregate"),
        ({"aggregates": (aggregate("max", "i", "k"),)}, "two columns named 'k'"),
        ({"aggregates": (aggregate("max", "i", "window_end"),)}, "two columns named 'window_end'"),
        ({"time_column": "i"}, "time column 'i' is of type int16, and windows need timestamp"),
        ({"time_column": "then"}, "time column 'then' does not exist"),
    ],
)
def test_a_window_that_cannot_be_made_says_why(wrong, text):
    arguments = {"keys": ("k",), "time_column": "ts", "aggregates": (aggregate("max", "i"),), **wrong}
    with pytest.raises(UsageError, match=text):
        result_schema(SCHEMA, **arguments)


def test_a_time_of_another_unit_is_refused():
    schema = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ns"))])
    with pytest.raises(UsageError, match=r"timestamp\[ns\], and windows need timestamp\[us\]"):
        shape(aggregate("count", None), schema=schema)

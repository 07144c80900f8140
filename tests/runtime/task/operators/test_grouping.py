"""Rows are grouped by key as a dict would, keys in the order of their first rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.runtime.task.operators.grouped import group_rows


@pytest.mark.parametrize(
    "columns",
    [
        {"a": pa.array([1, 2, 1, None, 2, None])},
        {"a": pa.array(["x", "y", "x", None, "", "x"])},
        {"a": pa.array([0.0, -0.0, float("nan"), 1.0, None, float("nan")])},
        {"a": pa.array([1, 1, 2, 1, 2, 1]), "b": pa.array(["p", "q", "p", "p", None, "q"])},
        {"a": pa.array([True, False, True, None, False, True]), "b": pa.array([1, 1, 1, 1, 1, 1])},
        {"a": pa.array([7, 7, 7, 7, 7, 7])},
        {"a": pa.array([6, 5, 4, 3, 2, 1])},
    ],
)
def test_rows_are_grouped_as_a_dict_would(columns):
    batch = pa.RecordBatch.from_pydict({**columns, "n": pa.array(range(6))})
    found = group_rows(batch, list(columns))
    want: dict = {}
    for n, key in enumerate(zip(*(c.to_pylist() for c in columns.values()), strict=True)):
        same = tuple("nan" if isinstance(v, float) and v != v else v for v in key)
        want.setdefault(same, []).append(n)
    numbers = found.rows.column("n").to_pylist()
    assert [numbers[a:b] for a, b in zip(found.bounds[:-1], found.bounds[1:], strict=True)] == list(want.values())
    firsts = list(zip(*(c.to_pylist() for c in found.firsts.columns), strict=True))
    assert [tuple("nan" if isinstance(v, float) and v != v else v for v in key) for key in firsts] == list(want)

"""Sums and means of decimals that were written once must be readable for ever, and are written so today."""

from __future__ import annotations

from pathlib import Path

import golden_decimals as content
import pyarrow as pa
import pytest
from state_rig import GROUPS

from penstock.runtime.task.operators.aggregation import results
from penstock.runtime.task.operators.window_table import Layout, WindowTable, decode

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("decimals-v*"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("times", [1, 2])
def test_decimals_come_back_and_merge(version, times):
    rows, header = decode((HERE / version / content.FILE).read_bytes(), (0, GROUPS - 1))
    assert header.layout == Layout.of(content.STEP)
    table = WindowTable(content.STEP)
    for _ in range(times):
        table.append(rows)
    due = table.take_due(0)
    shape = {"window": content.WINDOW, "aggregates": content.AGGREGATES, "schema": content.STEP.schema}
    found = {row["k"]: row for row in results(due, keys=("k",), **shape).to_pylist()}
    for key, expected in content.EXPECTED.items():
        times_as_much = {
            name: value * times if value is not None and name.startswith("sum") else value
            for name, value in expected.items()
        }
        assert {name: found[key][name] for name in expected} == times_as_much


def test_today_the_same_state_is_written_with_the_same_structure():
    (name,) = content.files()
    old, new = (
        pa.ipc.open_stream(data).read_all()
        for data in ((HERE / VERSIONS[-1] / name).read_bytes(), content.files()[name])
    )
    assert old.schema.equals(new.schema, check_metadata=True)
    assert old.equals(new)

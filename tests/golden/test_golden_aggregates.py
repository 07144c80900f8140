"""Partial aggregates that were written once must be readable for ever, and today's code must still write them so."""

from __future__ import annotations

from pathlib import Path

import golden_aggregates as content
import pyarrow as pa
import pytest
from state_rig import GROUPS

from penstock.runtime.task.operators.aggregation import results
from penstock.runtime.task.operators.window_table import Layout, WindowTable, decode

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("aggregates-v*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_of_aggregate_comes_back_and_goes_on(version):
    data = (HERE / version / content.FILE).read_bytes()
    rows, header = decode(data, (0, GROUPS - 1))
    assert header.layout == Layout.of(content.STEP)
    table = WindowTable(content.STEP)
    table.append(rows)
    # Merged with the state of no more records: every fold reads what was saved.
    table.append(decode(data, (0, GROUPS - 1))[0].slice(0, 0))
    due = table.take_due(0)
    found = results(
        due, keys=("k",), window=content.WINDOW, aggregates=content.AGGREGATES, schema=content.STEP.schema
    ).to_pylist()
    shown = {row["k"]: {name: row[name] for name in content.EXPECTED["a"]} for row in found}
    for key, expected in content.EXPECTED.items():
        assert shown[key] == {
            name: pytest.approx(value) if isinstance(value, float) else value for name, value in expected.items()
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_state_that_is_merged_with_itself_has_every_record_twice(version):
    """Every fold that merges reads both states."""
    rows, _ = decode((HERE / version / content.FILE).read_bytes(), (0, GROUPS - 1))
    table = WindowTable(content.STEP)
    table.append(rows)
    table.append(rows)
    merged = results(
        table.take_due(0), keys=("k",), window=content.WINDOW, aggregates=content.AGGREGATES, schema=content.STEP.schema
    ).to_pylist()
    (row,) = [row for row in merged if row["k"] == "a"]
    assert row["list"] == ["one", "three", "one", "three"]
    assert row["top"] == [4.0, 4.0]
    assert (row["some"], row["distinct"], row["letters"]) == (4, 2, "ehnort")
    assert row["variance"] == pytest.approx(2.4)


def test_today_the_same_state_is_written_with_the_same_structure():
    (name,) = content.files()
    old, new = (
        pa.ipc.open_stream(data).read_all()
        for data in ((HERE / VERSIONS[-1] / name).read_bytes(), content.files()[name])
    )
    assert old.schema.equals(new.schema, check_metadata=True)
    assert old.equals(new)

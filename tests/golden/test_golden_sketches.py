"""Sketches that were written once must be readable for ever. They need the extra `sketches`."""

from __future__ import annotations

from pathlib import Path

import golden_sketches as content
import pytest
from state_rig import GROUPS

from penstock.runtime.task.operators.aggregation import results
from penstock.runtime.task.operators.window_table import Layout, WindowTable, decode

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("sketches-v*"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("times", [1, 2])
def test_sketches_come_back_and_merge(version, times):
    pytest.importorskip("datasketches", reason="the extra sketches is not installed")
    rows, header = decode((HERE / version / content.FILE).read_bytes(), (0, GROUPS - 1))
    assert header.layout == Layout.of(content.STEP)
    table = WindowTable(content.STEP)
    for _ in range(times):
        table.append(rows)
    (found,) = results(
        table.take_due(0), keys=("k",), window=content.WINDOW, aggregates=content.AGGREGATES, schema=content.STEP.schema
    ).to_pylist()
    assert {name: found[name] for name in content.EXPECTED} == content.EXPECTED

"""Checkpoints of sorts that were written once must be restorable for ever, and read as tables; and today's code must
still write the same."""

from __future__ import annotations

import json
from pathlib import Path

import golden_sorts as content
import pyarrow as pa
import pytest
from golden_runs import states_in, store_of

from penstock.runtime.task.operators.window_table import read_file
from penstock.savepoints.tables import WINDOWS, file_sets, read_files
from penstock.state.runs import RunSnapshot, is_runs

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("sorts-v*"))
NEWEST = HERE / VERSIONS[-1]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("kind", content.KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_records_that_had_not_left_come_back_in_order_at_any_parallelism(version, kind, parallelism):
    folder = HERE / version / kind
    parts = list(content.restored(kind, folder, parallelism))
    found = sorted((row for part in parts for row in part), key=repr)
    assert found == json.loads((folder / "to-come.json").read_text())
    assert found
    for part in parts:
        assert [row[1] for row in part] == sorted(row[1] for row in part)


@pytest.mark.parametrize("kind", content.KINDS)
def test_today_the_same_files_are_written(kind):
    """Arrow may lay out its own bytes otherwise from one release to the next; what they say is ours."""
    today = {path: data for path, data in content.files().items() if path.startswith(f"{kind}/")}
    written = {f"{kind}/{path.name}": path.read_bytes() for path in (NEWEST / kind).iterdir()}
    assert sorted(today) == sorted(written)
    for path in today:
        old, new = written[path], today[path]
        if is_runs(new):
            state = next(s for s in states_in(NEWEST / kind) if f"{kind}/{s.keyed[0].path}" == path)
            before, after = (RunSnapshot(data, state.keyed, what=path) for data in (old, new))
            assert before.index.runs == after.index.runs
            assert any(entry.first for entry in after.index.runs)
            assert [read_file(section) for section in before.sections] == [
                read_file(section) for section in after.sections
            ]
        elif path.endswith(".json"):
            assert path.endswith("state.json") or old == new
        else:
            assert pa.ipc.open_stream(old).read_all().equals(pa.ipc.open_stream(new).read_all(), check_metadata=True)


def test_the_records_are_read_as_tables():
    folder = NEWEST / "by-key"
    rows = []
    for state in states_in(folder):
        store = store_of(folder)
        (files,) = file_sets(state.keyed, store)
        found = read_files(files, store, what="it")
        (table,) = found.tables
        assert table.columns.names == ["key_group", "k", "ts", "n"]
        rows += [row["n"] for part in found.row_tables(WINDOWS, WINDOWS) for row in part.to_pylist()]
    assert sorted(rows) == sorted(row[2] for row in json.loads((folder / "to-come.json").read_text()))

"""Checkpoints of windows in runs that were written once must be restorable for ever, and read as tables; and today's
code must still write the same."""

from __future__ import annotations

import json
from pathlib import Path

import golden_runs as content
import pyarrow as pa
import pytest

from penstock.runtime.task.operators.window_table import is_window, read_file
from penstock.savepoints.tables import WINDOWS, RunsContent, file_sets, read_files
from penstock.state.runs import RunSnapshot, is_runs

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("runs-v*"))
NEWEST = HERE / VERSIONS[-1]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("kind", content.WINDOWS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_windows_that_had_not_been_handed_on_come_back_at_any_parallelism(version, kind, parallelism):
    folder = HERE / version / kind
    found = sorted(content.restored(kind, folder, parallelism), key=repr)
    assert found == json.loads((folder / "to-come.json").read_text())
    assert found


@pytest.mark.parametrize("kind", content.WINDOWS)
def test_today_the_same_files_are_written(kind):
    """Arrow may lay out its own bytes otherwise from one release to the next; what they say is ours."""
    today = {path: data for path, data in content.files().items() if path.startswith(f"{kind}/")}
    written = {f"{kind}/{path.name}": path.read_bytes() for path in (NEWEST / kind).iterdir()}
    assert sorted(today) == sorted(written)
    for path in today:
        old, new = written[path], today[path]
        if is_runs(new):
            old, new = (
                RunSnapshot(data, state.keyed, what=path)
                for data, state in zip((old, new), _states(kind, path), strict=True)
            )
            assert old.index.runs == new.index.runs
            assert [read_file(section)[0] for section in old.sections] == [
                read_file(section)[0] for section in new.sections
            ]
        elif not path.endswith(".json"):
            assert pa.ipc.open_stream(old).read_all().equals(pa.ipc.open_stream(new).read_all(), check_metadata=True)


def _states(kind, path):
    found = next(s for s in content.states_in(NEWEST / kind) if f"{kind}/{s.keyed[0].path}" == path)
    return found, found


@pytest.mark.parametrize("kind", content.WINDOWS)
def test_rows_have_left_runs_and_runs_are_shared(kind):
    states, store = content.states_in(NEWEST / kind), content.store_of(NEWEST / kind)
    entries = [e for s in states for e in RunSnapshot(store.get(s.keyed[0]), s.keyed, what="it").index.runs]
    assert any(entry.first for entry in entries)
    assert any(is_window(section) and read_file(section)[0].num_rows for section in _sections(states, store))
    # The name of a run's file has the checkpoint that wrote the file.
    assert {str(file.path).split("-")[-2] for state in states for file in state.keyed[1:]} == {"1"}


def _sections(states, store):
    return [
        each for state in states for each in RunSnapshot(store.get(state.keyed[0]), state.keyed, what="it").sections
    ]


@pytest.mark.parametrize("kind", content.WINDOWS)
def test_the_rows_of_runs_are_read_as_tables(kind):
    folder = NEWEST / kind
    states, store = content.states_in(folder), content.store_of(folder)
    rows, groups = 0, []
    for state in states:
        (files,) = file_sets(state.keyed, store)
        found = read_files(files, store, what="it")
        assert isinstance(found, RunsContent)
        (table,) = found.tables
        assert table.columns.names[:3] == ["key_group", "k", "window_start"]
        assert table.keys.names == ["k"]
        tables = list(found.row_tables(WINDOWS, WINDOWS))
        assert sum(each.num_rows for each in tables) == table.rows
        rows += table.rows
        groups += [group for each in tables for group in each.column("key_group").to_pylist()]
        half = found.row_tables(WINDOWS, WINDOWS, (0, 3))
        assert {group for each in half for group in each.column("key_group").to_pylist()} <= {0, 1, 2, 3}
        assert found.row_tables("x", "value") is None
    assert rows
    assert set(groups) <= set(range(content.GROUPS))

"""Checkpoints of joins in runs that were written once must be restorable for ever, and read as tables; and today's code
must still write the same."""

from __future__ import annotations

import json
from pathlib import Path

import golden_join_runs as content
import golden_runs
import pyarrow as pa
import pytest

from penstock.runtime.task.operators.join_files import FORMAT, JoinSnapshot, is_join_index
from penstock.runtime.task.operators.join_snapshot import read_join
from penstock.savepoints.tables import JOIN, JoinedContent, file_sets, read_files
from penstock.state.runs import is_runs

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("joinruns-v*"))
NEWEST = HERE / VERSIONS[-1]


def snapshots(folder):
    """The snapshot of each subtask."""
    store = content.store_of(folder)
    return [JoinSnapshot(store.get(s.keyed[0]), s.keyed, what="it") for s in golden_runs.states_in(folder)]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("kind", content.JOINS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_records_that_were_kept_match_at_any_parallelism(version, kind, parallelism):
    folder = HERE / version / kind
    found = content.restored(kind, folder, parallelism)
    assert found == json.loads((folder / "to-come.json").read_text())
    assert found


@pytest.mark.parametrize("kind", content.JOINS)
def test_today_the_same_files_are_written(kind):
    """Arrow may lay out its own bytes otherwise from one release to the next; what they say is ours."""
    today = {path: data for path, data in content.files().items() if path.startswith(f"{kind}/")}
    written = {f"{kind}/{path.name}": path.read_bytes() for path in (NEWEST / kind).iterdir()}
    assert sorted(today) == sorted(written)
    for path in today:
        old, new = written[path], today[path]
        if is_runs(new):
            state = next(s for s in golden_runs.states_in(NEWEST / kind) if f"{kind}/{s.keyed[0].path}" == path)
            old, new = (JoinSnapshot(data, state.keyed, what=path) for data in (old, new))
            assert old.header == new.header
            assert old.snapshot.index.runs == new.snapshot.index.runs
            changes = [[[*map(list, each.changes(run))] for run in range(len(each.files))] for each in (old, new)]
            assert changes[0] == changes[1]
            assert [read_join(part)[0] for part in old.parts] == [read_join(part)[0] for part in new.parts]
        elif not path.endswith(".json"):
            assert pa.ipc.open_stream(old).read_all().equals(pa.ipc.open_stream(new).read_all(), check_metadata=True)


@pytest.mark.parametrize("kind", content.JOINS)
def test_runs_are_shared_and_have_changed_since(kind):
    found = snapshots(NEWEST / kind)
    assert {each.header.format for each in found} == {FORMAT}
    entries = [entry for each in found for entry in each.snapshot.index.runs]
    runs = [run for each in found for run in each.header.runs]
    assert any(read_join(part)[0].num_rows for each in found for part in each.parts)
    # Rows of a regular join are done by their marks, and versions are done when they are merged.
    assert any(entry.first for entry in entries) is (kind != "regular")
    assert any(run.changes for run in runs) is (kind != "versions")
    # The name of a file has the checkpoint that wrote the file. Where many marks have changed, all were written anew.
    states = golden_runs.states_in(NEWEST / kind)
    written = {str(file.path).split("-")[-2] for state in states for file in state.keyed[1:]}
    assert written == ({"2", "3"} if kind == "regular" else {"2"})


@pytest.mark.parametrize("kind", content.JOINS)
def test_the_records_of_runs_are_read_as_tables(kind):
    states, store = golden_runs.states_in(NEWEST / kind), content.store_of(NEWEST / kind)
    assert all(is_join_index(store.get(state.keyed[0]), state.keyed) for state in states)
    groups, names, rows = [], [], 0
    for state in states:
        (files,) = file_sets(state.keyed, store)
        found = read_files(files, store, what="it")
        assert isinstance(found, JoinedContent)
        for table in found.tables:
            names.append(table.name)
            tables = list(found.row_tables(table.name, JOIN))
            assert sum(each.num_rows for each in tables) == table.rows
            assert all(each.schema == table.columns for each in tables)
            assert [table.columns.names[0], table.columns.names[-1]] == ["key_group", "mark"]
            rows += table.rows
            groups += [group for each in tables for group in each.column("key_group").to_pylist()]
            half = found.row_tables(table.name, JOIN, (0, 3))
            assert {group for each in half for group in each.column("key_group").to_pylist()} <= {0, 1, 2, 3}
        assert found.row_tables("x", JOIN) is None
    assert set(names) == {"left", "right"}
    assert len(set(groups)) > 8
    if kind == "regular":
        assert rows == 300 - 8 + 200 + 2

"""Checkpoints in runs of windows that show updates, and of windows of a number of records, that were written once must
be restorable for ever, and be read as tables; and today's code must still write the same."""

from __future__ import annotations

import json
from pathlib import Path

import golden_updating_runs as content
import pyarrow as pa
import pytest
from golden_runs import states_in, store_of

from penstock.runtime.task.operators.window_table import read_file
from penstock.savepoints.tables import RunsContent, file_sets, read_files
from penstock.state.runs import RunSnapshot, is_runs

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("updating_runs-v*"))
NEWEST = HERE / VERSIONS[-1]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("kind", content.WINDOWS)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_had_not_been_shown_comes_back_at_any_parallelism(version, kind, parallelism):
    folder = HERE / version / kind
    found = content.left(kind, content.restored(kind, folder, parallelism))
    assert found == json.loads((folder / "to-come.json").read_text())
    assert found


@pytest.mark.parametrize("kind", content.WINDOWS)
def test_today_the_same_files_are_written(kind):
    today = {path: data for path, data in content.files().items() if path.startswith(f"{kind}/")}
    written = {f"{kind}/{path.name}": path.read_bytes() for path in (NEWEST / kind).iterdir()}
    assert sorted(today) == sorted(written)
    keyed = {f"{kind}/{state.keyed[0].path}": state.keyed for state in states_in(NEWEST / kind)}
    for path in today:
        old, new = written[path], today[path]
        if is_runs(new):
            before, after = (RunSnapshot(data, keyed[path], what=path) for data in (old, new))
            assert before.index.runs == after.index.runs
            assert [*map(read_file, before.sections)] == [*map(read_file, after.sections)]
        elif path.endswith("to-come.json"):
            assert json.loads(old) == json.loads(new)
        elif not path.endswith(".json"):
            assert pa.ipc.open_stream(old).read_all().equals(pa.ipc.open_stream(new).read_all(), check_metadata=True)


def test_there_are_all_parts_shared_runs_and_rows_that_have_left_runs():
    parts, has_marks, checkpoints = {}, False, []
    for kind in content.WINDOWS:
        states, store = states_in(NEWEST / kind), store_of(NEWEST / kind)
        for state in states:
            snapshot = RunSnapshot(store.get(state.keyed[0]), state.keyed, what=kind)
            has_marks |= any(entry.marks for entry in snapshot.index.runs)
            checkpoints += [str(file.path).split("-")[-2] for file in state.keyed[1:]]
            for section in snapshot.sections:
                header = read_file(section)[1]
                parts[header.part] = parts.get(header.part, 0) + (header.runs or 0)
    assert has_marks
    assert {"1", "2"} <= set(checkpoints)
    assert all(parts[part] for part in ("rows", "waiting"))


@pytest.mark.parametrize("kind", content.WINDOWS)
def test_the_rows_of_runs_are_read_as_tables(kind):
    states, store = states_in(NEWEST / kind), store_of(NEWEST / kind)
    for state in states:
        (files,) = file_sets(state.keyed, store)
        found = read_files(files, store, what="it")
        assert isinstance(found, RunsContent)
        for table in found.tables:
            parts = [part for part in found.row_tables(table.name, table.kind) if part.num_rows]
            assert sum(part.num_rows for part in parts) <= table.rows
            assert all(part.schema.names[0] == "key_group" for part in parts)
        rows = RunSnapshot(store.get(state.keyed[0]), state.keyed, what="it").index.runs
        assert sum(table.rows for table in found.tables) >= sum(entry.rows for entry in rows if not entry.marks) // 2

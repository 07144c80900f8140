"""State of joins that was written once must be restorable for ever, and today's code must still write the same."""

from __future__ import annotations

import json
from pathlib import Path

import golden_joins as content
import pyarrow as pa
import pytest

from penstock.runtime.task.operators.join_snapshot import FORMAT, read_join
from penstock.savepoints.tables import StateFileContent

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("joins-v*"))
NEWEST = HERE / VERSIONS[-1]


WRITTEN = [(version, path.name) for version in VERSIONS for path in sorted((HERE / version).iterdir())]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize(("version", "kind"), WRITTEN)
def test_the_records_that_were_kept_match_at_any_parallelism(version, kind, parallelism):
    folder = HERE / version / kind
    assert content.restored(kind, folder, parallelism) == json.loads((folder / "to-come.json").read_text())


@pytest.mark.parametrize("kind", content.JOINS)
def test_today_the_same_files_are_written(kind):
    """Arrow may lay out its own bytes otherwise from one release to the next; what they say is ours."""
    today = {path: data for path, data in content.files().items() if path.startswith(f"{kind}/")}
    written = {f"{kind}/{path.name}": path.read_bytes() for path in (NEWEST / kind).iterdir()}
    assert sorted(today) == sorted(written)
    for path in today:
        if path.endswith(".json"):
            assert json.loads(today[path]) == json.loads(written[path])
            continue
        old, new = (pa.ipc.open_stream(files[path]).read_all() for files in (written, today))
        assert old.equals(new)
        assert old.schema.equals(new.schema, check_metadata=True)


def test_there_are_counts_and_pending_changes_of_regular_joins():
    read = [read_join(path.read_bytes()) for path in sorted((NEWEST / "regular").iterdir()) if path.suffix != ".json"]
    pending = [table for table, header in read if header.pending]
    assert {mark for table in pending for mark in table.column("__mark").to_pylist()} >= {1}
    counts = {mark for table, header in read if not header.pending for mark in table.column("__mark").to_pylist()}
    assert 0 in counts
    assert len(counts) > 2


def test_there_are_both_sides_marks_and_pending_records_of_the_format_of_today():
    read = [read_join(path.read_bytes()) for path in sorted((NEWEST / "full").iterdir()) if path.suffix != ".json"]
    assert {(header.side, header.pending) for _, header in read} == {(0, False), (1, False), (1, True)}
    assert {mark for table, _ in read for mark in table.column("__mark").to_pylist()} == {0, 1}
    assert {header.format for _, header in read} == {FORMAT}


def test_the_state_of_a_join_can_be_read_as_tables():
    paths = sorted(path for path in (NEWEST / "full").iterdir() if path.suffix != ".json")
    tables = [StateFileContent(path.read_bytes(), what="the state").tables[0] for path in paths]
    assert {(table.name, table.kind) for table in tables} == {
        ("left", "join"),
        ("right", "join"),
        ("right-pending", "join"),
    }
    assert tables[0].columns.names == ["key_group", "lt", "k", "l", "mark"]

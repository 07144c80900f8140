"""State of windows that show updates, and of windows of a number of records, that was written once must be restorable
for ever, and today's code must still write the same."""

from __future__ import annotations

import json
from pathlib import Path

import golden_updates as content
import pyarrow as pa
import pytest

from penstock.runtime.task.operators.table_state import ROWS
from penstock.runtime.task.operators.updating_windows import CHANGES, WAITING
from penstock.runtime.task.operators.window_table import FORMAT, read_file

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("updates-v*"))
NEWEST = HERE / VERSIONS[-1]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("kind", content.WINDOWS)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_had_not_been_shown_comes_back_at_any_parallelism(version, kind, parallelism):
    folder = HERE / version / kind
    found = sorted(content.restored(kind, folder, parallelism), key=repr)
    assert found == json.loads((folder / "to-come.json").read_text())
    assert found


@pytest.mark.parametrize("kind", content.WINDOWS)
def test_today_the_same_files_are_written(kind):
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


def test_there_are_all_parts_of_the_format_of_today():
    files = [path for kind in content.WINDOWS for path in (NEWEST / kind).iterdir() if path.suffix != ".json"]
    headers = [read_file(path.read_bytes()) for path in sorted(files)]
    held = {header.part for rows, header in headers if rows.num_rows}
    assert {ROWS, CHANGES, WAITING} <= held
    assert {header.format for _, header in headers} == {FORMAT}

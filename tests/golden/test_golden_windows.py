"""State of windows that was written once must be restorable for ever, and today's code must still write the same."""

from __future__ import annotations

import json
from pathlib import Path

import golden_windows as content
import pyarrow as pa
import pytest

from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators.window_table import FORMAT, read_file

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("windows-v*"))
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
        if path.endswith(".json"):
            assert json.loads(today[path]) == json.loads(written[path])
            continue
        old, new = (pa.ipc.open_stream(files[path]).read_all() for files in (written, today))
        assert old.equals(new)
        assert old.schema.equals(new.schema, check_metadata=True)


@pytest.mark.parametrize("kind", ["sliding", "cumulative"])
def test_there_are_panes_and_whole_windows_of_the_format_of_today(kind):
    headers = [read_file(path.read_bytes())[1] for path in sorted((NEWEST / kind).iterdir()) if path.suffix != ".json"]
    assert {header.leaving is True for header in headers} == {True, False}
    assert {header.format for header in headers} == {FORMAT}
    assert all(entry.fired_us < MAX_WATERMARK for header in headers for entry in header.fired)

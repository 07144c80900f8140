"""State of first records and of deduplications that was written once must be restorable for ever."""

from __future__ import annotations

import json
from pathlib import Path

import golden_tops as content
import pyarrow as pa
import pytest

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("tops-v*"))
NEWEST = HERE / VERSIONS[-1]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("kind", content.KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_steps_go_on_at_any_parallelism(version, kind, parallelism):
    folder = HERE / version / kind
    expected = json.loads((folder / "to-come.json").read_text())
    assert expected
    assert content.restored(kind, folder, parallelism) == expected


@pytest.mark.parametrize("kind", content.KINDS)
def test_today_the_same_files_are_written(kind):
    """Arrow may lay out its own bytes otherwise from one release to the next; what they say is ours."""
    today = {path: data for path, data in content.files().items() if path.startswith(f"{kind}/")}
    written = {f"{kind}/{path.name}": path.read_bytes() for path in (NEWEST / kind).iterdir()}
    assert sorted(today) == sorted(written)
    for path in today:
        if path.endswith(".json"):
            assert today[path] == written[path]
        elif not path.endswith("-0"):
            old, new = (pa.ipc.open_stream(files[path]).read_all() for files in (written, today))
            assert old.schema.equals(new.schema, check_metadata=True)
            assert str(old.to_pylist()) == str(new.to_pylist())

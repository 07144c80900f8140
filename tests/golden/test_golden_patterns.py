"""State of patterns that was written once must be restorable for ever."""

from __future__ import annotations

import json
from pathlib import Path

import golden_patterns as content
import pytest
from state_rig import LOCAL_DIRECTORY

from penstock.settings import StateSettings
from penstock.state.format import CanonicalFile

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("patterns-v*"))
NEWEST = HERE / VERSIONS[-1]
SETTINGS = {
    "memory": StateSettings(),
    "rocksdb": StateSettings(backend="rocksdb", local_directory=LOCAL_DIRECTORY),
}


@pytest.mark.parametrize("backend", SETTINGS)
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("kind", content.KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_patterns_go_on_at_any_parallelism(version, kind, parallelism, backend):
    folder = HERE / version / kind
    expected = json.loads((folder / "to-come.json").read_text())
    assert {line.split()[0] for line in expected} == {"match", "timed"}
    assert content.restored(kind, folder, parallelism, SETTINGS[backend]) == expected


@pytest.mark.parametrize("kind", content.KINDS)
def test_today_the_same_files_are_written(kind):
    """Arrow may lay out its own bytes otherwise from one release to the next; what they say is ours."""
    today = {path: data for path, data in content.files().items() if path.startswith(f"{kind}/")}
    written = {f"{kind}/{path.name}": path.read_bytes() for path in (NEWEST / kind).iterdir()}
    assert sorted(today) == sorted(written)
    for path in today:
        if path.endswith(".json"):
            assert today[path] == written[path]
        else:
            old, new = (CanonicalFile(data, what=path).header for data in (written[path], today[path]))
            assert old == new

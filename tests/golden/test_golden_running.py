"""State of running aggregates that was written once must be restorable for ever."""

from __future__ import annotations

import json
from pathlib import Path

import golden_running as content
import pyarrow as pa
import pytest

from penstock.core.messages import StateFile
from penstock.runtime.task.operators.running_files import FORMAT, RunningSnapshot

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("running-v*"))
NEWEST = HERE / VERSIONS[-1]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("kind", content.KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_aggregates_go_on_at_any_parallelism(version, kind, parallelism):
    folder = HERE / version / kind
    expected = json.loads((folder / "to-come.json").read_text())
    assert content.restored(kind, folder, parallelism) == expected
    assert any("'insert'" in change for change in expected) == (kind == "changes")


@pytest.mark.parametrize("kind", content.KINDS)
def test_today_the_same_files_are_written(kind):
    """Arrow may lay out its own bytes otherwise from one release to the next; what they say is ours."""
    today = {path: data for path, data in content.files().items() if path.startswith(f"{kind}/")}
    written = {f"{kind}/{path.name}": path.read_bytes() for path in (NEWEST / kind).iterdir()}
    assert sorted(today) == sorted(written)
    for path in (path for path in today if not path.endswith(("-0", ".json"))):
        old, new = (pa.ipc.open_stream(files[path]).read_all() for files in (written, today))
        assert old.schema.equals(new.schema, check_metadata=True)
        assert str(old.to_pylist()) == str(new.to_pylist())


def test_there_are_segments_in_files_and_in_sections_and_keys_that_are_gone():
    reader = type("Reader", (), {"get": staticmethod(lambda file: Path(file.path).read_bytes())})
    for kind in ("records", "changes"):
        sections, runs, gone = [], [], []
        for number in range(content.PARALLELISM):
            names = sorted((NEWEST / kind).glob(f"{number}-*"), key=lambda path: int(path.name.partition("-")[2]))
            files = [StateFile(path=str(path), size=path.stat().st_size, checksum=0) for path in names]
            snapshot = RunningSnapshot(names[0].read_bytes(), files, what="the state")
            assert snapshot.header.format == FORMAT
            sections += snapshot.header.sections
            runs += snapshot.header.runs
            gone += [row["__gone"] for rows in snapshot.segments(reader) for row in rows.to_pylist()]
        assert sections
        assert runs
        assert any(gone) == (kind == "changes")

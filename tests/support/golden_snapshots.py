"""Where the golden snapshots of the newest version lie."""

from __future__ import annotations

from pathlib import Path

from golden_content import CHECKPOINT, DIRECTORY, JOB, SAVEPOINT_FOLDER

_NEWEST = max((Path(__file__).parents[1] / "golden").glob("v*"))
SAVEPOINT = _NEWEST / SAVEPOINT_FOLDER
JOB_FOLDER = _NEWEST / DIRECTORY / JOB
CHECKPOINT_FOLDER = JOB_FOLDER / f"chk-{CHECKPOINT}"

"""Bounds on the work of a restore: no byte of a snapshot is taken in twice by one subtask.

Each row of state takes some bytes of a file (`arrow_bounds`, `rocksdb.table_bounds`). So the rows of a restore are
bounded by the bytes of the files on disk, as long as no bytes count twice. Metadata of a few kilobytes could otherwise
name one file thousands of times, and a small savepoint would stand for billions of rows. A job never writes such a
snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.errors import CorruptFile
from penstock.core.messages import StateFile

_HINT = "the snapshot was changed, or made in order to exhaust the job: restore from another checkpoint or savepoint"


def check_named_once(files: Iterable[StateFile], *, what: str) -> None:
    """Raise `CorruptFile` if two handles name the same file; `what` names the state in the error."""
    paths: dict[str, None] = {}
    for file in files:
        if file.path is None:
            continue
        if file.path in paths:
            raise CorruptFile(
                f"{what} names the file {file.path} twice; a restore takes in at most the rows that the files on disk "
                "hold, each row once",
                hint=_HINT,
            )
        paths[file.path] = None


def check_apart(spans: Iterable[tuple[int, int]], *, what: str) -> None:
    """Raise `CorruptFile` if two spans, each from its start up to and not including its end, have something in common,
    or if a span begins below zero or ends before it begins. `what` names the spans in the error."""
    reached = 0
    for start, end in sorted(spans):
        if start < reached or end < start:
            raise CorruptFile(
                f"{what} overlap at {start}; a restore takes in at most the rows that the files on disk hold, each row "
                "once",
                hint=_HINT,
            )
        reached = end

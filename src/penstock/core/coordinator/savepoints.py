"""The savepoints that were asked for in this driver's term: their ids, their folders, and the files that are the
user's.

A savepoint that has ended is remembered only for acknowledgements that come late, or twice: such an acknowledgement
must not delete the user's files, and its paths are relative to the folder of the savepoint. So only the last completed
and the last failed savepoints are remembered. An older id may have been the id of a savepoint, and nobody knows.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.ids import CheckpointId

COMPLETED_REMEMBERED = 16
"""How many completed savepoints are remembered. All tasks have acknowledged such a savepoint: only an acknowledgement
that comes twice can still name it."""
FAILED_REMEMBERED = 64
"""How many failed savepoints are remembered. A slot that was given up may write files of such a savepoint until the
slot ends: the folder is deleted again at the end of the job."""


class _Given(NamedTuple):
    folder: str | None
    files: frozenset[str]


class Savepoints:
    """The savepoints that are under way, completed or failed."""

    def __init__(self) -> None:
        self._open: dict[CheckpointId, str | None] = {}
        """The folder of each savepoint that is under way; None before the folder is made."""
        self._completed: dict[CheckpointId, _Given] = {}
        self._failed: dict[CheckpointId, str | None] = {}
        self._forgotten = CheckpointId(0)

    def __contains__(self, checkpoint: CheckpointId) -> bool:
        return checkpoint in self._open or checkpoint in self._completed or checkpoint in self._failed

    def is_forgotten(self, checkpoint: CheckpointId) -> bool:
        """Whether this id is so old that nobody knows whether it was the id of a savepoint."""
        return checkpoint <= self._forgotten and checkpoint not in self

    def begin(self, checkpoint: CheckpointId) -> None:
        """A savepoint begins under that id."""
        self._open[checkpoint] = None

    def locate(self, checkpoint: CheckpointId, folder: str) -> None:
        """The savepoint has its folder. The paths of the savepoint's files are relative to the folder."""
        self._open[checkpoint] = folder

    def complete(self, checkpoint: CheckpointId, files: tuple[str, ...]) -> None:
        """The savepoint is complete, or may be: only the user may delete it."""
        self._completed[checkpoint] = _Given(self._open.pop(checkpoint, None), frozenset(files))
        if len(self._completed) > COMPLETED_REMEMBERED:
            self._forget(self._completed)

    def fail(self, checkpoint: CheckpointId) -> None:
        """The savepoint will never complete."""
        self._failed[checkpoint] = self._open.pop(checkpoint, None)
        if len(self._failed) > FAILED_REMEMBERED:
            self._forget(self._failed)

    def locate_failed(self, checkpoint: CheckpointId, folder: str | None) -> None:
        """The folder of a savepoint was made after the savepoint had failed. Nothing happens if the id is of no
        savepoint."""
        if folder is not None and checkpoint in self._failed:
            self._failed[checkpoint] = folder

    def _forget(self, ended: dict[CheckpointId, _Given] | dict[CheckpointId, str | None]) -> None:
        oldest = min(ended)
        del ended[oldest]
        self._forgotten = max(self._forgotten, oldest)

    def folder_of(self, checkpoint: CheckpointId) -> str | None:
        """The folder of the savepoint; None if the savepoint has no folder, or the id is of no savepoint."""
        given = self._completed.get(checkpoint)
        if given is not None:
            return given.folder
        return self._open.get(checkpoint, self._failed.get(checkpoint))

    def files_of_user(self, checkpoint: CheckpointId) -> frozenset[str]:
        """The files of a completed savepoint."""
        given = self._completed.get(checkpoint)
        return frozenset() if given is None else given.files

    @property
    def failed_folders(self) -> tuple[str, ...]:
        """The folders of the last savepoints that did not complete, the savepoints under way included."""
        folders = (*self._failed.values(), *self._open.values())
        return tuple(folder for folder in folders if folder is not None)

"""What a slot wrote for snapshots that nobody will use, and deletes again.

Whose is a file that a snapshot wrote?

    not acknowledged                        the slot's: the master has never heard of the file
    acknowledged, whatever becomes of it    the master's, from the moment the acknowledgement is sent: an abort, a lost
                                            message or the end of the link does not say whether the master has
                                            registered a shared file, which later checkpoints may then refer to

A task either acknowledges a snapshot or discards it, never both; so whatever is discarded here is the slot's. A handle
that is a placeholder names a file of an earlier checkpoint, and is never deleted. Files of one checkpoint alone go with
its folder as well, which the master deletes; shared ones lie beside all others, and nobody else knows of them.

A storage that refuses a snapshot often refuses to delete what there is of it, too. So what could not be deleted is
tried again whenever a checkpoint has completed: the storage works then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.errors import StorageError
from penstock.ports import Background, Store
from penstock.storage.snapshots import SnapshotWriter

ATTEMPTS = 5
"""A file that cannot be deleted so often stays, and is told."""

log = logging.getLogger(__name__)


class _Leftover(NamedTuple):
    store: Store
    path: str
    attempts: int = 0


class Leftovers:
    """Deletes files off the loop, and remembers what could not be deleted."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._lock = threading.Lock()
        self._left: list[_Leftover] = []

    def delete(self, store: Store, paths: Iterable[str]) -> None:
        """Have files deleted in the background."""
        self._submit([_Leftover(store, path) for path in paths])

    def delete_here(self, store: Store, paths: Iterable[str]) -> None:
        """Delete files. Blocks, and may be called beside the loop."""
        self._delete([_Leftover(store, path) for path in paths])

    def try_again(self) -> None:
        """Have deleted what could not be deleted before."""
        with self._lock:
            left, self._left = self._left, []
        self._submit(left)

    def _submit(self, files: list[_Leftover]) -> None:
        if files:
            self._background.submit(lambda: self._delete(files), lambda _: None)

    def _delete(self, files: list[_Leftover]) -> None:
        for file in files:
            try:
                file.store.delete(file.path)
            except StorageError as error:
                self._not_deleted(file._replace(attempts=file.attempts + 1), error)

    def _not_deleted(self, file: _Leftover, error: StorageError) -> None:
        if file.attempts < ATTEMPTS:
            with self._lock:
                self._left.append(file)
        else:
            text = (
                "%s, a file of a checkpoint that failed, could not be deleted (%s); penstock verify shows what is left"
            )
            log.warning(text, file.path, error, extra={"path": file.path, "error": str(error)})


class SnapshotPlace(SnapshotWriter):
    """Where a task writes one snapshot, and can take back what it wrote."""

    def __init__(
        self,
        store: Store,
        folder: str,
        prefix: str,
        inline_threshold: int,
        *,
        leftovers: Leftovers,
        shared_folder: str | None = None,
    ) -> None:
        super().__init__(store, folder, prefix, inline_threshold, shared_folder=shared_folder)
        self._leftovers = leftovers

    def discard(self) -> None:
        """Delete everything that was written here; for a snapshot that is not acknowledged. Blocks."""
        self._leftovers.delete_here(self._store, self.take_written())

"""Deletes the files that a slot wrote for snapshots that are not acknowledged.

Who owns a file of a snapshot?

    not acknowledged    the slot: the master has never heard of the file
    acknowledged        the master, from the moment the acknowledgement is sent: an abort, a lost message or the end of
                        the link does not tell the slot whether the master has registered a shared file, and later
                        checkpoints may refer to a registered file

A task either acknowledges a snapshot or discards the snapshot, never both. So the slot owns every file that is
discarded here. A handle that is a placeholder names a file of an earlier checkpoint, and that file is never deleted. A
file that belongs to a single checkpoint also goes when the master deletes the checkpoint's folder. A shared file lies
outside that folder, and only the slot knows of it.

A storage that refuses the files of a snapshot often refuses to delete files, too. So failed deletions are tried again
whenever a checkpoint has completed, because the storage works then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.errors import StorageError
from penstock.ports import Background, Store
from penstock.storage.snapshots import SnapshotWriter

TRIES = 5
"""After this many failed tries a file stays, and a warning names the file."""

log = logging.getLogger(__name__)


class _Leftover(NamedTuple):
    store: Store
    path: str
    tries: int = 0


class Leftovers:
    """Deletes files off the loop, and remembers the files that could not be deleted."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._lock = threading.Lock()
        self._left: list[_Leftover] = []

    def delete(self, store: Store, paths: Iterable[str]) -> None:
        """Have files deleted in the background."""
        self._submit([_Leftover(store, path) for path in paths])

    def delete_here(self, store: Store, paths: Iterable[str]) -> None:
        """Delete files in the calling thread. Blocks; may be called off the loop."""
        self._delete([_Leftover(store, path) for path in paths])

    def try_again(self) -> None:
        """Have the files deleted in the background that could not be deleted before."""
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
                self._not_deleted(file._replace(tries=file.tries + 1), error)

    def _not_deleted(self, file: _Leftover, error: StorageError) -> None:
        if file.tries < TRIES:
            with self._lock:
                self._left.append(file)
        else:
            text = "%s, a file of a failed checkpoint, could not be deleted (%s); penstock verify shows such files"
            log.warning(text, file.path, error, extra={"path": file.path, "error": str(error)})


class SnapshotPlace(SnapshotWriter):
    """Where a task writes the files of one snapshot, and can delete these files again."""

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
        """Delete all files that were written here, because the snapshot will not be acknowledged. Blocks."""
        self._leftovers.delete_here(self._store, self.take_written())

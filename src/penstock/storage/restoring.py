"""Snapshots that a job can start from: finding them, and reading their metadata."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.core.errors import StorageError, UsageError
from penstock.core.recovery.layout import METADATA_NAME
from penstock.core.recovery.metadata import CheckpointMetadata, CompletedCheckpoint
from penstock.core.recovery.places import folder_and_name, with_full_paths
from penstock.ports import Store
from penstock.storage.metadata import decode_metadata
from penstock.storage.places import read_file

_CHECKPOINT = re.compile(r"chk-(\d+)")
_SHOWN = 5
"""How many of the snapshots in a folder a message names."""


class FoundSnapshot(NamedTuple):
    """A savepoint or checkpoint that somebody pointed at."""

    folder: str
    """Its own folder, as a full path."""
    metadata: CheckpointMetadata
    """With full paths."""
    metadata_size: int

    @property
    def path(self) -> str:
        """Its metadata file."""
        return f"{self.folder}/{METADATA_NAME}"


def find_snapshot(store: Store, path: str) -> FoundSnapshot:
    """The snapshot at a full path: its folder, its metadata file, or the folder of a job, whose newest checkpoint is
    taken. Blocks. Raises `UsageError` if there is none, `CorruptFile` if it cannot be read."""
    folder = path.rstrip("/")
    parent, name = folder_and_name(folder)
    if name == METADATA_NAME:
        folder = parent
    inside = store.at(folder)
    files = inside.list_files("")
    if METADATA_NAME not in files:
        folder = f"{folder}/{_newest_in(folder, files)}"
        inside = store.at(folder)
    content = inside.read(METADATA_NAME)
    metadata = decode_metadata(f"{folder}/{METADATA_NAME}", content)
    return FoundSnapshot(folder, with_full_paths(metadata, folder), len(content))


def _newest_in(folder: str, files: list[str]) -> str:
    """The folder of the newest checkpoint among these files of the folder of a job."""
    names = [parent for parent, _, name in (path.rpartition("/") for path in files) if name == METADATA_NAME]
    numbers = {int(found[1]): name for name in names if (found := _CHECKPOINT.fullmatch(name))}
    if numbers:
        return numbers[max(numbers)]
    if not files:
        raise UsageError(f"there is nothing at {folder}", hint="give the folder of a savepoint or of a checkpoint")
    if not names:
        raise UsageError(
            f"{folder} holds no snapshot: no file {METADATA_NAME} is in it",
            hint="give the folder of a savepoint or of a checkpoint; one that was not completed has no such file",
        )
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise UsageError(
        f"{folder} holds several snapshots: {', '.join(names[:_SHOWN])}{more}", hint="give the folder of one of them"
    )


def read_completed(store: Store, completed: CompletedCheckpoint) -> CheckpointMetadata:
    """The metadata of a checkpoint that the job can go back to, such that its files can be found: one of its own, a
    savepoint that it took, or the snapshot that it was started from. Blocks. Raises `CorruptFile`, `StorageError`."""
    metadata = decode_metadata(completed.path, read_file(store, completed.path))
    if completed.claim is None and not completed.kind.is_savepoint:
        return metadata
    if metadata.checkpoint != completed.checkpoint:
        raise StorageError(
            f"{completed.path} is of {metadata.title}, and {completed.checkpoint} is expected there",
            hint="put back what was there when the job was started from it",
        )
    return with_full_paths(metadata, completed.location)

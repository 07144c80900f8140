"""Snapshots that a job can start from: finding them, and reading their metadata."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from penstock.core.errors import StorageError, UsageError
from penstock.core.recovery.layout import METADATA_NAME
from penstock.core.recovery.metadata import CheckpointMetadata, CompletedCheckpoint
from penstock.core.recovery.places import with_full_paths
from penstock.core.recovery.roots import below, split
from penstock.ports import Store
from penstock.storage.metadata import LARGEST_METADATA_BYTES, decode_metadata
from penstock.storage.places import read_file

_CHECKPOINT = re.compile(r"chk-(\d+)")
_SHOWN = 5
"""How many of the snapshots in a folder a message names."""


class FoundSnapshot(NamedTuple):
    """A savepoint or checkpoint that was found at a path."""

    folder: str
    """The folder of the snapshot, as a full path."""
    metadata: CheckpointMetadata
    """The metadata of the snapshot, with full paths."""
    metadata_size: int

    @property
    def path(self) -> str:
        """The path of the snapshot's metadata file."""
        return below(self.folder, METADATA_NAME)


def find_snapshot(store: Store, path: str, *, also_in: Collection[str] = ()) -> FoundSnapshot:
    """The snapshot at a full path. The path names the folder of the snapshot, its metadata file, the folder of a job,
    whose newest checkpoint is used, or a directory that has only checkpoints of one job, or only one snapshot. Files of
    the snapshot may lie in the checkpoint directories `also_in`, too. Blocks. Raises `UsageError` if there is no
    snapshot at the path, `CorruptFile` if the snapshot cannot be read, or names files that are not its own."""
    # Links in the path that the user gave are resolved here. Any other link was not put there by the user, and is not
    # followed.
    folder = store.followed(path.rstrip("/") or path)
    parent, name = split(folder)
    if name == METADATA_NAME:
        folder = parent
    inside = store.at(folder)
    files = inside.list_files("")
    if METADATA_NAME not in files:
        folder = below(folder, _newest_in(folder, files))
        inside = store.at(folder)
    content = inside.read(METADATA_NAME, limit=LARGEST_METADATA_BYTES)
    metadata = decode_metadata(below(folder, METADATA_NAME), content)
    return FoundSnapshot(folder, with_full_paths(metadata, folder, also_in=also_in), len(content))


def _newest_in(folder: str, files: list[str]) -> str:
    """The folder of the only snapshot among these files, or of the newest checkpoint, if all snapshots are checkpoints
    of one job."""
    names = [parent for parent, _, name in (path.rpartition("/") for path in files) if name == METADATA_NAME]
    if len(names) == 1:
        return names[0]
    split_names = [name.rpartition("/") for name in names]
    numbers = {int(found[1]): "".join(parts) for parts in split_names if (found := _CHECKPOINT.fullmatch(parts[2]))}
    own = {number: name for number, name in numbers.items() if "/" not in name}
    if own:
        return own[max(own)]
    if len(numbers) == len(names) and len({folder for folder, _, _ in split_names}) == 1:
        return numbers[max(numbers)]
    if not files:
        raise UsageError(f"there is nothing at {folder}", hint="give the folder of a savepoint or of a checkpoint")
    if not names:
        raise UsageError(
            f"{folder} holds no snapshot: no file {METADATA_NAME} is in it",
            hint="give the folder of a savepoint or of a checkpoint; a snapshot that is not complete has no such file",
        )
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise UsageError(
        f"{folder} holds several snapshots: {', '.join(names[:_SHOWN])}{more}",
        hint="give the folder of one snapshot; or give the folder of a job, to use its newest checkpoint",
    )


def read_completed(store: Store, completed: CompletedCheckpoint) -> CheckpointMetadata:
    """The metadata, with full paths, of a checkpoint that the job can go back to: a checkpoint of the job, a savepoint
    that the job took, or the snapshot that the job was started from. Blocks. Raises `CorruptFile`, `StorageError`."""
    content = read_file(store, completed.path, limit=LARGEST_METADATA_BYTES)
    metadata = decode_metadata(completed.path, content)
    known = dict.fromkeys(shared.file.path for shared in completed.shared_files if shared.file.path is not None)
    if metadata.checkpoint != completed.checkpoint:
        raise StorageError(
            f"{completed.path} is the metadata of {metadata.title}, and {completed.checkpoint} is expected there",
            hint="put back the snapshot that was there when the job used it last",
        )
    return with_full_paths(metadata, completed.location, known=known)

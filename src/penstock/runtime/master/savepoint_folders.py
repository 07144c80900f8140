"""The folder of a savepoint: made and tried before any task is told, and checked before the savepoint is complete.

A folder that cannot be used is an error of the user who asked for the savepoint. An error that is found before any task
is told costs the running job nothing. A folder that the hosts do not share is found when the slots have written: each
slot has made a folder of that name on its own host, and the driver does not find the files of the slot.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.core.errors import StorageError
from penstock.core.ids import CheckpointId, JobId
from penstock.core.recovery import layout, roots
from penstock.core.recovery.metadata import CheckpointMetadata
from penstock.ports import Store
from penstock.storage.places import delete_folder

TRIAL = "_trial"
"""The name of the file by which a folder is tried. File names that begin with an underscore are hidden."""
CHOICES = 100
"""How many names are tried for the folder of a savepoint. Another job of the same name may have left savepoints in the
folder that the user named, with the same numbers."""


def make_savepoint_folder(store: Store, target: str, job: JobId, checkpoint: CheckpointId) -> str:
    """Make a folder for a savepoint below `target`, and check that files can be written, read and deleted there.
    Blocks. Raises `StorageError` that says what is wrong with the folder."""
    location = None
    try:
        location = _free_folder(store, target, job, checkpoint)
        inside = store.at(location)
        inside.write(TRIAL, b"")
        inside.read(TRIAL)
        inside.delete(TRIAL)
    except StorageError as error:
        if location is not None:
            with suppress(StorageError):
                delete_folder(store, location)
        shown = roots.shown(target)
        raise StorageError(
            f"no savepoint can be written to {shown}: {error.message}", hint=error.hint, retry=error.retry
        ) from error
    return location


def _free_folder(store: Store, target: str, job: JobId, checkpoint: CheckpointId) -> str:
    for choice in range(1, CHOICES + 1):
        location = layout.savepoint_root(target, job, checkpoint, choice=choice)
        if not store.at(location).list_files(""):
            return location
    raise StorageError(
        f"the folder already has {CHOICES} savepoints with this name of a job and this number",
        hint="choose another folder",
    )


def check_savepoint_files(store: Store, location: str, metadata: CheckpointMetadata) -> None:
    """Check that the driver finds the files that slots wrote for a savepoint. Blocks. Raises `StorageError` if the
    driver does not find them all."""
    wanted = [file.path for file in metadata.files if file.path is not None]
    if not wanted:
        return
    there = set(store.at(location).list_files(""))
    missing = [path for path in wanted if path not in there]
    if missing:
        raise StorageError(
            f"the driver does not find {len(missing)} of the {len(wanted)} files that slots wrote into "
            f"{roots.shown(location)}, such as {missing[0]}",
            hint="give a folder that the driver and all executors have mounted, or the URI of object storage",
        )
